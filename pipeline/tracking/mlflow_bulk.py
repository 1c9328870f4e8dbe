"""Write finished runs into MLflow's database, hundreds in one transaction.

MLflow's client commits several times for each run, which takes minutes for all results in git. This module
writes the same as `MlflowClient` would, with the classes that MLflow uses for its tables, so that columns of
a later version get their defaults.
"""

import os
import shutil
import uuid
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

# Metrics after which the runs that are complete are written: SQLite is locked for less than a second.
METRICS_AT_ONCE = 20_000
# Seconds for which a write waits for another process that holds SQLite's lock.
SECONDS_FOR_LOCK = 60
# Kibibytes that SQLite may keep in memory; its default, 2,000, is less than a transaction changes.
CACHE = 100_000
# Characters that MLflow's columns hold.
LONGEST_VALUE = 8000
# Columns of the rows that `Bulk` gathers as tuples, in their order.
OF_TAGS = ("run_uuid", "key", "value")
OF_PARAMS = ("run_uuid", "key", "value")
OF_METRICS = ("run_uuid", "key", "value", "timestamp", "step", "is_nan")


class Metric(NamedTuple):
    """As `mlflow.entities.Metric`, of which half a million take a second more."""

    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    """As `mlflow.entities.Param`."""

    key: str
    value: str


class RunTag(NamedTuple):
    """As `mlflow.entities.RunTag`."""

    key: str
    value: str


class Bulk:
    """The calls of `mlflow.MlflowClient` that make a run; nothing is in the database before `write`.

    address  of a database that MLflow has made, as SQLAlchemy takes it
    """

    def __init__(self, address: str):
        import sqlalchemy
        from mlflow.store.tracking.dbmodels import models

        waiting = {"timeout": SECONDS_FOR_LOCK} if address.startswith("sqlite") else {}
        self.engine = sqlalchemy.create_engine(address, connect_args=waiting)
        if waiting:
            sqlalchemy.event.listen(self.engine, "connect", _with_large_cache)
        self.experiments = models.SqlExperiment.__table__
        self.runs = models.SqlRun.__table__
        self.tags = models.SqlTag.__table__
        self.params = models.SqlParam.__table__
        self.metrics = models.SqlMetric.__table__
        self.latest = models.SqlLatestMetric.__table__
        self.places: dict[str, str] = {}
        self._forget()

    def close(self) -> None:
        """Give back the connections."""
        self.engine.dispose()

    def _forget(self) -> None:
        """Begin with nothing that waits to be written."""
        self.new_runs: dict[str, dict[str, Any]] = {}
        self.new_tags: dict[str, dict[str, str]] = defaultdict(dict)
        self.new_params: list[tuple[str, str, str]] = []
        self.new_metrics: dict[str, list[Metric]] = defaultdict(list)
        self.waiting = 0

    # -- what MlflowClient has too --

    def create_run(self, experiment: str, started: int, tags: dict[str, str], name: str) -> str:
        """A run of the experiment's id, begun at `started` (ms since 1970); returns its id."""
        run = uuid.uuid4().hex
        self.new_runs[run] = {
            "run_uuid": run,
            "name": name,
            "source_type": "UNKNOWN",
            "source_name": "",
            "entry_point_name": "",
            "user_id": "unknown",
            "status": "RUNNING",
            "start_time": started,
            "end_time": None,
            "deleted_time": None,
            "source_version": "",
            "lifecycle_stage": "active",
            "artifact_uri": f"{self._place(experiment)}/{run}/artifacts",
            "experiment_id": int(experiment),
        }
        self.new_tags[run] = {**tags, "mlflow.runName": name}
        return run

    def log_batch(
        self,
        run: str,
        metrics: Sequence[Metric] = (),
        params: Sequence[Param] = (),
        tags: Sequence[RunTag] = (),
    ) -> None:
        """Add finite metrics, parameters and tags to a run that is not written yet."""
        self.new_metrics[run] += metrics
        self.waiting += len(metrics)
        self.new_params += [(run, key, value[:LONGEST_VALUE]) for key, value in params]
        self.new_tags[run] |= dict(tags)

    def log_artifact(self, run: str, file: str) -> None:
        """Copy a file into the run's folder, at once; of a killed process it stays, known to no run."""
        address = self.new_runs[run]["artifact_uri"]
        if address.startswith("file://"):
            folder = url2pathname(urlsplit(address).path)
            os.makedirs(folder, exist_ok=True)
            shutil.copyfile(file, os.path.join(folder, os.path.basename(file)))
        else:
            from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

            get_artifact_repository(address).log_artifact(file)

    def set_terminated(self, run: str, status: str, ended: int) -> None:
        """The run is complete, and its end is known (ms since 1970)."""
        self.new_runs[run] |= {"status": status, "end_time": ended}

    # -- the database --

    def write(self, at_least: int = 0) -> None:
        """Write all runs in one transaction, if that many metrics wait."""
        if not self.new_runs or self.waiting < at_least:
            return
        tags = []
        for run, tags_of_run in self.new_tags.items():
            tags += [(run, key, value[:LONGEST_VALUE]) for key, value in tags_of_run.items()]
        # To MLflow, the latest value of a metric is the last one by step, then by time, then by value.
        age = itemgetter(3, 2, 1)
        metrics: list[tuple] = []
        latest: list[tuple] = []
        for run, metrics_of_run in self.new_metrics.items():
            metrics += [(run, *metric, False) for metric in metrics_of_run]
            newest = {metric.key: metric for metric in sorted(metrics_of_run, key=age)}
            latest += [(run, *metric, False) for metric in newest.values()]
        with self.engine.begin() as connection:
            connection.execute(self.runs.insert(), list(self.new_runs.values()))
            _insert(connection, self.tags, OF_TAGS, tags)
            _insert(connection, self.params, OF_PARAMS, self.new_params)
            _insert(connection, self.metrics, OF_METRICS, metrics)
            _insert(connection, self.latest, OF_METRICS, latest)
        self._forget()

    def finished(self, experiment: str) -> dict[tuple[str, str], str]:
        """(tag fedrepro.result, tag seed) -> id, of the experiment's runs that are logged to their end."""
        import sqlalchemy

        wanted = sqlalchemy.select(self.tags.c.run_uuid, self.tags.c.key, self.tags.c.value).where(
            self.tags.c.key.in_(["fedrepro.result", "seed"]),
            self.tags.c.run_uuid == self.runs.c.run_uuid,
            self.runs.c.experiment_id == int(experiment),
            self.runs.c.status == "FINISHED",
            self.runs.c.lifecycle_stage == "active",
        )
        tags: dict[str, dict[str, str]] = defaultdict(dict)
        with self.engine.connect() as connection:
            for run, key, value in connection.execute(wanted):
                tags[run][key] = value
        return {(own.get("fedrepro.result", ""), own.get("seed", "")): run for run, own in tags.items()}

    def _place(self, experiment: str) -> str:
        """The address of the folder into which the files of an experiment's runs go."""
        import sqlalchemy

        if experiment not in self.places:
            wanted = sqlalchemy.select(self.experiments.c.artifact_location).where(
                self.experiments.c.experiment_id == int(experiment)
            )
            with self.engine.connect() as connection:
                self.places[experiment] = connection.execute(wanted).scalar_one()
        return self.places[experiment]


def _with_large_cache(connection: Any, _: Any) -> None:
    """SQLite keeps what it writes of a transaction in memory until it is complete."""
    connection.execute(f"PRAGMA cache_size=-{CACHE}")


def _insert(connection: Any, table: Any, columns: tuple[str, ...], rows: list[tuple]) -> None:
    """Insert rows with these columns. SQLAlchemy makes the statement; it goes through the rows itself, which
    takes longer than SQLite does, only where the driver wants names or other columns have defaults."""
    if not rows:
        return
    statement = table.insert().compile(dialect=connection.dialect, column_keys=list(columns))
    defaults = [column for column in table.columns if column.default and column.name not in columns]
    if defaults or not statement.positional:
        connection.execute(table.insert(), [dict(zip(columns, row, strict=True)) for row in rows])
        return
    in_order = itemgetter(*map(columns.index, statement.positiontup))
    connection.exec_driver_sql(str(statement), list(map(in_order, rows)))
