"""The runs behind a claim: which numbers they give, which rows they are compared among, and the estimates
that follow.

The rows of a comparison (its pool) are those that the paper prints in the same block of a table, or draws in
the figure, so that a reading, a variant or a method of ours that is run later does not change a verdict.
Where nothing is printed they are all rows of the scenario.
"""

from dataclasses import replace
from functools import cache
from statistics import fmean

import numpy as np

from pipeline.data.registry import REGISTRY
from pipeline.report2 import measures
from pipeline.report2.claims import Contrast, Printed, Spot
from pipeline.report2.statistics import Design, Estimate, combined, one_sample
from pipeline.schema import Cell

# a run and one of its measures
Source = tuple[Cell, str]
# a seed and the partition that it used
Block = tuple[int, str]
# table, setting, data set and column as printed
Column = tuple[str, str, str, str]
# (measure, its weight) of one number of a run
Weights = tuple[tuple[str, float], ...]
# percent, over the number of classes: fewer right answers are chance
GUESSED = 150.0


class Evidence:
    """The results of one paper, looked up for its claims; variant: through the tables' variant of that
    name."""

    def __init__(self, printed: Printed, variant: str = ""):
        self.study, self.printed, self.variant = printed.study, printed, variant
        self.paper, self.results = self.study.paper, self.study.results
        self.values = cache(self._values)
        self.design = cache(self._design)
        self.same_column = cache(self._same_column)
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

    def hours(self, cells: set[Cell]) -> float:
        """Hours for one more seed of every cell, if it takes as long as the cell's other seeds."""
        return sum(fmean(self.results[cell]["seconds"]) for cell in cells) / 3600

    # -- the rows of a comparison --

    def pool(self, spots: list[Spot]) -> tuple[Source, ...]:
        """The numbers that the paper prints along with these: the same block and column of its table, or the
        figure; else the whole scenario."""
        return tuple(dict.fromkeys(source for spot in spots for source in self._pool(spot)))

    def _pool(self, spot: Spot) -> tuple[Source, ...]:
        if spot.table:
            return self.same_column(_column(spot))
        wanted = spot.scenario, spot.measure
        columns = [
            sources
            for sources in map(self.same_column, self.columns)
            if wanted in {(cell.scenario, measure) for cell, measure in sources}
        ]
        if columns:
            return max(columns, key=len)
        figures = [figure for figure in self.paper.figures.values() if spot.scenario in figure.scenarios]
        methods = next((figure.methods for figure in figures if figure.methods), self.paper.methods)
        return tuple((self.study.cell(spot.scenario, method), spot.measure) for method in methods)

    def _same_column(self, column: Column) -> tuple[Source, ...]:
        """The runs of one printed column."""
        return tuple(dict.fromkeys(filter(None, map(self.source, self.columns.get(column, [])))))

    def rows(self, sources: list[Source], pool: tuple[Source, ...]) -> set[Cell]:
        """The measured cells that a claim's estimates rest on."""
        scenarios = {cell.scenario for cell, _ in sources}
        return {
            source[0]
            for source in (*pool, *sources)
            if source[0].scenario in scenarios and self.values(source)
        }

    # -- estimates --

    def estimate(self, contrast: Contrast, pool: tuple[Source, ...]) -> Estimate | None:
        """Of a sum of runs, scenario by scenario; None where runs of a scenario share no block."""
        scenarios: dict[str, dict[Source, float]] = {}
        for source, weight in contrast.weights:
            scenarios.setdefault(source[0].scenario, {})[source] = weight
        parts = [self._part(scenario, sources, pool) for scenario, sources in scenarios.items()]
        known = [part for part in parts if part]
        return combined(known) if known and len(known) == len(parts) else None

    def _part(self, scenario: str, sources: dict[Source, float], pool: tuple[Source, ...]) -> Estimate | None:
        """Several measures of one run are one number of it first; a contrast of methods is then pooled,
        anything else has its own spread."""
        weights, methods = _factors(sources)
        cancels = abs(sum(sources.values())) < 1e-9
        if not weights:
            sums = np.array([*self._sum(sources).values()])
            return one_sample(sums, "paired" if cancels else "level") if len(sums) else None
        printed = tuple(
            dict.fromkeys(
                cell.method
                for cell, measure in pool
                if cell.scenario == scenario and measure in dict(weights)
            )
        )
        design = self.design(
            scenario, weights, printed, tuple(name for name in methods if name not in printed)
        )
        if abs(sum(methods.values())) < 1e-9:
            return design.contrast(methods)
        level = design.level(methods)
        return replace(level, route="paired") if level and cancels else level

    def _design(
        self, scenario: str, weights: Weights, printed: tuple[str, ...], others: tuple[str, ...]
    ) -> Design:
        rows = {}
        for method in (*printed, *others):
            cell = self.study.cell(scenario, method)
            rows[method] = self._sum({(cell, measure): weight for measure, weight in weights})
        return Design({method: row for method, row in rows.items() if row}, printed)

    def _sum(self, sources: dict[Source, float]) -> dict[Block, float]:
        """A weighted sum of runs in every block that all of them have."""
        blocks = set.intersection(*(set(self.values(source)) for source in sources))
        return {
            block: sum(weight * self.values(source)[block] for source, weight in sources.items())
            for block in sorted(blocks)
        }


def _column(spot: Spot) -> Column:
    return spot.table, spot.setting, spot.dataset, spot.column


def _factors(sources: dict[Source, float]) -> tuple[Weights, dict[str, float]]:
    """Weights of methods x measures as one number per run and its weight per method; empty where they are no
    such product."""
    methods = list(dict.fromkeys(cell.method for cell, _ in sources))
    names = list(dict.fromkeys(measure for _, measure in sources))
    table = np.zeros((len(methods), len(names)))
    for (cell, measure), weight in sources.items():
        table[methods.index(cell.method), names.index(measure)] = weight
    if np.linalg.matrix_rank(table) > 1:
        return (), {}
    weights = (table[0] / table[0, 0]).tolist()
    return tuple(zip(names, weights)), dict(zip(methods, table[:, 0].tolist()))
