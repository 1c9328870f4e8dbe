"""Resolve names of papers, scenarios and cells that a user types, in any case or as the paper spells them."""

from pipeline.cells.experiment import Experiment
from pipeline.errors import FedReproError, ParamError, unknown
from pipeline.schema import MINIATURES, Cell, folders, load_paper, planned


def folder_names(text: str) -> str:
    """The name as folders spell it: `FedLSA/mini/FedAvg` -> `fedlsa/mini/fedavg`. A paper's and a method's
    printed name count, too; what is not known stays as it is."""
    first, *rest = text.split("/")
    try:
        keys = folders()
        key = _matching(first, dict(zip(keys, keys)))
        if key not in keys:
            key = _matching(first, {load_paper(one).name: one for one in keys})
        if key not in keys or not rest:
            return "/".join([key, *rest])
        paper = load_paper(key)
        scenarios = {name: name for name in (*MINIATURES, *paper.scenarios)}
        methods = {paper.label(name): name for name in paper.methods} | {name: name for name in paper.methods}
        parts = [_matching(part, known) for part, known in zip(rest, (scenarios, methods))]
        return "/".join([key, *parts, *rest[2:]])
    except FedReproError:  # of a paper.yaml: the command says it
        return text


def _matching(text: str, known: dict[str, str]) -> str:
    """The value of the key that is the text, or the only one that differs from it by case."""
    near = {value for key, value in known.items() if key.casefold() == text.casefold()}
    return known.get(text) or (near.pop() if len(near) == 1 else text)


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
