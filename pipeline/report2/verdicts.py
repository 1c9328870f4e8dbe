"""What the runs say about each claim of a paper: one Verdict a claim, and the one function that counts them.

A claim is a difference of runs, or one of several by its place among them, estimated by a block design over
the seeds. A direction is decided where the difference is significant, corrected for the number of
comparisons. A size is judged by itself: the 90 % interval confirms it, the range of a result from as few runs
as the paper's contradicts it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from pipeline.report2 import measures
from pipeline.report2.claims import Claim, Contrast, Printed, Tree, read_claims
from pipeline.report2.evidence import Evidence, Source
from pipeline.report2.statistics import ALPHA, Estimate, Family, first_of, holm
from pipeline.report2.study import Study
from pipeline.schema import Paper

# points by which a level may deviate ("reaches 68.40")
CLOSE = 1.0
# points, or share of the size, by which a difference may deviate
SIZE, SHARE = 0.5, 0.1
# of a printed number with two decimals
ROUNDING = 0.005
# seeds that show a spread
ENOUGH = 2
# how close a difference is to the number that the paper names
CONFIRMED, CONTRADICTED, OPEN = "confirmed", "contradicted", "open"


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


@dataclass(frozen=True)
class Verdict:
    """What the runs say about one claim.

    point, low, high: the measured difference, level or rank, and its 95 % interval (None: there is none)
    printed: the same of the published numbers; points: whether it is a difference in percent points
    seeds: of the run that has the fewest; p: of the deciding comparison, corrected
    by_seed: (seed, the claim's number in it) of the seeds that all runs have
    size: confirmed, contradicted or open; empty: the claim names no size
    rival: of several comparisons the one that decides; method: how it was computed
    reason: why it has not run or cannot be tested
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
    """{`table2-full`: (`table2`, `full`)}: tables that measure the same printed numbers in other
    scenarios."""
    tables, split = paper.tables, {key: key.partition("-")[::2] for key in paper.tables}
    return {
        key: (base, name)
        for key, (base, name) in split.items()
        if name and base in tables and tables[base].published == tables[key].published
    }


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

    def __init__(self, claim: Claim, evidence: Evidence, tree: Tree):
        self.claim, self.expected, self.evidence, self.tree = claim, claim.expected, evidence, tree
        self.leaves = tree.leaves()
        self.sources = list(dict.fromkeys(source for leaf in self.leaves for source, _ in leaf.weights))
        self.values = {source: evidence.values(source) for source in self.sources}
        self.level = any(abs(sum(weight for _, weight in leaf.weights)) > 1e-9 for leaf in self.leaves)

    def verdict(self, empty: Verdict) -> Verdict:
        if missing := self._missing():
            return replace(empty, chip=Chip.NOT_RUN, reason=missing)
        if guessing := self._at_chance():
            return replace(empty, reason=f"at chance: {', '.join(guessing)}")
        pool = self.evidence.pool(self.claim.spots)
        estimates = {leaf: self.evidence.estimate(leaf, pool) for leaf in self.leaves}
        known = {leaf: estimate for leaf, estimate in estimates.items() if estimate}
        if len(known) < len(estimates):
            return replace(empty, chip=Chip.NOT_RUN, reason="the runs share no seed")
        kind, seeds = self.expected.kind, min(map(len, self.values.values()))
        points = all(measures.in_points(measure) for _, measure in self.sources)
        base = replace(
            empty, seeds=seeds, by_seed=self._by_seed(), points=points and kind not in ("rank", "value")
        )
        if min(seeds, *(estimate.n for estimate in known.values())) < ENOUGH:
            return self._one_seed(base)
        if any(estimate.constant for estimate in known.values()):
            return self._one_seed(replace(base, method="no spread over the seeds"))
        family = Family(known, self.expected.bound, 1 if self.expected.sign in (">=", "<") else -1)
        tested = self._tested(base, family)
        return self._outlook(tested, family, pool) if tested.chip == Chip.UNDECIDED else tested

    # -- numbers of the runs --

    def _missing(self) -> str:
        cells = {cell for cell, _ in self.sources}
        ran, measured = (
            sum(cell in self.evidence.results for cell in cells),
            sum(map(bool, self.values.values())),
        )
        if ran < len(cells):
            return f"{ran} of {len(cells)} cells have run"
        return f"{measured} of {len(self.values)} numbers are measured" if measured < len(self.values) else ""

    def _at_chance(self) -> list[str]:
        """The methods of the nearest comparison whose runs answer by chance: a difference says nothing of
        them. Of a level or a rank none."""
        if self.level or self.expected.kind == "rank":
            return []
        leaf = self.tree.pick(lambda leaf: leaf.at(lambda source: fmean(self.values[source].values())))
        cells = dict.fromkeys(cell for (cell, _), _ in leaf.weights if self.evidence.at_chance(cell))
        return [self.evidence.study.label(cell.method) for cell in cells]

    def _by_seed(self) -> tuple[tuple[int, float], ...]:
        """The claim's own number in every seed that all its runs have."""
        rows = {source: {seed: x for (seed, _), x in row.items()} for source, row in self.values.items()}
        return tuple(
            (seed, self.claim.value(self.tree, lambda source: rows[source][seed]))
            for seed in sorted(set.intersection(*map(set, rows.values())))
        )

    def _one_seed(self, base: Verdict) -> Verdict:
        """The side to which the numbers point without an interval, which is no verdict."""
        if not base.by_seed:
            return replace(base, chip=Chip.NOT_RUN, reason="the runs share no seed")
        point, expected = fmean(value for _, value in base.by_seed), self.expected
        if self.level and base.seeds < ENOUGH:
            return replace(base, chip=Chip.NOT_RUN, reason="one seed gives no interval", point=point)
        if expected.sign or expected.kind == "abs":
            agrees = expected.fits(point)
        else:
            agrees = abs(point - expected.number) <= (CLOSE if expected.kind == "value" else SIZE)
        return replace(base, chip=Chip.ONE_FOR if agrees else Chip.ONE_AGAINST, point=point)

    # -- tests --

    def _tested(self, base: Verdict, family: Family) -> Verdict:
        nearest = self.tree.pick(lambda leaf: family.estimates[leaf].d)
        decides = self.tree.pick(family.evidence)
        # A row with a spread of its own may leave a claim open that the nearest rival does not.
        leaf = nearest if family.side(nearest) == family.side(decides) else decides
        one, level = family.estimates[leaf], family.level[leaf]
        chip, size = self._chip(one, level, family.side(leaf))
        low, high = one.interval(level)
        tested = replace(
            base,
            chip=chip,
            size=size,
            point=one.d,
            low=low,
            high=high,
            p=family.p[decides],
            rival=self._name(leaf) if len(self.leaves) > 1 else "",
            method=self._method(one),
        )
        if self.expected.kind != "rank":
            return tested
        sides = [family.side(leaf) for leaf in self.leaves]
        place = 1.0 + sum(estimate.d < 0 for estimate in family.estimates.values())
        return replace(tested, point=place, low=1.0 + sides.count(-1), high=1.0 + len(sides) - sides.count(1))

    def _chip(self, one: Estimate, level: float, side: int) -> tuple[Chip, str]:
        """(verdict, size) of the deciding comparison."""
        expected, (low, high) = self.expected, one.interval(level)
        if expected.kind == "abs":
            if max(map(abs, one.interval(2 * level))) < expected.number:
                return Chip.HOLDS, ""
            outside = low >= expected.number or high <= -expected.number
            return Chip.FAILS if outside else Chip.UNDECIDED, ""
        agrees = Chip.HOLDS if (side > 0) == expected.sign.startswith(">") else Chip.FAILS
        chip = agrees if side else Chip.UNDECIDED
        if expected.kind not in ("size", "value"):
            return chip, ""
        size = self._closeness(one, level)
        if not expected.sign:
            words = {CONFIRMED: Chip.HOLDS, CONTRADICTED: Chip.FAILS, OPEN: Chip.UNDECIDED}
            return words[size], ""
        return Chip.CONTRADICTED if size == CONTRADICTED and chip != Chip.FAILS else chip, size

    def _closeness(self, one: Estimate, level: float) -> str:
        """confirmed where the 90 % interval lies within the margin of the number, contradicted where the
        number, as printed, lies outside the range in which further runs would fall."""
        number, value = self.expected.number, self.expected.kind == "value"
        margin, slack = (CLOSE, 0.0) if value else (max(SIZE, SHARE * abs(number)), ROUNDING)
        near, likely = one.interval(2 * level), one.interval(level, self.evidence.paper.runs)
        if number - margin < near[0] and near[1] < number + margin:
            return CONFIRMED
        return OPEN if likely[0] - slack <= number <= likely[1] + slack else CONTRADICTED

    def _outlook(self, tested: Verdict, family: Family, pool: tuple[Source, ...]) -> Verdict:
        """How many seeds would decide a direction if difference and spread stay as they are."""

        def decided(n: int) -> bool:
            grown = family.grown(n)
            return grown.side(self.tree.pick(grown.evidence)) != 0

        n = min(estimate.n for estimate in family.estimates.values())
        needed = first_of(decided, n) if self.expected.sign else None
        cells = self.evidence.rows(self.sources, pool)
        hours = (needed - n) * self.evidence.hours(cells) if needed else None
        return replace(tested, needed=needed, hours=hours)

    # -- words --

    def _name(self, leaf: Contrast) -> str:
        """A comparison by the part that it does not share with the others, and its measure where theirs is
        another."""
        shared = set.intersection(*({source for source, _ in other.weights} for other in self.leaves))
        every = [source for source, _ in leaf.weights]
        own = [source for source in every if source not in shared] or every
        names = " and ".join(dict.fromkeys(self.evidence.study.label(cell.method) for cell, _ in own))
        measured = {measure for _, measure in every}
        several = {measure for _, measure in self.sources} != measured
        return f"{names}, {measured.pop()}" if several and len(measured) == 1 else names

    def _method(self, one: Estimate) -> str:
        """`least squares of method and seed, 8 rows, 5 seeds, 28 df; other spread: MOON; Holm over 3`."""
        how = {
            "pooled": f"least squares of method and seed, {one.rows} rows",
            "paired": "paired t",
            "level": "t of one mean",
            "combined": "sum of scenarios (Welch)",
            "identical": "identical in every seed",
        }[one.route]
        apart = ", ".join(self.evidence.study.label(name) for name in one.outliers)
        parts = [
            f"{how}, {one.n} seeds, {one.df:.3g} df",
            f"other spread: {apart}" if apart else "",
            f"Holm over {len(self.leaves)}" if len(self.leaves) > 1 else "",
        ]
        return "; ".join(filter(None, parts))
