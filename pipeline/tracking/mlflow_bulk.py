"""Write finished runs into MLflow's database, hundreds in one transaction.

MLflow's client commits several times for each run, which takes minutes for all results in git. What is
written here is what `MlflowClient` would have written, through MLflow's own description of its tables, so
that a version of MLflow with further columns fills them with its defaults.
"""

import shutil
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

# Metrics after which the runs that are complete are written: SQLite is locked for less than a second.
METRICS_AT_ONCE = 20_000
# Seconds for which a write waits for another process that holds SQLite's lock.
SECONDS_FOR_LOCK = 60
# Characters that MLflow's columns hold.
LONGEST_VALUE = 8000


class Bulk:
    """The calls of `mlflow.MlflowClient` that make a run; nothing is in the database before `write`."""

    def __init__(self, address: str):
        """address: SQLAlchemy's, of a database that MLflow has made."""
        import sqlalchemy
        from mlflow.store.tracking.dbmodels import models

        waiting = {"timeout": SECONDS_FOR_LOCK} if address.startswith("sqlite") else {}
        self.engine = sqlalchemy.create_engine(address, connect_args=waiting)
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
        self.new_params: list[dict[str, str]] = []
        self.new_metrics: list[dict[str, Any]] = []

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
        self, run: str, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = ()
    ) -> None:
        """Add MLflow's entities Metric (finite), Param and RunTag to a run that is not written yet."""
        for metric in metrics:
            self.new_metrics.append(
                {
                    "run_uuid": run,
                    "key": metric.key,
                    "value": metric.value,
                    "timestamp": metric.timestamp,
                    "step": metric.step,
                    "is_nan": False,
                }
            )
        for param in params:
            self.new_params.append({"run_uuid": run, "key": param.key, "value": param.value[:LONGEST_VALUE]})
        self.new_tags[run] |= {tag.key: tag.value for tag in tags}

    def log_artifact(self, run: str, file: str) -> None:
        """Copy a file into the run's folder, at once; of a killed process it stays, known to no run."""
        address = self.new_runs[run]["artifact_uri"]
        if address.startswith("file://"):
            folder = Path(url2pathname(urlsplit(address).path))
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / Path(file).name)
        else:
            from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

            get_artifact_repository(address).log_artifact(file)

    def set_terminated(self, run: str, status: str, ended: int) -> None:
        """The run is complete, and its end is known (ms since 1970)."""
        self.new_runs[run] |= {"status": status, "end_time": ended}

    # -- the database --

    def write(self, at_least: int = 0) -> None:
        """Write all runs in one transaction, if that many metrics wait."""
        if not self.new_runs or len(self.new_metrics) < at_least:
            return
        latest: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self.new_metrics:
            key = row["run_uuid"], row["key"]
            if key not in latest or _age(latest[key]) <= _age(row):
                latest[key] = row
        tags = [
            {"run_uuid": run, "key": key, "value": value[:LONGEST_VALUE]}
            for run, of_run in self.new_tags.items()
            for key, value in of_run.items()
        ]
        rows = {
            self.runs: list(self.new_runs.values()),
            self.tags: tags,
            self.params: self.new_params,
            self.metrics: self.new_metrics,
            self.latest: list(latest.values()),
        }
        with self.engine.begin() as connection:
            for table, some in rows.items():
                if some:
                    connection.execute(table.insert(), some)
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
        return {(of.get("fedrepro.result", ""), of.get("seed", "")): run for run, of in tags.items()}

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


def _age(metric: dict[str, Any]) -> tuple[int, int, float]:
    """By which MLflow knows a metric's latest value."""
    return metric["step"], metric["timestamp"], metric["value"]
