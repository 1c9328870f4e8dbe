"""Train a cell: all its seeds, with checkpoints, from parameters and partition to result files."""

import dataclasses
import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline import files
from pipeline.cells import provenance, stamps, tracking
from pipeline.cells.cache import adopt
from pipeline.cells.checkpoint import FORCE
from pipeline.cells.checks import runnable
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs, verify
from pipeline.cells.progress import Progress
from pipeline.cells.seeds import Job, summarise
from pipeline.cells.workers import train_seeds
from pipeline.devices import keep_memory
from pipeline.engine.environment import default_device, executor_name, precision
from pipeline.errors import FedReproError, TrainingError
from pipeline.schema import ROOT, Cell, load_paper, load_params
from pipeline.sealing import seal


@dataclass(frozen=True)
class Plan:
    """What training a cell comes down to: its parameters, what each seed trains on, and a job for each."""

    experiment: Experiment
    method: Any
    metas: list[dict]
    jobs: list[Job]
    # as paper.yaml and params.yaml have them
    parameters: dict
    # digest of the code that trains
    code: str

    def result(self) -> dict:
        """result.json of the finished seeds."""
        resolved = dataclasses.asdict(self.method)
        result = summarise(self.experiment, resolved, self.runs, self.metas, self.jobs[0].digest)
        return seal({**result, "code": self.code, "history": stamps.digest(_history(self.runs))})

    def write(self, result: dict) -> None:
        """The files of a result, where DVC and the reports look for them. TrainingError where the parameters
        have changed since: DVC would note those of now with it."""
        if _parameters(self.experiment.cell, self.experiment.root) != self.parameters:
            what = f"{self.experiment.cell}: its parameters or its code in sources.yaml changed"
            raise TrainingError(f"{what} while it trained; run it again: earlier seeds stay in .cells")
        pictures, folder = self.jobs[0].files.representations, self.experiment.folder
        files.write_bytes(self.experiment.cell.representations(self.experiment.root), pictures.read_bytes())
        files.write_bytes(folder / "history.csv", _history(self.runs))
        files.write_json(folder / "result.json", result)
        if self.experiment.scenario.keep and type(self.experiment.cell) is Cell:
            from pipeline.cells.final_models import write_all  # also loads what only exports need

            write_all(self.experiment, self.jobs)

    @cached_property
    def runs(self) -> list[dict]:
        """The results of every seed. TrainingError for one that is not finished, or was damaged since."""
        cell, runs = self.experiment.cell, []
        for job in self.jobs:
            if (run := job.files.run()) is None:
                raise TrainingError(f"{cell}: seed {job.seed} is not finished")
            runs.append(run)
        devices = {run["device"] for run in runs}
        if "cpu" in devices and len(devices) > 1:
            mixed = ", ".join(sorted(devices))
            raise TrainingError(f"{cell}: its seeds were trained on {mixed}; train all on one: --force")
        return runs


def plan(experiment: Experiment, precise: str | None = None, executor: str | None = None) -> Plan:
    """How the cell is to be trained, or was, with this precision and executor; by default those of this
    process."""
    method, seeds = runnable(experiment), experiment.scenario.seeds
    metas = [inputs(experiment, seed) for seed in seeds]
    chosen = precise or precision(), executor or executor_name(default_device())
    jobs = [
        Job(experiment, seed, provenance.cell_digest(experiment, meta["digest"], *chosen), meta["digest"])
        for seed, meta in zip(seeds, metas)
    ]
    parameters = _parameters(experiment.cell, experiment.root)
    return Plan(experiment, method, metas, jobs, parameters, provenance.digest_of(experiment, chosen[1]))


def _parameters(cell: Cell, root: Path) -> dict:
    """What the files have now that DVC notes as the parameters of the cell's stage."""
    for read in (load_paper, load_params, provenance.noted):
        read.cache_clear()
    today = Experiment.of(cell, root)
    code = provenance.noted(cell.paper, root).get(str(cell))
    scenario = dataclasses.asdict(today.scenario)
    return {"scenario": scenario, "method": today.algorithm, "hyper": today.hyper, "code": code}


def train_cell(
    cell: Cell, root: Path = ROOT, write: bool = True, watch: Callable[[dict], None] = lambda row: None
) -> dict:
    """Train the missing seeds of the cell and write its history.csv and result.json; returns the
    result. Without `write` the seeds stay in .cells/<digest>, and `Plan.write` makes the files of them.
    `watch` gets every round's line of history.csv.

    FEDREPRO_WORKERS (default: the cores) seeds run at once. A run that was killed goes on from its
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
        follower = tracking.Follower(cell, values, root)

        def report(row: dict) -> None:
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
def _marked(path: Path, cell: Cell):
    """Leave the error of a failed cell with its checkpoints, for `pipeline.commands.status`; a run that
    succeeds removes it."""
    try:
        yield
    except FedReproError as error:
        how = {"precision": precision(), "executor": executor_name(default_device())}
        files.write_json(path, {"cell": str(cell), "error": str(error), **how})
        raise
    path.unlink(missing_ok=True)


def _history(runs: list[dict]) -> bytes:
    """The content of history.csv."""
    table = pd.DataFrame([{"seed": run["seed"], **row} for run in runs for row in run["rows"]])
    return table.to_csv(index=False, lineterminator="\n").encode()
