"""Tune a method's hyper-parameters in a scenario: its present values, then quasi-random points of its search
space.

They are compared by accuracy on validation images split off each client's data; see docs/decisions/tuning.md.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from pipeline import files, keys, methods
from pipeline.cells.choices import best, means, path, tuning_of
from pipeline.cells.documents import Configuration, TuningResult
from pipeline.cells.experiment import Experiment
from pipeline.errors import ParamError, TrainingError, WorkerError, unknown
from pipeline.schema import RATE, ROOT, Cell, Trial, check, read_yaml
from pipeline.schema.cell import Changes
from pipeline.schema.checker import Finite
from pipeline.schema.discovery import SPACES, SPACES_OF_PAPER, spaces_file
from pipeline.sealing import seal
from pipeline.training.checks import runnable
from pipeline.training.trainer import train_cell


def tune(cell: Cell, root: Path = ROOT) -> TuningResult:
    """Try the configurations of the cell's method; writes and returns what `pipeline.cells.choices` reads.

    Each configuration is a cell in `.cells/`; those that have been trained before are not trained again. A
    configuration whose training does not stay finite has no accuracy. TrainingError if this holds for all of
    them.
    """
    wanted, names = tuning_of(cell, root), list(space(cell, root))
    tried = [
        _tried(Trial.of(cell, changes, number=number, seeds=tuple(wanted.seeds)), names, root)
        for number, changes in enumerate(configurations(cell, wanted.configurations, root))
    ]
    if not any("accuracy" in one for one in tried):
        raise TrainingError(f"{cell}: no configuration can be trained; the first: {tried[0]['error']}")
    chosen = best(means(tried))
    document = seal({"cell": str(cell), "seeds": wanted.seeds, "configurations": tried, "chosen": chosen})
    files.write_json(path(cell, root), document)
    return cast(TuningResult, document)


def _tried(trial: Trial, names: list[str], root: Path) -> Configuration:
    """What is written of a configuration: its changes, the values of the hyper-parameters in `names`, and of
    every seed the accuracy in percent on validation images, mean over clients and over the last rounds: the
    mean that the scenario's `evaluation.headline` names, by default `average`."""
    experiment = Experiment.of(trial, root)
    known = {**vars(runnable(experiment)), RATE: experiment.scenario.training.optimiser.lr}
    values = {name: known[name] for name in names}
    tried: Configuration = {"changes": dict(trial.changes), "values": values}
    try:
        result = train_cell(trial, root, write=False)
    except WorkerError:  # says nothing about the values
        raise
    except TrainingError as error:
        return {**tried, "error": str(error)}
    measure = experiment.scenario.evaluation.headline or "average"
    accuracy = result["measures"][measure]
    return {**tried, "accuracy": accuracy, "seconds": result["seconds"], "digest": result["digest"]}


@dataclass(frozen=True)
class Axis:
    """The values of one hyper-parameter: from `low` to `high`, or one of `choices`."""

    source: str
    low: Finite | None = None
    high: Finite | None = None
    scale: Literal["log", "linear"] = "log"
    choices: list[Any] | None = None

    def __post_init__(self) -> None:
        ends = [end for end in (self.low, self.high) if end is not None]
        if self.choices if ends else not self.choices:
            raise ValueError("give either 'low' and 'high' or 'choices'")
        if ends and (len(ends) < 2 or ends[0] >= ends[1]):
            raise ValueError("'low' must be below 'high'")
        if ends and self.scale == "log" and ends[0] <= 0:
            raise ValueError("'low' must be above 0 where the scale is log")

    @property
    def ends(self) -> list[Any]:
        """Values that must be valid for all of the axis to be."""
        return self.choices or [self.low, self.high]

    def at(self, share: float, unit: float = 1.0) -> Any:
        """The value at 0 <= share < 1 of the axis, times `unit`: a number of three digits, or a choice."""
        if self.choices:
            return self.choices[int(share * len(self.choices))]
        low, high = self.ends
        if self.scale == "log":
            value = math.exp(math.log(low) + share * math.log(high / low))
        else:
            value = low + share * (high - low)
        return float(f"{value * unit:.3g}")


def configurations(cell: Cell, count: int, root: Path = ROOT) -> list[Changes]:
    """`count` configurations of the cell's method, as changes of its row's values: first none, then a Halton
    sequence, of which more begin with the same. The learning rate takes the same values for every method of
    a scenario.

    Raises ParamError for a space that names no hyper-parameter of the method, or values that it cannot have.
    """
    units = space(cell, root)
    points = shares(len(units), count - 1, cell.paper, cell.partition)
    return [
        (),
        *(
            tuple((name, axis.at(share, unit)) for (name, (axis, unit)), share in zip(units.items(), point))
            for point in points
        ),
    ]


def shares(axes: int, count: int, *key: str) -> np.ndarray:
    """(count, axes) points of the unit cube, scrambled by the key; an axis more leaves the others."""
    from scipy.stats import qmc

    rng = np.random.default_rng(keys.key("configurations", *key))
    return qmc.Halton(axes, scramble=True, rng=rng).random(count)


def space(cell: Cell, root: Path = ROOT) -> dict[str, tuple[Axis, float]]:
    """Hyper-parameter, or RATE -> its axis and what that is a multiple of; the learning rate first."""
    experiment = Experiment.of(cell, root)
    algorithm, method = experiment.algorithm, runnable(experiment)
    common = read_yaml(ROOT / SPACES)
    file = spaces_file(algorithm, cell.paper, root)
    document, at = common if file == SPACES else read_yaml(root / file), f"{file}: {algorithm}"
    if algorithm not in document:
        own = f"papers/{cell.paper}/{SPACES_OF_PAPER}"
        raise ParamError(
            f"{SPACES}: {unknown('section', algorithm, document)}; every tuned method needs one, there or in "
            f"{own}: `{algorithm}: {{mu: {{low: 0.01, high: 1, source: decade}}}}`"
        )
    section = dict(document[algorithm] or {})
    field = section.pop(RATE, None)
    if field is not None and str(field) not in vars(method):
        raise ParamError(f"{at}.{RATE}: {unknown('hyper-parameter', str(field), vars(method))}")
    rate = getattr(method, field) if field else None
    unit = experiment.scenario.training.optimiser.lr if rate is None else rate
    axes = {RATE if rate is None else field: (check(Axis, common.get(RATE), f"{SPACES}: {RATE}"), unit)}
    for name, values in section.items():
        axis = check(Axis, values, f"{at}.{name}")
        for end in axis.ends:
            methods.load(algorithm, {**experiment.hyper, name: end}, at, cell.paper, root)
        axes[name] = (axis, 1.0)
    return axes
