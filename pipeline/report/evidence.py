"""The runs behind a claim: which numbers they give, which rows they are compared among, and the estimates
that follow.

The rows of a comparison (its pool) are those that the paper prints in the same block of a table, or draws in
the figure, so that a reading, a variant or a method of ours that is run later does not change a verdict.
Where nothing is printed they are all rows of the scenario.
"""
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import fmean

import numpy as np

from pipeline.data.registry import REGISTRY
from pipeline.report import measures
from pipeline.report.claims import Form, Printed, Spot
from pipeline.report.statistics import Design, Estimate, alone, combined, logit
from pipeline.schema import Cell

Source = tuple[Cell, str]                         # a run and one of its measures
Column = tuple[str, str, str, str]                # table, setting, data set and column as printed
Block = tuple[int, str]                           # a seed and the partition that it used
Weights = tuple[tuple[str, float], ...]           # measure -> its weight in one number of a run
GUESSED = 150.0                                   # percent, over the number of classes
SCALES: dict[str, Callable[[float], float]] = {"": lambda value: value, "logit": logit, "ln": math.log}


class Evidence:
    """The results of one paper, looked up for its claims; `variant`: through the tables' variant of that
    name."""

    def __init__(self, printed: Printed, variant: str = ""):
        self.study, self.printed, self.variant = printed.study, printed, variant
        self.paper, self.results = self.study.paper, self.study.results
        self.values, self.design, self.beside = cache(self._values), cache(self._design), cache(self._beside)
        self.columns: dict[Column, list[Spot]] = {}
        for spot in printed.numbers:
            if not printed.is_mean(spot.table, spot.method):
                self.columns.setdefault(_column(spot), []).append(spot)

    # -- numbers --

    def source(self, spot: Spot) -> Source | None:
        """The run and the measure that a spot is; None for what no run measures."""
        if not spot.table:
            named = next(name for name in self.paper.methods if self.paper.label(name) == spot.method)
            return self.study.cell(spot.scenario, named), spot.measure
        table = self.paper.tables.get(f"{spot.table}-{self.variant}", self.paper.tables[spot.table])
        block = table.block(spot.setting, spot.dataset, spot.method)
        method = self.paper.method_of(table, spot.method)
        if block is None or method is None:
            return None
        measure = table.measure(block, spot.column)
        return (self.study.cell(block.scenario, method), measure) if measure else None

    def _values(self, source: Source) -> dict[Block, float]:
        """{block: number}, empty where the cell has not run."""
        cell, measure = source
        result = self.results.get(cell)
        found = measures.numbers(cell, result, measure, self.study.root) if result else {}
        draws = (
            dict(
                zip(result["seeds"], result.get("partitions") or [result["partition"]] * len(result["seeds"]))
            )
            if result
            else {}
        )
        return {(seed, draws[seed]): number for seed, number in found.items()}

    def at_chance(self, cell: Cell) -> bool:
        """Whether a run is less than one and a half times as often right as one answer for all images."""
        result, classes = self.results[cell], REGISTRY[self.paper.scenarios[cell.scenario].data.set].classes
        return fmean(result["measures"][result["headline"]]) < GUESSED / classes

    def hours(self, cells: set[Cell]) -> float:
        """Hours for one more seed of every cell, if it takes as long as the cell's other seeds."""
        return sum(fmean(self.results[cell]["seconds"]) for cell in cells) / 3600

    # -- the rows of a comparison --

    def pool(self, spot: Spot) -> tuple[Source, ...]:
        """The numbers that the paper prints along with a spot: the same block and column of its table, the
        rows of the scenario's table, or the figure; else the whole scenario."""
        if spot.table:
            return self.beside(_column(spot))
        wanted = spot.scenario, spot.measure
        same = [beside for beside in map(self.beside, self.columns)
                if wanted in {(cell.scenario, measure) for cell, measure in beside}]
        if same:
            return max(same, key=len)
        if not measures.drawn(spot.measure):      # of the runs behind a table, by another measure
            rows = [beside for beside in map(self.beside, self.columns)
                    if spot.scenario in {cell.scenario for cell, _ in beside}]
            if rows:
                return tuple(dict.fromkeys((cell, spot.measure) for cell, _ in max(rows, key=len)))
        figures = [figure for figure in self.paper.figures.values() if spot.scenario in figure.scenarios]
        methods = next((figure.methods for figure in figures if figure.methods), self.paper.methods)
        return tuple((self.study.cell(spot.scenario, method), spot.measure) for method in methods)

    def _beside(self, column: Column) -> tuple[Source, ...]:
        """The runs of one printed column."""
        return tuple(dict.fromkeys(filter(None, map(self.source, self.columns.get(column, [])))))

    # -- estimates --

    def estimate(self, form: Form, pool: tuple[Source, ...], scale: bool = False) -> Estimate | None:
        """Of a sum of runs, scenario by scenario; None where runs of a scenario share no block. scale: on
        each measure's other scale."""
        by_scenario: dict[str, dict[Source, float]] = {}
        for source, coefficient in form.coefficients:
            by_scenario.setdefault(source[0].scenario, {})[source] = coefficient
        parts = [part for scenario, sources in by_scenario.items()
                 if (part := self._part(scenario, sources, pool, scale))]
        if not parts or len(parts) < len(by_scenario):
            return None
        whole = combined(parts)
        return replace(whole, d=whole.d + form.constant)

    def rows(self, form: Form, pool: tuple[Source, ...]) -> set[Cell]:
        """The measured cells that a form's estimate rests on."""
        scenarios = {source[0].scenario for source, _ in form.coefficients}
        return {cell for cell, measure in (*pool, *(source for source, _ in form.coefficients))
                if cell.scenario in scenarios and self.values((cell, measure))}

    def _part(self, scenario: str, sources: dict[Source, float], pool: tuple[Source, ...],
              scale: bool) -> Estimate | None:
        """Several measures of one run are one number of it first; a contrast of methods is then pooled,
        anything else stands alone."""
        weights, methods = _factors(sources)
        if not weights:                           # no common number of all the runs
            sums = np.array([*self._sum(sources, scale).values()])
            route = "paired" if abs(sum(sources.values())) < 1e-9 else "level"
            return alone(sums, route) if len(sums) else None
        printed = tuple(dict.fromkeys(cell.method for cell, measure in pool
                                      if cell.scenario == scenario and measure in dict(weights)))
        design = self.design(scenario, weights, printed, tuple(methods), scale)
        if abs(sum(methods.values())) < 1e-9:
            return design.contrast(methods)
        found = design.level(methods)
        within = abs(sum(weight for _, weight in weights)) < 1e-9
        return replace(found, route="paired") if found and within else found

    def _design(self, scenario: str, weights: Weights, printed: tuple[str, ...], asked: tuple[str, ...],
                scale: bool) -> Design:
        rows = {}
        for method in dict.fromkeys((*printed, *asked)):
            cell = self.study.cell(scenario, method)
            rows[method] = self._sum({(cell, measure): weight for measure, weight in weights}, scale)
        return Design({method: row for method, row in rows.items() if row}, printed)

    def _sum(self, sources: dict[Source, float], scale: bool) -> dict[Block, float]:
        """A sum of runs in every block that all of them have."""
        rows = []
        for source, factor in sources.items():
            change = SCALES[measures.scale(source[1]) if scale else ""]
            rows.append({block: factor * change(value) for block, value in self.values(source).items()})
        return {block: sum(row[block] for row in rows) for block in sorted(set.intersection(*map(set, rows)))}


def _column(spot: Spot) -> Column:
    return spot.table, spot.setting, spot.dataset, spot.column


def _factors(sources: dict[Source, float]) -> tuple[Weights, dict[str, float]]:
    """Coefficients of methods x measures as one number per run and its coefficient per method; no weights
    where they are no such product."""
    table: dict[str, dict[str, float]] = {}
    for (cell, measure), coefficient in sources.items():
        table.setdefault(cell.method, {})[measure] = coefficient
    first = next(iter(table.values()))
    unit = next(iter(first.values()))
    weights = {measure: coefficient / unit for measure, coefficient in first.items()}
    methods = {}
    for method, row in table.items():
        methods[method] = row.get(next(iter(weights)), 0.0)
        same = row.keys() == weights.keys()
        if not same or any(abs(row[m] - methods[method] * weights[m]) > 1e-9 for m in row):
            return (), {}
    return tuple(weights.items()), methods
