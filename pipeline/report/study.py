"""A paper with its results, as its pages need it: what it states, what was measured, and which files could
not be used."""
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from pipeline.cells.readings import Reading, filled, readings_of
from pipeline.cells.results import Problem, history
from pipeline.report.told import Readings, numbered, ran
from pipeline.report.words import method_label, scenario_title
from pipeline.schema import MINIATURE, MINIATURES, ROOT, Cell, Paper, load_paper, papers, planned


@dataclass(frozen=True)
class Study:
    """A paper and the results of its cells.

    results   finished cell -> its result.json
    problems  cell -> why the result that is there cannot be used
    """
    key: str                                     # its folder under papers/
    paper: Paper
    results: dict[Cell, dict] = field(default_factory=dict)
    root: Path = ROOT
    problems: dict[Cell, str] = field(default_factory=dict)

    @classmethod
    def of(cls, key: str, results: dict[Cell, dict], root: Path = ROOT,
           problems: Iterable[Problem] = ()) -> "Study":
        """From the results of all papers, without runs of the miniature that paper.yaml no longer asks
        for."""
        asked = set(planned(key, root))
        own = {cell: result for cell, result in results.items()
               if cell.paper == key and (cell in asked or cell.scenario not in MINIATURES)}
        broken = {
            problem.cell: problem.text for problem in problems if problem.cell and problem.cell.paper == key
        }
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
        found = {scenario: {cell: self.results[cell] for cell in cells if cell.scenario == scenario}
                 for scenario in dict.fromkeys([MINIATURE, *self.paper.scenarios])}
        return {scenario: runs for scenario, runs in found.items() if runs}

    # -- what is known of them --

    def label(self, method: str) -> str:
        """A method as running text."""
        return method_label(self.paper, method)

    def title(self, scenario: str) -> str:
        """What a scenario is."""
        return scenario_title(self.paper, scenario)

    def notes(self, scenario: str) -> list[str]:
        """What paper.yaml notes of a scenario, point by point, with its measured numbers (`filled`)."""
        points = self.paper.points(scenario)
        return [self._filled(point, f"notes.{scenario}", scenario) for point in points]

    def _filled(self, text: str, where: str, scenario: str = "") -> str:
        return filled(text, where, self.key, self.results.get, scenario, self.root)

    def readings_of(self, cell: Cell) -> list[Reading]:
        """The readings of a cell as it was run or else would be, with their measured numbers."""
        found = readings_of(cell, self.root, ran(self.results.get(cell)))
        return [replace(reading, why=self._filled(reading.why, "readings")) for reading in found]

    def computed_otherwise(self, cells: Iterable[Cell]) -> str:
        """Which of these cells have another executor, precision or device than most; empty where all are
        alike."""
        found: dict[str, list[Cell]] = {}
        for cell in dict.fromkeys(cell for cell in cells if cell in self.results):
            result = self.results[cell]
            way = f"{result['executor']}, {result['precision']}, {result['device']}"
            found.setdefault(way, []).append(cell)
        if len(found) < 2:
            return ""
        most = max(found, key=lambda way: len(found[way]))
        others = "; ".join(
            f"{', '.join(f'{self.label(cell.method)} ({cell.scenario})' for cell in run)}: {way}"
            for way, run in found.items() if way != most
        )
        return f"Not all was computed alike, and training amplifies rounding: {others}; the others: {most}."

    def history(self, cell: Cell) -> pd.DataFrame:
        """history.csv of a cell."""
        return history(cell, self.root)

    @cached_property
    def readings(self) -> Readings:
        """The readings of every cell of the grids and the miniature, as it was run or else would be."""
        choices = [replace(one, why=self._filled(one.why, "readings")) for one in self.paper.readings]
        return numbered(replace(self.paper, readings=choices),
                        {cell: self.readings_of(cell) for cell in (*self.grid, *self.asked(MINIATURE))})


def studies(results: dict[Cell, dict], root: Path = ROOT,
            problems: Iterable[Problem] = ()) -> dict[str, Study]:
    """Every paper by its key, in the order of the pages."""
    return {key: Study.of(key, results, root, problems) for key in papers(root)}
