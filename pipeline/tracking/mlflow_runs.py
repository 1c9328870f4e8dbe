"""Log runs to MLflow: while a cell trains (`Follower`), or from result files afterwards (`import_results`).

`fedrepro ui` and `fedrepro import` add every finished seed that MLflow does not have yet. The stage `track`
adds only results that are not in git. All of them may be called at any time and repeatedly. The files in
papers/*/runs are authoritative. Times are in milliseconds since 1970, as MLflow has them.
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
from pipeline.cells.documents import Result, TuningResult
from pipeline.cells.experiment import Experiment
from pipeline.errors import FedReproError, ParamError, warn
from pipeline.git import unchanged
from pipeline.schema import LISTED, ROOT, Cell, Trial, load_paper, visible
from pipeline.schema.paper import Block
from pipeline.tracking import mlflow_bulk, mlflow_database, mlflow_registry, system_metrics
from pipeline.tracking.mlflow_bulk import METRICS_AT_ONCE, Bulk
from pipeline.tracking.mlflow_database import uri

# Seconds of training after which a cell is shown in MLflow while it trains.
LIVE_AFTER = 30.0
# Seconds between two batches of such a run.
FLUSH = 10.0
# Metrics that MLflow accepts in one call.
BATCH = 1000
# Characters of a parameter's value that MLflow accepts.
LONGEST_PARAMETER = 6000
# Characters of the name of a metric or parameter, of the 250 that MLflow accepts.
LONGEST_NAME = 150
# cell -> measure -> the number that the paper prints
Printed = Mapping[Cell, Mapping[str, float]]
# Beginnings of the names of metrics that are not the history's.
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

    cells: dict[Cell, Result]
    tunings: dict[Cell, TuningResult]
    tuned: dict[Cell, tuple[Result, TuningResult]]

    @classmethod
    def everything(cls, root: Path) -> "Finished":
        """Every result under papers/, those of tables first."""
        measured = results.collect(root)
        in_tables: set[tuple[str, str]] = set()
        for key in dict.fromkeys(cell.paper for cell in measured):
            in_tables |= {(key, block.scenario) for block in _blocks(key, root)}
        ordered = sorted(measured, key=lambda cell: (cell.paper, cell.scenario) not in in_tables)

        tunings = {cell: choices.read(cell, root) for cell in choices.tuned_cells(root)}
        tuned: dict[Cell, tuple[Result, TuningResult]] = {}
        for tuned_cell, document in tunings.items():
            for cell, result in results.of_tuning(tuned_cell, root).items():
                if cell not in measured:
                    tuned[cell] = (result, document)
        return cls({cell: measured[cell] for cell in ordered}, tunings, tuned)

    @classmethod
    def trained_here(cls, root: Path) -> "Finished":
        """The results in `runs` folders that differ from the commit: what this working copy has trained.

        All of them if the folder is no git repository.
        """
        known = unchanged(root, "papers/*/runs/*/*/result.json")
        new = [path for path in visible(root, "papers/*/runs/*/*/result.json") if path not in known]
        documents = map(results.read, new)
        return cls({Cell.parse(document["cell"]): document for document in documents}, {}, {})


def _blocks(paper: str, root: Path) -> Iterator[Block]:
    """The blocks of the paper's tables."""
    for table in load_paper(paper, root).tables.values():
        yield from table.blocks.values()


def import_results(
    root: Path = ROOT,
    printed: Printed | None = None,
    show: bool = False,
    finished: Finished | None = None,
) -> tuple[int, int]:
    """Log every finished seed that MLflow does not have yet.

    root      folder of the repository
    printed   the papers' numbers, which are logged with the measured ones
    show      a progress bar
    finished  what is to be in MLflow; None: everything

    Returns the number of new runs, and of those that were there. Only one process imports at a time; the
    next one waits. After an interruption the next call continues. Raises what MLflow raises if it does not
    answer.
    """
    from rich.progress import Progress

    with mlflow_database.locked(root, "import"):
        finished = Finished.everything(root) if finished is None else finished
        if not (finished.cells or finished.tunings):
            return 0, 0
        store = Store(root, printed, bulk=True)
        known: dict[tuple[str, str, str], str] = {}
        for paper in dict.fromkeys(cell.paper for cell in (*finished.cells, *finished.tunings)):
            # If the run of a cell was killed, this also removes those of its seeds that were finished.
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
            for cell, tuning in finished.tunings.items():
                new += store.replay_tuning(cell, tuning, known)
                progress.advance(task)
            for cell, (result, tuning) in finished.tuned.items():
                new += store.replay(cell, result, known, known[cell.paper, tuning["self"], ""])
                progress.advance(task, len(result["seeds"]))
            store.write()
            measured = finished.cells | {cell: result for cell, (result, _) in finished.tuned.items()}
            mlflow_registry.register(store.client, measured, store.finished, root)
    return new, total - new


class Follower:
    """Shows a cell in MLflow while it trains. If the server cannot be reached, it warns once.

    cell    that is trained
    values  parameters that are logged
    root    folder of the repository
    """

    def __init__(self, cell: Cell, values: dict, root: Path = ROOT):
        self.cell = cell
        self.values = values
        self.root = root
        # Seconds of the clock at the start, and when rounds were sent last.
        self.begun = time.monotonic()
        self.flushed = self.begun
        # seed -> (time, row) of each round that is not sent yet
        self.waiting: dict[int, list[tuple[int, dict]]] = defaultdict(list)
        # The connection to MLflow, the id of the cell's run and those of its seeds, once they are begun.
        self.store: Store | None = None
        self.of_cell = ""
        self.runs: dict[int, str] = {}
        # Whether nothing is sent. A tuning's configuration becomes a run when the whole tuning is done.
        self.failed = os.environ.get("FEDREPRO_TRACKING") == "off" or isinstance(cell, Trial)
        self.load = None if self.failed else system_metrics.Load(root)

    def report(self, row: dict) -> None:
        """Take note of a round that is over.

        row  its line of history.csv, with the seed
        """
        now = time.monotonic()
        self.waiting[row["seed"]].append((int(time.time() * 1000), row))
        if self.load:
            self.load.sample()
        if now - self.begun >= LIVE_AFTER and now - self.flushed >= FLUSH:
            self.flushed = now
            self._flush()

    def finish(self, result: Result) -> None:
        """End the runs of the cell and its seeds, and log the result that they belong to."""
        if self.load and self.waiting:
            self.load.end(self.root / ".cells" / result["digest"])
        if self.store is not None:
            self._flush(result)

    def _flush(self, result: Result | None = None) -> None:
        """Send the rounds that are waiting.

        result  of the cell, if it is finished: its runs are then ended
        """
        if self.failed:
            return
        try:
            if self.store is None:
                self.store = Store(self.root)
            store = self.store
            for seed, points in self.waiting.items():
                if points:
                    self._send(store, seed, points)
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

    def _send(self, store: "Store", seed: int, points: list[tuple[int, dict]]) -> None:
        """Log rounds of a seed, whose run and that of the cell begin with the first of them.

        points  (time, row) of each round, at least one
        """
        started, _ = points[0]
        if not self.of_cell:
            self.of_cell = store.start(self.cell, self.values, started)
        if seed not in self.runs:
            self.runs[seed] = store.start_seed(self.cell, seed, self.values, started, self.of_cell)
        names = dict.fromkeys(name for _, row in points for name in row)
        columns = {name: [row.get(name) for _, row in points] for name in names}
        store.curves(self.runs[seed], columns, [time_of_row for time_of_row, _ in points])


class Store:
    """One tracking server: an experiment for each paper, a run for each cell and for each of its seeds.

    root     folder of the repository
    printed  the papers' numbers, which are logged with the measured ones
    bulk     keep runs until `write`, then write them together; only for a database, not for a server
    """

    def __init__(self, root: Path, printed: Printed | None = None, bulk: bool = False):
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        # MLflow would print two lines for every run.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        import mlflow  # takes seconds to import, and is absent on machines that only train

        mlflow_database.make_usable(root)
        self.root = root
        self.printed = printed or {}
        self.client = mlflow.MlflowClient(uri(root))
        self.checkout = mlflow_database.checkout(root)
        # paper -> id of its experiment
        self.experiments: dict[str, str] = {}
        # `self` of a result -> its numbers of `_compared`, which every seed asks for
        self.compared: dict[str, dict[str, float]] = {}
        self.bulk = Bulk(uri(root)) if bulk and not uri(root).startswith("http") else None
        self.writer: Any = self.bulk or self.client
        self.entities: Any = mlflow_bulk if self.bulk else mlflow.entities

    def write(self, at_least: int = 0) -> None:
        """Write the runs that are kept, all of them complete, if they have that many metrics."""
        if self.bulk:
            self.bulk.write(at_least)

    def close(self) -> None:
        """Close the database; runs that are kept and not written are lost."""
        if self.bulk:
            self.bulk.close()

    def experiment(self, paper: str) -> str:
        """The id of a paper's experiment, which is made if it is missing."""
        if paper not in self.experiments:
            experiment = self.client.get_experiment_by_name(paper)
            # One that was deleted in MLflow's pages still has its name.
            if experiment and experiment.lifecycle_stage == "deleted":
                self.client.restore_experiment(experiment.experiment_id)
            self.experiments[paper] = experiment.experiment_id if experiment else self._new_experiment(paper)
        return self.experiments[paper]

    def _new_experiment(self, paper: str) -> str:
        """The id of a new experiment."""
        note = NOTE.format(title=load_paper(paper, self.root).title)
        tags = {"mlflow.experimentKind": "custom_model_development", "mlflow.note.content": note}
        try:
            return self.client.create_experiment(paper, mlflow_database.artifacts(self.root), tags)
        except Exception:  # another process may have been quicker
            experiment = self.client.get_experiment_by_name(paper)
            if experiment:
                return experiment.experiment_id
            raise

    def finished(self, paper: str) -> dict[tuple[str, str], str]:
        """The runs of a paper that are logged to their end.

        Returns (`self` of the result, seed) -> id of the run; the seed is empty for the run of a cell.
        """
        if self.bulk:
            return self.bulk.finished(self.experiment(paper))
        ids = {}
        for run in self._search(paper, "attributes.status = 'FINISHED'"):
            tags = run.data.tags
            ids[tags.get("fedrepro.result", ""), tags.get("seed", "")] = run.info.run_id
        return ids

    def remove_unfinished(self, paper: str, which: str = "") -> None:
        """Remove the runs that processes of this working copy left when they were killed.

        Runs of other working copies, and those whose process is alive, may still train and are left.

        which  a further condition of MLflow's search, which begins with " and "
        """
        ours = f"attributes.status = 'RUNNING' and tags.`fedrepro.checkout` = '{self.checkout}'{which}"
        for run in self._search(paper, ours):
            host, _, process = run.data.tags.get("fedrepro.process", "").rpartition(":")
            dead = process == str(os.getpid()) or not files.alive(int(process or 0))
            if not process or host == files.machine() and dead:
                below = f"tags.`mlflow.parentRunId` = '{run.info.run_id}' and attributes.status != 'RUNNING'"
                for unwanted in (run, *self._search(paper, below)):
                    self.client.delete_run(unwanted.info.run_id)

    def start(self, cell: Cell, values: dict, started: int) -> str:
        """Begin the run of a cell, named scenario/method, below which its seeds are shown.

        What a killed process left of the cell is removed first.

        cell     that is trained
        values   parameters that are logged
        started  when

        Returns the id of the run.
        """
        self.remove_unfinished(cell.paper, f" and tags.cell = '{cell}'")
        return self._begin(cell, self._of_cell(cell), _parameters(values), started)

    def start_seed(self, cell: Cell, seed: int, values: dict, started: int, parent: str) -> str:
        """Begin the run of a seed, named scenario/method/seed; returns its id.

        parent  id of the cell's run; the other arguments as of `start`
        """
        tags = self._of_cell(cell) | _below(parent)
        return self._begin(cell, tags, _parameters(values), started, seed)

    def _of_cell(self, cell: Cell) -> dict[str, str]:
        """The tags of a cell's run and of those of its seeds."""
        tables = []
        for table in load_paper(cell.paper, self.root).tables.values():
            if any(block.scenario == cell.scenario for block in table.blocks.values()):
                tables.append(table.number)
        return self._tags(cell) | {"table": ", ".join(tables) or LISTED.get(cell.scenario, "")}

    def _begin(
        self,
        cell: Cell,
        tags: dict[str, str],
        parameters: dict[str, str],
        started: int,
        seed: int | None = None,
    ) -> str:
        """Begin the run of a cell, or of a seed, with its tags and its parameters; returns its id."""
        name = f"{cell.scenario}/{cell.method}"
        if seed is not None:
            name = f"{name}/seed {seed}"
            tags = tags | {"seed": str(seed)}
        run = self._new_run(name, tags, started)
        self._log(run, parameters=parameters)
        return run

    def curves(self, run: str, columns: Mapping[str, list], stamps: list[int]) -> None:
        """Log columns of history.csv as curves. Those of single clients and of pairs are only in the file.

        run      id
        columns  with "round"
        stamps   the time of each row
        """
        metrics = []
        for name, values in columns.items():
            if not _is_curve(name):
                continue
            key = _key(name)
            for number, stamp, value in zip(columns["round"], stamps, values):
                if value is not None and value == value:  # not NaN
                    metrics.append(self.entities.Metric(key, float(value), stamp, int(number)))
        self._log_metrics(run, metrics)

    def load(self, run: str, samples: list[system_metrics.Sample]) -> None:
        """Log the load of the machine as MLflow's system metrics, whose steps are the samples' numbers.

        run  id
        """
        metrics = []
        for sample in samples:
            for name, value in sample.values.items():
                metrics.append(self.entities.Metric(name, value, sample.at, sample.number))
        self._log_metrics(run, metrics)

    def _log_metrics(self, run: str, metrics: list) -> None:
        """Log metrics, as many at once as MLflow accepts."""
        for first in range(0, len(metrics), BATCH):
            self.writer.log_batch(run, metrics=metrics[first : first + BATCH])

    def complete_seed(self, run: str, cell: Cell, result: Result, k: int, ended: int) -> None:
        """Log the reported numbers, tags and files of a seed, and end its run.

        The status comes last: `finished` takes a run that has it as complete.

        run     id
        cell    and its `result`
        k       the place of the seed in the result
        ended   when
        """
        numbers = {f"reported/{name}": values[k] for name, values in _reported(result)}
        tags = self._tags_of_result(cell, result) | {"partition.digest": results.partitions(result)[k]}
        self._log(run, numbers | self._compared(cell, result), tags=tags, at=ended)
        for name in ("result.json", "history.csv"):
            self.writer.log_artifact(run, str(cell.folder(self.root) / name))
        self.writer.set_terminated(run, "FINISHED", ended)

    def complete(self, run: str, cell: Cell, result: Result, ended: int) -> None:
        """Log the means over a cell's seeds and its tags, and end its run, once its seeds are complete.

        run    id
        cell   and its `result`
        ended  when
        """
        numbers = {f"reported/{name}": statistics.fmean(values) for name, values in _reported(result)}
        tags = self._tags_of_result(cell, result)
        self._log(run, numbers | self._compared(cell, result), tags=tags, at=ended)
        self.writer.set_terminated(run, "FINISHED", ended)

    def _compared(self, cell: Cell, result: Result) -> dict[str, float]:
        """The paper's numbers, and the standard deviation of the main measure over the seeds."""
        key = result["self"]
        if key not in self.compared:
            numbers = {f"printed/{name}": number for name, number in self.printed.get(cell, {}).items()}
            headline = result["headline"]
            by_seed = result["measures"].get(headline, [])
            if len(by_seed) > 1:
                numbers[f"spread/{headline}"] = statistics.stdev(by_seed)
            self.compared[key] = numbers
        return self.compared[key]

    def _tags_of_result(self, cell: Cell, result: Result) -> dict[str, str]:
        """The tags that say where a result comes from: code, data, device and stage."""
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
        self, cell: Cell, result: Result, known: Mapping[tuple[str, str, str], str], above: str = ""
    ) -> int:
        """Log the seeds of a finished cell as runs below that of the cell, with the times of their training.

        cell    and its `result`
        known   (paper, `self` of the result, seed) -> id, of the runs that are there; the seed is empty for
                the run of a cell
        above   id of a run that the cell is shown below; empty: none

        Returns how many seeds are new.
        """
        new = []
        for k, seed in enumerate(result["seeds"]):
            if (cell.paper, result["self"], str(seed)) not in known:
                new.append(k)
        if not new:
            return 0
        values = {"hyper": result["hyper"]}
        with contextlib.suppress(ParamError):  # paper.yaml does not have the cell any more
            values["scenario"] = dataclasses.asdict(Experiment.of(cell, self.root).scenario)
        parameters = _parameters(values)
        tags = self._of_cell(cell)
        history = results.columns(cell, self.root)
        seeds = history["seed"]
        curves = {name: history[name] for name in history if name == "round" or _is_curve(name)}
        begun = int(datetime.fromisoformat(result["started"]).timestamp() * 1000)
        of_cell = known.get((cell.paper, result["self"], ""))
        parent = of_cell or self._begin(cell, tags | _below(above), parameters, begun)
        last = begun
        for k in new:
            seed = result["seeds"][k]
            lasted = 1000 * result["seconds"][k]
            of_seed = [seed_of_row == seed for seed_of_row in seeds]
            columns = {name: list(compress(values, of_seed)) for name, values in curves.items()}
            # The rounds' own times are not recorded: they are taken to be equally long.
            rows = len(columns["round"])
            step = lasted / max(rows - 1, 1)
            stamps = [begun + int(row * step) for row in range(rows)]
            run = self._begin(cell, tags | _below(parent), parameters, begun, seed)
            self.curves(run, columns, stamps)
            self.complete_seed(run, cell, result, k, begun + int(lasted))
            last = max(last, begun + int(lasted))
        if not of_cell:
            self.load(parent, system_metrics.read(self.root / ".cells" / result["digest"]))
            self.complete(parent, cell, result, last)
        self.write(METRICS_AT_ONCE)
        return len(new)

    def replay_tuning(
        self, cell: Cell, document: TuningResult, known: dict[tuple[str, str, str], str]
    ) -> int:
        """Log a tuning as a run, with its configurations as runs below it, one after another.

        The status of the tuning's run comes last: `finished` takes a run that has it as complete.

        cell      and the `document` of its tuning
        known     as of `replay`; the new run is added

        Returns how many tunings are new: 0 or 1.
        """
        key = (cell.paper, document["self"], "")
        if key in known:
            return 0
        tags = self._tags(cell) | {"scenario": f"{cell.scenario}-trial"}
        name = f"{cell.scenario}/{cell.method}"
        configurations = document["configurations"]
        lasted = [int(1000 * sum(configuration.get("seconds", []))) for configuration in configurations]
        ended = self._end_of_tuning(cell)
        begun = ended - sum(lasted)
        parent = self._new_run(f"{name}/tuning", tags | {"fedrepro.result": document["self"]}, begun)
        means = choices.means(configurations)
        now = begun
        for number, (configuration, mean) in enumerate(zip(configurations, means)):
            below = tags | _below(parent) | {"configuration": str(number)}
            run = self._new_run(f"{name}/configuration {number}", below, now)
            now += lasted[number]
            metrics = {} if mean is None else {"validation": mean}
            self._log(run, metrics, configuration["values"], at=now)
            self.writer.set_terminated(run, "FAILED" if mean is None else "FINISHED", now)
        chosen = document["chosen"]
        best = means[chosen]
        metrics = {} if best is None else {"validation": best}
        self._log(parent, metrics, configurations[chosen]["values"], at=ended)
        self.writer.set_terminated(parent, "FINISHED", ended)
        known[key] = parent
        self.write(METRICS_AT_ONCE)
        return 1

    def _end_of_tuning(self, cell: Cell) -> int:
        """About when a tuning ended, which its file does not say: when the first training with the chosen
        values began, or else when the file was written here."""
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
        """Log all of these in one call. The metrics have no step, so that MLflow draws them as bars.

        run  id
        at   time of the metrics
        """
        self.writer.log_batch(
            run,
            [self.entities.Metric(_key(name), value, at, 0) for name, value in metrics.items()],
            [self.entities.Param(_key(name), str(value)) for name, value in parameters.items()],
            [self.entities.RunTag(name, str(value)) for name, value in tags.items()],
        )

    def _tags(self, cell: Cell) -> dict[str, str]:
        """The tags that every run has: of its cell, and of the process that logs it."""
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
        """Begin a run; returns its id."""
        experiment = self.experiment(tags["paper"])
        if self.bulk:
            return self.bulk.create_run(experiment, started, tags, name)
        return self.client.create_run(experiment, started, tags, name).info.run_id

    def _search(self, paper: str, query: str) -> list:
        """The runs of a paper that MLflow finds by a query."""
        return self.client.search_runs([self.experiment(paper)], query, max_results=50_000)


def _below(run: str) -> dict[str, str]:
    """The tag by which MLflow shows a run below `run`; none if this id is empty."""
    return {"mlflow.parentRunId": run} if run else {}


def _reported(result: Result) -> Iterator[tuple[str, list[float]]]:
    """(measure, values by seed) of a result, without those of single clients and domains."""
    for name, values in result["measures"].items():
        if "." not in name or name.endswith(".AVG"):
            yield name, values


def _parameters(values: Mapping[str, Any]) -> dict[str, str]:
    """Nested values as MLflow's parameters: "scenario.training.rounds" -> text, ordered by name. Values that
    are None are left out."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{below}": text for below, text in _parameters(value).items()}
        elif value is not None:
            flat[str(name)] = str(value)[:LONGEST_PARAMETER]
    return {name: flat[name] for name in sorted(flat)}


def _is_curve(name: str) -> bool:
    """Whether a column of history.csv is logged as a curve: those of single clients and pairs are not."""
    of_all_clients = "." not in name or name.endswith((".AVG", ".average", ".weighted"))
    return of_all_clients and name not in ("seed", "round", results.STATE)


@cache
def _key(name: str) -> str:
    """The name of a metric or a parameter as MLflow accepts it.

    The name of a domain or a client may have other characters, or too many of them. These are replaced, and a
    digest is appended, so that two such names stay different.
    """
    prefix = ""
    rest = name
    if name.startswith(PREFIXES):
        group, slash, rest = name.partition("/")
        prefix = group + slash
    accepted = re.sub(r"[^\w.\- ]", "_", rest).strip(".")[:LONGEST_NAME] or "_"
    if accepted == rest:
        return name
    digest = hashlib.sha256(rest.encode()).hexdigest()[:8]
    return f"{prefix}{accepted}-{digest}"


def wants_login(error: Exception) -> bool:
    """Whether MLflow refuses because user and password are missing or wrong."""
    return bool(re.search(r"\b40[13]\b|unauthori[sz]ed|unauthenticated|PERMISSION_DENIED", str(error), re.I))


def no_answer(error: Exception, root: Path = ROOT) -> str:
    """One line that says that MLflow does not answer, and why."""
    if wants_login(error):
        names = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        return f"MLflow at {uri(root)} asks for a login: set {names}"
    refused = re.search(r"\[Errno -?\d+\] ([\w ]+)", str(error))
    why = refused[1] if refused else (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return f"MLflow at {uri(root)} does not answer ({why})"


def say_import(printed: Printed | None = None, finished: Finished | None = None, show: bool = False) -> int:
    """Import results and print the outcome; returns the exit code, which is 0 also if the server is down.

    The arguments are those of `import_results`. Raises FedReproError if the server asks for a login.
    """
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
