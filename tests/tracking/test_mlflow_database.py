"""The SQLite database of MLflow's runs."""

import sqlite3

import pytest
from sqlalchemy import create_engine

from pipeline.tracking import mlflow_database

OFF, FULL = 0, 2  # values of SQLite's `synchronous`: it waits for the disk never, or at every commit


@pytest.fixture
def usable(monkeypatch, tmp_path):
    """A server is said to hold the runs, so that no database is made."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    mlflow_database.make_usable(tmp_path)


def test_mlflows_commits_do_not_wait_for_the_disk(usable, tmp_path):
    with create_engine(f"sqlite:///{tmp_path / 'runs.db'}").connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == OFF


def test_other_connections_wait_for_the_disk(usable, tmp_path):
    connection = sqlite3.connect(tmp_path / "runs.db")
    assert connection.execute("PRAGMA synchronous").fetchone() == (FULL,)
    connection.close()
