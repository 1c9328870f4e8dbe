"""What the runs say about each claim of a paper: one Verdict a claim, and the one function that counts them.

A direction is decided where the difference of runs is significant, corrected for the number of comparisons.
A size is judged by itself: the 90 % interval confirms it, the range of a result from as few runs as the
paper's contradicts it.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from pipeline.report import measures
from pipeline.report.claims import Claim, Difference, Printed, read_claims
from pipeline.report.evidence import Evidence
from pipeline.report.statistics import ALPHA, ZERO, Estimate, Family, holm
from pipeline.report.study import Study
from pipeline.schema import Paper

# of a printed number with two decimals; seeds that show a spread, and the most that are considered
ROUNDING, ENOUGH, MOST = 0.005, 2, 100


class Chip(StrEnum):
    """The verdict on a claim in a word, in the order of the pages."""

    HOLDS = "holds"
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
    by_seed: (seed, the claim's number in it) of the seeds that all runs have
    size: confirmed, contradicted or open; empty: the claim names no size
    rival: of several comparisons the one that decides; method: how it was computed; reason: why it was not
    needed, hours: seeds that would decide an undecided claim, hours of one process for the further ones
    elsewhere: (heading, verdict) of the tables that measure the same printed numbers in another setting
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
    by_seed: tuple[tuple[int, float], ...] = ()
    size: str = ""
    rival: str = ""
    method: str = ""
    reason: str = ""
    needed: int | None = None
    hours: float | None = None
    elsewhere: tuple[tuple[str, "Verdict"], ...] = ()


def count(verdicts: Iterable[Verdict]) -> dict[Chip, int]:
    """How many claims have each verdict; every chip is there, in order."""
    counts = Counter(verdict.chip for verdict in verdicts)
    return {chip: counts[chip] for chip in Chip}


def after_correction(verdicts: Iterable[Verdict]) -> int:
    """How many decided claims of a page stay so if all its tested claims are corrected as one family."""
    adjusted, _ = holm([verdict.p for verdict in verdicts if verdict.p is not None])
    return sum(p < ALPHA for p in adjusted)


def variants(paper: Paper) -> dict[str, tuple[str, str]]:
    """{`table2-full`: (`table2`, `full`)}: tables that measure printed numbers in other scenarios."""
    tables, split = paper.tables, {key: key.partition("-")[::2] for key in paper.tables}
    again = {key: (base, name) for key, (base, name) in split.items() if name and base in tables}
    return {key: pair for key, pair in again.items() if tables[pair[0]].published == tables[key].published}


def verdicts(study: Study) -> list[Verdict]:
    """Of every claim of a paper, in the order of claims.csv."""
    printed, again = Printed(study), variants(study.paper)
    evidence = {name: Evidence(printed, name) for name in ("", *(name for _, name in again.values()))}
    found = []
    for claim in read_claims(printed):
        elsewhere = []
        for key, (base, name) in again.items():
            verdict = judge(claim, evidence[name]) if claim.table == base else None
            if verdict and verdict.chip != Chip.NOT_TESTABLE:
                elsewhere.append((f"Table {study.paper.tables[key].number}", verdict))
        found.append(replace(judge(claim, evidence[""]), elsewhere=tuple(elsewhere)))
    return found


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
    return _Case(claim, evidence, tree).verdict(empty)


class _Case:
    """One claim about numbers that runs measure."""

    def __init__(self, claim: Claim, evidence: Evidence, tree: Difference):
        self.claim, self.expected, self.evidence, self.tree = claim, claim.expected, evidence, tree
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
        pool = dict.fromkeys(source for spot in self.claim.spots for source in self.evidence.pool(spot))
        estimates = {leaf: self.evidence.estimate(leaf, pool) for leaf in self.leaves}
        known = {leaf: estimate for leaf, estimate in estimates.items() if estimate}
        if len(known) < len(estimates):
            return replace(empty, chip=Chip.NOT_RUN, reason="the runs share no seed")
        seeds = min(map(len, self.values.values()))
        points = self.expected.kind not in ("rank", "value")
        points = points and all(measures.in_points(measure) for _, measure in self.sources)
        base = replace(empty, seeds=seeds, by_seed=self._by_seed(), points=points)
        if min(seeds, *(one.n for one in known.values())) < ENOUGH:
            return self._one_seed(base)
        if any(one.v <= ZERO**2 and one.route != "identical" for one in known.values()):
            return self._one_seed(replace(base, method="no spread over the seeds"))
        family = Family(known, self.expected.bound, 1 if self.expected.sign in (">=", "<") else -1)
        tested = self._tested(base, family)
        return self._outlook(tested, family) if tested.chip == Chip.UNDECIDED else tested

    def _at_chance(self) -> list[str]:
        """The methods of the nearest comparison whose runs answer by chance; of a level or a rank none."""
        if self.level or self.expected.kind == "rank":
            return []
        means = {source: fmean(values.values()) for source, values in self.values.items()}
        leaf = self.tree.pick(lambda leaf: leaf.at(means.__getitem__))
        sources = (source for source, _ in leaf.weights if source[1] not in measures.COSTS)
        cells = dict.fromkeys(cell for cell, _ in sources if self.evidence.at_chance(cell))
        return [self.evidence.study.label(cell.method) for cell in cells]

    def _by_seed(self) -> tuple[tuple[int, float], ...]:
        """The claim's own number in every seed that all its runs have."""
        rows = {source: {seed: x for (seed, _), x in row.items()} for source, row in self.values.items()}
        seeds = sorted(set.intersection(*map(set, rows.values())))
        numbers = {seed: {source: row[seed] for source, row in rows.items()} for seed in seeds}
        return tuple((seed, self.claim.value(self.tree, numbers[seed].__getitem__)) for seed in seeds)

    def _one_seed(self, base: Verdict) -> Verdict:
        """The side to which the numbers point without an interval."""
        if not base.by_seed:
            return replace(base, chip=Chip.NOT_RUN, reason="the runs share no seed")
        if self.level and base.seeds < ENOUGH:
            return replace(base, chip=Chip.NOT_RUN, reason="one seed gives no interval")
        point = fmean(value for _, value in base.by_seed)
        return replace(
            base, chip=Chip.ONE_FOR if self.expected.fits(point) else Chip.ONE_AGAINST, point=point
        )

    def _tested(self, base: Verdict, family: Family) -> Verdict:
        nearest = self.tree.pick(lambda leaf: family.estimates[leaf].d)
        decides = self.tree.pick(family.evidence)
        # A row with a spread of its own may leave a claim open that the nearest rival does not.
        leaf = nearest if family.side(nearest) == family.side(decides) else decides
        one, level = family.estimates[leaf], family.level[leaf]
        chip, size = self._chip(one, level, family.side(leaf))
        p = family.p[decides] if self.expected.sign else None
        low, high = one.interval(level)
        rival, method = self._name(leaf) if len(self.leaves) > 1 else "", self._method(one)
        tested = replace(base, chip=chip, point=one.d, low=low, high=high, p=p, size=size, rival=rival)
        if self.expected.kind != "rank":
            return replace(tested, method=method)
        sides = [family.side(leaf) for leaf in self.leaves]
        place = 1.0 + sum(estimate.d < 0 for estimate in family.estimates.values())
        low, high = 1.0 + sides.count(-1), 1.0 + len(sides) - sides.count(1)
        return replace(tested, point=place, low=low, high=high, method=method)

    def _chip(self, one: Estimate, level: float, side: int) -> tuple[Chip, str]:
        """(verdict, size) of the deciding comparison."""
        expected = self.expected
        size = self._closeness(one, level) if expected.margin else ""
        if not expected.sign:
            return CLOSENESS[size], ""
        agrees = Chip.HOLDS if (side > 0) == expected.sign.startswith(">") else Chip.FAILS
        chip = agrees if side else Chip.UNDECIDED
        return Chip.CONTRADICTED if size == "contradicted" and chip != Chip.FAILS else chip, size

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
        """How many seeds would decide a direction if difference and spread stay as they are."""
        estimates = family.estimates

        def decided(n: int) -> bool:
            grown = Family({leaf: one.grown(n) for leaf, one in estimates.items()}, family.bound, family.tie)
            return grown.side(self.tree.pick(grown.evidence)) != 0

        n = min(one.n for one in estimates.values())
        # More seeds never undo it.
        needed = n + bisect_left(range(n, MOST + 1), True, key=decided)
        if needed > MOST or not self.expected.sign:
            return tested
        cells = self.evidence.compared(self.claim.spots)
        seconds = sum(fmean(self.evidence.results[cell]["seconds"]) for cell in cells)
        return replace(tested, needed=needed, hours=(needed - n) * seconds / 3600)

    def _name(self, leaf: Difference) -> str:
        """A comparison by what it does not share with the others, and its measure where there are several."""
        shared = set.intersection(*({source for source, _ in other.weights} for other in self.leaves))
        every = [source for source, _ in sorted(leaf.weights, key=lambda pair: -pair[1])]
        own = [source for source in every if source not in shared] or every
        names = " and ".join(dict.fromkeys(self.evidence.study.label(cell.method) for cell, _ in own))
        measured = dict.fromkeys(measure for _, measure in every)
        several = len({measure for _, measure in self.sources}) > 1
        return f"{names}, {' and '.join(measured)}" if several else names

    def _method(self, one: Estimate) -> str:
        """`least squares of method and seed, 8 rows, 5 seeds, 28 df; other spread: MOON; Holm over 3`."""
        pooled = f"least squares of method and seed, {one.rows} rows"
        names = {
            "alone": "t over the seeds",
            "combined": "sum of scenarios (Welch)",
            "identical": "identical",
        }
        how = names.get(one.route, pooled)
        how += f", {one.n} seeds, {one.df:.3g} df"
        if one.outliers:
            how += f"; other spread: {', '.join(map(self.evidence.study.label, one.outliers))}"
        return f"{how}; Holm over {len(self.leaves)}" if len(self.leaves) > 1 else how
