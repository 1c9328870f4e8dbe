"""MLflow: a run per seed, replayed once, live where a cell lasts, and never in the way of training."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from repository import python

from pipeline import files
from pipeline.cells import results
from pipeline.schema import ROOT, Cell
from pipeline.sealing import seal
from pipeline.tracking import mlflow_database, mlflow_runs, system_metrics
from pipeline.tracking.mlflow_bulk import Bulk

CELL = Cell("fedcrl", "mini", "fedavg")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A repository with one finished cell (the committed miniature) and a separate database."""
    return repository(tmp_path_factory.mktemp("root"))


@pytest.fixture
def fresh(tmp_path) -> Path:
    """Such a repository before its database is made."""
    return repository(tmp_path)


def repository(root: Path, *names: str, cells: tuple[Cell, ...] = (CELL,)) -> Path:
    runs = [f"papers/fedcrl/runs/mini/{cell.method}" for cell in cells]
    of_cells = [f"{run}/{name}" for run in runs for name in ("result.json", "history.csv")]
    for name in ("params.yaml", "papers/fedcrl/paper.yaml", *names, *of_cells):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture(autouse=True)
def default_store(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "FEDREPRO_TRACKING"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def live(monkeypatch):
    """Every round goes to MLflow at once."""
    monkeypatch.setattr(mlflow_runs, "LIVE_AFTER", 0.0)
    monkeypatch.setattr(mlflow_runs, "FLUSH", 0.0)


def runs_of(root: Path, query: str = "tags.seed LIKE '%'") -> list:
    """The runs of seeds, or others."""
    import mlflow

    client = mlflow.MlflowClient(mlflow_runs.uri(root))
    return client.search_runs([client.get_experiment_by_name("fedcrl").experiment_id], query)


def cells_of(root: Path) -> list:
    """The runs of cells."""
    seeds = {run.info.run_id for run in runs_of(root)}
    return [run for run in runs_of(root, "") if run.info.run_id not in seeds]


def test_import_makes_a_run_per_seed_with_everything_and_again_none(root):
    assert mlflow_runs.import_results(root, {CELL: {"weighted": 61.25}}) == (2, 0)
    result = results.collect(root)[CELL]
    runs = {run.data.tags["seed"]: run for run in runs_of(root)}
    assert set(runs) == {"0", "1"}
    run = runs["1"]
    assert run.info.run_name == "mini/fedavg/seed 1"
    assert run.info.status == "FINISHED"
    measured = result["measures"]["weighted"]
    assert run.data.metrics["reported/weighted"] == pytest.approx(measured[1])
    assert run.data.metrics["printed/weighted"] == 61.25
    assert run.data.metrics["spread/weighted"] == pytest.approx(statistics.stdev(measured))
    assert run.data.params["scenario.partition.beta"] == "0.1"
    assert run.data.params["scenario.training.optimiser.name"] == "adam"
    assert run.data.tags["data.source"] == "bundled"
    assert run.data.tags["hook"] == "pre"
    assert run.data.tags["dvc.stage"] == "papers/fedcrl/dvc.yaml:mini@fedavg"
    assert abs((run.info.end_time - run.info.start_time) / 1000 - result["seconds"][1]) < 1
    import mlflow

    client = mlflow.MlflowClient(mlflow_runs.uri(root))
    curve = client.get_metric_history(run.info.run_id, "weighted")
    history = results.history(CELL, root)
    assert [m.value for m in sorted(curve, key=lambda m: m.step)] == pytest.approx(
        history[history["seed"] == 1]["weighted"].tolist()
    )
    assert {a.path for a in client.list_artifacts(run.info.run_id)} == {"history.csv", "result.json"}
    mlflow_runs.import_results(root)
    assert mlflow_runs.import_results(root) == (0, 2)
    assert len(runs_of(root)) == 2


def test_seeds_are_below_the_run_of_their_cell_which_has_their_means(fresh):
    mlflow_runs.import_results(fresh, {CELL: {"weighted": 61.25}})
    (cell,) = cells_of(fresh)
    assert cell.info.run_name == "mini/fedavg"
    assert cell.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in runs_of(fresh)} == {cell.info.run_id}
    measured = results.collect(fresh)[CELL]["measures"]["weighted"]
    assert cell.data.metrics["reported/weighted"] == pytest.approx(statistics.fmean(measured))
    assert cell.data.metrics["printed/weighted"] == 61.25
    assert cell.info.end_time == max(run.info.end_time for run in runs_of(fresh))


def test_reported_numbers_have_the_time_at_which_their_run_ended(root):
    mlflow_runs.import_results(root)
    import mlflow

    client = mlflow.MlflowClient(mlflow_runs.uri(root))
    for run in runs_of(root, ""):
        [reported] = client.get_metric_history(run.info.run_id, "reported/weighted")
        assert reported.timestamp == run.info.end_time > 0


@pytest.mark.parametrize(("headline", "other"), [("average", "weighted"), ("weighted", "average")])
def test_the_spread_over_seeds_is_that_of_the_headline(fresh, headline, other):
    path = CELL.folder(fresh) / "result.json"
    document = json.loads(path.read_text()) | {"headline": headline}
    document.pop("self")
    path.write_text(json.dumps(seal(document)))
    mlflow_runs.import_results(fresh)
    (cell,) = cells_of(fresh)
    deviation = statistics.stdev(document["measures"][headline])
    assert cell.data.metrics[f"spread/{headline}"] == pytest.approx(deviation)
    assert f"spread/{other}" not in cell.data.metrics


def test_a_seed_that_comes_later_is_below_the_run_that_its_cell_has(fresh):
    import mlflow

    mlflow_runs.import_results(fresh)
    client = mlflow.MlflowClient(mlflow_runs.uri(fresh))
    client.delete_run(next(run.info.run_id for run in runs_of(fresh) if run.data.tags["seed"] == "1"))
    assert mlflow_runs.import_results(fresh) == (1, 1)
    (cell,) = cells_of(fresh)
    assert [run.data.tags["mlflow.parentRunId"] for run in runs_of(fresh)] == [cell.info.run_id] * 2


def test_what_the_machine_did_comes_with_a_cell_that_was_trained_here(fresh, monkeypatch):
    """Trained in less than the seconds after which a cell is followed live."""
    result = results.collect(fresh)[CELL]
    follower = mlflow_runs.Follower(CELL, {}, fresh)
    monkeypatch.setattr(system_metrics, "EVERY", 0.0)
    follower.report({"seed": 0, "round": 1, "weighted": 1.0})
    follower.finish(result)
    mlflow_runs.import_results(fresh)
    (cell,) = cells_of(fresh)
    import mlflow

    client = mlflow.MlflowClient(mlflow_runs.uri(fresh))
    memory = client.get_metric_history(cell.info.run_id, "system/system_memory_usage_megabytes")
    assert [metric.step for metric in memory] == [0, 1, 2]  # start, a round, end
    assert 0 < memory[0].value < psutil.virtual_memory().total / 1e6
    processor = client.get_metric_history(cell.info.run_id, "system/cpu_utilization_percentage")
    assert [metric.step for metric in processor] == [1, 2]
    assert all("system/disk_available_megabytes" not in run.data.metrics for run in runs_of(fresh))


def test_the_machine_is_watched_while_a_cell_is_followed_live(root, live, monkeypatch):
    monkeypatch.setattr(system_metrics, "EVERY", 0.0)
    follower = mlflow_runs.Follower(CELL, {}, root)
    for number in (1, 2):
        follower.report({"seed": 6, "round": number, "weighted": 1.0})
    (cell,) = [run for run in cells_of(root) if run.info.status == "RUNNING"]
    assert {"system/cpu_utilization_percentage", "system/disk_usage_percentage"} <= set(cell.data.metrics)


def test_without_psutil_nothing_is_watched_and_nothing_said(fresh, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "psutil", None)
    result = results.collect(fresh)[CELL]
    follower = mlflow_runs.Follower(CELL, {}, fresh)
    follower.report({"seed": 0, "round": 1, "weighted": 1.0})
    follower.finish(result)
    assert not (fresh / ".cells").exists()
    assert capfd.readouterr() == ("", "")


class Card:
    """Of NVIDIA's library: a card half in use, and a part of one that gives no use."""

    NVMLError = type("NVMLError", (Exception,), {})
    nvmlInit = staticmethod(lambda: None)
    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda number: number)
    nvmlDeviceGetMemoryInfo = staticmethod(lambda card: SimpleNamespace(used=3e9, total=4e9))

    @classmethod
    def nvmlDeviceGetUtilizationRates(cls, card: int):
        if card:
            raise cls.NVMLError
        return SimpleNamespace(gpu=50)


def test_cards_are_watched_where_their_library_is(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Card)
    (sample,) = system_metrics.Load(tmp_path).samples
    cards = {name.removeprefix("system/gpu_"): v for name, v in sample.values.items() if "gpu" in name}
    memory = {"memory_usage_megabytes": 3000, "memory_usage_percentage": 75}
    assert cards == {
        **{f"{card}_{name}": value for card in (0, 1) for name, value in memory.items()},
        "0_utilization_percentage": 50,
    }


def test_an_import_that_is_killed_leaves_no_part_of_a_run(fresh, monkeypatch):
    ended = Bulk.set_terminated

    def killed(*arguments):
        ended(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Bulk, "set_terminated", killed)
        mlflow_runs.import_results(fresh)
    assert runs_of(fresh, "") == []
    assert mlflow_runs.import_results(fresh) == (2, 0)
    assert len(runs_of(fresh)) == 2


# An import, or a training that is followed live, which is killed behind the n-th SQL statement with a text.
# SQLite may keep hardly a page in memory: what a transaction has changed so far is in the file.
DIES = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import Engine, event
from pipeline.tracking import mlflow_runs
from pipeline.schema import Cell
what, number, text, root = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
seen = 0
def small(connection, _):
    connection.execute("PRAGMA cache_size=1")
def die(connection, cursor, statement, *_):
    global seen
    seen += text in statement
    if seen == number:
        os.kill(os.getpid(), signal.SIGKILL)
event.listen(Engine, "connect", small)
event.listen(Engine, "after_cursor_execute", die)
if what == "import":
    mlflow_runs.import_results(root)
mlflow_runs.LIVE_AFTER = mlflow_runs.FLUSH = 0.0
follower = mlflow_runs.Follower(Cell.parse("fedcrl/mini/fedavg"), {}, root)
for number in range(1, 9):
    follower.report({"seed": 0, "round": number, "weighted": 10.0})
"""


def kill_amid(root: Path, what: str, number: int, text: str) -> None:
    """Let an `import` or a `live` training of this repository die behind an SQL statement of DIES."""
    command = [sys.executable, "-c", DIES, what, str(number), text, str(root)]
    assert subprocess.run(command, cwd=ROOT).returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list:
    """What MLflow knows after an import that nothing disturbs."""
    whole = repository(tmp_path_factory.mktemp("whole"))
    mlflow_runs.import_results(whole)
    return described(whole)


def described(root: Path) -> list:
    """All that MLflow knows of the runs, but for what differs between two imports."""
    return sorted(
        (
            run.info.run_name,
            run.info.status,
            sorted(run.data.metrics.items()),
            sorted(run.data.params.items()),
        )
        for run in runs_of(root)
    )


@pytest.mark.parametrize(
    "what, number, text",
    [
        ("import", 5, "CREATE TABLE"),
        ("import", 1, "INSERT INTO experiments"),
        ("import", 1, "INSERT INTO runs"),
        ("import", 1, "INSERT INTO tags"),
        ("import", 1, "INSERT INTO metrics"),
        ("import", 1, "INSERT INTO latest_metrics"),
        ("live", 1, "INSERT INTO runs"),
        ("live", 3, "INSERT INTO metrics"),
    ],
)
def test_after_a_kill_amid_a_transaction_the_next_import_has_every_run_once(
    fresh, undisturbed, what, number, text
):
    kill_amid(fresh, what, number, text)
    mlflow_runs.import_results(fresh)
    assert described(fresh) == undisturbed
    assert len(undisturbed) == 2
    assert mlflow_runs.import_results(fresh) == (0, 2)
    assert described(fresh) == undisturbed
    assert not list(fresh.glob("mlflow.db.unusable-*"))


def test_the_latest_value_of_a_curve_is_that_of_the_last_round(root):
    mlflow_runs.import_results(root)
    history = results.history(CELL, root)
    for run in runs_of(root):
        if run.data.tags.get("fedrepro.result") == results.collect(root)[CELL]["self"]:
            of_seed = history[history["seed"] == int(run.data.tags["seed"])]
            assert run.data.metrics["weighted"] == pytest.approx(of_seed["weighted"].iloc[-1])


@pytest.fixture
def committed_here(fresh) -> Path:
    """The repository with its result in git."""
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "results"]):
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", "-C", str(fresh), *identity, *command], check=True)
    return fresh


def test_the_stage_brings_no_result_that_git_has(committed_here):
    assert mlflow_runs.Finished.trained_here(committed_here).cells == {}
    assert [*mlflow_runs.Finished.everything(committed_here).cells] == [CELL]


def test_the_stage_brings_a_result_that_was_trained_again(committed_here):
    path = CELL.folder(committed_here) / "result.json"
    document = json.loads(path.read_text())
    document.pop("self")
    path.write_text(json.dumps(seal(document | {"seconds": [9.0, 9.0]})))
    assert [*mlflow_runs.Finished.trained_here(committed_here).cells] == [CELL]


def test_the_stage_brings_a_result_that_git_never_had(committed_here):
    path = CELL.folder(committed_here) / "result.json"
    subprocess.run(["git", "-C", str(committed_here), "rm", "-q", "--cached", str(path)], check=True)
    assert [*mlflow_runs.Finished.trained_here(committed_here).cells] == [CELL]


def test_the_stage_brings_every_result_where_git_cannot_tell(fresh):
    assert [*mlflow_runs.Finished.trained_here(fresh).cells] == [CELL]


def test_another_result_of_the_cell_is_another_run(root):
    mlflow_runs.import_results(root)
    path = root / "papers/fedcrl/runs/mini/fedavg/result.json"
    original = path.read_text()
    document = json.loads(original)
    document["seconds"] = [9.0, 9.0]
    path.write_text(json.dumps(seal(document)))
    try:
        assert mlflow_runs.import_results(root) == (2, 0)
    finally:
        path.write_text(original)


def test_a_lasting_cell_is_followed_live_and_then_known(root, live):
    follower = mlflow_runs.Follower(CELL, {"hyper": {"mu": 0.5}}, root)
    follower.report({"seed": 5, "round": 1, "weighted": 10.0, "loss": None, "intra.M": 3.0})
    live = [run for run in runs_of(root) if run.data.tags["seed"] == "5"]
    assert [run.info.status for run in live] == ["RUNNING"]
    assert live[0].data.metrics == {"weighted": 10.0}
    again = mlflow_runs.Follower(CELL, {"hyper": {"mu": 0.5}}, root)  # the first one was killed
    again.report({"seed": 5, "round": 1, "weighted": 10.0})
    result = json.loads((root / "papers/fedcrl/runs/mini/fedavg/result.json").read_text())
    again.finish(seal({**result, "seeds": [5], "seconds": [1.0]}))
    live = [run for run in runs_of(root) if run.data.tags["seed"] == "5"]
    assert [run.info.status for run in live] == ["FINISHED"]
    (cell,) = [run for run in cells_of(root) if run.info.run_id == live[0].data.tags["mlflow.parentRunId"]]
    assert cell.info.status == "FINISHED"


def test_an_import_removes_what_killed_trainings_left_and_leaves_those_that_live(root):
    """A training that is killed and whose former result comes back is not trained again."""
    store = mlflow_runs.Store(root)
    parent = store.start(CELL, {}, 0)
    store.client.set_tag(parent, "left", "elsewhere")
    store.client.set_tag(parent, "fedrepro.process", "other:1")
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    here = files.machine()
    of = {"dead": f"{here}:{int(dead.stdout)}", "alive": f"{here}:{os.getppid()}", "elsewhere": "other:1"}
    for seed, (name, process) in enumerate(of.items(), start=90):
        run = store.start_seed(CELL, seed, {}, 0, parent)
        store.client.set_tag(run, "fedrepro.process", process)
        store.client.set_tag(run, "left", name)
    mlflow_runs.import_results(root)
    assert {run.data.tags["left"] for run in runs_of(root) if "left" in run.data.tags} == {
        "alive",
        "elsewhere",
    }


def test_a_short_cell_never_touches_mlflow(tmp_path):
    follower = mlflow_runs.Follower(CELL, {}, tmp_path)
    follower.report({"seed": 0, "round": 1, "weighted": 1.0})
    follower.finish({"digest": "0" * 8})
    assert follower.store is None
    assert not (tmp_path / "mlflow.db").exists()


def test_a_server_that_is_down_costs_one_warning(root, live, monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    follower = mlflow_runs.Follower(CELL, {}, root)
    for number in (1, 2, 3):
        follower.report({"seed": 0, "round": number, "weighted": 1.0})
    follower.finish({"digest": "0" * 8})
    output = capsys.readouterr().err
    assert output.count("warning: MLflow at http://127.0.0.1") == 1
    assert "fedrepro import" in output
    monkeypatch.setattr(mlflow_runs, "import_results", partial(mlflow_runs.import_results, root))
    mlflow_runs.say_import()
    assert "does not answer" in capsys.readouterr().err


IMPORT = (
    "import sys; from pathlib import Path; from pipeline.tracking import mlflow_runs; "
    "print(mlflow_runs.import_results(Path(sys.argv[1])))"
)


def test_two_imports_at_once_make_every_run_once(fresh):
    with ThreadPoolExecutor() as pool:
        printed = [*pool.map(lambda _: python(ROOT, IMPORT, str(fresh)).stdout, range(2))]
    assert sorted(printed) == ["(0, 2)\n", "(2, 0)\n"]
    assert sorted(run.info.run_name for run in runs_of(fresh)) == ["mini/fedavg/seed 0", "mini/fedavg/seed 1"]


@pytest.mark.parametrize("damage", ["not a database", "cut short", "half made"])
def test_an_unusable_database_is_set_aside_and_made_again(root, fresh, capfd, damage):
    path = fresh / "mlflow.db"
    if damage == "not a database":
        path.write_bytes(b"torn" * 4096)
    elif damage == "half made":  # as MLflow alone leaves it when it is killed
        with contextlib.closing(sqlite3.connect(path)) as base:
            base.execute("CREATE TABLE experiments (experiment_id INTEGER)")
    else:
        mlflow_database.make_usable(root)
        path.write_bytes((root / "mlflow.db").read_bytes()[:200_000])
    broken = path.read_bytes()
    (fresh / "mlflow.db-journal").write_bytes(b"")
    assert mlflow_runs.import_results(fresh) == (2, 0)
    assert len(runs_of(fresh)) == 2
    output = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(output) == 1
    assert "mlflow.db cannot be used" in output[0]
    assert "set aside as" in output[0]
    (aside,) = fresh.glob("mlflow.db.unusable-??????????????*[0-9]")
    assert aside.read_bytes() == broken
    assert aside.name in output[0]
    assert mlflow_runs.import_results(fresh) == (0, 2)


def test_a_database_survives_a_lock_and_another_place(fresh, monkeypatch, tmp_path_factory):
    mlflow_database.make_usable(fresh)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout: connect(path, timeout=0))
    with contextlib.closing(connect(fresh / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            mlflow_database.make_usable(fresh)
    assert not list(fresh.glob("mlflow.db.unusable*"))
    base = tmp_path_factory.mktemp("team") / "runs.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{base}")
    mlflow_runs.import_results(fresh)
    other = base.parent / "moved" / base.name
    other.parent.mkdir()
    os.replace(base, other)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other}")
    assert mlflow_runs.import_results(fresh) == (0, 2)
    assert not list(other.parent.glob("*.unusable-*"))


def test_a_run_of_another_working_copy_is_left_alone(fresh, live):
    for copy in ("theirs", "ours", "ours"):  # ours is killed once and begins again
        (fresh / ".cells").mkdir(exist_ok=True)
        (fresh / ".cells" / "checkout").write_text(copy)
        mlflow_runs.Follower(CELL, {}, fresh).report({"seed": 0, "round": 1, "weighted": 10.0})
    for runs in (runs_of(fresh), cells_of(fresh)):
        assert sorted(run.data.tags["fedrepro.checkout"] for run in runs) == ["ours", "theirs"]


def test_an_experiment_that_was_deleted_by_hand_comes_back(fresh):
    import mlflow

    assert mlflow_runs.import_results(fresh) == (2, 0)
    client = mlflow.MlflowClient(mlflow_runs.uri(fresh))
    client.delete_experiment(client.get_experiment_by_name("fedcrl").experiment_id)
    new, old = mlflow_runs.import_results(fresh)
    assert new + old == 2
    assert len(runs_of(fresh)) == 2
    assert mlflow_runs.import_results(fresh) == (0, 2)


@pytest.mark.parametrize("way", [shutil.copytree, shutil.move])
def test_another_place_of_the_checkout_writes_into_its_artifacts(fresh, tmp_path_factory, way, capfd):
    first = tmp_path_factory.mktemp("places") / "first"
    shutil.copytree(fresh, first)
    mlflow_runs.import_results(first)
    other = first.with_name("o'ther")
    way(first, other)
    before = sorted(first.rglob("*"))
    assert mlflow_runs.import_results(other) == (2, 0)
    assert sorted(first.rglob("*")) == before
    assert len(list((other / "mlartifacts").rglob("result.json"))) >= 2
    assert list(other.glob("mlflow.db.unusable-*"))
    assert "copied or moved" in capfd.readouterr().err
    assert mlflow_runs.import_results(other) == (0, 2)


@pytest.mark.parametrize(
    "name", ["..", "a/b", "/x", "", "R&D", "x" * 300, "a//b", "照片", "صورة", "a:b", "."]
)
def test_mlflow_takes_what_is_named_after_data(name):
    """A domain's name may be anything."""
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name

    for key in (
        mlflow_runs._key(name),
        mlflow_runs._key(f"reported/{name}"),
        mlflow_runs._key(f"{name}.AVG"),
    ):
        _validate_metric_name(key)
        _validate_param_name(key)
    assert mlflow_runs._key("reported/intra.AVG") == "reported/intra.AVG"
    assert mlflow_runs._key("照片") == "照片"
    assert mlflow_runs._key("a&b") != mlflow_runs._key("a_b")
