"""Verdicts: test whether runs confirm each claim of a paper, and count the outcomes.

Direction. A claim that one method beats another is decided if the difference of the runs is significant,
corrected for the number of comparisons.

Size. It is judged separately, by comparing the 95 % interval of the difference with the paper's number
(`sizes.py`).

Level and closeness. Claims such as "reaches 68.4 %" or "differs by less than 1 point" have no direction. They
are confirmed if the 90 % interval lies within a margin, and contradicted if the paper's number lies outside
the range of a result from as few runs as the paper's.

The pool of a comparison are the rows whose spread it uses: those that the paper shows in the same block of a
table, or draws in the same figure. So a verdict does not change if other methods are run later. Without such
rows, all rows of the scenario are used.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from statistics import fmean

import numpy as np

from pipeline.data.registry import find
from pipeline.report import limits, measures, sizes
from pipeline.report.claims import Claim, Difference, PublishedNumbers, Spot, read_claims
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

# (a run, the name of one of its measures)
Source = tuple[Cell, str]
# (a seed, the digest of the partition that it used): runs of one block are compared as pairs.
Block = tuple[int, str]
# Heading of the verdict of shortened runs, which is no setting of the paper.
SHORTENED = "shortened"
# Half of the last digit of a printed number, in points: papers print two decimals.
ROUNDING = 0.005
# Seeds from which on a result has a spread.
FEWEST_SEEDS = 2
# Most seeds that are proposed for an undecided claim: nobody would train more.
MOST_SEEDS = 100
# Probability that the proposed number of seeds shows the printed difference, if it exists.
POWER = 0.8
# The measure that the protocol fixes: if it is the same in every seed, its difference needs no test.
DETERMINISTIC = "run.traffic"
# A sum of weights below this counts as 0: then the sum is a difference, else a level.
NO_SUM = 1e-9
# Differences below this many points have two decimals: with one they would be printed as 0.0.
SMALL_POINTS = 0.05
# Other numbers from this size on are printed without decimals, smaller ones with three digits.
LARGE_NUMBER = 1000


# -- the runs behind a claim ---------------------------------------------------------------------------------


class Evidence:
    """The results of one paper, looked up for its claims.

    printed  the paper's numbers
    variant  empty: results of the paper's setting. The name of a variant of its tables (`full` of
             `table2-full`): results of that. SHORTENED: results of the scenarios `<scenario>-short`, which
             are no setting of the paper
    """

    def __init__(self, printed: PublishedNumbers, variant: str = ""):
        self.study = printed.study
        self.printed = printed
        self.variant = variant
        self.paper = self.study.paper
        self.results = self.study.results

        # Many claims ask for the same runs: each of these answers is computed once.
        self.values = cache(self._values)
        self.design = cache(self._design)
        self.same_column = cache(self._same_column)

        # A column is a spot without a method.
        self.columns: dict[Spot, list[Spot]] = {}
        for spot in printed.numbers:
            self.columns.setdefault(replace(spot, method=""), []).append(spot)

    def source(self, spot: Spot) -> Source | None:
        """The run and the measure of the number at a spot; None if no run measures it."""
        run: Source | None
        if spot.table:
            table = self.paper.tables.get(f"{spot.table}-{self.variant}", self.paper.tables[spot.table])
            run = self.study.source(table, spot.setting, spot.dataset, spot.method, spot.column)
        else:
            method = next(name for name in self.paper.methods if self.paper.label(name) == spot.method)
            run = (self.study.cell(spot.scenario, method), spot.measure)
        if run is None or self.variant != SHORTENED:
            return run

        cell, measure = run
        short = self.study.shortened(cell)
        return (short, measure) if short else None

    def _same_column(self, column: Spot) -> tuple[Source, ...]:
        """The runs of one printed column, each once.

        column  a spot without a method
        """
        sources = [self.source(spot) for spot in self.columns.get(column, [])]
        return tuple(dict.fromkeys(source for source in sources if source))

    def _values(self, source: Source) -> dict[Block, float]:
        """The numbers of a run: block -> number; empty if the cell has not run."""
        cell, measure = source
        result = self.results.get(cell)
        if not result:
            return {}
        draws = measures.draws(result)
        numbers = measures.numbers(cell, result, measure, self.study.root)
        return {(seed, draws[seed]): number for seed, number in numbers.items()}

    def pool(self, spot: Spot) -> tuple[Source, ...]:
        """The runs that a number is compared with.

        These are the runs that the paper prints along with it: in the same block and column of a table, or in
        the figure. If there are none, all methods of the scenario.
        """
        if spot.table:
            return self.same_column(replace(spot, method=""))

        same = [runs for runs in map(self.same_column, self.columns) if _has(runs, spot)]
        if same:
            return max(same, key=len)

        figures = [figure for figure in self.paper.figures.values() if spot.scenario in figure.scenarios]
        methods = next((figure.methods for figure in figures if figure.methods), self.paper.methods)
        return tuple((self.study.cell(spot.scenario, method), spot.measure) for method in methods)

    def compared(self, spots: list[Spot]) -> set[Cell]:
        """The measured cells whose results enter the estimates of a claim.

        spots  the numbers that the claim is about
        """
        sources = set(filter(None, map(self.source, spots)))
        scenarios = {cell.scenario for cell, _ in sources}
        every = sources.union(*map(self.pool, spots))
        return {source[0] for source in every if source[0].scenario in scenarios and self.values(source)}

    def classes(self, cell: Cell) -> int:
        """The number of classes of a cell's data set; 0 if it has none."""
        return find(self.paper.scenarios[cell.scenario].data.set, self.study.root).classes

    def estimate(self, difference: Difference, pool: Collection[Source]) -> Estimate | None:
        """The estimate of a weighted sum of runs, made scenario by scenario.

        difference  the sum
        pool        the runs whose spread is used

        Returns None if the runs of a scenario share no block.
        """
        scenarios: dict[str, dict[Source, float]] = {}
        for source, weight in difference.weights:
            scenarios.setdefault(source[0].scenario, {})[source] = weight
        parts = [self._part(scenario, sources, pool) for scenario, sources in scenarios.items()]
        known = [part for part in parts if part]
        return combined(known) if len(known) == len(parts) else None

    def _part(self, scenario: str, sources: dict[Source, float], pool: Collection[Source]) -> Estimate | None:
        """The estimate of the part of a sum that is of one scenario; None if its runs share no block.

        Several measures of one run are first added to one number. A contrast of methods then uses the spread
        of all rows of the pool, any other sum only its own spread.

        sources  run -> its weight
        pool     the runs whose spread is used
        """
        weights, methods = _factors(sources)
        if not weights:
            sums = np.array([*self.sums(sources).values()])
            return one_sample(sums) if len(sums) else None

        rows = [cell for cell, measure in pool if cell.scenario == scenario and measure in dict(weights)]
        printed = tuple(dict.fromkeys(cell.method for cell in rows))
        others = tuple(name for name in methods if name not in printed)
        design = self.design(scenario, weights, printed, others, tuple(methods))
        return design.estimate(methods) if design else None

    def _design(
        self, scenario: str, weights: tuple, printed: tuple, others: tuple, own: tuple
    ) -> Design | None:
        """The design over the blocks that the compared rows share; None if they share none.

        weights  (measure, weight) of the number of a run
        printed  methods whose rows the paper prints together
        others   further methods that are compared
        own      the methods that are compared
        """
        rows = {}
        for method in (*printed, *others):
            cell = self.study.cell(scenario, method)
            rows[method] = self.sums({(cell, measure): weight for measure, weight in weights})
        return of_common_blocks({method: row for method, row in rows.items() if row}, own, printed)

    def sums(self, sources: dict[Source, float]) -> dict[Block, float]:
        """A weighted sum of runs, in every block that all of them have.

        sources  run -> its weight
        """
        rows = [(self.values(source), weight) for source, weight in sources.items()]
        shared = sorted(set.intersection(*(set(row) for row, _ in rows)))
        sums = {}
        for block in shared:
            sums[block] = sum(weight * row[block] for row, weight in rows)
        return sums


def _has(runs: Iterable[Source], spot: Spot) -> bool:
    """Whether one of these runs is of a spot's scenario and measure."""
    return any(cell.scenario == spot.scenario and measure == spot.measure for cell, measure in runs)


def _factors(sources: dict[Source, float]) -> tuple[tuple, dict[str, float]]:
    """Write a weighted sum of runs as a weighted sum of methods, if it has this form.

    The number of a method is then itself a weighted sum of measures, with the same weights for every method.
    The table of weights by method and measure has rank 1 in this case.

    Returns ((measure, weight) of a method's number, method -> weight of its number); both are empty if the
    sum has another form.
    """
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
    """The verdict on a claim in a word or two, in the order of the pages."""

    HOLDS = "holds"
    DIRECTION = "direction holds"
    FAILS = "fails"
    CONTRADICTED = "size contradicted"
    UNDECIDED = "undecided"
    ONE_FOR = "one seed, for"
    ONE_AGAINST = "one seed, against"
    NOT_RUN = "not run"
    NOT_TESTABLE = "not testable"


# Result of `_closeness` -> the verdict on a claim that names no direction.
CLOSENESS = {"confirmed": Chip.HOLDS, "contradicted": Chip.FAILS, "open": Chip.UNDECIDED}


@dataclass(frozen=True)
class Verdict:
    """What the runs say about one claim.

    claim      that is judged
    chip       the verdict in a word
    point      the measured difference, level or rank; None: not measured
    low        lower end of its 95 % interval; None: there is none
    high       upper end of its 95 % interval; None: there is none
    printed    the same number from the published tables; None: the paper does not print it
    points     whether it is a difference in percent points
    seeds      number of seeds of the run that has the fewest
    p          p value of the direction, corrected for the number of comparisons; None without a direction
    alone      the same by the spread of the compared rows alone; None if `p` is by that already
    by_seed    seed -> the claim's number in it, for the seeds that all runs have
    size       as printed, smaller, larger, opposite or open (`sizes.py`); empty: nothing is printed
    rival      of several comparisons the one that decides; empty: there is only one
    method     how the verdict was computed
    reason     why no verdict was computed; empty: there is one
    needed     number of seeds with which the printed difference of an undecided claim is shown with the
               probability POWER, if it exists; None: not asked, or more than MOST_SEEDS
    hours      of one process, for those of these seeds that are still to be trained; None as `needed`
    elsewhere  heading -> the verdict of a table that measures the same printed numbers in another setting
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
        """The claim in a few words, with a capital letter."""
        title = self.claim.title or self.claim.text
        return title[:1].upper() + title[1:]

    @property
    def shortened(self) -> "Verdict | None":
        """The verdict of shortened runs; None if the paper's setting has run, or if there are none."""
        return self.elsewhere.get(SHORTENED)

    @property
    def interval(self) -> str:
        """The 95 % interval as text, `[2.8, 7.9]`; empty if there is none."""
        ends = [self._number(end).replace("+", "") for end in (self.low, self.high) if end is not None]
        return f"[{', '.join(ends)}]" if len(ends) == 2 else ""

    def text(self, value: float | None) -> str:
        """A number of this claim as text: a difference as `+5.4`, a rank as `3rd`, a cost as `−300 kB`."""
        if value is None:
            return ""
        units = {measures.COSTS.get(spot.measure, "") for spot in self.claim.spots}
        unit = units.pop() if len(units) == 1 and self.claim.expected.kind != "rank" else ""
        return f"{self._number(value)} {unit}".strip()

    def _number(self, value: float) -> str:
        """As `text`, without the unit. A number that is no difference of percent points has three digits."""
        if self.claim.expected.kind == "rank":
            return ordinal(round(value))
        if self.points and abs(value) < ROUNDING:
            return "0.00"
        if self.points:
            return signed(value, 1 if abs(value) >= SMALL_POINTS else 2)
        form = ",.0f" if abs(value) >= LARGE_NUMBER else ".3g"
        # A level has no sign, a difference has one.
        if self.claim.expected.kind != "value":
            form = f"+{form}"
        return minus(format(value, form))


def count(verdicts: Iterable[Verdict]) -> dict[Chip, int]:
    """How many claims have each verdict; every chip is there, in order."""
    return dict.fromkeys(Chip, 0) | Counter(verdict.chip for verdict in verdicts)


def variants(paper: Paper) -> dict[str, tuple[str, str]]:
    """The tables that measure the printed numbers of another table in other scenarios.

    Returns key of the table -> (key of the other table, name of the variant): `table2-full` ->
    (`table2`, `full`).
    """
    found = {}
    for key, table in paper.tables.items():
        base, _, name = key.partition("-")
        if name and base in paper.tables and paper.tables[base].published == table.published:
            found[key] = (base, name)
    return found


def verdicts(study: Study) -> list[Verdict]:
    """The verdict on every claim of a paper, in the order of claims.csv.

    Each has the verdicts on the same claim in other settings (`Verdict.elsewhere`). Raises ParamError for a
    malformed claim or published table.
    """
    printed = PublishedNumbers(study)
    again = variants(study.paper)
    evidence = Evidence(printed)
    elsewhere = {name: Evidence(printed, name) for _, name in again.values()}
    shortened = Evidence(printed, SHORTENED)

    judged = []
    for claim in read_claims(printed):
        others = {}
        for key, (base, name) in again.items():
            if claim.table != base:
                continue
            other = judge(claim, elsewhere[name])
            if other.chip != Chip.NOT_TESTABLE:
                number = study.paper.tables[key].number
                others[number.partition(", ")[2] or f"Table {number}"] = other

        verdict = judge(claim, evidence)
        if verdict.chip == Chip.NOT_RUN:
            short = judge(claim, shortened)
            # Even if they cannot test the claim: the reason says so.
            if short.by_seed:
                others[SHORTENED] = short
        judged.append(replace(verdict, elsewhere=others))
    return judged


def judge(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict on one claim of a paper.

    claim     of claims.csv
    evidence  the results that are looked up for it
    """
    if claim.tree is None:
        return Verdict(claim, Chip.NOT_TESTABLE, reason="no number settles it")

    # What the paper prints, then what runs measure.
    numbers = {spot: evidence.printed.numbers.get(spot) for spot in claim.spots}
    printed = None if None in numbers.values() else claim.value(claim.tree, numbers.__getitem__)
    empty = Verdict(claim, Chip.NOT_TESTABLE, printed=printed)
    sources = {spot: evidence.source(spot) for spot in claim.spots}
    runs = {spot: source for spot, source in sources.items() if source}
    if len(runs) < len(claim.spots):
        return replace(empty, reason="no run measures its numbers")
    tree = claim.tree.renamed(runs.__getitem__)
    if tree is None:
        return replace(empty, reason="both sides are the same run here")
    by_run = {source: numbers[spot] for spot, source in runs.items()}
    return _Case(claim, evidence, tree, by_run).verdict(empty)


class _Case:
    """One claim about numbers that runs measure.

    claim     that is judged
    evidence  the results that are looked up for it
    tree      the claim's difference, of runs in place of printed positions
    by_run    run -> the number that the paper prints for it; None: it prints none, or the scan lost it
    """

    def __init__(
        self, claim: Claim, evidence: Evidence, tree: Difference, by_run: Mapping[Source, float | None]
    ):
        self.claim = claim
        self.expected = claim.expected
        self.evidence = evidence
        self.tree = tree
        self.by_run = by_run
        self.leaves = tree.leaves()
        self.sources = tree.spots()
        self.values = {source: evidence.values(source) for source in self.sources}
        # Whether it is about a level, such as an accuracy, and not about a difference.
        self.level = not all(map(_is_difference, self.leaves))

    def verdict(self, empty: Verdict) -> Verdict:
        """What the runs say of the claim.

        empty  a verdict that has only what the paper prints
        """
        cells = {cell for cell, _ in self.sources}
        missing = {cell for (cell, _), row in self.values.items() if not row}
        if missing:
            done = len(cells) - len(missing)
            return replace(empty, chip=Chip.NOT_RUN, reason=f"{done} of {len(cells)} cells measured")

        guessing = self._at_chance()
        if guessing:
            return replace(empty, reason=f"at chance: {', '.join(guessing)}")
        reason = limits.untestable(self.claim, self.sources, self.evidence)
        if reason:
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
        if min(seeds, *(estimate.n for estimate in known.values())) < FEWEST_SEEDS:
            return self._one_seed(base)

        constant = [estimate for estimate in known.values() if estimate.v <= ZERO**2]
        deterministic = {measure for _, measure in self.sources} == {DETERMINISTIC}
        if deterministic and len(constant) == len(known):
            return self._exact(base)
        if not deterministic and any(estimate.route != "identical" for estimate in constant):
            return self._one_seed(replace(base, method="no spread over the seeds"))

        # A difference of exactly the bound counts as above it: it fits `>=` and contradicts `<`.
        tie = 1 if self.expected.sign in (">=", "<") else -1
        family = Family(known, self.expected.bound, tie)
        tested = self._tested(base, family)

        # With two seeds a verdict counts only if the spread of the compared rows alone bears it out.
        careful = self._paired(family) if tested.chip != Chip.UNDECIDED else None
        if careful:
            tested_alone = self._tested(base, careful)
            if tested_alone.chip == Chip.UNDECIDED:
                tested = tested_alone
                family = careful

        tested = replace(tested, alone=self._alone(family))
        if tested.chip in (Chip.UNDECIDED, Chip.CONTRADICTED):
            return self._outlook(tested, family)
        return tested

    def _paired(self, family: Family) -> Family | None:
        """The same comparisons by the spread of the compared rows alone, if they have PAIRED_SEEDS seeds or
        fewer; None with more seeds, or if no comparison used the residual of all rows."""
        pooled = [estimate for estimate in family.estimates.values() if estimate.route == "pooled"]
        if not pooled or max(estimate.n for estimate in pooled) > limits.PAIRED_SEEDS:
            return None
        return self._pairs(family)

    def _alone(self, family: Family) -> float | None:
        """The p value of the direction by the spread of the compared rows alone; None if the verdict's own p
        value is of this kind, or if there is no direction."""
        if not self.expected.sign:
            return None
        if all(estimate.route != "pooled" for estimate in family.estimates.values()):
            return None
        pairs = self._pairs(family)
        return pairs.p[self.tree.pick(pairs.evidence)] if pairs else None

    def _pairs(self, family: Family) -> Family | None:
        """The same comparisons by the spread of the compared rows alone; None if one has too few seeds."""
        sums = {leaf: self.evidence.sums(dict(leaf.weights)) for leaf in family.estimates}
        if any(len(values) < FEWEST_SEEDS for values in sums.values()):
            return None
        pairs = {leaf: one_sample(np.array([*values.values()])) for leaf, values in sums.items()}
        return Family(pairs, family.bound, family.tie)

    def _at_chance(self) -> list[str]:
        """The methods at chance level among those of the closest comparison; none for a level or a rank.

        An accuracy below CHANCE_LEVEL / classes counts as chance level.
        """
        if self.level or self.expected.kind == "rank":
            return []
        means = {source: fmean(values.values()) for source, values in self.values.items()}
        leaf = self.tree.pick(lambda leaf: leaf.at(means.__getitem__))
        compared = [cell for (cell, measure), _ in leaf.weights if measure not in measures.COSTS]
        guessing = []
        for cell in dict.fromkeys(compared):
            result = self.evidence.results[cell]
            classes = self.evidence.classes(cell)
            accuracy = fmean(result["measures"][result["headline"]])
            if classes and accuracy < CHANCE_LEVEL / classes:
                guessing.append(self.evidence.study.label(cell.method))
        return guessing

    def _by_seed(self) -> dict[int, float]:
        """The claim's number in every seed that all its runs have."""
        rows = {}
        for source, row in self.values.items():
            rows[source] = {seed: number for (seed, _), number in row.items()}
        claimed = {}
        for seed in sorted(set.intersection(*map(set, rows.values()))):
            numbers = {source: row[seed] for source, row in rows.items()}
            claimed[seed] = self.claim.value(self.tree, numbers.__getitem__)
        return claimed

    def _one_seed(self, base: Verdict) -> Verdict:
        """The verdict of runs that give no interval: on which side of the claim their mean lies."""
        if not base.by_seed:
            return replace(base, chip=Chip.NOT_RUN, reason="the runs share no seed")
        if self.level and base.seeds < FEWEST_SEEDS:
            return replace(base, chip=Chip.NOT_RUN, reason="one seed gives no interval")
        point = fmean(base.by_seed.values())
        chip = Chip.ONE_FOR if self.expected.fits(point) else Chip.ONE_AGAINST
        return replace(base, chip=chip, point=point)

    def _exact(self, base: Verdict) -> Verdict:
        """The verdict on numbers that are the same in every seed."""
        point = fmean(base.by_seed.values())
        chip = Chip.HOLDS if self.expected.fits(point) else Chip.FAILS
        size = self._size(base, point, point)
        return replace(base, chip=chip, point=point, size=size, method="the same in every seed")

    def _tested(self, base: Verdict, family: Family) -> Verdict:
        """The verdict of comparisons that have a spread: direction, p, interval and size."""
        nearest = self.tree.pick(lambda leaf: family.estimates[leaf].d)
        decides = self.tree.pick(family.evidence)
        # The closest rival is named, unless another one, of larger spread, leads to another verdict.
        leaf = nearest if family.side(nearest) == family.side(decides) else decides
        estimate = family.estimates[leaf]
        level = family.level[leaf]
        low, high = estimate.interval(level)
        size = self._size(base, low, high)
        chip = self._chip(estimate, level, family.side(leaf))
        if chip == Chip.UNDECIDED and self.expected.kind == "size" and size in sizes.OTHER:
            chip = Chip.CONTRADICTED

        tested = replace(
            base,
            chip=chip,
            point=estimate.d,
            low=low,
            high=high,
            p=family.p[decides] if self.expected.sign else None,
            size=size,
            rival=self._name(leaf) if len(self.leaves) > 1 else "",
            method=self._method(estimate),
        )
        if self.expected.kind != "rank":
            return tested

        # At best only the rivals that are significantly ahead are ahead; at worst all rivals are that are not
        # significantly behind.
        sides = [family.side(leaf) for leaf in self.leaves]
        place = 1.0 + sum(estimate.d < 0 for estimate in family.estimates.values())
        best = 1.0 + sides.count(-1)
        worst = 1.0 + len(sides) - sides.count(1)
        return replace(tested, point=place, low=best, high=worst)

    def _chip(self, estimate: Estimate, level: float, side: int) -> Chip:
        """The verdict on the direction; on the closeness if the claim names no direction.

        estimate  of the deciding comparison
        level     of significance
        side      1: above the claim's bound, -1: below it, 0: undecided
        """
        if not self.expected.sign:
            return CLOSENESS[self._closeness(estimate, level)]
        if not side:
            return Chip.UNDECIDED
        return Chip.HOLDS if (side > 0) == self.expected.sign.startswith(">") else Chip.FAILS

    def _size(self, base: Verdict, low: float, high: float) -> str:
        """How the measured difference compares with the paper's (`sizes.size`).

        The paper's difference is the one that the claim names, or else the one of percent points in its
        tables; the text is empty if there is neither.

        base  says what the tables print
        low   lower end of the measured interval
        high  upper end of the measured interval
        """
        expected = self.expected
        named = expected.kind == "size"
        number = expected.number if named else base.printed
        printed = base.points and expected.kind == "bound" and expected.bound == 0
        if self.level or not number or not (named or printed):
            return ""
        rounding = sizes.rounding_of(expected.text) if named else sizes.ROUNDING
        return sizes.size(low, high, number, rounding)

    def _closeness(self, estimate: Estimate, level: float) -> str:
        """Whether the measured number is as close to the claimed one as the claim says.

        Returns one of
        confirmed     its 90 % interval lies within the margin (two one-sided tests at 5 %)
        contradicted  the claimed number lies outside the range of a mean over as few runs as the paper's; for
                      `abs<x`, 0 lies outside the 95 % interval widened by the margin x
        open          neither

        estimate  of the measured number
        level     of significance
        """
        number = self.expected.number
        margin = self.expected.margin
        low, high = estimate.interval(2 * level)
        if number - margin < low and high < number + margin:
            return "confirmed"
        if self.expected.kind == "abs":
            slack = margin
            low, high = estimate.interval(level)
        else:
            slack = ROUNDING
            low, high = estimate.interval(level, self.evidence.paper.runs)
        return "open" if low - slack < number < high + slack else "contradicted"

    def _outlook(self, tested: Verdict, family: Family) -> Verdict:
        """Add how many seeds would show the printed difference, if it exists and the spread stays as it is.

        The measured difference is not used: it is what is in doubt.

        tested  the undecided verdict
        family  its comparisons
        """
        by_run = {source: number for source, number in self.by_run.items() if number is not None}
        if not self.expected.sign or len(by_run) < len(self.by_run):
            return tested
        printed = {leaf: leaf.at(by_run.__getitem__) for leaf in self.leaves}
        nearest = self.tree.pick(printed.__getitem__)
        # Nothing is proposed where the paper's own tables do not show what it claims.
        if not self.expected.fits(self.claim.value(self.tree, by_run.__getitem__)):
            return tested

        claimed = replace(family.estimates[nearest], d=printed[nearest])
        # The smallest p of several comparisons is tested at this level (Holm).
        level = ALPHA / len(self.leaves)

        def shown(n: int) -> bool:
            """Whether n seeds are enough."""
            return claimed.grown(n).power(family.bound, level) >= POWER

        trained = min(estimate.n for estimate in family.estimates.values())
        needed = trained + bisect_left(range(trained, MOST_SEEDS + 1), True, key=shown)
        if not trained < needed <= MOST_SEEDS:
            return tested

        cells = self.evidence.compared(self.claim.spots)
        seconds_per_seed = sum(fmean(self.evidence.results[cell]["seconds"]) for cell in cells)
        return replace(tested, needed=needed, hours=(needed - trained) * seconds_per_seed / 3600)

    def _name(self, leaf: Difference) -> str:
        """The name of a comparison: the methods that tell it from the others, and its measures if the claim
        is about several."""
        shared = set.intersection(*(set(dict(other.weights)) for other in self.leaves))
        sources = [source for source, _ in sorted(leaf.weights, key=lambda pair: -pair[1])]
        different = [source for source in sources if source not in shared] or sources
        names = " and ".join(dict.fromkeys(self.evidence.study.label(cell.method) for cell, _ in different))
        measured = dict.fromkeys(measure for _, measure in sources)
        several = len({measure for _, measure in self.sources}) > 1
        return f"{names}, {' and '.join(measured)}" if several else names

    def _method(self, estimate: Estimate) -> str:
        """How an estimate was made, in words.

        `least squares of method and seed, 8 rows, 5 seeds, 28 df; other spread: MOON; Holm over 3`
        """
        routes = {
            "pooled": f"least squares of method and seed, {estimate.rows} rows",
            "unpooled": "t over the seeds",
            "combined": "sum of scenarios (Welch)",
        }
        route = routes.get(estimate.route, estimate.route)
        parts = [f"{route}, {estimate.n} seeds, {estimate.df:.3g} df"]
        if estimate.outliers:
            parts.append(f"other spread: {', '.join(map(self.evidence.study.label, estimate.outliers))}")
        if len(self.leaves) > 1:
            parts.append(f"Holm over {len(self.leaves)}")
        return "; ".join(parts)


def _is_difference(leaf: Difference) -> bool:
    """Whether the weights of a sum cancel; else it is a level."""
    return abs(sum(weight for _, weight in leaf.weights)) <= NO_SUM
