"""Modules that a training loaded, that its digest does not cover, and that no test says to be neutral."""

from collections.abc import Iterable
from pathlib import Path

from pipeline.cells.experiment import Experiment
from pipeline.provenance import identity
from pipeline.provenance.changes import MOVED
from pipeline.schema import ROOT, Cell

TODAY = {former: today for today, former in MOVED.items()}


def undigested(cell: Cell, loaded: Iterable[str], executor: str, root: Path = ROOT) -> list[str]:
    """Names in a fixed order, at their places of today."""
    covered = identity.modules_of(Experiment.of(cell, root), executor)
    names = {TODAY.get(name, name) for name in loaded}
    return sorted(names - covered - identity.NEUTRAL - identity.BESIDE)
