"""The runs behind a claim: their numbers, the rows they are compared among, and the estimates that follow.

The rows of a comparison (its pool) are those that the paper prints in the same block of a table, or draws in
the figure, so that what else is run later does not change a verdict; else all rows of the scenario.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from statistics import fmean

import numpy as np

from pipeline.data.registry import REGISTRY
from pipeline.report import measures
from pipeline.report.claims import Difference, Printed, Spot
from pipeline.report.statistics import Design, Estimate, combined, one_sample
from pipeline.schema import Cell

# a run and one of its measures
Source = tuple[Cell, str]
# a seed and the partition that it used
Block = tuple[int, str]
# percent, over the number of classes: fewer right answers are chance
GUESSED = 150.0


class Evidence:
    """The results of one paper, looked up for its claims, or for those of a variant of its tables."""

    def __init__(self, printed: Printed, variant: str = ""):
        self.study, self.printed, self.variant = printed.study, printed, variant
        self.paper, self.results = self.study.paper, self.study.results
        self.values = cache(self._values)
        self.design = cache(self._design)
        self.same_column = cache(self._same_column)
        # A column is a spot without a method.
        self.columns: dict[Spot, list[Spot]] = {}
        for spot in printed.numbers:
            self.columns.setdefault(replace(spot, method=""), []).append(spot)

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
        if not result:
            return {}
        seeds = result["seeds"]
        draws = dict(zip(seeds, result.get("partitions") or [result["partition"]] * len(seeds)))
        numbers = measures.numbers(cell, result, measure, self.study.root)
        return {(seed, draws[seed]): number for seed, number in numbers.items()}

    def at_chance(self, cell: Cell) -> bool:
        """Whether a run is less than one and a half times as often right as one answer for all images."""
        result, classes = self.results[cell], REGISTRY[self.paper.scenarios[cell.scenario].data.set].classes
        return fmean(result["measures"][result["headline"]]) < GUESSED / classes

    def pool(self, spot: Spot) -> tuple[Source, ...]:
        """The numbers that the paper prints along with one: the same block and column of its table, or the
        figure; else the whole scenario."""
        if spot.table:
            return self.same_column(replace(spot, method=""))
        wanted, columns = (spot.scenario, spot.measure), list(map(self.same_column, self.columns))
        same = [runs for runs in columns if wanted in {(cell.scenario, measure) for cell, measure in runs}]
        if same:
            return max(same, key=len)
        figures = [figure for figure in self.paper.figures.values() if spot.scenario in figure.scenarios]
        methods = next((figure.methods for figure in figures if figure.methods), self.paper.methods)
        return tuple((self.study.cell(spot.scenario, method), spot.measure) for method in methods)

    def _same_column(self, column: Spot) -> tuple[Source, ...]:
        """The runs of one printed column."""
        return tuple(dict.fromkeys(filter(None, map(self.source, self.columns.get(column, [])))))

    def compared(self, spots: list[Spot]) -> set[Cell]:
        """The measured cells that the estimates of a claim about these numbers rest on."""
        sources = {source for spot in spots if (source := self.source(spot))}
        scenarios = {cell.scenario for cell, _ in sources}
        every = sources.union(*map(self.pool, spots))
        return {source[0] for source in every if source[0].scenario in scenarios and self.values(source)}

    def estimate(self, difference: Difference, pool: Collection[Source]) -> Estimate | None:
        """Of a sum of runs, scenario by scenario; None where runs of a scenario share no block."""
        scenarios: dict[str, dict[Source, float]] = {}
        for source, weight in difference.weights:
            scenarios.setdefault(source[0].scenario, {})[source] = weight
        parts = [self._part(scenario, sources, pool) for scenario, sources in scenarios.items()]
        known = [part for part in parts if part]
        return combined(known) if len(known) == len(parts) else None

    def _part(self, scenario: str, sources: dict[Source, float], pool: Collection[Source]) -> Estimate | None:
        """Several measures of one run are one number of it first; a contrast of methods is then pooled,
        anything else has its own spread."""
        weights, methods = _factors(sources)
        if not weights:
            sums = np.array([*self._sum(sources).values()])
            return one_sample(sums) if len(sums) else None
        here = (source for source in pool if source[0].scenario == scenario and source[1] in dict(weights))
        printed = tuple(dict.fromkeys(cell.method for cell, _ in here))
        others = tuple(name for name in methods if name not in printed)
        return self.design(scenario, weights, printed, others).estimate(methods)

    def _design(self, scenario: str, weights: tuple, printed: tuple, others: tuple) -> Design:
        rows = {}
        for method in (*printed, *others):
            cell = self.study.cell(scenario, method)
            rows[method] = self._sum({(cell, measure): weight for measure, weight in weights})
        return Design({method: row for method, row in rows.items() if row}, printed)

    def _sum(self, sources: dict[Source, float]) -> dict[Block, float]:
        """A weighted sum of runs in every block that all of them have."""
        rows = [(self.values(source), weight) for source, weight in sources.items()]
        blocks = sorted(set.intersection(*(set(row) for row, _ in rows)))
        return {block: sum(weight * row[block] for row, weight in rows) for block in blocks}


def _factors(sources: dict[Source, float]) -> tuple[tuple, dict[str, float]]:
    """((measure, weight) of one number per run, its weight per method); empty where there is no such one."""
    methods = list(dict.fromkeys(cell.method for cell, _ in sources))
    names = list(dict.fromkeys(measure for _, measure in sources))
    table = np.zeros((len(methods), len(names)))
    for (cell, measure), weight in sources.items():
        table[methods.index(cell.method), names.index(measure)] = weight
    if np.linalg.matrix_rank(table) > 1:
        return (), {}
    weights = (table[0] / table[0, 0]).tolist()
    return tuple(zip(names, weights)), dict(zip(methods, table[:, 0].tolist()))
