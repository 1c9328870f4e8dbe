"""MLflow as a view of the result files: live for cells that train for long, replayed for all others.

`fedrepro import` brings in every finished seed that the tracking server does not know yet; it can
be called at any time and as often as one likes. The files under papers/*/runs are the truth.
"""

import contextlib
import dataclasses
import fcntl
import os
import re
import sqlite3
import statistics
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline import files
from pipeline.cells import choices, results
from pipeline.cells.experiment import Experiment
from pipeline.errors import FedReproError
from pipeline.schema import LISTED, ROOT, Cell, Trial, Tuned, load_paper

LIVE_AFTER = 30.0  # seconds after which a cell is followed live
FLUSH = 10.0  # seconds between two batches of a live run
BATCH = 1000  # metrics that MLflow takes in one call
Printed = Mapping[Cell, Mapping[str, float]]  # a cell's measures -> the numbers that the paper prints
NOTE = """{title}

A run is a seed of a cell, named scenario/method/seed. A column block of a table: search
`tags.scenario = "mini"`, tick the runs, Compare; or group by the tag `method` for the mean over the seeds.
`reported/...` are the numbers that the report prints, `printed/...` the paper's, `spread/...` the standard
deviation over seeds; metrics without a prefix are the model that the paper's
tables score, `pre.` and `post.` the other one, before or after local training."""


def uri(root: Path = ROOT) -> str:
    """MLFLOW_TRACKING_URI, or the SQLite file mlflow.db in the repository."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"


def import_results(
    root: Path = ROOT, printed: Printed | None = None, progress: Callable[[int, int], None] | None = None
) -> tuple[int, int]:
    """Log every seed of every finished cell that is not there yet; (new runs, runs that were there). One
    import waits for another.

    printed: the papers' numbers, logged beside the measured ones. progress: called with the number of
    finished cells that were looked at and of all, before each.
    """
    new = old = 0
    with _locked(root, "import"):
        store, tunings = Store(root), {cell: choices.read(cell, root) for cell in choices.found(root)}
        store.printed = printed or {}
        found = results.collect(root)
        for cell in tunings:
            found |= results.of_tuning(cell, root)
        there = {paper: store.finished(paper) for paper in {cell.paper for cell in (*found, *tunings)}}
        for paper in there:
            store.remove_unfinished(paper)
        for done, (cell, result) in enumerate(found.items()):
            if progress:
                progress(done, len(found))
            missing = [
                k
                for k, seed in enumerate(result["seeds"])
                if (result["self"], str(seed)) not in there[cell.paper]
            ]
            old += len(result["seeds"]) - len(missing)
            history = results.history(cell, root) if missing else None
            for k in missing:
                store.replay(cell, result, k, history)
                new += 1
        for cell, document in tunings.items():
            known = (document["self"], "") in there[cell.paper]
            old, new = old + known, new + (not known)
            if not known:
                store.replay_tuning(cell, document)
    return new, old


class Follower:
    """Shows a cell in MLflow while it trains. A server that cannot be reached causes one warning and never
    fails the run."""

    def __init__(self, cell: Cell, values: dict, root: Path = ROOT):
        self.cell, self.values, self.root = cell, values, root
        self.begun = self.flushed = time.monotonic()
        self.waiting: dict[int, list[tuple[int, dict]]] = defaultdict(list)  # seed -> (time stamp, row)
        self.store: Store | None = None
        self.runs: dict[int, str] = {}
        # A configuration becomes a run when its tuning is done, below that of the tuning.
        self.failed = os.environ.get("FEDREPRO_TRACKING") == "off" or isinstance(cell, Trial)

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

    def _flush(self) -> "Store":
        self.store = store = self.store or Store(self.root)
        for seed, points in self.waiting.items():
            if points and seed not in self.runs:
                self.runs[seed] = store.start(self.cell, seed, self.values, points[0][0])
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
        except Exception as error:  # whatever MLflow, SQLite or the network raises
            self.failed = True
            print(
                f"warning: {no_answer(error, self.root)}; training goes on, `fedrepro import` brings the "
                "runs in later",
                file=sys.stderr,
                flush=True,
            )


class Store:
    """One tracking server: experiments by paper, runs by cell and seed."""

    def __init__(self, root: Path):
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        # it would print two lines for every run
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        import mlflow  # seconds to import, and absent on machines that only train
        from sqlalchemy import Engine, event

        event.listen(Engine, "connect", _without_waiting)
        make_usable(root)
        self.root, self.client, self.checkout = root, mlflow.MlflowClient(uri(root)), _checkout(root)
        self.entities = mlflow.entities
        self.experiments: dict[str, str] = {}
        self.printed: Printed = {}

    def experiment(self, paper: str) -> str:
        """The id of the paper's experiment, made where it is missing."""
        if paper not in self.experiments:
            found = self.client.get_experiment_by_name(paper)
            if found and found.lifecycle_stage == "deleted":  # by its own pages; its name stays taken
                self.client.restore_experiment(found.experiment_id)
            self.experiments[paper] = found.experiment_id if found else self._new_experiment(paper)
        return self.experiments[paper]

    def _new_experiment(self, paper: str) -> str:
        base = database(self.root)
        local = None if uri(self.root).startswith("http") else _artifacts(base or self.root / "mlflow.db")
        note = NOTE.format(title=load_paper(paper, self.root).title)
        tags = {"mlflow.experimentKind": "custom_model_development", "mlflow.note.content": note}
        try:
            return self.client.create_experiment(paper, artifact_location=local, tags=tags)
        except Exception:  # another process may have been quicker
            if found := self.client.get_experiment_by_name(paper):
                return found.experiment_id
            raise

    def finished(self, paper: str) -> dict[tuple[str, str], str]:
        """(result, seed) of every run that is logged to its end -> its id."""
        runs = self._search(paper, "attributes.status = 'FINISHED'")
        return {
            (run.data.tags.get("fedrepro.result", ""), run.data.tags.get("seed", "")): run.info.run_id
            for run in runs
        }

    def remove_unfinished(self, paper: str, which: str = "") -> None:
        """Remove the runs that processes of this working copy left when they were killed. Others' runs, and
        those whose process lives, may still train."""
        for run in self._search(
            paper, f"attributes.status = 'RUNNING' and tags.`fedrepro.checkout` = '{self.checkout}'{which}"
        ):
            host, _, process = run.data.tags.get("fedrepro.process", "").rpartition(":")
            ours = process == str(os.getpid())
            if not process or host == files.machine() and (ours or not files.alive(int(process))):
                below = f"tags.`mlflow.parentRunId` = '{run.info.run_id}' and attributes.status != 'RUNNING'"
                for one in (run, *self._search(paper, below)):
                    self.client.delete_run(one.info.run_id)

    def start(self, cell: Cell, seed: int, values: dict, started: int) -> str:
        """A new run named scenario/method/seed; one that a killed process left is removed first."""
        self.remove_unfinished(cell.paper, f" and tags.cell = '{cell}' and tags.seed = '{seed}'")
        paper = load_paper(cell.paper, self.root)
        tables = [
            t.number
            for t in paper.tables.values()
            if any(block.scenario == cell.scenario for block in t.blocks.values())
        ]
        tags = self._tags(cell) | {
            "seed": str(seed),
            "table": ", ".join(tables) or LISTED.get(cell.scenario, ""),
        }
        run = self._new_run(f"{cell.scenario}/{cell.method}/seed {seed}", tags, started)
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
            if name not in ("seed", "round", results.STATE)
            and ("." not in name or name.endswith((".AVG", ".average", ".weighted")))
            and value is not None
            and not pd.isna(value)
        ]
        for first in range(0, len(metrics), BATCH):
            self.client.log_batch(run, metrics=metrics[first : first + BATCH])

    def complete(self, run: str, cell: Cell, result: dict, k: int, ended: int) -> None:
        """Reported numbers, provenance tags and files; last of all the status, which `finished` looks for."""
        reported = [
            self.entities.Metric(f"reported/{name}", values[k], ended, 0)  # no step: drawn as bars
            for name, values in result["measures"].items()
            if "." not in name or name.endswith(".AVG")
        ]
        headline = result["headline"]
        beside = {f"printed/{name}": number for name, number in self.printed.get(cell, {}).items()}
        if len(seeds := result["measures"].get(headline, [])) > 1:
            beside[f"spread/{headline}"] = statistics.stdev(seeds)
        reported += [self.entities.Metric(name, number, ended, 0) for name, number in beside.items()]
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
            cell, seed, {"hyper": result["hyper"], "scenario": _scenario_values(cell, self.root)}, started
        )
        step = 1000 * seconds / max(len(rows) - 1, 1)
        self.curves(run, [(started + int(i * step), row) for i, row in enumerate(rows)])
        self.complete(run, cell, result, k, started + int(1000 * seconds))

    def replay_tuning(self, cell: Cell, document: dict) -> None:
        """A tuning as a run, and each of its configurations as one below it; its own status is last, which
        `finished` looks for."""
        now, tags = int(time.time() * 1000), self._tags(cell) | {"scenario": f"{cell.scenario}-trial"}
        name, accuracies = f"{cell.scenario}/{cell.method}", choices.means(document["configurations"])
        parent = self._new_run(f"{name}/tuning", tags | {"fedrepro.result": document["self"]}, now)
        children = []
        for number, (one, mean) in enumerate(zip(document["configurations"], accuracies)):
            below = tags | {"mlflow.parentRunId": parent, "configuration": str(number)}
            run = self._new_run(f"{name}/configuration {number}", below, now)
            children.append((run, one["values"], mean))
        best = children[document["chosen"]]
        for run, values, mean in (*children, (parent, *best[1:])):
            self.client.log_batch(
                run,
                metrics=[] if mean is None else [self.entities.Metric("validation", mean, now, 0)],
                params=[self.entities.Param(key, str(value)) for key, value in values.items()],
            )
            self.client.set_terminated(run, "FINISHED" if mean is not None else "FAILED", now)

    def _tags(self, cell: Cell) -> dict[str, str]:
        return {
            "paper": cell.paper,
            "scenario": cell.scenario,
            "method": cell.method,
            "label": load_paper(cell.paper, self.root).label(cell.method),
            "cell": str(cell),
            "fedrepro.checkout": self.checkout,
            "fedrepro.process": f"{files.machine()}:{os.getpid()}",
        }

    def _new_run(self, name: str, tags: dict[str, str], started: int) -> str:
        return self.client.create_run(
            self.experiment(tags["paper"]), start_time=started, tags=tags, run_name=name
        ).info.run_id

    def _search(self, paper: str, query: str) -> list:
        found: list = []
        page: str | None = None
        while page is None or page:
            runs = self.client.search_runs([self.experiment(paper)], query, page_token=page)
            found += runs
            page = runs.token or ""
        return found


def _scenario_values(cell: Cell, root: Path) -> dict:
    known = load_paper(cell.paper, root).scenarios
    scenario = Experiment.of(cell, root).scenario if isinstance(cell, Tuned) else known.get(cell.scenario)
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


# -- the database ------------------------------------------------------------------------------------------


def make_usable(root: Path = ROOT) -> None:
    """See that the SQLite file is a whole MLflow database; nothing to do where a server has the runs.

    MLflow makes one in many transactions. A process that is killed among them leaves a part that none can
    use, and two at once fail. Hence a new one is made under another name, by one process at a time, then
    renamed. One that is unusable all the same is set aside: results are in git, and the next import brings
    them in again.
    """
    if (path := database(root)) is None:
        return
    with _locked(root, "lock"):
        if path.exists() and (fault := _fault(path) or _elsewhere(path, root)):
            aside = f"{path.name}.unusable-{datetime.now():%Y%m%d-%H%M%S}"
            _rename(path, aside)
            print(
                f"warning: {path.name} cannot be used ({fault}): set aside as {aside}; a new one is made, "
                "and `fedrepro import` brings in what is in git",
                file=sys.stderr,
                flush=True,
            )
        if not path.exists():
            _create(path)


def database(root: Path) -> Path | None:
    """The file that holds the runs; None where a server does."""
    address = uri(root).partition("?")[0]
    name = address.removeprefix("sqlite:///")
    return Path(name) if name not in (address, "", ":memory:") else None


def _artifacts(path: Path) -> str:
    """The address of the folder beside a database into which its runs' files go. In an address an apostrophe
    is encoded, which MLflow puts into its SQL as it is."""
    return (path.resolve().parent / "mlartifacts").as_uri()


def _without_waiting(connection: Any, _: Any) -> None:
    """SQLite goes on without waiting for the disk at each of MLflow's many commits. A killed process tears
    nothing by that; what a power failure tears is set aside and imported again."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


def _create(path: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    new = path.with_name(path.name + ".new")
    for part in _parts(new):  # of a killed process
        part.unlink(missing_ok=True)
    SqlAlchemyStore(f"sqlite:///{new}", _artifacts(path)).engine.dispose()
    files.sync(new)
    os.replace(new, path)


def _fault(path: Path) -> str | None:
    """What is wrong with a database; None for nothing. One that is only locked, or that may not be read,
    raises sqlite3.OperationalError."""
    from alembic.script import ScriptDirectory
    from mlflow.store import db_migrations

    try:
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as base:
            if (said := base.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                return said.splitlines()[-1]
            begun = base.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
            found = base.execute("SELECT * FROM alembic_version").fetchall() if begun else []
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        return str(error)
    newest = ScriptDirectory(db_migrations.__path__[0]).get_current_head()
    return None if found == [(newest,)] else "incomplete, or of another version of MLflow"


def _elsewhere(path: Path, root: Path) -> str | None:
    """That a checkout's own database puts files into the folder of the checkout that it was copied or moved
    from; None where it does not."""
    if path != root / "mlflow.db":
        return None
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as base:
        places = {place or "" for (place,) in base.execute("SELECT artifact_location FROM experiments")}
    others = {place for place in places if place.endswith("/mlartifacts")} - {_artifacts(path)}
    return f"its files go to {min(others)}, of a checkout that was copied or moved" if others else None


def _parts(path: Path) -> list[Path]:
    """A database and the journals that SQLite keeps beside it; a journal must never meet another database."""
    return [path.with_name(path.name + end) for end in ("-journal", "-wal", "-shm", "")]


def _rename(path: Path, name: str) -> None:
    for part, new in zip(_parts(path), _parts(path.with_name(name))):
        if part.exists():
            os.replace(part, new)


def _checkout(root: Path) -> str:
    """The name of this working copy, drawn once: a shared server has the runs of many, which neither host
    nor path tells apart."""
    path = root / ".cells" / "checkout"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with open(path.with_name("checkout.lock"), "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not path.exists():
                files.write_text(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8")


@contextlib.contextmanager
def _locked(root: Path, purpose: str):
    """One process at a time, among all that use this database; with a server, among those of this working
    copy."""
    base = database(root) or root / ".cells" / "mlflow"
    base.parent.mkdir(exist_ok=True)
    with open(base.with_name(f"{base.name}.{purpose}"), "w") as handle:
        with contextlib.suppress(OSError):  # a shared file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def no_answer(error: Exception, root: Path = ROOT) -> str:
    """That MLflow does not answer, and why, in one line."""
    refused = re.search(r"\[Errno -?\d+\] ([\w ]+)", str(error))
    why = refused[1] if refused else (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return f"MLflow at {uri(root)} does not answer ({why})"


def say_import(printed: Printed | None = None) -> int:
    """Import and print the outcome; returns the exit code. A server that is down does not fail the
    pipeline."""
    try:
        new, old = import_results(printed=printed)
    except FedReproError:
        raise
    except Exception as error:
        print(f"warning: {no_answer(error)}; call this again when it does", file=sys.stderr)
        return 0
    print(f"MLflow at {uri()}: {new} new runs, {old} already there")
    return 0
