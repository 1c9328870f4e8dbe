"""What several runs begin with, computed once and kept in `.cells/beginnings/<digest>`: the pretraining that
all methods of a scenario start from, and the first rounds of a scenario that another one only trains longer.

The digest covers code, parameters, partition, precision and machine, so a run finds nothing but the bits that
it would have computed itself. Nobody waits: of two runs that begin together, both compute.
"""

import dataclasses
import hashlib
import inspect
import json
import os
import time
from pathlib import Path

import torch

from pipeline import methods
from pipeline.cells import provenance
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs
from pipeline.cells.kept import FORCE, Kept
from pipeline.engine.environment import default_device, executor_name, precision
from pipeline.engine.state import pack, unpack
from pipeline.engine.trained import Trained
from pipeline.engine.world import supervised
from pipeline.schema import Scenario, planned


class Pretraining:
    """Wraps an executor: carries out a cell's pretraining unless another run has. `seconds`: what it took
    there."""

    def __init__(self, executor, experiment: Experiment, seed: int):
        self.executor, self.experiment, self.seed = executor, experiment, seed
        self.seconds = 0.0

    def run(self, phase) -> Trained:
        if phase.loss is not supervised:
            return self.executor.run(phase)
        kept, begun = self._kept(phase), time.monotonic()
        if not os.environ.get(FORCE) and (saved := kept.resume(default_device())) is not None:
            self.seconds = saved["seconds"]
            return Trained(unpack(saved["models"]), saved["losses"])
        found = self.executor.run(phase)
        seconds = time.monotonic() - begun
        kept.save({"models": pack(found.models), "losses": found.losses, "seconds": seconds})
        return found

    def _kept(self, phase) -> Kept:
        scenario = self.experiment.scenario
        values = dataclasses.asdict(scenario)
        entries = ("pipeline.cells.loading:load_world", f"pipeline.engine.{executor_name(default_device())}")
        code = provenance.scenario_digest(entries, scenario, root=self.experiment.root)
        trained_on = {key: values[key] for key in ("data", "corruption", "model", "models", "arithmetic")}
        trained_on["training"] = values["training"] | {"rounds": 0, "pretraining": phase.epochs}
        # Of one network, clients begin alike or each on its own, as the method has it.
        trained_on["alike"] = all(model is phase.models[0] for model in phase.models)
        return _kept(self.experiment, self.seed, code, trained_on)


def first_rounds(experiment: Experiment, seed: int) -> dict[int, Kept]:
    """Round -> where the run's checkpoint after it is kept for scenarios that train longer, or was by them.

    Only rounds before those that any of them reports: until there they measure alike. None for a method
    whose rule depends on how many rounds there will be.
    """
    cell, root, scenario = experiment.cell, experiment.root, experiment.scenario
    if _counts_rounds(methods.load(experiment.algorithm, experiment.hyper, str(cell), cell.paper, root)):
        return {}
    method = [experiment.algorithm, experiment.hyper]
    values = {"scenario": _beginning(scenario), "method": method}
    found = set()
    for other in planned(cell.paper, root):
        if other.method == cell.method:
            longer = Experiment.of(other, root)
            same = [longer.algorithm, longer.hyper] == method
            if same and _beginning(longer.scenario) == values["scenario"]:
                found.add((longer.scenario.training.rounds, longer.scenario.evaluation.last))
    most = max((rounds for rounds, _ in found), default=0)
    own = scenario.training.rounds - scenario.evaluation.last
    code = provenance.digest_of(experiment, executor_name(default_device()))
    return {
        rounds - last: _kept(experiment, seed, code, values | {"round": rounds - last})
        for rounds, last in sorted(found)
        if rounds < most and 0 < rounds - last <= own
    }


def _counts_rounds(method: methods.Method) -> bool:
    """Does the file of the method, or of one that it extends, read how many rounds there will be?"""
    kinds = [kind for kind in type(method).__mro__ if issubclass(kind, methods.Method)]
    return any(".rounds" in Path(inspect.getfile(kind)).read_text(encoding="utf-8") for kind in kinds)


def _kept(experiment: Experiment, seed: int, code: str, values: dict) -> Kept:
    """Where a computation of these values is kept."""
    values = values | {
        "code": code,
        "partition": inputs(experiment, seed)["digest"],
        "precision": precision(),
        "machine": provenance.machine(),
        "device": torch.cuda.get_device_name() if default_device().type == "cuda" else "",
    }
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
    return Kept(experiment.root / ".cells" / "beginnings" / digest, seed)


def _beginning(scenario: Scenario) -> dict:
    """The scenario's values without how long it trains and which seeds."""
    values = dataclasses.asdict(dataclasses.replace(scenario, seeds=[0]))
    values["training"]["rounds"] = values["evaluation"]["last"] = 0
    return values
