"""From the estimates of a claim to its verdict: a direction, and where the paper gives one, a size.

A claim is a difference of runs, or the largest or smallest of several, estimated by a block design over the
seeds.
"""
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from pipeline.report import measures
from pipeline.report.claims import Claim, Expected, Extreme, Form, Spot, Tree
from pipeline.report.evidence import Block, Evidence, Source
from pipeline.report.statistics import (
    ALPHA,
    EDGE,
    POWER,
    Estimate,
    Family,
    above,
    again,
    first_of,
    power,
    rank_ends,
    tost,
    two_sided,
)
from pipeline.report.verdicts import (
    CONFIRMED,
    CONTRADICTED,
    FAILS,
    HOLDS,
    OPEN,
    UNDECIDED,
    UNTESTED,
    WAITS,
    Member,
    Outlook,
    Verdict,
)
from pipeline.report.words import listed

NEAR = 2 * ALPHA                                  # two one-sided tests at 5 %: the 90 % interval
CLOSE = 1.0                                       # points by which a level may deviate ("reaches 68.40")
SIZE, SHARE = 0.5, 0.1  # points, or share of the size, by which a difference may deviate
ROUNDING = 0.005                                  # of a printed number with two decimals
ENOUGH = 2                                        # seeds that show a spread
WORDS = {CONFIRMED: HOLDS, CONTRADICTED: FAILS, OPEN: UNDECIDED}
Ends = tuple[float, float]                        # of an interval


def decide(expected: Expected, low: float, high: float) -> str:
    """For a bound, a direction or a rank: holds where the whole interval agrees with the claim, fails where
    none of it does."""
    ends = {expected.fits(low), expected.fits(high)}
    return UNDECIDED if len(ends) > 1 else HOLDS if True in ends else FAILS


def closeness(number: float, margin: float, near: Ends, likely: Ends, slack: float = ROUNDING) -> str:
    """confirmed where the 90 % interval lies within the margin of a number, contradicted where the number, as
    printed, lies outside the range in which further runs would fall."""
    if number - margin < near[0] and near[1] < number + margin:
        return CONFIRMED
    return CONTRADICTED if number + slack < likely[0] or number - slack > likely[1] else OPEN


def judge(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict on one claim of a paper."""
    if not claim.expected.testable:
        return Verdict(claim, UNTESTED, "no number settles it")
    known = evidence.printed.numbers
    numbers = {spot: number for spot in claim.spots if (number := known.get(spot)) is not None}
    published = claim.difference(numbers.__getitem__) if len(numbers) == len(claim.spots) else None
    found = {spot: source for spot in claim.spots if (source := evidence.source(spot))}
    if len(found) < len(claim.spots):
        return Verdict(claim, UNTESTED, "no run measures its numbers", published)
    tree = _of_runs(claim.tree, found.__getitem__)
    if tree is None:
        return Verdict(claim, UNTESTED, "both sides are the same run here", published)
    sources = list(dict.fromkeys(found.values()))
    if missing := _missing(sources, evidence):
        return Verdict(claim, WAITS, missing, published)
    return _Case(claim, evidence, tree, sources).verdict(published)


def _of_runs(tree: Tree, source: Callable[[Spot], Source]) -> Tree | None:
    """A tree of spots as one of runs, without comparisons of a run with itself; None where nothing is
    left."""
    if isinstance(tree, Form):
        form = tree.gathered(source)
        return form if form.coefficients else None
    parts = tuple(kept for part in tree.parts if (kept := _of_runs(part, source)))
    return Extreme(tree.kind, parts) if parts else None


def _missing(sources: list[Source], evidence: Evidence) -> str:
    cells = {cell for cell, _ in sources}
    ran = sum(cell in evidence.results for cell in cells)
    if ran < len(cells):
        return f"{ran} of {len(cells)} cells have run"
    there = sum(bool(evidence.values(source)) for source in sources)
    return f"{there} of {len(sources)} numbers are measured" if there < len(sources) else ""


class _Case:
    """One claim whose numbers are all there."""

    def __init__(self, claim: Claim, evidence: Evidence, tree: Tree, sources: list[Source]):
        self.claim, self.expected, self.evidence = claim, claim.expected, evidence
        self.tree, self.sources = tree, sources
        self.pool = tuple(dict.fromkeys(source for spot in claim.spots for source in evidence.pool(spot)))
        self.leaves = tree.leaves()
        self.bound = self.expected.number if self.expected.kind == "bound" else 0.0
        self.level = any(abs(sum(c for _, c in leaf.coefficients)) > 1e-9 for leaf in self.leaves)
        # Whether the claim is that the difference is 0.
        self.equality = self.expected.kind in ("size", "about") and not self.expected.sized

    def verdict(self, published: float | None) -> Verdict:
        common = self._common()
        if not all(common.values()):
            return Verdict(self.claim, WAITS, "the runs share no seed", published)
        values = self.evidence.values
        means = {source: fmean(values(source)[block] for block in common[source[0].scenario])
                 for source in self.sources}
        if guessing := self._guessing(means):
            return Verdict(self.claim, UNTESTED, f"{guessing} at chance", published)
        point = self._number(means)
        base = Verdict(self.claim, WAITS, "one seed gives no interval", published, point,
                       seeds=min(len(values(source)) for source in self.sources),
                       by_seed=self._by_seed(common),
                       partitions=max(len({digest for _, digest in blocks}) for blocks in common.values()),
                       points=all(measures.in_points(measure) for _, measure in self.sources))
        pointed = replace(base, word=self._pointed(point), reason="")
        if base.seeds < ENOUGH:                   # a run without a spread does not borrow that of others
            return base if self.level else pointed
        family = self._family()
        if family is None:
            return replace(base, reason="the runs share no seed")
        if any(estimate.n < ENOUGH for estimate in family.estimates):        # the runs share one seed
            return base if self.level else pointed
        if any(estimate.still for estimate in family.estimates):
            return replace(pointed, reason="no spread over the seeds: is the seed used?")
        return self._tested(base, family)

    # -- numbers of the runs --

    def _common(self) -> dict[str, list[Block]]:
        """Blocks that all runs of the claim share, by scenario; where a scenario has too few for an interval,
        those of the seeds that all scenarios share, if there are any."""
        found: dict[str, set[Block]] = {}
        for source in self.sources:
            blocks = set(self.evidence.values(source))
            found[source[0].scenario] = found.get(source[0].scenario, blocks) & blocks
        if min(map(len, found.values())) < ENOUGH:
            shared = set.intersection(*({seed for seed, _ in blocks} for blocks in found.values()))
            if shared:
                found = {scenario: {block for block in blocks if block[0] in shared}
                         for scenario, blocks in found.items()}
        return {scenario: sorted(blocks) for scenario, blocks in found.items()}

    def _by_seed(self, common: dict[str, list[Block]]) -> tuple[tuple[int, float], ...]:
        """The claim's own number in every seed that all its runs have."""
        blocks = {scenario: {block[0]: block for block in found} for scenario, found in common.items()}
        values, found = self.evidence.values, []
        for seed in sorted(set.intersection(*map(set, blocks.values()))):
            numbers = {source: values(source)[blocks[source[0].scenario][seed]] for source in self.sources}
            found.append((seed, self._number(numbers)))
        return tuple(found)

    def _number(self, numbers: dict[Source, float]) -> float:
        """The claim's difference, or rank, of given numbers."""
        if self.expected.kind == "rank":
            return self.claim.place(leaf.at(numbers.__getitem__) for leaf in self.leaves)
        return self.tree.value(lambda form: form.at(numbers.__getitem__))

    def _guessing(self, numbers: dict[Source, float]) -> str:
        """The methods of the difference that decides the claim whose runs answer by chance: it says nothing
        of them. Of a level or a rank none."""
        if self.level or self.expected.kind == "rank":
            return ""
        point = self._number(numbers)
        leaf = next(leaf for leaf in self.leaves if leaf.at(numbers.__getitem__) == point)
        cells = dict.fromkeys(cell for (cell, _), _ in leaf.coefficients if self.evidence.at_chance(cell))
        names = [self.evidence.study.label(cell.method) for cell in cells]
        return f"{listed(names)} {'is' if len(names) == 1 else 'are'}" if names else ""

    def _pointed(self, point: float) -> str:
        """The verdict that one number points to."""
        if self.expected.kind == "value" or self.equality:
            return HOLDS if abs(point - self.expected.number) <= (SIZE if self.equality else CLOSE) else FAILS
        return HOLDS if self.expected.fits(point) else FAILS

    # -- estimates --

    def _family(self, scale: bool = False) -> Family | None:
        found = (self.evidence.estimate(leaf, self.pool, scale) for leaf in self.leaves)
        estimates = tuple(estimate for estimate in found if estimate)
        if len(estimates) < len(self.leaves):
            return None
        balanced = len(estimates) > 1 and all(estimate.balanced for estimate in estimates)
        return Family(estimates, "Dunnett" if balanced and self._around_one() else "Holm", self.bound)

    def _around_one(self) -> bool:
        """Whether all comparisons have one run in common."""
        sides = [set(leaf.coefficients) for leaf in self.leaves]
        pairs = all(len(side) == 2 and {abs(c) for _, c in side} == {1.0} for side in sides)
        return pairs and bool(set.intersection(*sides))

    def _fold(self, values: Sequence[float]) -> float:
        return self.tree.value(dict(zip(self.leaves, values)).__getitem__)

    def _ends(self, ends: Sequence[Ends]) -> Ends:
        """Simultaneous intervals of the comparisons as one of the claim."""
        if self.expected.kind == "rank":
            return rank_ends(ends, self.expected.low)
        return self._fold([low for low, _ in ends]), self._fold([high for _, high in ends])

    # -- the word --

    def _tested(self, base: Verdict, family: Family) -> Verdict:
        low, high = self._ends(family.ends())
        word, size, likely = self._word(family)
        word, reason = self._on_the_other_scale(word)
        members = self._members(family)
        p, deciding = self._statement(word, members)
        if self.expected.kind == "value" and measures.scale(self.sources[0][1]) == "logit":
            low, high = max(low, 0.0), min(high, 100.0)
        if all(estimate.route == "identical" for estimate in family.estimates):
            reason = "identical in every seed"
        if self.expected.kind != "rank":
            base = replace(base, point=self._fold([estimate.d for estimate in family.estimates]))
        return replace(
            base, word=word, reason=reason, size=size, likely=likely, low=low, high=high, p=p,
            members=members,
            way=family.way if len(members) > 1 else "", deciding=deciding,
            every=isinstance(self.tree, Form) or (self.tree.kind == "min") == self._upward,
            apart=tuple(map(self.evidence.study.label, deciding.estimate.apart)),
            outlook=None if word != UNDECIDED or reason or base.point is None
            else self._outlook(family, members, base.point))

    def _word(self, family: Family) -> tuple[str, str, Ends | None]:
        """(word, size, where a result like the paper's would lie)."""
        ends, number = self._ends(family.ends()), self.expected.number
        if self.expected.kind in ("bound", "rank"):
            return decide(self.expected, *ends), "", None
        near = self._ends(family.ends(NEAR))
        if self.expected.kind == "abs":
            return self._within(near, ends), "", None
        likely = self._ends(family.ends(runs=self.evidence.paper.runs))
        if self.expected.sized:
            size = closeness(number, max(SIZE, SHARE * abs(number)), near, likely)
            return decide(self.expected, *ends), size, likely
        margin, slack = (SIZE, ROUNDING) if self.equality else (CLOSE, 0.0)
        return WORDS[closeness(number, margin, near, likely, slack)], "", likely

    def _within(self, near: Ends, ends: Ends) -> str:
        """Of `abs<x`: the 90 % interval inside, which is what two one-sided tests ask, or the 95 % interval
        outside."""
        x = self.expected.number
        if -x < near[0] and near[1] < x:
            return HOLDS
        return FAILS if ends[0] >= x or ends[1] <= -x else UNDECIDED

    def _on_the_other_scale(self, word: str) -> tuple[str, str]:
        """(word, reason): a direction near 0 or 100, or of spreads and losses, counts where the other scale
        agrees."""
        directed = self.expected.kind == "bound" or self.expected.sized
        family = self._family(scale=True) if directed and self.bound == 0 and self._bent() else None
        if family is None or any(estimate.still for estimate in family.estimates):
            return word, ""
        other = decide(self.expected, *self._ends(family.ends()))
        return (word, "") if other == word else (UNDECIDED, "depends on the scale")

    def _bent(self) -> bool:
        """Whether the other scale is to be asked."""
        if any(leaf.constant for leaf in self.leaves):
            return False
        every = (*self.sources, *self.pool)
        values = {source: list(self.evidence.values(source).values()) for source in every}
        curved = [source for source in values if measures.scale(source[1]) == "ln"]
        if any(value <= 0 for source in curved for value in values[source]):
            return False
        means = [fmean(values[source]) for source in self.sources if measures.scale(source[1]) == "logit"]
        return bool(curved) or any(not EDGE <= mean <= 100 - EDGE for mean in means)

    # -- what it rests on --

    @property
    def _upward(self) -> bool:
        """Whether the claim is that the difference lies above something."""
        if self.expected.kind == "rank":
            return not self.expected.low
        return self.expected.number > 0 if self.expected.sized else self.expected.sign.startswith(">")

    def _members(self, family: Family) -> tuple[Member, ...]:
        names = map(self._name, self.leaves)
        found = zip(names, family.estimates, family.ends(), family.p, family.raw)
        return tuple(Member(name, estimate, *ends, p, alone) for name, estimate, ends, p, alone in found)

    def _name(self, leaf: Form) -> str:
        """The name of a comparison: the part that it does not share with the others, and its measure where
        theirs is another."""
        shared = set.intersection(*({source for source, _ in other.coefficients} for other in self.leaves))
        every = [source for source, _ in leaf.coefficients]
        own = [source for source in every if source not in shared] or every
        names = listed(dict.fromkeys(self.evidence.study.label(cell.method) for cell, _ in own))
        measured = {measure for _, measure in every}
        several = {measure for other in self.leaves for (_, measure), _ in other.coefficients} != measured
        return f"{names}, {measured.pop()}" if several and len(measured) == 1 else names

    def _statement(self, word: str, members: tuple[Member, ...]) -> tuple[float, Member]:
        """(p, comparison) that decides the verdict: the largest p of `all of`, the smallest of `any of`."""
        if self.expected.kind == "rank":
            return self._of_rank(word, members)
        if self.expected.kind in ("abs", "value") or self.equality:
            found = ((self._of_closeness(word, member.estimate), member) for member in members)
            return max(found, key=lambda one: one[0])
        upward = self._upward != (word == FAILS)
        p, _, member = self._hangs(self.tree, dict(zip(self.leaves, members)), upward)
        return p, member

    def _hangs(self, tree: Tree, members: dict[Form, Member], upward: bool,
               any_of: bool = False) -> tuple[float, float, Member]:
        """(p, minus the lead, comparison); of equal p the smallest lead. In `any of`, one that points the
        other way has p 1."""
        if isinstance(tree, Form):
            lead = (members[tree].estimate.d - self.bound) * (1 if upward else -1)
            return 1.0 if any_of and lead < 0 else members[tree].p, -lead, members[tree]
        all_of = (tree.kind == "min") == upward
        found = [self._hangs(part, members, upward, not all_of) for part in tree.parts]
        return (max if all_of else min)(found, key=lambda one: one[:2])

    def _of_rank(self, word: str, members: tuple[Member, ...]) -> tuple[float, Member]:
        """(p, comparison) for a rank: to be among the first k of m, m - k others must be behind; not to be, k
        must be ahead."""
        k, fails = int(self.expected.number), word == FAILS
        found = []
        for i, member in enumerate(members):
            lead = member.estimate.d * (1 if self._upward != fails else -1)
            found.append((1.0 if lead < 0 else member.p, -lead, i))
        wanted = k if fails else len(members) + 1 - k
        p, _, i = sorted(found)[max(min(wanted, len(members)), 1) - 1]
        return p, members[i]

    def _of_closeness(self, word: str, estimate: Estimate) -> float:
        x = self.expected.number
        if self.expected.kind == "abs":
            return two_sided(estimate, x if estimate.d > 0 else -x) if word == FAILS else tost(estimate, x)
        if word == FAILS:
            return two_sided(estimate, x, self.evidence.paper.runs)
        return tost(estimate, SIZE if self.equality else CLOSE, x)

    def _outlook(self, family: Family, members: tuple[Member, ...], point: float) -> Outlook | None:
        """The outlook by the comparison that would decide the verdict: that of `fails` where the numbers
        point that way."""
        if self.expected.kind not in ("bound", "rank") and not self.expected.sized:
            return None
        member = self._statement(self._pointed(point), members)[1]
        estimate, n = member.estimate, member.estimate.n
        needed = first_of(lambda n: decide(self.expected, *self._ends(family.grown(n))) != UNDECIDED, n)
        next_one = above(estimate, self.bound, runs=1)
        cells = set().union(*(self.evidence.rows(leaf, self.pool) for leaf in self.leaves))
        return Outlook(needed, first_of(lambda n: power(family, estimate, n) >= POWER, n),
                       next_one if self._upward else 1 - next_one, again(estimate, self.bound),
                       (needed - n) * self.evidence.hours(cells) if needed and needed > n else None,
                       member.name if len(members) > 1 else "")
