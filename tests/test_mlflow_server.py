"""A real MLflow server on loopback: a cell logged through `pipeline.cells.tracking`, read back, and compared
in a browser."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from html import unescape
from urllib.parse import quote

import pytest

from pipeline.cells import results, tracking
from pipeline.schema import ROOT, Cell

CELLS = [Cell("fedcrl", "mini", "fedavg"), Cell("fedcrl", "mini", "fedcrl")]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
# No sandbox because a container's root has none; the others keep a fresh profile from calling home.
HEADLESS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--window-size=1600,2400",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Address of `mlflow server` with an empty database. It ends with the module, and nothing of it stays."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_TRACKING_URI": ""},
        )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 180                           # seconds of imports on a busy machine
        while not answers(f"{address}/health"):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[
                -3000:
            ]
            time.sleep(0.2)
        yield address
    finally:
        stop(process)
    assert not living(process.pid) and not answers(f"{address}/health")


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def living(session: int) -> list[str]:
    """Processes of a session that still run."""
    import psutil
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, ProcessLookupError, PermissionError):
            continue
    return found


def stop(process: subprocess.Popen) -> None:
    """End the server and its workers: asked first, then not."""
    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        until = time.monotonic() + patience
        while time.monotonic() < until and (process.poll() is None or living(process.pid)):
            time.sleep(0.1)
    process.wait()


@pytest.fixture(scope="module")
def logged(server, tmp_path_factory):
    """(client, experiment, runs by name) after two committed miniature cells were imported."""
    import mlflow
    root = tmp_path_factory.mktemp("root")
    for name in (
        "params.yaml",
        "papers/fedcrl/paper.yaml",
        *(
            f"papers/{c.paper}/runs/mini/{c.method}/{f}"
            for c in CELLS
            for f in ("result.json", "history.csv")
        ),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", server)
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
        expected = sum(len(result["seeds"]) for result in results.collect(root).values())
        assert tracking.import_results(root) == (expected, 0) and tracking.import_results(root) == (
            0,
            expected,
        )
        client = mlflow.MlflowClient(server)
        experiment = client.get_experiment_by_name("fedcrl")
        yield (
            client,
            experiment,
            {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])},
            results.collect(root),
        )


def test_the_client_reads_back_what_was_logged(logged):
    client, experiment, runs, measured = logged
    assert set(runs) == {
        f"mini/{cell.method}/seed {seed}" for cell, result in measured.items() for seed in result["seeds"]
    }
    assert (
        experiment.tags["mlflow.experimentKind"] == "custom_model_development"
        and "Label Heterogeneity" in experiment.tags["mlflow.note.content"]
    )
    for cell, result in measured.items():
        for k, seed in enumerate(result["seeds"]):
            run = runs[f"mini/{cell.method}/seed {seed}"]
            assert {
                key: run.data.tags[key] for key in ("paper", "scenario", "method", "seed", "label", "table")
            } == {
                "paper": "fedcrl",
                "scenario": "mini",
                "method": cell.method,
                "seed": str(seed),
                "label": result["label"],
                "table": "miniature",
            }
            assert run.data.metrics["reported/weighted"] == pytest.approx(result["measures"]["weighted"][k])
            history = results.history(cell)
            assert (
                len(client.get_metric_history(run.info.run_id, "weighted"))
                == history[history["seed"] == seed]["weighted"].count()
            )
            assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
                "history.csv",
                "result.json",
            }


def test_a_column_block_of_a_table_is_one_search(logged):
    client, experiment, runs, measured = logged
    found = client.search_runs(
        [experiment.experiment_id],
        "tags.scenario = 'mini' and tags.seed = '0'",
        order_by=["metrics.`reported/weighted` DESC"],
    )
    best = sorted(measured, key=lambda cell: -measured[cell]["measures"]["weighted"][0])
    assert [run.data.tags["method"] for run in found] == [cell.method for cell in best]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)")
def test_the_compare_page_shows_the_methods_side_by_side(logged, server, tmp_path):
    _, experiment, runs, measured = logged
    address = (f"{server}/#/compare-runs?runs={quote(json.dumps([run.info.run_id for run in runs.values()]))}"
               f"&experiments={quote(json.dumps([experiment.experiment_id]))}")
    page = ""
    for budget in (20_000, 60_000):  # a machine that is busy needs longer to draw
        with subprocess.Popen(
            [
                CHROMIUM,
                *HEADLESS,
                f"--user-data-dir={tmp_path}/{budget}",
                f"--virtual-time-budget={budget}",
                "--dump-dom",
                address,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as browser:
            try:
                page = unescape(browser.communicate(timeout=240)[0])
            finally:
                stop(browser)
        if "reported/weighted" in page:
            break
    shown = re.sub(r"<[^>]*>", "\n", page)
    assert f"Comparing {len(runs)} Runs from 1 Experiment" in shown
    assert all(name in shown for name in runs) and "reported/weighted" in shown
    for result in measured.values():                                # MLflow shows four digits
        assert all(f"{value:.4g}" in shown for value in result["measures"]["weighted"])
