"""What the bulk import asks of SQLite, and where it puts a run's files."""

import sys
from types import SimpleNamespace

import pytest

from pipeline.tracking import mlflow_bulk
from pipeline.tracking.mlflow_bulk import Bulk, Metric

REGISTRY = "mlflow.store.artifact.artifact_repository_registry"


@pytest.fixture
def stored(monkeypatch):
    """(address, file) of all that MLflow's own code was asked to store."""
    files = []

    def repository(address):
        return SimpleNamespace(log_artifact=lambda file: files.append((address, file)))

    monkeypatch.setitem(sys.modules, REGISTRY, SimpleNamespace(get_artifact_repository=repository))
    return files


def of_one_run(address):
    """A bulk without a database, with a run whose files are at an address."""
    bulk = Bulk.__new__(Bulk)
    bulk._forget()
    bulk.new_runs["run"] = {"artifact_uri": address}
    return bulk


def test_a_file_is_copied_into_a_folder_of_this_machine_without_mlflow(tmp_path, stored):
    (tmp_path / "result.json").write_text("{}")
    place = tmp_path / "a b" / "run"
    of_one_run(place.as_uri()).log_artifact("run", str(tmp_path / "result.json"))
    assert (place / "result.json").read_text() == "{}"
    assert stored == []


def test_a_file_for_another_place_is_stored_by_mlflow(stored):
    of_one_run("s3://bucket/run").log_artifact("run", "result.json")
    assert stored == [("s3://bucket/run", "result.json")]


def test_metrics_of_a_run_are_gathered_over_several_calls():
    bulk = of_one_run("")
    first, second = Metric("accuracy", 1.0, 0, 1), Metric("accuracy", 2.0, 0, 2)
    bulk.log_batch("run", [first])
    bulk.log_batch("run", [second])
    assert bulk.new_metrics == {"run": [first, second]}
    assert bulk.waiting == 2


def test_values_are_cut_to_what_mlflows_columns_hold():
    bulk = of_one_run("")
    bulk.log_batch("run", params=[("key", "x" * 8001)])
    assert [len(value) for _, _, value in bulk.new_params] == [8000]


@pytest.mark.rest  # it reads the classes of MLflow's tables, which takes seconds
def test_sqlite_keeps_a_transaction_in_memory(tmp_path):
    bulk = Bulk(f"sqlite:///{tmp_path / 'runs.db'}")
    with bulk.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA cache_size").scalar() == -mlflow_bulk.CACHE
    bulk.close()
