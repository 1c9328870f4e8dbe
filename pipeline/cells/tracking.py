"""MLflow as a view of the result files: live for cells that train for long, replayed for all others.

`fedrepro import` brings in every finished seed that the tracking server does not know yet; it can
be called at any time and as often as one likes. The files under papers/*/runs are the truth.
"""
import contextlib
import dataclasses
import fcntl
import os
import sys
import time
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells import results
from pipeline.errors import FedReproError
from pipeline.schema import ACROSS, MINIATURE, ROOT, Cell, load_paper

LIVE_AFTER = 30.0                                     # seconds after which a cell is followed live
FLUSH = 10.0                                          # seconds between two batches of a live run
BATCH = 1000                                          # metrics that MLflow takes in one call
NOTE = """{title}

A run is a seed of a cell, named scenario/method/seed. A column block of a table: search
`tags.scenario = "mini"`, tick the runs, Compare; or group by the tag `method` for the mean over the seeds.
`reported/...` are the numbers that the report prints; metrics without a prefix are the model that the paper's
tables score, `pre.` and `post.` the other one, before or after local training."""


def uri(root: Path = ROOT) -> str:
    """MLFLOW_TRACKING_URI, or the SQLite file mlflow.db in the repository."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"


def import_results(root: Path = ROOT) -> tuple[int, int]:
    """Log every seed of every finished cell that is not there yet; (new runs, runs that were there)."""
    store = _Store(root)
    new = old = 0
    for cell, result in results.collect(root).items():
        missing = [k for k, seed in enumerate(result["seeds"]) if not store.known(result, seed)]
        old += len(result["seeds"]) - len(missing)
        history = results.history(cell, root) if missing else None
        for k in missing:
            store.replay(cell, result, k, history)
            new += 1
    return new, old


class Follower:
    """Shows a cell in MLflow while it trains. A server that cannot be reached causes one warning and never
    fails the run."""

    def __init__(self, cell: Cell, values: dict, root: Path = ROOT):
        self.cell, self.values, self.root = cell, values, root
        self.begun = self.flushed = time.monotonic()
        self.waiting: dict[int, list[tuple[int, dict]]] = defaultdict(list)     # seed -> (time stamp, row)
        self.store: _Store | None = None
        self.runs: dict[int, str] = {}
        self.failed = os.environ.get("FEDREPRO_TRACKING") == "off"

    def report(self, row: dict) -> None:
        """A round of a seed is over: `row` is its line of history.csv and its seed."""
        now = time.monotonic()
        self.waiting[row["seed"]].append((int(time.time() * 1000), row))
        if now - self.begun >= LIVE_AFTER and now - self.flushed >= FLUSH:
            self.flushed = now
            self._guarded(self._flush)

    def finish(self, result: dict) -> None:
        """Close the live runs and mark them with the result that they belong to."""
        if self.store is not None:
            self._guarded(lambda: self._close(result))

    def _flush(self) -> "_Store":
        self.store = store = self.store or _Store(self.root)
        for seed, points in self.waiting.items():
            if points and seed not in self.runs:
                self.runs[seed] = store.start(self.cell, seed, self.values, points[0][0], status="RUNNING")
            if points:
                store.curves(self.runs[seed], points)
                points.clear()
        return store

    def _close(self, result: dict) -> None:
        store = self._flush()
        for k, seed in enumerate(result["seeds"]):
            if seed in self.runs:
                store.complete(self.runs[seed], self.cell, result, k, int(time.time() * 1000))

    def _guarded(self, action) -> None:
        if self.failed:
            return
        try:
            action()
        except Exception as error:                    # whatever MLflow, SQLite or the network raises
            self.failed = True
            print(
                f"warning: MLflow at {uri(self.root)} does not answer ({_first_line(error)}); training goes "
                "on, "
                "`fedrepro import` brings the runs in later",
                file=sys.stderr,
                flush=True,
            )


class _Store:
    """One tracking server: experiments by paper, runs by cell and seed."""

    def __init__(self, root: Path):
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        # it would print two lines for every run
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        import mlflow  # seconds to import, and absent on machines that only train
        self.root, self.client = root, mlflow.MlflowClient(uri(root))
        self.entities = mlflow.entities
        self.experiments: dict[str, str] = {}

    def experiment(self, paper: str) -> str:
        """The paper's experiment, made under a lock: two processes that create a fresh database at once both
        fail."""
        if paper not in self.experiments:
            with _locked(self.root):
                self.experiments[paper] = self._found(paper) or self._made(paper)
        return self.experiments[paper]

    def _found(self, paper: str) -> str | None:
        found = self.client.get_experiment_by_name(paper)
        return found.experiment_id if found else None

    def _made(self, paper: str) -> str:
        local = None if uri(self.root).startswith("http") else (self.root / "mlartifacts").as_uri()
        try:
            return self.client.create_experiment(
                paper,
                artifact_location=local,
                tags={
                    "mlflow.experimentKind": "custom_model_development",
                    "mlflow.note.content": NOTE.format(title=load_paper(paper, self.root).title),
                },
            )
        except Exception:                             # another machine was faster
            if found := self._found(paper):
                return found
            raise

    def known(self, result: dict, seed: int) -> bool:
        """Is this seed of this very result logged to its end?"""
        return bool(
            self._search(
                result["paper"],
                f"tags.`fedrepro.result` = '{result['self']}' and tags.seed = '{seed}'"
                " and attributes.status = 'FINISHED'",
            )
        )

    def start(self, cell: Cell, seed: int, values: dict, started: int, status: str) -> str:
        """A new run named scenario/method/seed; an unfinished one that a killed process left is removed
        first."""
        for left in self._search(
            cell.paper, f"tags.cell = '{cell}' and tags.seed = '{seed}' and attributes.status = 'RUNNING'"
        ):
            self.client.delete_run(left.info.run_id)
        paper = load_paper(cell.paper, self.root)
        tables = [
            t.number
            for t in paper.tables.values()
            if any(block.scenario == cell.scenario for block in t.blocks.values())
        ]
        tags = {
            "paper": cell.paper,
            "scenario": cell.scenario,
            "method": cell.method,
            "label": paper.label(cell.method),
            "seed": str(seed),
            "cell": str(cell),
            "table": ", ".join(tables)
            or {MINIATURE: "miniature", ACROSS: "across papers"}.get(cell.scenario, ""),
        }
        name = f"{cell.scenario}/{cell.method}/seed {seed}"
        run = self.client.create_run(
            self.experiment(cell.paper), start_time=started, tags=tags, run_name=name
        ).info.run_id
        parameters = [
            self.entities.Param(key, str(value)[:6000]) for key, value in sorted(_flat(values).items())
        ]
        self.client.log_batch(run, params=parameters)
        return run

    def curves(self, run: str, points: list[tuple[int, dict]]) -> None:
        """Curves from rows of history.csv; per-client and per-domain-pair columns stay in the artifact
        alone."""
        metrics = [
            self.entities.Metric(name, float(value), stamp, int(row["round"]))
            for stamp, row in points
            for name, value in row.items()
            if name not in ("seed", "round")
            and ("." not in name or name.endswith((".AVG", ".average", ".weighted")))
            and value is not None
            and not pd.isna(value)
        ]
        for first in range(0, len(metrics), BATCH):
            self.client.log_batch(run, metrics=metrics[first:first + BATCH])

    def complete(self, run: str, cell: Cell, result: dict, k: int, ended: int) -> None:
        """Reported numbers, provenance tags and files; last of all the status, which `known` looks for."""
        reported = [
            self.entities.Metric(f"reported/{name}", values[k], ended, result["rounds"])
            for name, values in result["measures"].items()
            if "." not in name or name.endswith(".AVG")
        ]
        partitions = result.get("partitions", [result["partition"]] * len(result["seeds"]))
        tags = {
            "fedrepro.result": result["self"],
            "fedrepro.digest": result["digest"],
            "hook": result["hook"],
            "git.commit": result["git"].get("commit", ""),
            "git.dirty": str(result["git"].get("dirty", "")).lower(),
            "data.set": result["data"]["set"],
            "data.source": result["data"]["source"],
            "data.digest": result["data"]["digest"],
            "partition.digest": partitions[k],
            "device": result["device"],
            "dvc.stage": cell.stage(load_paper(cell.paper, self.root)),
        }
        self.client.log_batch(
            run, metrics=reported, tags=[self.entities.RunTag(key, str(value)) for key, value in tags.items()]
        )
        for name in ("result.json", "history.csv"):
            self.client.log_artifact(run, str(cell.folder(self.root) / name))
        self.client.set_terminated(run, "FINISHED", ended)

    def replay(self, cell: Cell, result: dict, k: int, history: pd.DataFrame) -> None:
        """A finished seed as a run with its own times."""
        seed, seconds = result["seeds"][k], result["seconds"][k]
        started = int(datetime.fromisoformat(result["started"]).timestamp() * 1000)
        rows = history[history["seed"] == seed].to_dict("records")
        run = self.start(
            cell,
            seed,
            {"hyper": result["hyper"], "scenario": _scenario_values(cell, self.root)},
            started,
            "FINISHED",
        )
        step = 1000 * seconds / max(len(rows) - 1, 1)
        self.curves(run, [(started + int(i * step), row) for i, row in enumerate(rows)])
        self.complete(run, cell, result, k, started + int(1000 * seconds))

    def _search(self, paper: str, query: str) -> list:
        return self.client.search_runs([self.experiment(paper)], query, max_results=50)


def _scenario_values(cell: Cell, root: Path) -> dict:
    scenario = load_paper(cell.paper, root).scenarios.get(cell.scenario)
    return dataclasses.asdict(scenario) if scenario else {}


def _flat(values: dict, prefix: str = "") -> dict:
    """Nested mappings as dotted keys; None is left out."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = value
    return flat


@contextlib.contextmanager
def _locked(root: Path):
    folder = root / ".cells"
    folder.mkdir(exist_ok=True)
    with open(folder / "mlflow.lock", "w") as handle:
        with contextlib.suppress(OSError):            # a shared file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def say_import() -> int:
    """Import and print the outcome; returns the exit code. A server that is down does not fail the
    pipeline."""
    try:
        new, old = import_results()
    except FedReproError:
        raise
    except Exception as error:
        print(
            f"warning: MLflow at {uri()} does not answer ({_first_line(error)}); call this again when it "
            "does",
            file=sys.stderr,
        )
        return 0
    print(f"MLflow at {uri()}: {new} new runs, {old} already there")
    return 0
