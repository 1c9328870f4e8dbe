"""Cells on real clusters of this machine: SLURM, and Ray without a shared file system."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from checkouts import CELLS, clean, fedrepro, surroundings
from repository import PATIENCE, edit, outputs, wait_for

OPTIONS = ["--on", "slurm", "--slurm", "partition=main,mem=1500M,time=20", "--jobs", "8"]


def begun(slurm, project: Path, *cells: str) -> subprocess.Popen:
    command, env = (
        [sys.executable, "-m", "pipeline", "run", *cells, *OPTIONS],
        surroundings(**slurm.variables),
    )
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, cwd=project, env=env, stdout=pipe, stderr=both, text=True)


def test_a_node_dies_and_the_numbers_are_those_of_an_undisturbed_run(slurm, project, undisturbed):
    """Ctrl-C leaves the jobs; a node dies; the next call attaches to them and records all three cells."""
    process = begun(slurm, project, *CELLS)
    wait_for(lambda: len(slurm.running(project)) == 2 and len(list(project.glob(".cells/*/seed-*.pt"))) == 2)
    process.send_signal(signal.SIGINT)
    reply = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 130
    assert "3 jobs go on" in reply
    before = slurm.running(project)
    slurm.kill("n2")
    slurm.add("n2")
    reply = fedrepro(project, "run", *CELLS, *OPTIONS, **slurm.variables)
    assert "requeued 1x" in reply
    assert "3 of" in reply
    assert len(before) == 2
    assert len(submissions(project)) == 1  # nothing was submitted twice
    for cell in CELLS:
        assert outputs(project, cell) == outputs(undisturbed, cell)
    assert clean(project)
    assert not list(project.glob(".cells/jobs/*.json"))


def test_cancelled_jobs_are_gone_and_the_rest_is_one_line(slurm, project):
    cell = CELLS[0]
    edit(
        project / "papers/fedcrl/paper.yaml",  # it must not end before it is cancelled
        lambda document: document["miniature"]["scenario"]["training"].update(rounds=100_000),
    )
    process = begun(slurm, project, cell)
    wait_for(lambda: slurm.running(project))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    reply = fedrepro(project, "run", cell, *OPTIONS, "--cancel", **slurm.variables)
    assert reply == "1 job cancelled\n"
    assert not list(project.glob(".cells/jobs/*.json"))
    wait_for(lambda: not slurm.running(project))
    slurm_with = ["run", cell, "--on", "slurm", "--slurm"]
    reply = fedrepro(project, *slurm_with, "partition=maim", expect=2, **slurm.variables)
    assert reply.startswith("error: --slurm: unknown partition 'maim'")
    reply = fedrepro(project, *slurm_with, "gres=gpu:9", expect=1, **slurm.variables)
    assert "mini@local: slurm cluster 'mini'" in reply
    reply = fedrepro(project, *slurm_with, "mem=1G", expect=2, SLURM_CONF=str(slurm.at / "nowhere.conf"))
    assert reply.startswith("error: --on slurm: scontrol: ")
    assert reply.count("\n") == 1


SBATCH = """\
#!/bin/sh
# As a cluster whose accounting lets this user have two jobs.
tasks=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$(eval echo \\${$#})")
[ $(( ${tasks:-0} + 1 + $(squeue --me -h -r | wc -l) )) -le 2 ] && exec "$REAL_SBATCH" "$@"
echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy" >&2
exit 1
"""


def test_what_a_limit_of_jobs_refuses_follows_when_a_job_has_ended(slurm, project, tmp_path):
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    path = os.pathsep.join([str(Path(sys.executable).parent), str(tmp_path), os.environ["PATH"]])
    reply = fedrepro(
        project, "run", *CELLS, *OPTIONS, **slurm.variables, PATH=path, REAL_SBATCH=shutil.which("sbatch")
    )
    assert "waits for room" in reply
    assert "3 of" in reply
    assert "sbatch: error" not in reply
    assert len(submissions(project)) >= 6  # of 3, 1, 2, 1, 1 and 1 cells
    assert clean(project)
    assert not list(project.glob(".cells/jobs/*.json"))


def submissions(project: Path) -> list[Path]:
    return list((project / ".cells" / "slurm").iterdir())


@pytest.fixture
def alone():
    """A separate network is to be had."""
    pytest.importorskip("ray", reason="ray is not installed: make test-scale")
    if not hasattr(tarfile, "data_filter"):
        pytest.skip("cells on Ray need Python 3.11.4 or a later one")
    programs = all(map(shutil.which, ("unshare", "ip")))
    if not programs or subprocess.run(["unshare", "-n", "true"]).returncode:
        pytest.skip("no network namespace here: it needs root, unshare and ip")


def test_the_same_where_a_node_of_ray_dies(alone, project, undisturbed, tmp_path):
    script = Path(__file__).with_name("on_ray.py")
    ours = ":".join(map(str, (script.parent, script.parent.parent, script.parents[2])))
    done = subprocess.run(
        ["unshare", "-n", sys.executable, str(script), str(project), str(tmp_path), *CELLS],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=surroundings(PYTHONPATH=ours),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "exit 0" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert "requeued 1x" in done.stdout
    assert "3 of" in done.stdout
    for cell in CELLS:
        assert outputs(project, cell) == outputs(undisturbed, cell)
    assert clean(project)
    assert not list(project.glob(".cells/jobs/*.json"))


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
        command = ["run", CELLS[0], "--on", "ray", "--address", address]
        without = {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ""}
        reply = fedrepro(prepared, *command, expect=2, **without)
    assert reply.startswith(f"error: --on ray: {address}: Token authentication")
    assert reply.count("\n") == 1
