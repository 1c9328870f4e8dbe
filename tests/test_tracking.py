"""MLflow: a run per seed, replayed once, live where a cell lasts, and never in the way of training."""
import json
import shutil
import socket
from pathlib import Path

import pytest

from pipeline.cells import results, tracking
from pipeline.schema import ROOT, Cell
from pipeline.sealing import seal

CELL = Cell("fedcrl", "mini", "fedavg")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A repository with one finished cell (the committed miniature) and a database of its own."""
    root = tmp_path_factory.mktemp("root")
    for name in (
        "params.yaml",
        "papers/fedcrl/paper.yaml",
        *(f"papers/fedcrl/runs/mini/fedavg/{f}" for f in ("result.json", "history.csv")),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture(autouse=True)
def default_store(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def runs_of(root: Path) -> list:
    import mlflow
    client = mlflow.MlflowClient(tracking.uri(root))
    return client.search_runs([client.get_experiment_by_name("fedcrl").experiment_id])


def test_import_makes_a_run_per_seed_with_everything(root):
    assert tracking.import_results(root) == (2, 0)
    result = results.collect(root)[CELL]
    runs = {run.data.tags["seed"]: run for run in runs_of(root)}
    assert set(runs) == {"0", "1"}
    run = runs["1"]
    assert run.info.run_name == "mini/fedavg/seed 1" and run.info.status == "FINISHED"
    assert run.data.metrics["reported/weighted"] == pytest.approx(result["measures"]["weighted"][1])
    assert (
        run.data.params["scenario.partition.beta"] == "0.1"
        and run.data.params["scenario.training.optimiser.name"] == "adam"
    )
    assert (
        run.data.tags["data.source"] == "bundled"
        and run.data.tags["hook"] == "pre"
        and run.data.tags["dvc.stage"] == "papers/fedcrl/dvc.yaml:mini@fedavg"
    )
    assert abs((run.info.end_time - run.info.start_time) / 1000 - result["seconds"][1]) < 1
    import mlflow
    client = mlflow.MlflowClient(tracking.uri(root))
    curve = client.get_metric_history(run.info.run_id, "weighted")
    history = results.history(CELL, root)
    assert [m.value for m in sorted(curve, key=lambda m: m.step)] == pytest.approx(
        history[history["seed"] == 1]["weighted"].tolist()
    )
    assert {a.path for a in client.list_artifacts(run.info.run_id)} == {"history.csv", "result.json"}


def test_import_again_adds_nothing(root):
    tracking.import_results(root)
    assert tracking.import_results(root) == (0, 2) and len(runs_of(root)) == 2


def test_another_result_of_the_cell_is_another_run(root):
    tracking.import_results(root)
    path = root / "papers/fedcrl/runs/mini/fedavg/result.json"
    original = path.read_text()
    document = json.loads(original)
    document["seconds"] = [9.0, 9.0]
    path.write_text(json.dumps(seal(document)))
    try:
        assert tracking.import_results(root) == (2, 0)
    finally:
        path.write_text(original)


def test_a_lasting_cell_is_followed_live_and_then_known(root, monkeypatch):
    monkeypatch.setattr(tracking, "LIVE_AFTER", 0.0)
    monkeypatch.setattr(tracking, "FLUSH", 0.0)
    follower = tracking.Follower(CELL, {"hyper": {"mu": 0.5}}, root)
    follower.report({"seed": 5, "round": 1, "weighted": 10.0, "loss": None, "intra.M": 3.0})
    live = [run for run in runs_of(root) if run.data.tags["seed"] == "5"]
    assert [run.info.status for run in live] == ["RUNNING"] and live[0].data.metrics == {"weighted": 10.0}
    again = tracking.Follower(CELL, {"hyper": {"mu": 0.5}}, root)              # the first one was killed
    again.report({"seed": 5, "round": 1, "weighted": 10.0})
    result = json.loads((root / "papers/fedcrl/runs/mini/fedavg/result.json").read_text())
    again.finish(seal({**result, "seeds": [5], "seconds": [1.0]}))
    live = [run for run in runs_of(root) if run.data.tags["seed"] == "5"]
    assert [run.info.status for run in live] == ["FINISHED"]


def test_a_short_cell_never_touches_mlflow(tmp_path):
    follower = tracking.Follower(CELL, {}, tmp_path)
    follower.report({"seed": 0, "round": 1, "weighted": 1.0})
    follower.finish({})
    assert follower.store is None and not (tmp_path / "mlflow.db").exists()


def test_a_server_that_is_down_costs_one_warning(root, monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(tracking, "LIVE_AFTER", 0.0)
    monkeypatch.setattr(tracking, "FLUSH", 0.0)
    follower = tracking.Follower(CELL, {}, root)
    for number in (1, 2, 3):
        follower.report({"seed": 0, "round": number, "weighted": 1.0})
    follower.finish({})
    said = capsys.readouterr().err
    assert said.count("warning: MLflow at http://127.0.0.1") == 1 and "fedrepro import" in said


def test_import_on_a_server_that_is_down_is_no_failure(monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    monkeypatch.setattr("sys.argv", ["tracking", "import"])
    tracking.say_import()
    assert "does not answer" in capsys.readouterr().err
