"""Train a cell with all its seeds, in processes or stacked together, from parameters to result files."""

import dataclasses
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing import connection, get_context
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch

from pipeline import files
from pipeline.cells import plausible, stamps
from pipeline.cells.documents import Result, Round, Run
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import dealt, inputs, verify
from pipeline.cells.loading import load
from pipeline.devices import keep_memory
from pipeline.engine.environment import default_device, executor_name, precision
from pipeline.errors import NO_MEMORY, FedReproError, TrainingError, WorkerError, short_of_memory
from pipeline.methods import Method
from pipeline.provenance import identity, modules
from pipeline.schema import ROOT, Cell, load_paper, load_params
from pipeline.schema.discovery import method_module
from pipeline.sealing import seal
from pipeline.tracking import mlflow_runs
from pipeline.training.cache import adopt
from pipeline.training.checkpoint import FORCE, set_aside
from pipeline.training.checks import runnable
from pipeline.training.lockstep import together
from pipeline.training.progress import Progress
from pipeline.training.seeds import Job, summarise, train_seed


@dataclass(frozen=True)
class Plan:
    """Everything that is needed to train a cell: its parameters, the data of each seed, and a job for each
    seed."""

    experiment: Experiment
    method: Method
    metas: list[dict]
    jobs: list[Job]
    # as paper.yaml and params.yaml have them
    parameters: dict
    # digest of the code that trains
    code: str

    def result(self) -> Result:
        """The content of result.json, from the finished seeds."""
        resolved = dataclasses.asdict(self.method)
        result = summarise(self.experiment, resolved, self.runs, self.metas, self.jobs[0].digest)
        added = {
            "code": self.code,
            "history": stamps.digest(_history(self.runs)),
            "modules": modules.joined(run.get("modules", {}) for run in self.runs),
            "digests": identity.recorded(self.experiment, result["executor"], result["precision"]),
        }
        return cast(Result, seal({**result, **added}))

    def write(self, result: Result) -> None:
        """Write the files of a result to where DVC and the reports expect them.

        TrainingError if the parameters have changed since: DVC would record the new ones with this result.
        """
        if _parameters(self.experiment.cell, self.experiment.root) != self.parameters:
            what = f"{self.experiment.cell}: its parameters or its code in sources.yaml changed"
            raise TrainingError(f"{what} while it trained; run it again: earlier seeds stay in .cells")
        pictures, folder = self.jobs[0].files.representations, self.experiment.folder
        files.write_bytes(self.experiment.cell.representations(self.experiment.root), pictures.read_bytes())
        files.write_bytes(folder / "history.csv", _history(self.runs))
        files.write_json(folder / "result.json", result)
        if self.experiment.scenario.keep and type(self.experiment.cell) is Cell:
            from pipeline.training.final_models import write_all  # also loads what only exports need

            write_all(self.experiment, self.jobs)

    @cached_property
    def runs(self) -> list[Run]:
        """The results of all seeds. TrainingError if one is not finished, or has been damaged since."""
        cell, runs = self.experiment.cell, []
        for job in self.jobs:
            if (run := job.files.run()) is None:
                raise TrainingError(f"{cell}: seed {job.seed} is not finished")
            if problem := plausible.of_seed(run, self._expected(job)):
                set_aside(job.files, problem)
                raise TrainingError(f"{cell}: seed {job.seed} cannot be what training wrote: {problem}")
            runs.append(run)
        if problem := plausible.of_seeds({run["seed"]: run["rows"] for run in runs}):
            again = "remove the wrong one from .cells; where a seed decides nothing, list one seed alone"
            raise TrainingError(f"{cell}: {problem}: {again}")
        devices = {run["device"] for run in runs}
        if "cpu" in devices and len(devices) > 1:
            mixed = ", ".join(sorted(devices))
            raise TrainingError(f"{cell}: its seeds were trained on {mixed}; train all on one: --force")
        return runs

    def _expected(self, job: Job) -> plausible.Expected:
        """What a seed of this cell has, by its scenario, method, partition and data."""
        experiment, scenario = self.experiment, self.experiment.scenario
        given = dealt(experiment, job.seed)
        algorithm = experiment.algorithm
        module = method_module(algorithm, experiment.cell.paper, experiment.root) or ""
        return plausible.Expected(
            scenario.training.rounds,
            given.classes,
            scenario.evaluation.hook or self.method.headline,
            scenario.evaluation.tests,
            given.clients,
            given.domains,
            scenario.evaluation.metrics or (),
            algorithm in plausible.SILENT if module.startswith("pipeline.") else None,
        )


def plan(experiment: Experiment, precise: str | None = None, executor: str | None = None) -> Plan:
    """How the cell is or was to be trained; by default with the precision and executor of this process."""
    method, seeds = runnable(experiment), experiment.scenario.seeds
    metas = [inputs(experiment, seed) for seed in seeds]
    chosen = precise or precision(), executor or executor_name(default_device())
    jobs = [
        Job(experiment, seed, identity.cell_digest(experiment, meta["digest"], *chosen), meta["digest"])
        for seed, meta in zip(seeds, metas)
    ]
    parameters = _parameters(experiment.cell, experiment.root)
    return Plan(experiment, method, metas, jobs, parameters, identity.digest_of(experiment, chosen[1]))


def _parameters(cell: Cell, root: Path) -> dict:
    """What the files have now that DVC notes as the parameters of the cell's stage."""
    for read in (load_paper, load_params, identity.noted):
        read.cache_clear()
    today = Experiment.of(cell, root)
    code = identity.noted(cell.paper, root).get(str(cell))
    scenario = dataclasses.asdict(today.scenario)
    return {"scenario": scenario, "method": today.algorithm, "hyper": today.hyper, "code": code}


def train_cell(
    cell: Cell, root: Path = ROOT, write: bool = True, watch: Callable[[Round], None] = lambda row: None
) -> Result:
    """Train the missing seeds of a cell and write its history.csv and result.json; returns the result.

    write: False leaves the seeds in .cells/<digest>; `Plan.write` makes the files of them later
    watch: called with each round's line of history.csv

    FEDREPRO_WORKERS (default: the number of cores) seeds train at once. A killed run continues from its
    checkpoints.
    """
    experiment = Experiment.of(cell, root)
    planned = plan(experiment)
    verify(experiment)
    jobs, scenario = planned.jobs, experiment.scenario
    keep_memory()
    # When a stage is killed, its training process can survive it.
    waits = f"{cell}: another process is training this cell; waiting for it"
    with files.locked(jobs[0].folder / "lock", waits), _marked(jobs[0].folder / "error.json", cell):
        progress = Progress(cell, scenario)
        values = {"hyper": experiment.hyper, "scenario": dataclasses.asdict(scenario)}
        follower = mlflow_runs.Follower(cell, values, root)

        def report(row: Round) -> None:
            progress.report(row)
            follower.report(row)
            watch(row)

        if os.environ.get(FORCE):
            for job in jobs:
                job.files.forget()
        else:
            for seed in adopt([job.files for job in jobs], experiment, planned.metas):
                progress.say(f"seed {seed} is in git and stays as it is")
        for finished in train_seeds(jobs, report):
            progress.seed_done(finished)
        result = planned.result()
        if write:
            planned.write(result)
            follower.finish(result)
        progress.cell_done(result)
    return result


@contextmanager
def _marked(path: Path, cell: Cell) -> Iterator[None]:
    """Leave the error of a failed cell with its checkpoints, for `status`; success removes it."""
    try:
        yield
    except FedReproError as error:
        how = {"precision": precision(), "executor": executor_name(default_device())}
        files.write_json(path, {"cell": str(cell), "error": str(error), **how})
        raise
    path.unlink(missing_ok=True)


def _history(runs: list[Run]) -> bytes:
    """The content of history.csv."""
    table = pd.DataFrame([{"seed": run["seed"], **row} for run in runs for row in run["rows"]])
    return table.to_csv(index=False, lineterminator="\n").encode()


def train_seeds(jobs: list[Job], report: Callable[[Round], None]) -> Iterator[Run]:
    """Train the jobs, FEDREPRO_WORKERS at once or stacked together; yields each result when it is
    finished."""
    name = executor_name(default_device())
    left = [job for job in jobs if not job.files.finished.exists()]
    if name == "stacked" and len(jobs) > 1:
        train = partial(train_seed, sharing=max(len(left), 1))
        for kind, value in together(train, jobs):
            if kind == "row":
                report(value)
            else:
                yield value
        return
    workers = min(len(jobs), int(os.environ.get("FEDREPRO_WORKERS", os.cpu_count() or 1)))
    # A forked worker has torch imported already; CUDA and macOS need a fresh interpreter.
    forks = sys.platform == "linux" and not torch.cuda.is_available()
    # Seeds one after the other have separate processes where that costs nothing: the memory that the
    # first took at most would stay with a common one.
    if len(left) <= 1 or workers <= 1 and not forks:
        yield from (train_seed(job, report) for job in jobs)
        return
    if forks and len({job.experiment.partition(job.seed) for job in left}) == 1:
        load(left[0].experiment, left[0].seed)  # forked workers inherit the loaded data
    context: ForkContext | SpawnContext = get_context("fork") if forks else get_context("spawn")
    yield from _in_processes(jobs, workers, context, report)


def _in_processes(
    jobs: list[Job], workers: int, context: ForkContext | SpawnContext, report: Callable[[Round], None]
) -> Iterator[Run]:
    """Train the jobs, so many at once; ends those that still run where one fails."""
    waiting = list(jobs)
    running: dict[Any, tuple[BaseProcess, Job]] = {}  # by the receiving end of each worker's pipe
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_worker, args=(waiting[0], sender), daemon=True)
                process.start()
                sender.close()
                running[receiver] = (process, waiting.pop(0))
            for ready in connection.wait(list(running)):
                worker, job = running[ready]
                kind, value = _receive(ready, worker, job)
                if kind == "row":
                    report(value)
                    continue
                worker.join()
                del running[ready]
                if kind == "error":
                    raise value
                yield value
    finally:
        for worker, _ in running.values():
            worker.terminate()


def _worker(job: Job, sender: connection.Connection) -> None:
    """Train one seed and send ("row", ...) after every round, then ("done", ...) or ("error", ...)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops us

    parent = multiprocessing.parent_process()

    def tell(row: Round) -> None:
        if parent is not None and not parent.is_alive():  # the parent was killed: end too
            os._exit(1)
        sender.send(("row", row))

    try:
        sender.send(("done", train_seed(job, tell)))
    except FedReproError as error:
        sender.send(("error", error))
    except (MemoryError, RuntimeError) as error:
        if not short_of_memory(error):
            raise
        sender.send(("error", WorkerError(f"{job.experiment.cell}, seed {job.seed}: {NO_MEMORY}")))


def _receive(receiver: Any, process: BaseProcess, job: Job) -> tuple:
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return "error", WorkerError(
            f"{job.experiment.cell}, seed {job.seed}: the worker ended with exit code {process.exitcode} "
            "(-9 is often the system running out of memory); finished rounds stay in .cells"
        )
