"""The real MLflow server of `fedrepro ui`: what it imports is read back, and compared in a browser."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from repository import PATIENCE
from test_tracking import kill_amid, repository

from pipeline.cells import results
from pipeline.commands import ui
from pipeline.schema import ROOT, Cell
from pipeline.tracking import mlflow_runs

CELLS = Cell("fedcrl", "mini", "fedavg"), Cell("fedcrl", "mini", "fedcrl")


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def stop(process: subprocess.Popen) -> None:
    """End the command, which ends its server."""
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()


def text_of(browser, address: str, wanted: str) -> str:
    browser.open("about:blank")  # another fragment alone loads nothing
    browser.open(address, width=1600, height=2400)
    return browser.text(wanted)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A repository with two committed cells of a miniature, whose import was killed once."""
    published = [str(path.relative_to(ROOT)) for path in ROOT.glob("papers/fedcrl/published/*.csv")]
    made = repository(tmp_path_factory.mktemp("root"), *published, cells=CELLS)
    kill_amid(made, "import", 1, "INSERT INTO metrics")
    return made


@pytest.fixture(scope="module")
def server(root):
    """Address of the server, on the next port after one that is taken; nothing of it outlives the module."""
    # A shell has its background processes ignore Ctrl-C, and so what they start.
    code = (
        "import signal, sys; from pathlib import Path; from pipeline.commands import ui; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "sys.exit(ui.ui(None, int(sys.argv[1]), Path(sys.argv[2])))"
    )
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{root}/mlflow.db"}
    with socket.socket() as taken, open(root / "output", "w+") as output:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-c", code, str(port), str(root)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 240  # seconds of imports on a busy machine
            while "Ctrl-C" not in (text := (root / "output").read_text()):
                assert process.poll() is None, text
                assert time.monotonic() < deadline, text
                time.sleep(0.2)
            address = f"http://127.0.0.1:{re.search(rf'port {port} is in use; (.*) instead', text)[1]}"
            assert f"MLflow: {address}\n" in text
            assert answers(f"{address}/health")
            yield address
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=PATIENCE) == 0
            assert not answers(f"{address}/health")
        finally:
            stop(process)


def test_after_a_killed_import_every_run_is_shown_once(root, server):
    import mlflow

    client = mlflow.MlflowClient(server)
    runs = client.search_runs([client.get_experiment_by_name("fedcrl").experiment_id])
    cells = [f"{cell.scenario}/{cell.method}" for cell in CELLS]
    names = cells + [f"{cell}/seed {seed}" for cell in cells for seed in (0, 1)]
    assert sorted(run.info.run_name for run in runs) == sorted(names)
    assert {run.info.status for run in runs} == {"FINISHED"}
    curves = [run for run in runs if "weighted" in run.data.metrics]
    assert {run.info.run_name for run in curves} == set(names) - set(cells)


def test_files_are_shown_and_nobody_can_put_any_there(root, server):
    import mlflow

    client = mlflow.MlflowClient(server)
    experiment = client.get_experiment_by_name("fedcrl").experiment_id
    run = client.search_runs([experiment], "tags.seed LIKE '%'")[0].info.run_id
    assert answers(f"{server}/get-artifact?path=history.csv&run_uuid={run}")
    upload = f"ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path=planted"
    for method, address, host in (
        ("PUT", "api/2.0/mlflow-artifacts/artifacts/planted", "localhost"),
        ("POST", "api/2.0/mlflow-artifacts/mpu/create/planted", "localhost"),
        ("POST", upload, "localhost"),
        ("GET", "api/2.0/mlflow/experiments/get?experiment_id=1", "evil.example"),
    ):
        headers = {"Content-Type": "text/plain", "Host": host}
        plant = urllib.request.Request(f"{server}/{address}", b"x", headers, method=method)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(plant, timeout=20)
    assert not list(root.rglob("planted"))


def test_the_links_of_ui_show_cells_with_their_means(root, server, browser, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)  # linked to, not started again
    assert ui.ui("fedcrl", 5000, root) == 0
    links = dict(re.findall(r"^  (.+?) +(http\S+)$", capsys.readouterr().out, re.MULTILINE))
    page = text_of(browser, links["all runs"], "Group: fedcrl/mini/fedcrl")
    for cell, result in results.collect(root).items():
        mean = sum(result["measures"]["weighted"]) / len(result["seeds"])
        assert f"Group: {cell}" in page
        assert f"{mean:.3f}"[:5] in page
    page = text_of(browser, links["miniature"], "Group: FedCRL")
    assert "Group: FedAvg" in page
    assert "reported" in page


def test_mlflows_own_command_opens_the_database(root, monkeypatch):
    """With a run for each cell and, below it, one for each seed."""
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    mlflow_runs.import_results(root)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, database = f"http://127.0.0.1:{port}", f"sqlite:///{root}/mlflow.db"
    options = ["--backend-store-uri", database, "--port", str(port), "--workers", "1"]
    command = [sys.executable, "-m", "mlflow", "ui", *options]
    with open(root / "mlflow ui", "w+") as output:
        process = subprocess.Popen(command, cwd=root, stdout=output, stderr=output, start_new_session=True)
        try:
            deadline = time.monotonic() + PATIENCE
            while not answers(f"{address}/health"):
                assert process.poll() is None, (root / "mlflow ui").read_text()
                assert time.monotonic() < deadline, (root / "mlflow ui").read_text()
                time.sleep(0.2)
            client = mlflow.MlflowClient(address)
            runs = client.search_runs([client.get_experiment_by_name("fedcrl").experiment_id])
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=PATIENCE)
    above = {run.info.run_id: run.info.run_name for run in runs if "seed" not in run.data.tags}
    assert sorted(above.values()) == [f"{cell.scenario}/{cell.method}" for cell in CELLS]
    below = [above[run.data.tags["mlflow.parentRunId"]] for run in runs if "seed" in run.data.tags]
    assert sorted(below) == sorted(
        f"{cell.scenario}/{cell.method}"
        for cell, result in results.collect(root).items()
        for _ in result["seeds"]
    )
