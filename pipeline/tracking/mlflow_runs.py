"""Log runs to MLflow: while a cell trains, or imported from result files afterwards.

`fedrepro ui` and `fedrepro import` add every finished seed that MLflow does not have yet. The stage `track`
adds only results that are not in git. All of them may be called at any time and repeatedly. The files in
papers/*/runs are authoritative.
"""

import contextlib
import dataclasses
import hashlib
import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.cells import choices, results
from pipeline.cells.experiment import Experiment
from pipeline.errors import FedReproError, ParamError, warn
from pipeline.git import unchanged
from pipeline.schema import LISTED, ROOT, Cell, Trial, load_paper, visible
from pipeline.tracking import mlflow_bulk, mlflow_database, mlflow_registry, system_metrics
from pipeline.tracking.mlflow_bulk import METRICS_AT_ONCE, Bulk
from pipeline.tracking.mlflow_database import uri

# seconds after which a cell is followed live
LIVE_AFTER = 30.0
# seconds between two batches of a live run
FLUSH = 10.0
# metrics that MLflow takes in one call
BATCH = 1000
# characters of a parameter's value that MLflow takes
LONGEST_PARAMETER = 6000
# a cell's measures -> the numbers that the paper prints
Printed = Mapping[Cell, Mapping[str, float]]
# before a measure's name
PREFIXES = ("reported/", "printed/", "spread/")
NOTE = """{title}

A run is a cell, named scenario/method, with the means over its seeds; below it is a run of each seed. A
column block of a table: search `tags.scenario = "mini"`, tick the runs, Compare.
`reported/...` are the numbers that the report prints, `printed/...` the paper's, `spread/...` the standard
deviation over seeds; metrics without a prefix are the model that the paper's
tables score, `pre.` and `post.` the other one, before or after local training."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """What was trained and is to be in MLflow.

    cells    cell -> its result.json
    tunings  tuned cell -> the document of its tuning
    tuned    cell that a tuning trained -> its result.json and that of the tuning
    """

    cells: dict[Cell, dict]
    tunings: dict[Cell, dict]
    tuned: dict[Cell, tuple[dict, dict]]

    @classmethod
    def everything(cls, root: Path) -> "Finished":
        """Every result under papers/, those of tables first."""
        measured = results.collect(root)
        tunings = {cell: choices.read(cell, root) for cell in choices.tuned_cells(root)}
        keys = dict.fromkeys(cell.paper for cell in measured)
        in_tables = {(key, block.scenario) for key in keys for block in _blocks(key, root)}
        first = sorted(measured, key=lambda cell: (cell.paper, cell.scenario) not in in_tables)
        tuned = {
            one: (result, document)
            for cell, document in tunings.items()
            for one, result in results.of_tuning(cell, root).items()
            if one not in measured
        }
        return cls({cell: measured[cell] for cell in first}, tunings, tuned)

    @classmethod
    def trained_here(cls, root: Path) -> "Finished":
        """The results in `runs` folders that are not those of the commit: what this working copy trained.
        Where that is no git repository, all."""
        known = unchanged(root, "papers/*/runs/*/*/result.json")
        new = [path for path in visible(root, "papers/*/runs/*/*/result.json") if path not in known]
        documents = map(results.read, new)
        return cls({Cell.parse(document["cell"]): document for document in documents}, {}, {})


def _blocks(paper: str, root: Path) -> Iterator[Any]:
    """The blocks of the paper's tables."""
    for table in load_paper(paper, root).tables.values():
        yield from table.blocks.values()


def import_results(
    root: Path = ROOT,
    printed: Printed | None = None,
    show: bool = False,
    finished: Finished | None = None,
) -> tuple[int, int]:
    """Log every finished seed that is not there yet; (new runs, runs that were there). One import waits for
    another, and an interrupted one goes on when it is called again.

    printed: the papers' numbers, logged with the measured ones. show: a progress bar. finished: what is to be
    there; None: everything.
    """
    from rich.progress import Progress

    with mlflow_database.locked(root, "import"):
        finished = Finished.everything(root) if finished is None else finished
        if not (finished.cells or finished.tunings):
            return 0, 0
        store = Store(root, printed, bulk=True)
        known: dict[tuple[str, str, str], str] = {}
        for paper in dict.fromkeys(cell.paper for cell in (*finished.cells, *finished.tunings)):
            # with the finished seeds of a cell whose import or training was killed
            store.remove_unfinished(paper)
            known |= {(paper, *run): run_id for run, run_id in store.finished(paper).items()}
        total = sum(len(result["seeds"]) for result in finished.cells.values()) + len(finished.tunings)
        total += sum(len(result["seeds"]) for result, _ in finished.tuned.values())
        new = 0
        with Progress(transient=True, disable=not show) as progress, contextlib.closing(store):
            task = progress.add_task("Bringing results into MLflow", total=total)
            for cell, result in finished.cells.items():
                new += store.replay(cell, result, known)
                progress.advance(task, len(result["seeds"]))
            for cell, document in finished.tunings.items():
                new += store.replay_tuning(cell, document, known)
                progress.advance(task)
            for cell, (result, tuning) in finished.tuned.items():
                new += store.replay(cell, result, known, known[cell.paper, tuning["self"], ""])
                progress.advance(task, len(result["seeds"]))
            store.write()
            measured = finished.cells | {cell: result for cell, (result, _) in finished.tuned.items()}
            mlflow_registry.register(store.client, measured, store.finished, root)
    return new, total - new


class Follower:
    """Shows a cell in MLflow while it trains; a server that cannot be reached costs one warning."""

    def __init__(self, cell: Cell, values: dict, root: Path = ROOT):
        self.cell, self.values, self.root = cell, values, root
        self.begun = self.flushed = time.monotonic()
        self.waiting: dict[int, list[tuple[int, dict]]] = defaultdict(list)  # seed -> (time stamp, row)
        self.store: Store | None = None
        self.of_cell = ""
        self.runs: dict[int, str] = {}
        # A configuration becomes a run when its tuning is done, below that of the tuning.
        self.failed = os.environ.get("FEDREPRO_TRACKING") == "off" or isinstance(cell, Trial)
        self.load = None if self.failed else system_metrics.Load(root)

    def report(self, row: dict) -> None:
        """A round of a seed is over: `row` is its line of history.csv and its seed."""
        now = time.monotonic()
        self.waiting[row["seed"]].append((int(time.time() * 1000), row))
        if self.load:
            self.load.sample()
        if now - self.begun >= LIVE_AFTER and now - self.flushed >= FLUSH:
            self.flushed = now
            self._flush()

    def finish(self, result: dict) -> None:
        """Close the live runs and mark them with the result that they belong to."""
        if self.load and self.waiting:
            self.load.end(self.root / ".cells" / result["digest"])
        if self.store is not None:
            self._flush(result)

    def _flush(self, result: dict | None = None) -> None:
        """Send what waits, then end the runs of a result's seeds, and that of the cell."""
        if self.failed:
            return
        try:
            self.store = store = self.store or Store(self.root)
            for seed, points in self.waiting.items():
                if points and not self.of_cell:
                    self.of_cell = store.start(self.cell, self.values, points[0][0])
                if points and seed not in self.runs:
                    started = points[0][0]
                    self.runs[seed] = store.start_seed(self.cell, seed, self.values, started, self.of_cell)
                if points:
                    names = dict.fromkeys(name for _, row in points for name in row)
                    columns = {name: [row.get(name) for _, row in points] for name in names}
                    store.curves(self.runs[seed], columns, [stamp for stamp, _ in points])
                    points.clear()
            if self.load:
                store.load(self.of_cell, self.load.taken())
            if result:
                now = int(time.time() * 1000)
                for k, seed in enumerate(result["seeds"]):
                    if seed in self.runs:
                        store.complete_seed(self.runs[seed], self.cell, result, k, now)
                store.complete(self.of_cell, self.cell, result, now)
                ids = {(result["self"], str(seed)): run for seed, run in self.runs.items()}
                mlflow_registry.register(store.client, {self.cell: result}, lambda paper: ids, self.root)
        except Exception as error:  # whatever MLflow, SQLite or the network raises
            self.failed = True
            later = "training goes on, `fedrepro import` brings the runs in later"
            warn(f"{no_answer(error, self.root)}; {later}")


class Store:
    """One tracking server: experiments by paper, runs by cell and seed."""

    def __init__(self, root: Path, printed: Printed | None = None, bulk: bool = False):
        """bulk: imported runs are kept until `write` where a database holds them, then written together."""
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        # it would print two lines for every run
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        import mlflow  # seconds to import, and absent on machines that only train

        mlflow_database.make_usable(root)
        self.root, self.printed = root, printed or {}
        self.client = mlflow.MlflowClient(uri(root))
        self.checkout, self.experiments = mlflow_database.checkout(root), dict[str, str]()
        # by the result's `self`: asked for by every seed
        self.compared: dict[str, dict[str, float]] = {}
        self.bulk = Bulk(uri(root)) if bulk and not uri(root).startswith("http") else None
        self.writer: Any = self.bulk or self.client
        self.entities: Any = mlflow_bulk if self.bulk else mlflow.entities

    def write(self, at_least: int = 0) -> None:
        """Write the runs that a bulk holds, all of them complete, if they have that many metrics."""
        if self.bulk:
            self.bulk.write(at_least)

    def close(self) -> None:
        """Give back the connections of a bulk; what it still holds is forgotten."""
        if self.bulk:
            self.bulk.close()

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

    def finished(self, paper: str) -> dict[tuple[str, str], str]:
        """(result, seed) -> id, of every run that is logged to its end."""
        if self.bulk:
            return self.bulk.finished(self.experiment(paper))
        runs = self._search(paper, "attributes.status = 'FINISHED'")
        return {
            (run.data.tags.get("fedrepro.result", ""), run.data.tags.get("seed", "")): run.info.run_id
            for run in runs
        }

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

    def start(self, cell: Cell, values: dict, started: int) -> str:
        """A new run named scenario/method, below which its seeds are shown; what a killed process left of the
        cell is removed first."""
        self.remove_unfinished(cell.paper, f" and tags.cell = '{cell}'")
        return self._begin(cell, self._of_cell(cell), _parameters(values), started)

    def start_seed(self, cell: Cell, seed: int, values: dict, started: int, parent: str) -> str:
        """A new run named scenario/method/seed, below that of its cell."""
        tags = self._of_cell(cell) | _below(parent)
        return self._begin(cell, tags, _parameters(values), started, seed)

    def _of_cell(self, cell: Cell) -> dict[str, str]:
        """The tags that all seeds of a cell have."""
        tables = [
            table.number
            for table in load_paper(cell.paper, self.root).tables.values()
            if any(block.scenario == cell.scenario for block in table.blocks.values())
        ]
        return self._tags(cell) | {"table": ", ".join(tables) or LISTED.get(cell.scenario, "")}

    def _begin(
        self,
        cell: Cell,
        tags: dict[str, str],
        parameters: dict[str, str],
        started: int,
        seed: int | None = None,
    ) -> str:
        """A new run of a cell, or of a seed, with its tags and its parameters."""
        name = f"{cell.scenario}/{cell.method}"
        if seed is not None:
            name, tags = f"{name}/seed {seed}", tags | {"seed": str(seed)}
        run = self._new_run(name, tags, started)
        self._log(run, parameters=parameters)
        return run

    def curves(self, run: str, columns: Mapping[str, list], stamps: list[int]) -> None:
        """Curves from columns of history.csv, with the time of each row (ms since 1970); per-client and
        per-pair columns stay in the artifact."""
        metrics = []
        for name, values in columns.items():
            if _is_curve(name):
                key = _key(name)
                metrics += [
                    self.entities.Metric(key, float(value), stamp, int(number))
                    for number, stamp, value in zip(columns["round"], stamps, values)
                    if value is not None and value == value  # not NaN
                ]
        for first in range(0, len(metrics), BATCH):
            self.writer.log_batch(run, metrics=metrics[first : first + BATCH])

    def load(self, run: str, samples: list[system_metrics.Sample]) -> None:
        """What the machine did meanwhile, as MLflow's system metrics; steps are the samples' numbers."""
        metrics = [
            self.entities.Metric(name, value, sample.at, sample.number)
            for sample in samples
            for name, value in sample.values.items()
        ]
        for first in range(0, len(metrics), BATCH):
            self.writer.log_batch(run, metrics=metrics[first : first + BATCH])

    def complete_seed(self, run: str, cell: Cell, result: dict, k: int, ended: int) -> None:
        """Reported numbers, provenance tags and files; last of all the status, which `finished` looks for."""
        numbers = {f"reported/{name}": values[k] for name, values in _reported(result)}
        tags = self._tags_of_result(cell, result) | {"partition.digest": results.partitions(result)[k]}
        self._log(run, numbers | self._compared(cell, result), tags=tags, at=ended)
        for name in ("result.json", "history.csv"):
            self.writer.log_artifact(run, str(cell.folder(self.root) / name))
        self.writer.set_terminated(run, "FINISHED", ended)

    def complete(self, run: str, cell: Cell, result: dict, ended: int) -> None:
        """The means over a cell's seeds and its tags, after its seeds are complete."""
        numbers = {f"reported/{name}": statistics.fmean(values) for name, values in _reported(result)}
        tags = self._tags_of_result(cell, result)
        self._log(run, numbers | self._compared(cell, result), tags=tags, at=ended)
        self.writer.set_terminated(run, "FINISHED", ended)

    def _compared(self, cell: Cell, result: dict) -> dict[str, float]:
        """The paper's numbers, and the standard deviation of the headline over the seeds."""
        if (known := self.compared.get(result["self"])) is not None:
            return known
        numbers = {f"printed/{name}": number for name, number in self.printed.get(cell, {}).items()}
        headline = result["headline"]
        if len(seeds := result["measures"].get(headline, [])) > 1:
            numbers[f"spread/{headline}"] = statistics.stdev(seeds)
        self.compared[result["self"]] = numbers
        return numbers

    def _tags_of_result(self, cell: Cell, result: dict) -> dict[str, str]:
        """What a result says of where it comes from."""
        return {
            "fedrepro.result": result["self"],
            "fedrepro.digest": result["digest"],
            "hook": result["hook"],
            "git.commit": result["git"].get("commit", ""),
            "git.dirty": str(result["git"].get("dirty", "")).lower(),
            **{f"data.{key}": result["data"][key] for key in ("set", "source", "digest")},
            "device": result["device"],
            "dvc.stage": cell.stage(load_paper(cell.paper, self.root)),
        }

    def replay(
        self, cell: Cell, result: dict, known: Mapping[tuple[str, str, str], str], above: str = ""
    ) -> int:
        """A cell's finished seeds as runs with their times, below that of the cell; returns how many were not
        `known`, by (paper, result, seed). above: the id of a run that the cell is shown below."""
        new = [
            k
            for k, seed in enumerate(result["seeds"])
            if (cell.paper, result["self"], str(seed)) not in known
        ]
        if not new:
            return 0
        values = {"hyper": result["hyper"]}
        with contextlib.suppress(ParamError):  # of a cell that paper.yaml does not have any more
            values["scenario"] = dataclasses.asdict(Experiment.of(cell, self.root).scenario)
        parameters, tags = _parameters(values), self._of_cell(cell)
        history = results.columns(cell, self.root)
        seeds = history["seed"]
        curves = {name: history[name] for name in history if name == "round" or _is_curve(name)}
        begun = int(datetime.fromisoformat(result["started"]).timestamp() * 1000)
        of_cell = known.get((cell.paper, result["self"], ""))
        parent = of_cell or self._begin(cell, tags | _below(above), parameters, begun)
        last = begun
        for k in new:
            seed, lasted = result["seeds"][k], 1000 * result["seconds"][k]
            of_seed = [one == seed for one in seeds]
            columns = {name: list(compress(values, of_seed)) for name, values in curves.items()}
            step = lasted / max(len(columns["round"]) - 1, 1)
            stamps = [begun + int(i * step) for i in range(len(columns["round"]))]
            run = self._begin(cell, tags | _below(parent), parameters, begun, seed)
            self.curves(run, columns, stamps)
            self.complete_seed(run, cell, result, k, begun + int(lasted))
            last = max(last, begun + int(lasted))
        if not of_cell:
            self.load(parent, system_metrics.read(self.root / ".cells" / result["digest"]))
            self.complete(parent, cell, result, last)
        self.write(METRICS_AT_ONCE)
        return len(new)

    def replay_tuning(self, cell: Cell, document: dict, known: dict[tuple[str, str, str], str]) -> int:
        """A tuning as a run, its configurations below it, unless it is `known`; it is from now on. The
        status of the run is last, as `finished` needs. Returns how many are new, 0 or 1."""
        key = cell.paper, document["self"], ""
        if key in known:
            return 0
        tags = self._tags(cell) | {"scenario": f"{cell.scenario}-trial"}
        name, configurations = f"{cell.scenario}/{cell.method}", document["configurations"]
        lasted = [int(1000 * sum(one.get("seconds", []))) for one in configurations]
        ended = self._end_of_tuning(cell)
        begun = ended - sum(lasted)
        parent = self._new_run(f"{name}/tuning", tags | {"fedrepro.result": document["self"]}, begun)
        means = choices.means(configurations)
        at = begun
        for number, (one, mean) in enumerate(zip(configurations, means)):
            below = tags | _below(parent) | {"configuration": str(number)}
            run = self._new_run(f"{name}/configuration {number}", below, at)
            at += lasted[number]
            self._log(run, {} if mean is None else {"validation": mean}, one["values"], at=at)
            self.writer.set_terminated(run, "FINISHED" if mean is not None else "FAILED", at)
        chosen = document["chosen"]
        self._log(parent, {"validation": means[chosen]}, configurations[chosen]["values"], at=ended)
        self.writer.set_terminated(parent, "FINISHED", ended)
        known[key] = parent
        self.write(METRICS_AT_ONCE)
        return 1

    def _end_of_tuning(self, cell: Cell) -> int:
        """About when a tuning ended, which its file does not say (ms since 1970): before the first training
        with its values, else when the file was written here."""
        started = [
            datetime.fromisoformat(result["started"]).timestamp()
            for result in results.of_tuning(cell, self.root).values()
        ]
        return int(1000 * min(started, default=choices.path(cell, self.root).stat().st_mtime))

    def _log(
        self,
        run: str,
        metrics: Mapping[str, float] = {},
        parameters: Mapping[str, Any] = {},
        tags: Mapping[str, str] = {},
        at: int = 0,
    ) -> None:
        """In one call. Metrics have no step, and are drawn as bars."""
        self.writer.log_batch(
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
        if self.bulk:
            return self.bulk.create_run(experiment, started, tags, name)
        return self.client.create_run(experiment, started, tags, name).info.run_id

    def _search(self, paper: str, query: str) -> list:
        return self.client.search_runs([self.experiment(paper)], query, max_results=50_000)


def _below(run: str) -> dict[str, str]:
    """The tag of a run that MLflow shows below another; none where that has no id."""
    return {"mlflow.parentRunId": run} if run else {}


def _reported(result: dict) -> Iterator[tuple[str, list[float]]]:
    """(measure, values by seed) of a result, without those of single clients and domains."""
    for name, values in result["measures"].items():
        if "." not in name or name.endswith(".AVG"):
            yield name, values


def _parameters(values: Mapping[str, Any]) -> dict[str, str]:
    """Nested values as MLflow's parameters, `scenario.training.rounds`, in the order of their names; those
    without a value are left out."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{below}": text for below, text in _parameters(value).items()}
        elif value is not None:
            flat[str(name)] = str(value)[:LONGEST_PARAMETER]
    return {name: flat[name] for name in sorted(flat)}


def _is_curve(name: str) -> bool:
    """Whether a column of history.csv is a curve in MLflow: those of single clients and pairs are not."""
    alone = "." not in name or name.endswith((".AVG", ".average", ".weighted"))
    return alone and name not in ("seed", "round", results.STATE)


@cache
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


def say_import(printed: Printed | None = None, finished: Finished | None = None, show: bool = False) -> int:
    """Import and print the outcome; returns the exit code, 0 also where the server is down. The arguments are
    those of `import_results`. FedReproError where it asks for a login."""
    try:
        new, old = import_results(printed=printed, finished=finished, show=show)
    except FedReproError:
        raise
    except Exception as error:
        if wants_login(error):
            raise FedReproError(no_answer(error)) from error
        warn(f"{no_answer(error)}; call this again when it does")
        return 0
    print(f"MLflow at {uri()}: {new} new runs, {old} already there")
    return 0
