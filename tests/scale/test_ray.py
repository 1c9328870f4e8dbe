"""Cells on a real Ray cluster of this machine, without a shared file system."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from checkouts import CELLS, clean, fedrepro, surroundings
from repository import PATIENCE, outputs


@pytest.fixture
def alone():
    """A separate network is to be had."""
    pytest.importorskip("ray", reason="ray is not installed: make test-scale")
    programs = all(map(shutil.which, ("unshare", "ip")))
    if not programs or subprocess.run(["unshare", "-n", "true"]).returncode:
        pytest.skip("no network namespace here: it needs root, unshare and ip")


def test_a_node_dies_and_the_numbers_are_those_of_an_undisturbed_run(alone, project, undisturbed, tmp_path):
    script = Path(__file__).with_name("on_ray.py")
    ours = ":".join(map(str, (script.parent, script.parent.parent, script.parents[2])))
    done = subprocess.run(
        ["unshare", "-n", sys.executable, str(script), str(project), str(tmp_path), *CELLS],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=surroundings(PYTHONPATH=ours),
    )
    assert done.returncode == 0 and "exit 0" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert "requeued 1x" in done.stdout and "3 of" in done.stdout
    for cell in CELLS:
        assert outputs(project, cell) == outputs(undisturbed, cell)
    assert clean(project) and not list(project.glob(".cells/jobs/*.json"))


@pytest.mark.parametrize(
    "options, line",
    [
        (["--address", "127.0.0.1"], "error: --address 127.0.0.1: expected HOST:PORT of Ray's head node\n"),
        (["--address", "127.0.0.1:9"], "error: --on ray: no cluster at 127.0.0.1:9: Connection refused\n"),
    ],
)
def test_bad_input_is_one_line(alone, prepared, options, line):
    assert fedrepro(prepared, "run", CELLS[0], "--on", "ray", *options, expect=2) == line


def test_a_missing_token_is_one_line(alone, prepared, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        reply = fedrepro(
            prepared,
            "run",
            CELLS[0],
            "--on",
            "ray",
            "--address",
            address,
            expect=2,
            HOME=str(tmp_path),
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN="",
        )
    assert reply.startswith(f"error: --on ray: {address}: Token authentication")
    assert reply.count("\n") == 1
