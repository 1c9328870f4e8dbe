"""Results of tunings: read and check the files, choose the best values, list the tuned cells.

The results are papers/<paper>/tuning/<scenario>/<method>.json. Reading them imports no torch, so that pages
and commands stay fast.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import fmean

from pipeline.cells.documents import Configuration, TuningResult
from pipeline.errors import DAMAGED, FedReproError, ParamError, unknown
from pipeline.schema import ROOT, Cell, Tuned, check, load_paper, shorten, visible
from pipeline.schema.cell import Published
from pipeline.schema.paper import Tuning
from pipeline.sealing import is_sealed


def tuning_of(cell: Cell, root: Path = ROOT) -> Tuning:
    """How paper.yaml has the cell tuned; ParamError where it does not."""
    tunings, at = load_paper(cell.paper, root).tuning, f"papers/{cell.paper}/paper.yaml: tuning"
    if (tuning := tunings.get(cell.scenario)) is None:
        raise ParamError(f"{at}: {unknown('scenario', cell.scenario, tunings)}")
    if cell.method not in tuning.methods:
        raise ParamError(f"{at}.{cell.scenario}.methods: {unknown('method', cell.method, tuning.methods)}")
    return tuning


def means(configurations: list[Configuration]) -> list[float | None]:
    """The mean accuracy over the seeds of every configuration; None of one that could not be trained."""
    return [fmean(one["accuracy"]) if "accuracy" in one else None for one in configurations]


def best(accuracies: list[float | None]) -> int:
    """The configuration with the highest accuracy; of equal ones the first, the method's own values before
    all."""
    return accuracies.index(max(mean for mean in accuracies if mean is not None))


def path(cell: Cell, root: Path = ROOT) -> Path:
    return root / "papers" / cell.paper / "tuning" / cell.scenario / f"{cell.method}.json"


def read(cell: Cell, root: Path = ROOT) -> TuningResult:
    """The result of a cell's tuning. FedReproError where it is not there, was altered or is another's."""
    file = path(cell, root)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FedReproError(f"{shorten(file)}: no such file; `fedrepro tune {cell}` makes it") from None
    except DAMAGED as error:
        raise FedReproError(f"{shorten(file)}: not whole JSON: {error}; tune the cell again") from None
    return _checked(text, str(cell), shorten(file))


@cache
def _checked(text: str, cell: str, file: str) -> TuningResult:
    """What a tuning's file holds, checked once in a process; whoever changes it works on a copy."""
    try:
        document = json.loads(text)
    except DAMAGED as error:
        raise FedReproError(f"{file}: not whole JSON: {error}; tune the cell again") from None
    check(TuningResult, document, f"{file}:")
    if not is_sealed(document) or document["cell"] != cell:
        raise FedReproError(f"{file}: was altered, or is another cell's; tune the cell again")
    _check_values(document, f"{file}:")
    return document


def _check_values(document: TuningResult, where: str) -> None:
    """ParamError unless every configuration has an accuracy for each seed or an error, and the chosen one
    has accuracies."""
    seeds = document["seeds"]
    tried = document["configurations"]
    for number, one in enumerate(tried):
        at = f"{where} configurations[{number}]"
        needed = ("error",) if "error" in one else ("accuracy", "seconds")
        for key in needed:
            if key not in one:
                raise ParamError(f"{at}: the key {key!r} is missing")
        if "accuracy" in one and len(one["accuracy"]) != len(seeds):
            raise ParamError(f"{at}.accuracy: not a number for every seed")

    chosen = document["chosen"]
    if not seeds or not 0 <= chosen < len(tried) or "accuracy" not in tried[chosen]:
        raise ParamError(f"{where} chosen: {chosen!r:.80} is no configuration with an accuracy")


def tuned(cell: Cell, root: Path = ROOT) -> Tuned:
    """The cell with the values that its tuning chose. FedReproError where that was among more or fewer
    configurations, or with other seeds, than paper.yaml asks for."""
    document, wanted = read(cell, root), tuning_of(cell, root)
    tried, seeds = len(document["configurations"]), document["seeds"]
    if (tried, seeds) != (wanted.configurations, wanted.seeds):
        chosen = f"chosen among {tried} configurations with seeds {seeds}"
        asked = f"paper.yaml asks for {wanted.configurations} with {wanted.seeds}"
        raise FedReproError(f"{shorten(path(cell, root))}: {chosen}, {asked}; tune the cell again")
    changes = document["configurations"][document["chosen"]]["changes"]
    return Tuned.of(cell, tuple(changes.items()), seeds=tuple(wanted.test_seeds))


def published(cell: Cell, root: Path = ROOT) -> Cell:
    """What the tuned cell is compared with: the cell with its row's values, trained with the same seeds; the
    cell itself where the tuning asks for none."""
    seeds = tuple(tuning_of(cell, root).test_seeds)
    return Published.of(cell, (), seeds=seeds) if seeds else cell


def tuned_cells(root: Path = ROOT) -> Iterator[Cell]:
    """The cells that were tuned, in the order of the paths."""
    for file in visible(root, "papers/*/tuning/*/*.json"):
        yield Cell(file.parts[-4], file.parts[-2], file.stem)
