"""Find the cells of the names that a user types."""

from pipeline.cells.experiment import Experiment
from pipeline.errors import ParamError, unknown
from pipeline.schema import Cell, load_paper, planned


def cells(name: str) -> list[Cell]:
    """The cell of that name, or the cells of a scenario, paper/scenario; ParamError for an unknown name."""
    if name.count("/") != 1:
        cell = Cell.parse(name)
        Experiment.of(cell)
        return [cell]
    key, scenario = name.split("/")
    load_paper(key)
    every = planned(key)
    if not (some := [cell for cell in every if cell.scenario == scenario]):
        known = {cell.scenario for cell in every}
        raise ParamError(f"papers/{key}/paper.yaml: grids: {unknown('scenario', scenario, known)}")
    return some
