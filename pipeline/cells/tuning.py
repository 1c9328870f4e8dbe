"""Tune a method's hyper-parameters in a scenario, by validation images split off each client's data.

See docs/decisions/tuning.md.
"""

from pathlib import Path

from pipeline import files
from pipeline.cells import choices
from pipeline.cells.checks import runnable
from pipeline.cells.experiment import Experiment
from pipeline.cells.spaces import configurations, space
from pipeline.cells.training import train_cell
from pipeline.errors import TrainingError, WorkerError
from pipeline.schema import RATE, ROOT, Cell, Trial
from pipeline.sealing import seal


def tune(cell: Cell, root: Path = ROOT) -> dict:
    """Try the configurations of the cell's method; writes and returns what `choices.read` reads.

    A configuration is a cell in `.cells/`: what was tried before is not trained again. One whose
    training does not stay finite has no accuracy; TrainingError where that is all of them.
    """
    wanted, names = choices.tuning_of(cell, root), list(space(cell, root))
    tried = [
        _tried(Trial.of(cell, changes, number=number, seeds=tuple(wanted.seeds)), names, root)
        for number, changes in enumerate(configurations(cell, wanted.configurations, root))
    ]
    if not any("accuracy" in one for one in tried):
        raise TrainingError(f"{cell}: no configuration can be trained; the first: {tried[0]['error']}")
    best = choices.best(choices.means(tried))
    document = seal({"cell": str(cell), "seeds": wanted.seeds, "configurations": tried, "chosen": best})
    files.write_json(choices.path(cell, root), document)
    return document


def _tried(trial: Trial, names: list[str], root: Path) -> dict:
    """What is written of a configuration: its changes, the values of the hyper-parameters in `names`, and of
    every seed the accuracy in percent on validation images, mean over clients and over the last rounds."""
    experiment = Experiment.of(trial, root)
    known = {**vars(runnable(experiment)), RATE: experiment.scenario.training.optimiser.lr}
    values = {name: known[name] for name in names}
    tried = {"changes": dict(trial.changes), "values": values}
    try:
        result = train_cell(trial, root, write=False)
    except WorkerError:  # says nothing about the values
        raise
    except TrainingError as error:
        return {**tried, "error": str(error)}
    of_result = {key: result[key] for key in ("seconds", "digest")}
    return {**tried, "accuracy": result["measures"]["average"], **of_result}
