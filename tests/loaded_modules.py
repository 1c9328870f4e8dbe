"""Modules that a training loaded and that may change its numbers unseen by its digest."""

from collections.abc import Iterable
from pathlib import Path

from pipeline.cells.experiment import Experiment
from pipeline.provenance import identity
from pipeline.provenance.changes import MOVED
from pipeline.provenance.definitions import Code
from pipeline.schema import ROOT, Cell

TODAY = {former: today for today, former in MOVED.items()}
TODAY["pipeline.cells.tracking"] = "pipeline.tracking.mlflow_runs"
# Where the modules are that were in pipeline/cells.
ROOMS = ("pipeline.training", "pipeline.provenance", "pipeline.tracking", "pipeline.report")
# Modules that do something on import, and why that changes no number.
HARMLESS_ON_IMPORT = {
    "pipeline.clusters.warm": "it follows code, without training",
    "pipeline.report.figures": "it adds colours to its own list",
}


def undigested(cell: Cell, loaded: Iterable[str], executor: str, root: Path = ROOT) -> list[str]:
    """Names in a fixed order, at their places of today.

    A module of which the digest covers nothing has no definition that the training calls. It can change
    something only by what it does when it is imported.
    """
    covered = identity.modules_of(Experiment.of(cell, root), executor)
    code = identity._code(root)
    names = {_today(name, code) for name in loaded}
    beside = names - covered - identity.NEUTRAL - identity.BESIDE - HARMLESS_ON_IMPORT.keys()
    return sorted(name for name in beside if not code._has(name) or code._acting(name))


def _today(name: str, code: Code) -> str:
    """The place of a module that a result has recorded, which may have moved since."""
    name = TODAY.get(name, name)
    if code._has(name):
        return name
    places = (f"{room}.{name.rpartition('.')[2]}" for room in ROOMS)
    return next(filter(code._has, places), name)
