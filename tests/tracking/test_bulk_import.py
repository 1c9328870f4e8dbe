"""What is imported in bulk is in MLflow's database as MLflow's client would have logged it."""

import contextlib
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from pipeline.commands import ui
from pipeline.report.study import Study
from pipeline.report.tables import TableView
from pipeline.schema import ROOT, Cell
from pipeline.tracking import mlflow_runs

CELL = Cell("rahfl", "mini", "rhfl")
# Folders of a cell that was tuned, its tuning and what is compared with it.
FOLDERS = ("runs/mini/rhfl", "tuning/mini-tuned/rhfl", "tuning/mini-published/rhfl")
FILES = ("params.yaml", "papers/rahfl/paper.yaml", "papers/rahfl/tuning/mini/rhfl.json")
# What differs between any two imports: names that are drawn, and times of making an experiment.
DRAWN = {"fedrepro.checkout"}
TIMES = {"creation_time", "last_update_time"}

# Where the files of every seed's run are, and of which result it is.
SEEDS = (
    "SELECT artifact_uri, value FROM runs JOIN tags USING (run_uuid) WHERE key = 'fedrepro.result' "
    "AND run_uuid IN (SELECT run_uuid FROM tags WHERE key = 'seed')"
)


def checkout(root: Path) -> Path:
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / "papers/rahfl" / name, root / "papers/rahfl" / name)
    return root


def content(root: Path) -> dict[str, list[tuple]]:
    """Table -> its rows in order, of the whole database; a run's id is its name, below that of its parent."""
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as base:
        names = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = {name: base.execute(f"SELECT * FROM {name}") for name in names}  # noqa: S608
        rows = {
            name: [dict(zip([one[0] for one in cursor.description], row, strict=True)) for row in cursor]
            for name, cursor in tables.items()
        }
    tags = {(row["run_uuid"], row["key"]): row["value"] for row in rows["tags"]}

    def path(run: str) -> str:
        above = tags.get((run, "mlflow.parentRunId"))
        name = tags[run, "mlflow.runName"] + tags.get((run, "fedrepro.result"), "")
        return f"{path(above)} > {name}" if above else name

    runs = {row["run_uuid"]: path(row["run_uuid"]) for row in rows["runs"]}
    pattern = re.compile("|".join(runs))

    def named(value):
        if not isinstance(value, str):
            return value
        return pattern.sub(lambda match: runs[match[0]], value.replace(str(root), "ROOT"))

    return {
        table: sorted(
            repr({key: named(value) for key, value in row.items() if key not in TIMES})
            for row in some
            if row.get("key") not in DRAWN
        )
        for table, some in rows.items()
    }


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> dict[str, list[tuple]]:
    """The database after the same import by MLflow's client."""
    root = checkout(tmp_path_factory.mktemp("client"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setattr(mlflow_runs, "Bulk", lambda address: None)
        mlflow_runs.import_results(root, {CELL: {"average": 61.25}})
    return content(root)


@pytest.fixture
def imported(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    mlflow_runs.import_results(checkout(tmp_path), {CELL: {"average": 61.25}})
    return tmp_path


def test_every_table_of_the_database_is_the_same(imported, logged):
    bulk = content(imported)
    assert bulk.keys() == logged.keys()
    for table, rows in logged.items():
        assert bulk[table] == rows, table
    for table in ("runs", "tags", "params", "metrics", "latest_metrics"):
        assert logged[table]
    assert any("configuration 3" in row for row in logged["runs"])  # below the tuning


def test_the_same_files_lie_with_the_runs(imported):
    with contextlib.closing(sqlite3.connect(imported / "mlflow.db")) as base:
        runs = dict(base.execute(SEEDS))
    of_results = {
        mlflow_runs.results.read(path)["self"]: path for path in imported.glob("papers/**/result.json")
    }
    assert runs
    for address, result in runs.items():
        for name in ("result.json", "history.csv"):
            copy = Path(address.removeprefix("file://")) / name
            assert copy.read_bytes() == of_results[result].with_name(name).read_bytes()


def test_a_printed_number_is_that_of_the_tables():
    measured = mlflow_runs.results.collect(ROOT)
    of_tables: dict[Cell, dict[str, float]] = {}
    for paper in dict.fromkeys(cell.paper for cell in measured):
        study = Study.of(paper, measured, ROOT)
        for key in study.paper.tables:
            for row in TableView(key, study).panel.rows:
                for value in row.values:
                    if value.cell and value.printed is not None:
                        of_tables.setdefault(value.cell, {}).setdefault(value.measure, value.printed)
    assert ui.printed(measured) == of_tables
    assert of_tables
