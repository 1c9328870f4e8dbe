"""Log training runs to MLflow: live while a cell trains, or imported from result files afterwards.

`fedrepro import` brings in every finished seed that the tracking server does not know yet; it can
be called at any time and as often as one likes. The files under papers/*/runs are the truth.
"""

import contextlib
import dataclasses
import hashlib
import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline import files
from pipeline.cells import choices, mlflow_database, results
from pipeline.cells.experiment import Experiment
from pipeline.cells.mlflow_database import uri
from pipeline.errors import FedReproError, ParamError, warn
from pipeline.schema import LISTED, ROOT, Cell, Trial, load_paper

# seconds after which a cell is followed live
LIVE_AFTER = 30.0
# seconds between two batches of a live run
FLUSH = 10.0
# metrics that MLflow takes in one call
BATCH = 1000
# a cell's measures -> the numbers that the paper prints
Printed = Mapping[Cell, Mapping[str, float]]
# before a measure's name
PREFIXES = ("reported/", "printed/", "spread/")
NOTE = """{title}

A run is a seed of a cell, named scenario/method/seed. A column block of a table: search
`tags.scenario = "mini"`, tick the runs, Compare; or group by the tag `method` for the mean over the seeds.
`reported/...` are the numbers that the report prints, `printed/...` the paper's, `spread/...` the standard
deviation over seeds; metrics without a prefix are the model that the paper's
tables score, `pre.` and `post.` the other one, before or after local training."""


def import_results(root: Path = ROOT, printed: Printed | None = None, show: bool = False) -> tuple[int, int]:
    """Log every seed of every finished cell that is not there yet; (new runs, runs that were there). One
    import waits for another.

    printed: the papers' numbers, logged with the measured ones. show: a progress bar.
    """
    from rich.progress import track

    with mlflow_database.locked(root, "import"):
        store = Store(root, printed)
        tunings = {cell: choices.read(cell, root) for cell in choices.tuned_cells(root)}
        measured = results.collect(root)
        for cell in tunings:
            measured |= results.of_tuning(cell, root)
        known = set[tuple[str, str, str]]()
        for paper in {cell.paper for cell in (*measured, *tunings)}:
            known |= {(paper, *run) for run in store.finished(paper)}
            store.remove_unfinished(paper)
        runs = {
            (cell.paper, result["self"], str(seed)): partial(store.replay, cell, result, k)
            for cell, result in measured.items()
            for k, seed in enumerate(result["seeds"])
        } | {
            (cell.paper, document["self"], ""): partial(store.replay_tuning, cell, document)
            for cell, document in tunings.items()
        }
        new = [replay for key, replay in runs.items() if key not in known]
        bar = "Bringing results into MLflow that it does not know yet"
        for replay in track(new, bar, transient=True, disable=not show):
            replay()
    return len(new), len(runs) - len(new)


class Follower:
    """Shows a cell in MLflow while it trains; a server that cannot be reached costs one warning."""

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
            self._flush()

    def finish(self, result: dict) -> None:
        """Close the live runs and mark them with the result that they belong to."""
        if self.store is not None:
            self._flush(result)

    def _flush(self, result: dict | None = None) -> None:
        """Send what waits, then end the runs of a result's seeds."""
        if self.failed:
            return
        try:
            self.store = store = self.store or Store(self.root)
            for seed, points in self.waiting.items():
                if points and seed not in self.runs:
                    self.runs[seed] = store.start(self.cell, seed, self.values, points[0][0])
                if points:
                    store.curves(self.runs[seed], points)
                    points.clear()
            for k, seed in enumerate(result["seeds"]) if result else ():
                if result and seed in self.runs:
                    store.complete(self.runs[seed], self.cell, result, k, int(time.time() * 1000))
        except Exception as error:  # whatever MLflow, SQLite or the network raises
            self.failed = True
            later = "training goes on, `fedrepro import` brings the runs in later"
            warn(f"{no_answer(error, self.root)}; {later}")


class Store:
    """One tracking server: experiments by paper, runs by cell and seed."""

    def __init__(self, root: Path, printed: Printed | None = None):
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        # it would print two lines for every run
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        import mlflow  # seconds to import, and absent on machines that only train

        mlflow_database.make_usable(root)
        self.root, self.printed = root, printed or {}
        self.client, self.entities = mlflow.MlflowClient(uri(root)), mlflow.entities
        self.checkout, self.experiments = mlflow_database.checkout(root), dict[str, str]()

    def experiment(self, paper: str) -> str:
        """The id of the paper's experiment, made where it is missing."""
        if paper not in self.experiments:
            experiment = self.client.get_experiment_by_name(paper)
            # One that was deleted in MLflow's pages still has its name.
            if experiment and experiment.lifecycle_stage == "deleted":
                self.client.restore_experiment(experiment.experiment_id)
            self.experiments[paper] = experiment.experiment_id if experiment else self._new_experiment(paper)
        return self.experiments[paper]

    def _new_experiment(self, paper: str) -> str:
        note = NOTE.format(title=load_paper(paper, self.root).title)
        tags = {"mlflow.experimentKind": "custom_model_development", "mlflow.note.content": note}
        try:
            return self.client.create_experiment(paper, mlflow_database.artifacts(self.root), tags)
        except Exception:  # another process may have been quicker
            if experiment := self.client.get_experiment_by_name(paper):
                return experiment.experiment_id
            raise

    def finished(self, paper: str) -> set[tuple[str, str]]:
        """(result, seed) of every run that is logged to its end."""
        tags = [run.data.tags for run in self._search(paper, "attributes.status = 'FINISHED'")]
        return {(of.get("fedrepro.result", ""), of.get("seed", "")) for of in tags}

    def remove_unfinished(self, paper: str, which: str = "") -> None:
        """Remove the runs that processes of this working copy left when they were killed. Others' runs, and
        those whose process lives, may still train."""
        ours = f"attributes.status = 'RUNNING' and tags.`fedrepro.checkout` = '{self.checkout}'{which}"
        for run in self._search(paper, ours):
            host, _, process = run.data.tags.get("fedrepro.process", "").rpartition(":")
            dead = process == str(os.getpid()) or not files.alive(int(process or 0))
            if not process or host == files.machine() and dead:
                below = f"tags.`mlflow.parentRunId` = '{run.info.run_id}' and attributes.status != 'RUNNING'"
                for one in (run, *self._search(paper, below)):
                    self.client.delete_run(one.info.run_id)

    def start(self, cell: Cell, seed: int, values: dict, started: int) -> str:
        """A new run named scenario/method/seed; one that a killed process left is removed first."""
        self.remove_unfinished(cell.paper, f" and tags.cell = '{cell}' and tags.seed = '{seed}'")
        tables = [
            table.number
            for table in load_paper(cell.paper, self.root).tables.values()
            if any(block.scenario == cell.scenario for block in table.blocks.values())
        ]
        table = ", ".join(tables) or LISTED.get(cell.scenario, "")
        tags = self._tags(cell) | {"seed": str(seed), "table": table}
        run = self._new_run(f"{cell.scenario}/{cell.method}/seed {seed}", tags, started)
        flat = pd.json_normalize(values).iloc[0].dropna().to_dict()
        self._log(run, parameters={key: str(flat[key])[:6000] for key in sorted(flat)})
        return run

    def curves(self, run: str, points: list[tuple[int, dict]]) -> None:
        """Curves from rows of history.csv; per-client and per-pair columns stay in the artifact."""
        metrics = [
            self.entities.Metric(_key(name), float(value), stamp, int(row["round"]))
            for stamp, row in points
            for name, value in row.items()
            if name not in ("seed", "round", results.STATE)
            and ("." not in name or name.endswith((".AVG", ".average", ".weighted")))
            and not pd.isna(value)
        ]
        for first in range(0, len(metrics), BATCH):
            self.client.log_batch(run, metrics=metrics[first : first + BATCH])

    def complete(self, run: str, cell: Cell, result: dict, k: int, ended: int) -> None:
        """Reported numbers, provenance tags and files; last of all the status, which `finished` looks for."""
        numbers = {
            f"reported/{name}": values[k]
            for name, values in result["measures"].items()
            if "." not in name or name.endswith(".AVG")
        }
        numbers |= {f"printed/{name}": number for name, number in self.printed.get(cell, {}).items()}
        headline = result["headline"]
        if len(seeds := result["measures"].get(headline, [])) > 1:
            numbers[f"spread/{headline}"] = statistics.stdev(seeds)
        tags = {
            "fedrepro.result": result["self"],
            "fedrepro.digest": result["digest"],
            "hook": result["hook"],
            "git.commit": result["git"].get("commit", ""),
            "git.dirty": str(result["git"].get("dirty", "")).lower(),
            **{f"data.{key}": result["data"][key] for key in ("set", "source", "digest")},
            "partition.digest": results.partitions(result)[k],
            "device": result["device"],
            "dvc.stage": cell.stage(load_paper(cell.paper, self.root)),
        }
        self._log(run, numbers, tags=tags, at=ended)
        for name in ("result.json", "history.csv"):
            self.client.log_artifact(run, str(cell.folder(self.root) / name))
        self.client.set_terminated(run, "FINISHED", ended)

    def replay(self, cell: Cell, result: dict, k: int) -> None:
        """A finished seed as a run with its times."""
        seed, seconds = result["seeds"][k], result["seconds"][k]
        started = int(datetime.fromisoformat(result["started"]).timestamp() * 1000)
        history = results.history(cell, self.root)
        rows = history[history["seed"] == seed].to_dict("records")
        values = {"hyper": result["hyper"]}
        with contextlib.suppress(ParamError):  # of a cell that paper.yaml does not have any more
            values["scenario"] = dataclasses.asdict(Experiment.of(cell, self.root).scenario)
        run = self.start(cell, seed, values, started)
        step = 1000 * seconds / max(len(rows) - 1, 1)
        self.curves(run, [(started + int(i * step), row) for i, row in enumerate(rows)])
        self.complete(run, cell, result, k, started + int(1000 * seconds))

    def replay_tuning(self, cell: Cell, document: dict) -> None:
        """A tuning as a run, its configurations below it; its status is last, as `finished` needs."""
        now, tags = int(time.time() * 1000), self._tags(cell) | {"scenario": f"{cell.scenario}-trial"}
        name, configurations = f"{cell.scenario}/{cell.method}", document["configurations"]
        parent = self._new_run(f"{name}/tuning", tags | {"fedrepro.result": document["self"]}, now)
        runs = []
        for number, (one, mean) in enumerate(zip(configurations, choices.means(configurations))):
            below = tags | {"mlflow.parentRunId": parent, "configuration": str(number)}
            runs.append((self._new_run(f"{name}/configuration {number}", below, now), one["values"], mean))
        for run, values, mean in (*runs, (parent, *runs[document["chosen"]][1:])):
            self._log(run, {} if mean is None else {"validation": mean}, values, at=now)
            self.client.set_terminated(run, "FINISHED" if mean is not None else "FAILED", now)

    def _log(
        self,
        run: str,
        metrics: Mapping[str, float] = {},
        parameters: Mapping[str, Any] = {},
        tags: Mapping[str, str] = {},
        at: int = 0,
    ) -> None:
        """In one call. Metrics have no step, and are drawn as bars."""
        self.client.log_batch(
            run,
            [self.entities.Metric(_key(name), value, at, 0) for name, value in metrics.items()],
            [self.entities.Param(_key(name), str(value)) for name, value in parameters.items()],
            [self.entities.RunTag(name, str(value)) for name, value in tags.items()],
        )

    def _tags(self, cell: Cell) -> dict[str, str]:
        return {
            **{key: getattr(cell, key) for key in ("paper", "scenario", "method")},
            "label": load_paper(cell.paper, self.root).label(cell.method),
            "cell": str(cell),
            "fedrepro.checkout": self.checkout,
            "fedrepro.process": f"{files.machine()}:{os.getpid()}",
        }

    def _new_run(self, name: str, tags: dict[str, str], started: int) -> str:
        experiment = self.experiment(tags["paper"])
        return self.client.create_run(experiment, started, tags, name).info.run_id

    def _search(self, paper: str, query: str) -> list:
        return self.client.search_runs([self.experiment(paper)], query, max_results=50_000)


def _key(name: str) -> str:
    """A name that MLflow takes for a metric or a parameter. What holds a domain's or a client's name may have
    other characters, or too many; a digest then tells it apart from its like."""
    group, slash, rest = name.partition("/") if name.startswith(PREFIXES) else ("", "", name)
    plain = re.sub(r"[^\w.\- ]", "_", rest).strip(".")[:150] or "_"
    digest = hashlib.sha256(rest.encode()).hexdigest()[:8]
    return f"{group}{slash}{rest if plain == rest else f'{plain}-{digest}'}"


def wants_login(error: Exception) -> bool:
    """Does MLflow refuse for want of a user and a password, or for wrong ones?"""
    return bool(re.search(r"\b40[13]\b|unauthori[sz]ed|unauthenticated|PERMISSION_DENIED", str(error), re.I))


def no_answer(error: Exception, root: Path = ROOT) -> str:
    """That MLflow does not answer, and why, in one line."""
    if wants_login(error):
        names = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        return f"MLflow at {uri(root)} asks for a login: set {names}"
    refused = re.search(r"\[Errno -?\d+\] ([\w ]+)", str(error))
    why = refused[1] if refused else (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return f"MLflow at {uri(root)} does not answer ({why})"


def say_import(printed: Printed | None = None) -> int:
    """Import and print the outcome; returns the exit code, 0 also where the server is down. FedReproError
    where it asks for a login."""
    try:
        new, old = import_results(printed=printed)
    except FedReproError:
        raise
    except Exception as error:
        if wants_login(error):
            raise FedReproError(no_answer(error)) from error
        warn(f"{no_answer(error)}; call this again when it does")
        return 0
    print(f"MLflow at {uri()}: {new} new runs, {old} already there")
    return 0
