"""Reuse of training between runs: pretraining, common first rounds, and seeds that are already in git.

The first two are stored in `.cells/beginnings/<digest>`. The digest covers code, parameters, partition,
precision and machine, so a run reads only bits that it would have computed itself. If two runs begin
together, both compute; neither waits for the other.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pipeline import git
from pipeline.cells import results
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs
from pipeline.engine.environment import default_device, executor_name, precision
from pipeline.engine.phase import Phase
from pipeline.engine.state import pack, unpack
from pipeline.engine.trained import Executor, Trained
from pipeline.engine.world import supervised
from pipeline.errors import FedReproError
from pipeline.provenance import identity, modules
from pipeline.schema import COMPUTED, MINIATURE, Cell, Scenario, load_paper, planned
from pipeline.schema.cell import ExtraSeeds, Variant
from pipeline.training.checkpoint import FORCE, SeedFiles

# below a root
BEGINNINGS = Path(".cells") / "beginnings"
# environment variable; `state`: what is needed to train a finished cell on stays
KEEP = "FEDREPRO_KEEP"


class Pretraining:
    """An executor that carries out a cell's pretraining unless another run has, in `seconds`."""

    def __init__(self, executor: Executor, experiment: Experiment, seed: int):
        self.executor, self.experiment, self.seed = executor, experiment, seed
        self.seconds = 0.0

    def run(self, phase: Phase) -> Trained:
        if phase.loss is not supervised:
            return self.executor.run(phase)
        place, begun = self._place(phase), time.monotonic()
        if not os.environ.get(FORCE) and (saved := place.resume(default_device())) is not None:
            self.seconds = saved["seconds"]
            return Trained(unpack(saved["models"]), saved["losses"])
        trained = self.executor.run(phase)
        seconds = time.monotonic() - begun
        place.save({"models": pack(trained.models), "losses": trained.losses, "seconds": seconds})
        return trained

    def _place(self, phase: Phase) -> SeedFiles:
        scenario = self.experiment.scenario
        values = dataclasses.asdict(scenario)
        entries = (
            "pipeline.cells.loading:load_world",
            f"pipeline.engine.{executor_name(default_device())}",
        )
        code = identity.scenario_digest(entries, scenario, root=self.experiment.root)
        trained_on = {key: values[key] for key in ("data", "corruption", "model", "models", "arithmetic")}
        trained_on["training"] = values["training"] | {"rounds": 0, "pretraining": phase.epochs}
        # Of one network, clients begin alike or each with another draw, as the method has it.
        trained_on["alike"] = all(model is phase.models[0] for model in phase.models)
        return _places(self.experiment, self.seed, code)(trained_on)


def first_rounds(experiment: Experiment, seed: int) -> dict[int, SeedFiles]:
    """Round -> where the run's checkpoint after it lies for other runs, or was left by them.

    For scenarios that train longer, only rounds before those that any of them reports: until there they
    measure alike. None of these for a method whose rule depends on how many rounds there will be. What a user
    varies, and with FEDREPRO_KEEP=state every cell, leaves its own such round, from which it is trained on
    to more rounds. With `keep: models` also the round before the last, from which `final_models` goes on.
    """
    cell, root, scenario = experiment.cell, experiment.root, experiment.scenario
    values = {"scenario": _beginning(scenario), "method": [experiment.algorithm, experiment.hyper]}
    lengths = set()
    extends = "rounds" not in identity.method_attributes(experiment)
    for other in planned(cell.paper, root):
        if other.method == cell.method and extends:
            longer = Experiment.of(other, root)
            method = [longer.algorithm, longer.hyper]
            if values == {"scenario": _beginning(longer.scenario), "method": method}:
                lengths.add((longer.scenario.training.rounds, longer.scenario.evaluation.last))
    most = max((rounds for rounds, _ in lengths), default=0)
    unreported = scenario.training.rounds - scenario.evaluation.last
    code = identity.digest_of(experiment, executor_name(default_device()))
    modules.check_unchanged()  # the digest is of the files as they are now
    place = _places(experiment, seed, code)
    shared = {rounds - last for rounds, last in lengths if rounds < most}
    if extends and (isinstance(cell, (ExtraSeeds, Variant)) or os.environ.get(KEEP) == "state"):
        shared.add(unreported)
    if extends and unreported > 0 and (root / BEGINNINGS).is_dir():
        of_round = {number: place(values | {"round": number}) for number in range(1, unreported + 1)}
        shared |= {number for number, files in of_round.items() if files.folder.is_dir()}
    numbers = sorted(number for number in shared if 0 < number <= unreported)
    places = {number: place(values | {"round": number}) for number in numbers}
    if scenario.keep and (last := scenario.training.rounds - 1):
        whole = {"cell": str(cell), "scenario": dataclasses.asdict(scenario), "hyper": experiment.hyper}
        places[last] = place(whole | {"round": last})
    return places


def _places(experiment: Experiment, seed: int, code: str) -> Callable[[dict], SeedFiles]:
    """Where a computation of some values lies."""
    common = {
        "code": code,
        "partition": inputs(experiment, seed)["digest"],
        "precision": precision(),
        "machine": identity.machine(),
        "device": torch.cuda.get_device_name() if default_device().type == "cuda" else "",
    }
    folder = experiment.root / BEGINNINGS
    return lambda values: SeedFiles(folder / identity.sha256_of(values | common), seed)


def _beginning(scenario: Scenario) -> dict:
    """The scenario's values without how long it trains and which seeds."""
    values = dataclasses.asdict(dataclasses.replace(scenario, seeds=[0]))
    values["training"]["rounds"] = values["evaluation"]["last"] = 0
    return values


def adopt(seeds: list[SeedFiles], experiment: Experiment, metas: list[dict]) -> list[int]:
    """Finish every seed of this cell in git's last commit that was trained by today's code and parameters, on
    today's partition and on a CPU; returns those seeds. Where the committed result already has all seeds,
    nothing is taken over: the cell is to be trained again.

    DVC deletes a stage's results before it runs, so they are read from git. The representations are not in
    git and are left empty; where a figure draws them, the first seed, which they come from, is trained.
    metas: what each seed trains on, in the order of `seeds`.
    """
    cell, root = experiment.cell, experiment.root
    # Another cell that trains alike may have taken the seed over without representations.
    drawn = seeds[0] if _drawn(cell, root) else None
    if drawn is not None:
        finished = drawn.run()
        if finished is not None and finished.get("adopted"):
            drawn.forget()
    committed = next(filter(None, (_committed(one, root) for one in identity.alike(cell))), None)
    if committed is None or all(one.finished.exists() for one in seeds):
        return []
    (result, history), device = committed, default_device()
    same_machine = (result["device"] == device.type == "cpu") and result["precision"] == precision()
    if not same_machine or result["executor"] != executor_name(device):
        return []
    if not identity.current(result, experiment):
        return []
    of_seed = dict(zip(result["seeds"], results.partitions(result)))
    same = [one for one, meta in zip(seeds, metas, strict=True) if of_seed.get(one.seed) == meta["digest"]]
    adopted = [one for one in same if one != drawn] if len(same) < len(seeds) else []
    for one in adopted:
        if not one.finished.exists():
            one.finish(_as_finished(result, history, one.seed), {})
    return [one.seed for one in adopted]


def _drawn(cell: Cell, root: Path) -> bool:
    """Does a figure of the paper draw the cell's representations?"""
    return any(
        figure.kind in COMPUTED
        and cell.scenario in (MINIATURE, *figure.scenarios)
        and cell.method in (figure.methods or [cell.method])
        for figure in load_paper(cell.paper, root).figures.values()
    )


def _committed(cell: Cell, root: Path) -> tuple[Result, pd.DataFrame] | None:
    """(result, history) of the cell in git's last commit; None where there is none that can be trusted."""
    folder = cell.folder(root).relative_to(root)
    document, rounds = (git.committed(root, folder / name) for name in ("result.json", "history.csv"))
    if document is None or rounds is None:
        return None
    try:
        result = results.read(root / folder / "result.json", document)
        history = results.parse_history(rounds, root / folder / "history.csv")
        results.check_history(result, history, root / folder / "history.csv")
        results.check_plausible(result, history, root / folder / "history.csv")
        return result, history
    except FedReproError:
        return None


def _as_finished(result: Result, history: pd.DataFrame, seed: int) -> dict[str, Any]:
    """A seed's entry as training would have written it, from the files in git."""
    at = result["seeds"].index(seed)
    rows = [
        {"round": int(row["round"]), "loss": None}
        | {name: value for name, value in row.items() if name not in ("seed", "round") and value == value}
        for row in history[history["seed"] == seed].to_dict("records")
    ]
    document: Mapping[str, Any] = result
    of_seeds = {key: document[key] for key in ("clients", "seconds", "holdings", "by_class") if key in result}
    memory = dict.fromkeys(("process_mb", "device_mb")) | {
        name: values[at] for name, values in (result.get("memory") or {}).items()
    }
    return {
        "seed": seed,
        "rows": rows,
        "traffic": [results.traffic_of_seeds(result, name)[at] for name in ("up", "down")],
        "memory": memory,
        "versions": results.machines(result)[at],
        "adopted": True,  # without representations
        **{key: document[key] for key in ("hook", "device", "precision", "executor", "started")},
        **{
            key: {name: each[at] for name, each in values.items()} if isinstance(values, dict) else values[at]
            for key, values in of_seeds.items()
        },
    }
