"""A paper with its results, as its pages need it: what it states, what was measured, which files could not be
used, and what is run where the paper is silent."""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from pipeline.cells.readings import Reading, hyper_parameters, readings_of, settings_of
from pipeline.cells.results import Problem, history
from pipeline.errors import ParamError, unknown
from pipeline.report2.words import method_label, scenario_title, variant
from pipeline.schema import MINIATURE, MINIATURES, ROOT, Cell, Paper, load_paper, papers, planned

# Rows of one algorithm that are named one by one.
FEW = 3
PLACEHOLDER = re.compile(r"\{(?:([\w-]+) )?([\w-]+) ([\w.]+)\}")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z“])")


@dataclass(frozen=True)
class Study:
    """A paper and the results of its cells.

    key       its folder under papers/
    results   finished cell -> its result.json
    problems  cell -> why the result that is there cannot be used
    """

    key: str
    paper: Paper
    results: dict[Cell, dict] = field(default_factory=dict)
    root: Path = ROOT
    problems: dict[Cell, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, key: str, results: dict[Cell, dict], root: Path = ROOT, problems: Iterable[Problem] = ()
    ) -> "Study":
        """From the results of all papers, without runs of the miniature that paper.yaml no longer asks
        for."""
        stages = set(planned(key, root))
        own = {
            cell: result
            for cell, result in results.items()
            if cell.paper == key and (cell in stages or cell.scenario not in MINIATURES)
        }
        broken = {one.cell: one.text for one in problems if one.cell and one.cell.paper == key}
        return cls(key, load_paper(key, root), own, root, broken)

    @property
    def name(self) -> str:
        return self.paper.name

    # -- cells --

    @cached_property
    def planned(self) -> list[Cell]:
        """Every cell that has a DVC stage."""
        return planned(self.key, self.root)

    @property
    def grid(self) -> list[Cell]:
        """Those of the paper's own grids."""
        return [cell for cell in self.planned if cell.scenario not in MINIATURES]

    def cell(self, scenario: str, method: str) -> Cell:
        return Cell(self.key, scenario, method)

    def target(self, cell: Cell) -> str:
        """What `fedrepro run` takes to measure a cell; empty where it has no stage."""
        return str(cell) if cell.stage(self.paper) else ""

    def asked(self, scenario: str) -> dict[Cell, dict | None]:
        """The planned cells of a scenario with their results; None where a cell has not run."""
        return {cell: self.results.get(cell) for cell in self.planned if cell.scenario == scenario}

    def finished(self, scenarios: Iterable[str], methods: Iterable[str]) -> Iterator[Cell]:
        """The cells of these scenarios and methods (none: of all methods) that have run."""
        methods = list(methods) or self.paper.methods
        cells = (self.cell(scenario, method) for scenario in scenarios for method in methods)
        return (cell for cell in cells if cell in self.results)

    @cached_property
    def runs(self) -> dict[str, dict[Cell, dict]]:
        """Scenario -> its finished cells, in the order of paper.yaml, but the miniature first."""
        place = {method: i for i, method in enumerate(self.paper.methods)}
        cells = sorted(self.results, key=lambda cell: place.get(cell.method, len(place)))
        runs = {
            scenario: {cell: self.results[cell] for cell in cells if cell.scenario == scenario}
            for scenario in dict.fromkeys([MINIATURE, *self.paper.scenarios])
        }
        return {scenario: cells for scenario, cells in runs.items() if cells}

    # -- texts --

    def label(self, method: str) -> str:
        """A method as running text."""
        return method_label(self.paper, method)

    def title(self, scenario: str) -> str:
        """What a scenario is."""
        return scenario_title(self.paper, scenario)

    def notes(self, scenario: str) -> list[str]:
        """What paper.yaml notes of a scenario, point by point."""
        text = self.filled(self.paper.notes.get(scenario, ""), scenario, f"notes.{scenario}")
        return [point for point in SENTENCE.split(" ".join(text.split())) if point]

    def filled(self, text: str, scenario: str, where: str) -> str:
        """A text of paper.yaml with its numbers: `{fedamp weighted}` is the mean over seeds of that measure
        of a scenario's cell, `{pacs-64 fedamp weighted}` that of another scenario; `not yet measured` where
        the cell has not run.

        Raises ParamError for a scenario, method or measure that there is not.
        """

        def number(match: re.Match) -> str:
            place, method, measure = match.groups()
            result = self.results.get(self.cell(place or scenario, method))
            for kind, name, known in (
                ("scenario", place or scenario, self.paper.scenarios),
                ("method", method, self.paper.methods),
                ("measure", measure, result["measures"] if result else [measure]),
            ):
                if name not in known:
                    raise ParamError(f"papers/{self.key}/paper.yaml: {where}: {unknown(kind, name, known)}")
            return f"{fmean(result['measures'][measure]):.1f}" if result else "not yet measured"

        return PLACEHOLDER.sub(number, text)

    def computed_otherwise(self, cells: Iterable[Cell]) -> str:
        """Which of these cells have another executor, precision or device than most; empty where all are
        alike."""
        ways: dict[str, list[Cell]] = {}
        for cell in dict.fromkeys(cell for cell in cells if cell in self.results):
            result = self.results[cell]
            ways.setdefault(f"{result['executor']}, {result['precision']}, {result['device']}", []).append(
                cell
            )
        if len(ways) < 2:
            return ""
        most = max(ways, key=lambda way: len(ways[way]))
        others = "; ".join(
            f"{', '.join(f'{self.label(cell.method)} ({cell.scenario})' for cell in run)}: {way}"
            for way, run in ways.items()
            if way != most
        )
        return f"Not all was computed alike, and training amplifies rounding: {others}; the others: {most}."

    def history(self, cell: Cell) -> pd.DataFrame:
        """history.csv of a cell."""
        return history(cell, self.root)

    @cached_property
    def readings(self) -> "dict[Cell, list[Numbered]]":
        """The readings of every cell of the grids and the miniature, as it was run or else would be."""
        cells = (*self.grid, *self.asked(MINIATURE))
        return _numbered(
            self.paper,
            {cell: readings_of(cell, self.root, resolved(self.results.get(cell))) for cell in cells},
        )


def studies(
    results: dict[Cell, dict], root: Path = ROOT, problems: Iterable[Problem] = ()
) -> dict[str, Study]:
    """Every paper by its key, in the order of the pages."""
    problems = list(problems)
    return {key: Study.of(key, results, root, problems) for key in papers(root)}


# -- readings and values -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbered:
    """A reading under its number on a page, R3, and which methods have it."""

    number: str
    reading: Reading
    rows: str


@dataclass(frozen=True)
class ValueRow:
    """A value of the scenarios (`rows` is empty) or of some methods, and where it comes from. `value` has
    several where scenarios differ."""

    rows: str
    name: str
    value: str
    source: str


def resolved(result: dict | None) -> dict | None:
    """The hyper-parameters that a result was made with: all of them where it has recorded the defaults, else
    as written."""
    return None if result is None else result.get("resolved", result["hyper"])


def _numbered(paper: Paper, readings: dict[Cell, list[Reading]]) -> dict[Cell, list[Numbered]]:
    """The readings of every cell, numbered over all cells: those of the paper first, then method by
    method."""
    place = {method: i for i, method in enumerate(paper.methods)}
    cells = sorted(readings, key=lambda cell: place[cell.method])
    known = {reading for several in readings.values() for reading in several}
    choices = [Reading(choice.paper, choice.run, choice.why, choice.option) for choice in paper.readings]
    order = dict.fromkeys([c for c in choices if c in known] + [r for cell in cells for r in readings[cell]])
    numbered = {
        reading: Numbered(
            f"R{i}",
            reading,
            methods_in_words(paper, [cell.method for cell in cells if reading in readings[cell]], cells),
        )
        for i, reading in enumerate(order, 1)
    }
    return {cell: [numbered[reading] for reading in readings[cell]] for cell in cells}


def every(readings: dict[Cell, list[Numbered]]) -> list[Numbered]:
    """Each reading once, by its number."""
    once = {one for several in readings.values() for one in several}
    return sorted(once, key=lambda one: int(one.number[1:]))


def methods_in_words(paper: Paper, methods: Iterable[str], cells: Iterable[Cell]) -> str:
    """Methods of the cells in words, many rows of one algorithm under the name that they share."""
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


def values(study: Study) -> list[ValueRow]:
    """Every value of the paper's scenarios and every hyper-parameter that ran or would run, defaults
    included, with its source."""
    cells = list(dict.fromkeys(study.grid))
    settings = _collected(
        (("", one.name), one.value, one.source) for cell in cells for one in settings_of(cell, study.root)
    )
    given = _collected(
        ((cell.method, one.name), one.value, one.source)
        for cell in cells
        for one in hyper_parameters(cell, study.root, resolved(study.results.get(cell)))
    )
    shared: dict[tuple[str, str, str], list[str]] = {}
    for (method, name), (value, source) in given.items():
        shared.setdefault((name, value, source), []).append(method)
    rows = [ValueRow("", name, value, source) for (_, name), (value, source) in settings.items()]
    return rows + [
        ValueRow(methods_in_words(study.paper, methods, cells), name, value, source)
        for (name, value, source), methods in shared.items()
    ]


def _collected(
    values: Iterable[tuple[tuple[str, str], Any, str]],
) -> dict[tuple[str, str], tuple[str, str]]:
    """Key -> its different values, and its different sources, each joined."""
    collected: dict[tuple[str, str], tuple[dict, dict]] = {}
    for key, value, source in values:
        shown, sources = collected.setdefault(key, ({}, {}))
        shown[value_words(value)] = None
        if source:
            sources[source] = None
    return {key: ("; ".join(shown), "; ".join(sources)) for key, (shown, sources) in collected.items()}


def value_words(value: Any) -> str:
    """A value of paper.yaml as running text; of a network or an optimiser its name and what is not the
    default."""
    if dataclasses.is_dataclass(value):
        changed = [
            (f.name, item) for f in dataclasses.fields(value) if (item := getattr(value, f.name)) != f.default
        ]
        return ", ".join(
            str(item) if name == "name" else f"{name} {value_words(item)}" for name, item in changed
        )
    if isinstance(value, dict):
        return ", ".join(f"{key} {value_words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(value_words, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
