"""A real MLflow server on loopback: a cell logged through `pipeline.cells.tracking`, read back, and compared
in a browser, by the links that `fedrepro ui` prints, too."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from repository import PATIENCE

from pipeline.cells import results, tracking
from pipeline.commands import ui
from pipeline.schema import ROOT, Cell

CELLS = [Cell("fedcrl", "mini", "fedavg"), Cell("fedcrl", "mini", "fedcrl")]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
NO_CHROMIUM = "no Chromium on this machine (Debian: apt install chromium)"
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
        deadline = time.monotonic() + 180  # seconds of imports on a busy machine
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


def text_of(address: str, wanted: str, folder: Path) -> str:
    """The text of a page in a browser, as soon as it shows `wanted`."""
    page = ""
    for budget in (20_000, 60_000):  # a machine that is busy needs longer to draw
        with subprocess.Popen(
            [
                CHROMIUM,
                *HEADLESS,
                f"--user-data-dir={folder}/{budget}",
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
                page = unescape(browser.communicate(timeout=PATIENCE)[0])
            finally:
                stop(browser)
        if wanted in page:
            break
    return re.sub(r"<[^>]*>", "\n", page)


@pytest.fixture(scope="module")
def logged(server, tmp_path_factory):
    """(client, experiment, runs by name, results, repository) after two committed miniature cells were
    imported."""
    import mlflow

    root = tmp_path_factory.mktemp("root")
    for name in (
        "params.yaml",
        "papers/fedcrl/paper.yaml",
        *(str(path.relative_to(ROOT)) for path in ROOT.glob("papers/fedcrl/published/*.csv")),
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
            root,
        )


def test_the_client_reads_back_what_was_logged(logged):
    client, experiment, runs, measured, _ = logged
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
    client, experiment, runs, measured, _ = logged
    found = client.search_runs(
        [experiment.experiment_id],
        "tags.scenario = 'mini' and tags.seed = '0'",
        order_by=["metrics.`reported/weighted` DESC"],
    )
    best = sorted(measured, key=lambda cell: -measured[cell]["measures"]["weighted"][0])
    assert [run.data.tags["method"] for run in found] == [cell.method for cell in best]


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_the_compare_page_shows_the_methods_side_by_side(logged, server, tmp_path):
    _, experiment, runs, measured, _ = logged
    address = (
        f"{server}/#/compare-runs?runs={quote(json.dumps([run.info.run_id for run in runs.values()]))}"
        f"&experiments={quote(json.dumps([experiment.experiment_id]))}"
    )
    shown = text_of(address, "reported/weighted", tmp_path)
    assert f"Comparing {len(runs)} Runs from 1 Experiment" in shown
    assert all(name in shown for name in runs) and "reported/weighted" in shown
    for result in measured.values():  # MLflow shows four digits
        assert all(f"{value:.4g}" in shown for value in result["measures"]["weighted"])


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_the_links_of_ui_show_cells_with_their_means(logged, server, tmp_path, monkeypatch, capsys):
    _, _, _, measured, root = logged
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    assert ui.ui("fedcrl", 5000, root) == 0
    links = dict(re.findall(r"^  (.+?) +(http\S+)$", capsys.readouterr().out, re.MULTILINE))
    shown = text_of(links["all runs"], "Group: fedcrl/mini/fedcrl", tmp_path)
    for cell, result in measured.items():
        mean = sum(result["measures"]["weighted"]) / len(result["seeds"])
        assert f"Group: {cell}" in shown and f"{mean:.3f}"[:5] in shown
    shown = text_of(links["miniature"], "Group: FedCRL", tmp_path)
    assert "Group: FedAvg" in shown and "reported" in shown


def test_ui_serves_on_the_next_free_port_and_ends_whole(logged, tmp_path):
    import mlflow

    *_, root = logged
    # A shell has its background processes ignore Ctrl-C, and so what they start.
    code = (
        "import signal, sys; from pathlib import Path; from pipeline.commands import ui; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(ui.ui(None, int(sys.argv[1]), "
        "Path(sys.argv[2])))"
    )
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    with socket.socket() as taken, open(tmp_path / "lines", "w+") as output:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-c", code, str(port), str(root)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 240
            while "Ctrl-C" not in (lines := (tmp_path / "lines").read_text()):
                assert process.poll() is None and time.monotonic() < deadline, lines
                time.sleep(0.2)
            free = int(re.search(rf"port {port} is in use; (\d+) instead", lines)[1])
            address = f"http://127.0.0.1:{free}"
            assert f"MLflow: {address}\n" in lines and answers(f"{address}/health")
            client = mlflow.MlflowClient(address)  # files are shown, and nobody can put any there
            (run, *_) = client.search_runs([client.get_experiment_by_name("fedcrl").experiment_id])
            assert answers(f"{address}/get-artifact?path=history.csv&run_uuid={run.info.run_id}")
            planted = f"{address}/api/2.0/mlflow-artifacts/artifacts/planted"
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(urllib.request.Request(planted, b"x", method="PUT"), timeout=20)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=PATIENCE) == 0 and not answers(f"{address}/health")
        finally:
            stop(process)
