"""The readings and sources that a page shows: every reading of a paper's cells under a number, every value
with its source."""
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.cells.readings import Reading, hyper_parameters, settings_of
from pipeline.report2.words import method_label, variant
from pipeline.schema import ROOT, Cell, Paper

FEW = 3                                          # rows of one algorithm that are named one by one


@dataclass(frozen=True)
class Told:
    """A reading under its number on a page."""
    number: str                                  # R3
    reading: Reading
    rows: str                                    # which methods have it


@dataclass(frozen=True)
class ValueRow:
    """A value of the scenarios or of some rows, and where it comes from."""
    rows: str                                    # which methods have it; empty: it is the scenarios'
    name: str
    value: str                                   # several where scenarios differ
    source: str


Readings = dict[Cell, list[Told]]


def ran(result: dict | None) -> dict | None:
    """The hyper-parameters that a result was made with: all of them where it has recorded the defaults, else
    as written."""
    return None if result is None else result.get("resolved", result["hyper"])


def numbered(paper: Paper, found: dict[Cell, list[Reading]]) -> Readings:
    """The readings of every cell, numbered over all cells: those of the paper first, then method by
    method."""
    place = {method: i for i, method in enumerate(paper.methods)}
    ordered = sorted(found, key=lambda cell: place[cell.method])
    choices = [Reading(choice.paper, choice.run, choice.why, choice.option) for choice in paper.readings]
    known = {reading for readings in found.values() for reading in readings}
    order = dict.fromkeys(
        [*(choice for choice in choices if choice in known), *(r for cell in ordered for r in found[cell])]
    )
    told = {
        reading: Told(
            f"R{i}",
            reading,
            rows(paper, [cell.method for cell in ordered if reading in found[cell]], ordered),
        )
        for i, reading in enumerate(order, 1)
    }
    return {cell: [told[reading] for reading in found[cell]] for cell in ordered}


def every(readings: Readings) -> list[Told]:
    """Each reading once, by its number."""
    return sorted(
        {told for found in readings.values() for told in found}, key=lambda told: int(told.number[1:])
    )


def rows(paper: Paper, methods: Iterable[str], cells: Iterable[Cell]) -> str:
    """Methods in words, many rows of one algorithm under the name that they share."""
    methods, asked = dict.fromkeys(methods), dict.fromkeys(cell.method for cell in cells)
    if len(asked) > 1 and methods.keys() == asked.keys():
        return "all methods"
    mates: dict[str, list[str]] = {}
    for method in asked:
        mates.setdefault(paper.algorithm(method), []).append(method)
    words = []
    for same in mates.values():
        here, base = [method for method in same if method in methods], variant(paper.label(same[0]))[0]
        if len(here) <= FEW:
            words += [method_label(paper, method) for method in here]
        else:
            words.append(f"{'all' if len(here) == len(same) else len(here)} rows of {base}")
    return ", ".join(words)


def by_row(paper: Paper, shown: dict[str, list[Told]]) -> list[tuple[str, list[Told]]]:
    """The readings to list with a table whose rows (methods) have these: first those common to all rows, then
    each row's own."""
    shown = {method: told for method, told in shown.items() if told}
    common = set.intersection(*map(set, shown.values())) if len(shown) > 1 else set()
    lines = [("all of them", [told for told in next(iter(shown.values()), []) if told in common])]
    lines += [
        (method_label(paper, method), [told for told in found if told not in common])
        for method, found in shown.items()
    ]
    return [(who, found) for who, found in lines if found]


def numbers(found: Iterable[Told]) -> str:
    """`R1, R4 to R6`: the numbers of readings, runs of them shortened."""
    runs: list[list[int]] = []
    for number in sorted(int(told.number[1:]) for told in found):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"R{run[0]}" if len(run) == 1 else f"R{run[0]}{' to ' if len(run) > 2 else ', '}R{run[-1]}"
        for run in runs
    )


def values(paper: Paper, cells: Iterable[Cell], root: Path = ROOT) -> list[ValueRow]:
    """The values of the cells' scenarios and rows, as paper.yaml has them, with their sources."""
    cells = list(dict.fromkeys(cells))
    settings = _collected(
        (("", setting.name), setting.value, setting.source)
        for cell in cells
        for setting in settings_of(cell, root)
    )
    given = _collected(((cell.method, setting.name), setting.value, setting.source) for cell in cells
                       for setting in hyper_parameters(cell, root) if setting.name in cell.resolve(root)[2])
    shared: dict[tuple[str, str, str], list[str]] = {}
    for (method, name), (value, source) in given.items():
        shared.setdefault((name, value, source), []).append(method)
    return [ValueRow("", name, value, source) for (_, name), (value, source) in settings.items()] + [
        ValueRow(rows(paper, methods, cells), name, value, source)
        for (name, value, source), methods in shared.items()
    ]


def _collected(found: Iterable[tuple[tuple[str, str], Any, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Key -> its different values, and its different sources, each joined."""
    kept: dict[tuple[str, str], tuple[dict, dict]] = {}
    for key, value, source in found:
        shown, sources = kept.setdefault(key, ({}, {}))
        shown[value_words(value)] = sources[source] = None
    return {key: ("; ".join(shown), "; ".join(sources)) for key, (shown, sources) in kept.items()}


def value_words(value: Any) -> str:
    """A value of paper.yaml as running text; of a network or an optimiser its name and what is not the
    default."""
    if dataclasses.is_dataclass(value):
        said = [
            (f.name, item) for f in dataclasses.fields(value) if (item := getattr(value, f.name)) != f.default
        ]
        return ", ".join(
            str(item) if name == "name" else f"{name} {value_words(item)}" for name, item in said
        )
    if isinstance(value, dict):
        return ", ".join(f"{key} {value_words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(value_words, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
