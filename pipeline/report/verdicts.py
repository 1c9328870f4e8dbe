"""Verdicts: test statistically whether runs confirm each claim of a paper, and count the outcomes.

A direction is decided where the difference of runs is significant, corrected for the number of comparisons.
The size of a difference is judged by itself, by the 95 % interval against the printed number (`sizes.py`). A
level and a closeness have no direction: the 90 % interval confirms them, the range of a result from as few
runs as the paper's contradicts them.

The rows of a comparison (its pool) are those that the paper prints in the same block of a table, or draws in
the figure, so that what else is run later does not change a verdict; else all rows of the scenario.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from statistics import fmean

import numpy as np

from pipeline.data.registry import find
from pipeline.report import limits, measures, sizes
from pipeline.report.claims import Claim, Difference, Printed, Spot, read_claims
from pipeline.report.statistics import (
    ALPHA,
    ZERO,
    Design,
    Estimate,
    Family,
    combined,
    of_common_blocks,
    one_sample,
)
from pipeline.report.study import CHANCE_LEVEL, Study
from pipeline.report.words import minus, ordinal, signed
from pipeline.schema import Cell, Paper

# a run and one of its measures
Source = tuple[Cell, str]
# a seed and the partition that it used
Block = tuple[int, str]
# the heading under which shortened runs judge
SHORTENED = "shortened"
# of a printed number with two decimals
ROUNDING = 0.005
# seeds that show a spread, and the most that are considered
ENOUGH = 2
MOST = 100
# the chance with which `needed` seeds show the printed difference
POWER = 0.8
# A measure that the protocol fixes: the same in every seed it needs no test.
DETERMINISTIC = "run.traffic"


# -- the runs behind a claim ---------------------------------------------------------------------------------


class Evidence:
    """The results of one paper, looked up for its claims, or for those of a variant of its tables; variant
    SHORTENED: of the scenarios `<scenario>-short`, which are no setting of the paper."""

    def __init__(self, printed: Printed, variant: str = ""):
        self.study, self.printed, self.variant = printed.study, printed, variant
        self.paper, self.results = self.study.paper, self.study.results
        self.values = cache(self._values)
        self.design = cache(self._design)
        # the runs of one printed column
        self.same_column: Callable[[Spot], tuple[Source, ...]] = cache(
            lambda column: tuple(filter(None, dict.fromkeys(map(self.source, self.columns.get(column, [])))))
        )
        # A column is a spot without a method.
        self.columns: dict[Spot, list[Spot]] = {}
        for spot in printed.numbers:
            self.columns.setdefault(replace(spot, method=""), []).append(spot)

    def source(self, spot: Spot) -> Source | None:
        """The run and the measure that a spot is; None for what no run measures."""
        if not spot.table:
            named = next(name for name in self.paper.methods if self.paper.label(name) == spot.method)
            run: Source | None = self.study.cell(spot.scenario, named), spot.measure
        else:
            table = self.paper.tables.get(f"{spot.table}-{self.variant}", self.paper.tables[spot.table])
            run = self.study.source(table, spot.setting, spot.dataset, spot.method, spot.column)
        if run and self.variant == SHORTENED:
            return (cell, run[1]) if (cell := self.study.shortened(run[0])) else None
        return run

    def _values(self, source: Source) -> dict[Block, float]:
        """{block: number}, empty where the cell has not run."""
        cell, measure = source
        result = self.results.get(cell)
        if not result:
            return {}
        draws = measures.draws(result)
        numbers = measures.numbers(cell, result, measure, self.study.root)
        return {(seed, draws[seed]): number for seed, number in numbers.items()}

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

    def compared(self, spots: list[Spot]) -> set[Cell]:
        """The measured cells that the estimates of a claim about these numbers rest on."""
        sources = {source for spot in spots if (source := self.source(spot))}
        scenarios = {cell.scenario for cell, _ in sources}
        every = sources.union(*map(self.pool, spots))
        return {source[0] for source in every if source[0].scenario in scenarios and self.values(source)}

    def classes(self, cell: Cell) -> int:
        """Of the data that a cell is tested on; 0 where they have none."""
        return find(self.paper.scenarios[cell.scenario].data.set, self.study.root).classes

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
        anything else by its spread."""
        weights, methods = _factors(sources)
        if not weights:
            sums = np.array([*self.sums(sources).values()])
            return one_sample(sums) if len(sums) else None
        here = (source for source in pool if source[0].scenario == scenario and source[1] in dict(weights))
        printed = tuple(dict.fromkeys(cell.method for cell, _ in here))
        others = tuple(name for name in methods if name not in printed)
        design = self.design(scenario, weights, printed, others, tuple(methods))
        return design.estimate(methods) if design else None

    def _design(
        self, scenario: str, weights: tuple, printed: tuple, others: tuple, own: tuple
    ) -> Design | None:
        """Of the blocks that the rows `own`, which are compared, share; None where they share none."""
        rows = {}
        for method in (*printed, *others):
            cell = self.study.cell(scenario, method)
            rows[method] = self.sums({(cell, measure): weight for measure, weight in weights})
        return of_common_blocks({method: row for method, row in rows.items() if row}, own, printed)

    def sums(self, sources: dict[Source, float]) -> dict[Block, float]:
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


# -- verdicts ------------------------------------------------------------------------------------------------


class Chip(StrEnum):
    """The verdict on a claim in a word, in the order of the pages."""

    HOLDS = "holds"
    DIRECTION = "direction holds"
    FAILS = "fails"
    CONTRADICTED = "size contradicted"
    UNDECIDED = "undecided"
    ONE_FOR = "one seed, for"
    ONE_AGAINST = "one seed, against"
    NOT_RUN = "not run"
    NOT_TESTABLE = "not testable"


# how close a difference is to the number that the paper names, and what that says where it is all the claim
CLOSENESS = {"confirmed": Chip.HOLDS, "contradicted": Chip.FAILS, "open": Chip.UNDECIDED}


@dataclass(frozen=True)
class Verdict:
    """What the runs say about one claim.

    point, low, high: the measured difference, level or rank, and its 95 % interval (None: there is none)
    printed: the same of the published numbers; points: whether it is a difference in percent points
    seeds: of the run that has the fewest; p: of the direction, corrected
    by_seed: seed -> the claim's number in it, of the seeds that all runs have
    size: as printed, smaller, larger, opposite or open (`sizes.py`); empty: nothing is printed
    alone: as p, by the spread of the compared rows alone, where p is by the residual of all rows of the table
    rival: of several comparisons the one that decides; method: how it was computed; reason: why it was not
    needed, hours: seeds that would show the printed difference of an undecided claim in four of five
        repetitions, hours of one process for the further ones
    elsewhere: by heading, of the tables that measure the same printed numbers in another setting
    """

    claim: Claim
    chip: Chip
    point: float | None = None
    low: float | None = None
    high: float | None = None
    printed: float | None = None
    points: bool = False
    seeds: int = 0
    p: float | None = None
    alone: float | None = None
    by_seed: Mapping[int, float] = field(default_factory=dict)
    size: str = ""
    rival: str = ""
    method: str = ""
    reason: str = ""
    needed: int | None = None
    hours: float | None = None
    elsewhere: Mapping[str, "Verdict"] = field(default_factory=dict)

    @property
    def title(self) -> str:
        title = self.claim.title or self.claim.text
        return title[:1].upper() + title[1:]

    @property
    def shortened(self) -> "Verdict | None":
        """Of shortened runs, where the paper's setting has not run."""
        return self.elsewhere.get(SHORTENED)

    @property
    def interval(self) -> str:
        """`[2.8, 7.9]`; empty where there is none."""
        ends = [self._number(end).replace("+", "") for end in (self.low, self.high) if end is not None]
        return f"[{', '.join(ends)}]" if len(ends) == 2 else ""

    def text(self, value: float | None) -> str:
        """`+5.4`; a rank as `3rd`, a cost as `−300 kB`."""
        if value is None:
            return ""
        units = {measures.COSTS.get(spot.measure, "") for spot in self.claim.spots}
        unit = units.pop() if len(units) == 1 and self.claim.expected.kind != "rank" else ""
        return f"{self._number(value)} {unit}".strip()

    def _number(self, value: float) -> str:
        """Without its unit; what is no difference of percent points in three digits."""
        if self.claim.expected.kind == "rank":
            return ordinal(round(value))
        if self.points:
            return signed(value, 1 if abs(value) >= 0.05 else 2) if abs(value) >= 0.005 else "0.00"
        form = ",.0f" if abs(value) >= 1000 else ".3g"
        return minus(format(value, form if self.claim.expected.kind == "value" else f"+{form}"))


def count(verdicts: Iterable[Verdict]) -> dict[Chip, int]:
    """How many claims have each verdict; every chip is there, in order."""
    return dict.fromkeys(Chip, 0) | Counter(verdict.chip for verdict in verdicts)


def variants(paper: Paper) -> dict[str, tuple[str, str]]:
    """{`table2-full`: (`table2`, `full`)}: tables that measure printed numbers in other scenarios."""
    tables, split = paper.tables, {key: key.partition("-")[::2] for key in paper.tables}
    again = {key: (base, name) for key, (base, name) in split.items() if name and base in tables}
    return {key: pair for key, pair in again.items() if tables[pair[0]].published == tables[key].published}


def verdicts(study: Study) -> list[Verdict]:
    """Of every claim of a paper, in the order of claims.csv."""
    printed, again = Printed(study), variants(study.paper)
    evidence = {name: Evidence(printed, name) for name in ("", *(name for _, name in again.values()))}
    shortened, judged = Evidence(printed, SHORTENED), []
    for claim in read_claims(printed):
        elsewhere = {}
        for key, (base, name) in again.items():
            if claim.table == base and (other := judge(claim, evidence[name])).chip != Chip.NOT_TESTABLE:
                number = study.paper.tables[key].number
                elsewhere[number.partition(", ")[2] or f"Table {number}"] = other
        verdict = judge(claim, evidence[""])
        # Also where they have the numbers but cannot test the claim, which its reason says.
        if verdict.chip == Chip.NOT_RUN and (short := judge(claim, shortened)).by_seed:
            elsewhere[SHORTENED] = short
        judged.append(replace(verdict, elsewhere=elsewhere))
    return judged


def judge(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict on one claim of a paper."""
    if claim.tree is None:
        return Verdict(claim, Chip.NOT_TESTABLE, reason="no number settles it")
    numbers = {spot: evidence.printed.numbers.get(spot) for spot in claim.spots}
    printed = None if None in numbers.values() else claim.value(claim.tree, numbers.__getitem__)
    empty = Verdict(claim, Chip.NOT_TESTABLE, printed=printed)
    runs = {spot: source for spot in claim.spots if (source := evidence.source(spot))}
    if len(runs) < len(claim.spots):
        return replace(empty, reason="no run measures its numbers")
    tree = claim.tree.renamed(runs.__getitem__)
    if tree is None:
        return replace(empty, reason="both sides are the same run here")
    by_run = {source: numbers[spot] for spot, source in runs.items()}
    return _Case(claim, evidence, tree, by_run).verdict(empty)


class _Case:
    """One claim about numbers that runs measure; by_run: the number that the paper prints for each run."""

    def __init__(
        self, claim: Claim, evidence: Evidence, tree: Difference, by_run: Mapping[Source, float | None]
    ):
        self.claim, self.expected, self.evidence, self.tree = claim, claim.expected, evidence, tree
        self.by_run = by_run
        self.leaves, self.sources = tree.leaves(), tree.spots()
        self.values = {source: evidence.values(source) for source in self.sources}
        self.level = any(abs(sum(weight for _, weight in leaf.weights)) > 1e-9 for leaf in self.leaves)

    def verdict(self, empty: Verdict) -> Verdict:
        cells = {cell for cell, _ in self.sources}
        if missing := {cell for (cell, _), row in self.values.items() if not row}:
            done = len(cells) - len(missing)
            return replace(empty, chip=Chip.NOT_RUN, reason=f"{done} of {len(cells)} cells measured")
        if guessing := self._at_chance():
            return replace(empty, reason=f"at chance: {', '.join(guessing)}")
        if reason := limits.untestable(self.claim, self.sources, self.evidence):
            return replace(empty, by_seed=self._by_seed(), reason=reason)
        pool = dict.fromkeys(source for spot in self.claim.spots for source in self.evidence.pool(spot))
        estimates = {leaf: self.evidence.estimate(leaf, pool) for leaf in self.leaves}
        known = {leaf: estimate for leaf, estimate in estimates.items() if estimate}
        if len(known) < len(estimates):
            return replace(empty, chip=Chip.NOT_RUN, reason="the runs share no seed")
        seeds = min(map(len, self.values.values()))
        relative = self.expected.kind not in ("rank", "value")
        points = relative and all(measures.in_points(measure) for _, measure in self.sources)
        base = replace(empty, seeds=seeds, by_seed=self._by_seed(), points=points)
        if min(seeds, *(one.n for one in known.values())) < ENOUGH:
            return self._one_seed(base)
        constant = [one for one in known.values() if one.v <= ZERO**2]
        deterministic = {measure for _, measure in self.sources} == {DETERMINISTIC}
        if deterministic and len(constant) == len(known):
            return self._exact(base)
        if not deterministic and any(one.route != "identical" for one in constant):
            return self._one_seed(replace(base, method="no spread over the seeds"))
        family = Family(known, self.expected.bound, 1 if self.expected.sign in (">=", "<") else -1)
        tested = self._tested(base, family)
        careful = self._paired(family) if tested.chip != Chip.UNDECIDED else None
        if careful and self._tested(base, careful).chip == Chip.UNDECIDED:
            tested, family = self._tested(base, careful), careful
        tested = replace(tested, alone=self._alone(family))
        open_still = tested.chip in (Chip.UNDECIDED, Chip.CONTRADICTED)
        return self._outlook(tested, family) if open_still else tested

    def _paired(self, family: Family) -> Family | None:
        """The same comparisons by the spread of each pair alone, where two seeds are decided by the residual
        of all rows; None with more seeds, or where nothing was pooled."""
        pooled = [one for one in family.estimates.values() if one.route == "pooled"]
        if not pooled or max(one.n for one in pooled) > limits.PAIRED_SEEDS:
            return None
        return self._pairs(family)

    def _alone(self, family: Family) -> float | None:
        """The p of the direction by the spread of the compared rows alone; None where that is the verdict's
        own p, or where there is no direction."""
        if not self.expected.sign or all(one.route != "pooled" for one in family.estimates.values()):
            return None
        pairs = self._pairs(family)
        return pairs.p[self.tree.pick(pairs.evidence)] if pairs else None

    def _pairs(self, family: Family) -> Family | None:
        """The same comparisons by the spread of each pair; None where one has too few seeds."""
        sums = {leaf: self.evidence.sums(dict(leaf.weights)) for leaf in family.estimates}
        if any(len(values) < ENOUGH for values in sums.values()):
            return None
        pairs = {leaf: one_sample(np.array([*values.values()])) for leaf, values in sums.items()}
        return Family(pairs, family.bound, family.tie)

    def _at_chance(self) -> list[str]:
        """The methods of the nearest comparison whose runs answer by chance; of a level or a rank none."""
        if self.level or self.expected.kind == "rank":
            return []
        means = {source: fmean(values.values()) for source, values in self.values.items()}
        leaf = self.tree.pick(lambda leaf: leaf.at(means.__getitem__))
        sources = (source for source, _ in leaf.weights if source[1] not in measures.COSTS)
        guessing = []
        for cell in dict.fromkeys(cell for cell, _ in sources):
            result, classes = self.evidence.results[cell], self.evidence.classes(cell)
            if classes and fmean(result["measures"][result["headline"]]) < CHANCE_LEVEL / classes:
                guessing.append(self.evidence.study.label(cell.method))
        return guessing

    def _by_seed(self) -> dict[int, float]:
        """The claim's number in every seed that all its runs have."""
        rows = {source: {seed: x for (seed, _), x in row.items()} for source, row in self.values.items()}
        seeds = sorted(set.intersection(*map(set, rows.values())))
        numbers = {seed: {source: row[seed] for source, row in rows.items()} for seed in seeds}
        return {seed: self.claim.value(self.tree, numbers[seed].__getitem__) for seed in seeds}

    def _one_seed(self, base: Verdict) -> Verdict:
        """The side to which the numbers point without an interval."""
        if not base.by_seed:
            return replace(base, chip=Chip.NOT_RUN, reason="the runs share no seed")
        if self.level and base.seeds < ENOUGH:
            return replace(base, chip=Chip.NOT_RUN, reason="one seed gives no interval")
        point = fmean(base.by_seed.values())
        return replace(
            base, chip=Chip.ONE_FOR if self.expected.fits(point) else Chip.ONE_AGAINST, point=point
        )

    def _exact(self, base: Verdict) -> Verdict:
        """Of numbers that are the same in every seed."""
        point = fmean(base.by_seed.values())
        chip = Chip.HOLDS if self.expected.fits(point) else Chip.FAILS
        size = self._size(base, point, point)
        return replace(base, chip=chip, point=point, size=size, method="the same in every seed")

    def _tested(self, base: Verdict, family: Family) -> Verdict:
        nearest = self.tree.pick(lambda leaf: family.estimates[leaf].d)
        decides = self.tree.pick(family.evidence)
        # A row with another spread may leave a claim open that the nearest rival does not.
        leaf = nearest if family.side(nearest) == family.side(decides) else decides
        one, level = family.estimates[leaf], family.level[leaf]
        chip = self._chip(one, level, family.side(leaf))
        p = family.p[decides] if self.expected.sign else None
        low, high = one.interval(level)
        size = self._size(base, low, high)
        if chip == Chip.UNDECIDED and self.expected.kind == "size" and size in sizes.OTHER:
            chip = Chip.CONTRADICTED
        rival, method = self._name(leaf) if len(self.leaves) > 1 else "", self._method(one)
        tested = replace(base, chip=chip, point=one.d, low=low, high=high, p=p, size=size, rival=rival)
        if self.expected.kind != "rank":
            return replace(tested, method=method)
        sides = [family.side(leaf) for leaf in self.leaves]
        place = 1.0 + sum(estimate.d < 0 for estimate in family.estimates.values())
        low, high = 1.0 + sides.count(-1), 1.0 + len(sides) - sides.count(1)
        return replace(tested, point=place, low=low, high=high, method=method)

    def _chip(self, one: Estimate, level: float, side: int) -> Chip:
        """The verdict of the deciding comparison on a direction, else on a closeness."""
        if not self.expected.sign:
            return CLOSENESS[self._closeness(one, level)]
        agrees = Chip.HOLDS if (side > 0) == self.expected.sign.startswith(">") else Chip.FAILS
        return agrees if side else Chip.UNDECIDED

    def _size(self, base: Verdict, low: float, high: float) -> str:
        """Of a difference that the claim names, or else of one of percent points that the tables print."""
        expected = self.expected
        named = expected.kind == "size"
        number = expected.number if named else base.printed
        printed = base.points and expected.kind == "bound" and expected.bound == 0
        if self.level or not number or not (named or printed):
            return ""
        rounding = sizes.rounding_of(expected.text) if named else sizes.ROUNDING
        return sizes.size(low, high, number, rounding)

    def _closeness(self, one: Estimate, level: float) -> str:
        """confirmed where the 90 % interval lies within the margin of the number (two one-sided tests at
        5 %), contradicted where the printed number lies outside the range of the mean of as few runs as the
        paper's; of `abs<x` where the 95 % interval lies outside."""
        number, margin = self.expected.number, self.expected.margin
        low, high = one.interval(2 * level)
        if number - margin < low and high < number + margin:
            return "confirmed"
        near = self.expected.kind == "abs"
        slack, runs = (margin, math.inf) if near else (ROUNDING, self.evidence.paper.runs)
        low, high = one.interval(level, runs)
        return "open" if low - slack < number < high + slack else "contradicted"

    def _outlook(self, tested: Verdict, family: Family) -> Verdict:
        """How many seeds would show the printed difference, if it is there and the spread stays as it is.

        The observed difference does not enter: it is what is in doubt.
        """
        by_run = {source: number for source, number in self.by_run.items() if number is not None}
        if not self.expected.sign or len(by_run) < len(self.by_run):
            return tested
        printed = {leaf: leaf.at(by_run.__getitem__) for leaf in self.leaves}
        nearest = self.tree.pick(printed.__getitem__)
        if not self.expected.fits(self.claim.value(self.tree, by_run.__getitem__)):
            return tested
        claimed = replace(family.estimates[nearest], d=printed[nearest])
        level = ALPHA / len(self.leaves)

        def shown(n: int) -> bool:
            return claimed.grown(n).power(family.bound, level) >= POWER

        n = min(one.n for one in family.estimates.values())
        needed = n + bisect_left(range(n, MOST + 1), True, key=shown)
        if not n < needed <= MOST:
            return tested
        cells = self.evidence.compared(self.claim.spots)
        seconds = sum(fmean(self.evidence.results[cell]["seconds"]) for cell in cells)
        return replace(tested, needed=needed, hours=(needed - n) * seconds / 3600)

    def _name(self, leaf: Difference) -> str:
        """A comparison by what it does not share with the others, and its measure where there are several."""
        shared = set.intersection(*({source for source, _ in other.weights} for other in self.leaves))
        every = [source for source, _ in sorted(leaf.weights, key=lambda pair: -pair[1])]
        different = [source for source in every if source not in shared] or every
        names = " and ".join(dict.fromkeys(self.evidence.study.label(cell.method) for cell, _ in different))
        measured = dict.fromkeys(measure for _, measure in every)
        several = len({measure for _, measure in self.sources}) > 1
        return f"{names}, {' and '.join(measured)}" if several else names

    def _method(self, one: Estimate) -> str:
        """`least squares of method and seed, 8 rows, 5 seeds, 28 df; other spread: MOON; Holm over 3`."""
        names = {
            "pooled": f"least squares of method and seed, {one.rows} rows",
            "unpooled": "t over the seeds",
            "combined": "sum of scenarios (Welch)",
        }
        outliers = ", ".join(map(self.evidence.study.label, one.outliers))
        parts = [
            f"{names.get(one.route, one.route)}, {one.n} seeds, {one.df:.3g} df",
            f"other spread: {outliers}" if outliers else "",
            f"Holm over {len(self.leaves)}" if len(self.leaves) > 1 else "",
        ]
        return "; ".join(filter(None, parts))
