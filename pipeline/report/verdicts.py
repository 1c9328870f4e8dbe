"""What the measured numbers say of the published ones: every claim of a paper in a word, and what the word rests on.

A claim is a difference of runs, or the largest or smallest of several. `statistics` estimates it from a block design over the seeds; here
it becomes words: a direction, and where the paper gives one, a size.
"""
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.report import measures
from pipeline.report.claims import Claim, Expected, Extreme, Form, Tree
from pipeline.report.evidence import Evidence, Source
from pipeline.report.statistics import (ALPHA, EDGE, MOST, POINT, POWER, Estimate, Family, above, again, first_of, power, rank_ends, tost,
                                        two_sided)
from pipeline.report.words import hours_words, listed, method_label, minus, p_words

HOLDS, FAILS, UNDECIDED, WAITS, UNTESTED = "holds", "fails", "undecided", "not enough runs", "not tested"
TESTED = (HOLDS, FAILS, UNDECIDED)
CONFIRMED, CONTRADICTED, OPEN = "confirmed", "contradicted", "open"
NEAR = 2 * ALPHA                                  # two one-sided tests at 5 %: the 90 % interval
CLOSE = 1.0                                       # points that a level may be off ("reaches 68.40")
SIZE, SHARE = 0.5, 0.1                            # points, or share of a size, that a difference may be off
ROUNDING = 0.005                                  # of a printed number with two decimals
ENOUGH = 2                                        # seeds that show a spread


@dataclass(frozen=True)
class Member:
    """One of the comparisons that a claim joins."""
    name: str                                     # of the rival, or of what differs
    estimate: Estimate
    low: float
    high: float
    p: float                                      # adjusted for the others
    alone: float                                  # p of this comparison on its own


@dataclass(frozen=True)
class Outlook:
    """What more seeds would tell of an undecided claim, if difference and spread stayed as they are."""
    needed: int | None                            # seeds until the interval decides; None: more than MOST
    powered: int | None                           # seeds that decide with POWER
    next_one: float                               # chance that the next seed shows the claimed direction
    again: float                                  # chance that a repetition with as many seeds shows the same sign
    hours: float | None                           # of one process, of all compared rows, to `needed`


@dataclass(frozen=True)
class Verdict:
    """What the runs say of one claim."""
    claim: Claim
    word: str                                     # holds, fails, undecided, not enough runs, not tested; of a sized claim its direction
    reason: str = ""                              # why there is no answer, or none but this
    printed: float | None = None                  # the difference of the published numbers
    point: float | None = None                    # the measured difference
    low: float | None = None                      # its 95 % interval; None where it is indicative
    high: float | None = None
    seeds: int = 0                                # of the run that has the fewest
    by_seed: tuple[tuple[int, float], ...] = ()
    size: str = ""                                # confirmed, contradicted, open
    likely: tuple[float, float] | None = None     # where a result like the paper's would lie (95 %)
    p: float | None = None                        # of the statement that the word makes
    way: str = ""                                 # how several comparisons are joined: Dunnett, Holm
    members: tuple[Member, ...] = ()
    deciding: Member | None = None
    every: bool = True                            # the claim is one of all its comparisons, not of any
    apart: tuple[str, ...] = ()                   # rows of the comparison with a spread of their own
    partitions: int = 0
    outlook: Outlook | None = None

    @property
    def tested(self) -> bool:
        return self.word in TESTED

    @property
    def indicative(self) -> bool:
        """The word follows from one number that has no interval."""
        return self.tested and self.low is None

    @property
    def words(self) -> str:
        """Direction and size as two words."""
        return self.word + (" (indicative)" if self.indicative else "") + (f"; size {self.size}" if self.size else "")

    @property
    def measured(self) -> str:
        """`+3.20 [+1.10, +5.00]`; empty where nothing was compared. Without the interval where there is none, or where an end of it is that
        of a row set apart, which says nothing of the others: the comparison that the word hangs on then has its own."""
        if self.point is None:
            return ""
        wide = any({member.low, member.high} & {self.low, self.high} for member in self.members if member.name in self.apart)
        return self.shown(self.point) + ("" if self.low is None or wide else f" {self.span(self.low, self.high)}")

    @property
    def published(self) -> str:
        return "" if self.printed is None else self.shown(self.printed)

    @property
    def sentences(self) -> list[str]:
        """What the word rests on, for a reader who wants to quote it; empty where nothing was compared."""
        if not self.tested:
            return []
        return [text for text in (self._seeds(), self._how(), self._rival(), self._size(), self._practical(), self._more()) if text]

    def shown(self, value: float) -> str:
        kind = self.claim.expected.kind
        return minus(f"{value:.0f}" if kind == "rank" else f"{value:.2f}" if kind == "value" else f"{value:+.2f}")

    def span(self, low: float, high: float) -> str:
        return f"[{self.shown(low)}, {self.shown(high)}]"

    def _seeds(self) -> str:
        """The raw numbers: with few of them a reader wants to see each."""
        if len(self.by_seed) < 2:
            return ""
        values = ", ".join(f"{self.shown(value)} (seed {seed})" for seed, value in self.by_seed)
        if self.claim.expected.kind not in ("rank", "value"):
            values += f": {sum(value > 0 for _, value in self.by_seed)} of {len(self.by_seed)} above 0"
        return f"By seed: {values}."

    def _how(self) -> str:
        if not self.deciding or self.indicative:
            return ""
        text = _route(self.deciding.estimate)
        if self.way:
            text += f", {len(self.members)} comparisons at once ({self.way}{', step-down' if self.way == 'Holm' else ''})"
        if self.apart:
            text += f"; {listed(self.apart)} set apart for a spread of {'their' if len(self.apart) > 1 else 'its'} own"
        return f"{text}: {p_words(self.p)}."

    def _rival(self) -> str:
        """Which comparison the word hangs on; further ones that are open."""
        if not self.way or not self.deciding:
            return ""
        one, all_of = self.deciding, self.every != (self.word == FAILS)
        lead = {(HOLDS, False): "It holds by", (FAILS, False): "It fails by", (UNDECIDED, True): "Left open by"}
        text = f"{lead.get((self.word, all_of), 'The nearest comparison is')} {one.name}: {self._difference(one)}"
        others = [member for member in self.members if member is not one and member.p >= ALPHA]
        if self.word == UNDECIDED and self.every and others:
            text += "; open too: " + listed(f"{m.name} ({p_words(m.p)}" + (f", alone {p_words(m.alone)})" if m.name in self.apart else ")")
                                            for m in others)
        return f"{text}."

    def _difference(self, member: Member) -> str:
        low, high = (minus(f"{end:+.2f}") for end in (member.low, member.high))
        return f"{minus(f'{member.estimate.d:+.2f}')} [{low}, {high}], adjusted {p_words(member.p)}"

    def _size(self) -> str:
        if not self.size:
            return ""
        number = minus(f"{self.claim.expected.number:+g}")
        return f"Size {number}: {self.size}; a result like the paper's would lie within {self.span(*self.likely)}."

    def _practical(self) -> str:
        """The t posterior under a flat prior: an interval around 0 is no proof of equality."""
        if self.claim.expected.kind in ("value", "rank") or not self.deciding or self.indicative or not self.deciding.estimate.se:
            return ""
        higher, lower = above(self.deciding.estimate, POINT), 1 - above(self.deciding.estimate, -POINT)
        against = f" than {self.deciding.name}" if self.way and self.every else ""
        return (f"More than {POINT:g} point higher{against} with a chance of {higher:.0%}, lower with {lower:.0%}, practically equal with "
                f"{max(1 - higher - lower, 0):.0%}.")

    def _more(self) -> str:
        if not self.outlook:
            return ""
        look = self.outlook
        hours = f" ({hours_words(look.hours)} more of one process, for all compared rows)" if look.hours else ""
        return (f"If it stayed like this, {_count(look.needed)} seeds would decide it{hours}; for {POWER:.0%} power {_count(look.powered)}. "
                f"The next seed agrees with the claim with a chance of {look.next_one:.0%}; a repetition has the same sign with {look.again:.0%}.")


def _count(seeds: int | None) -> str:
    return f"more than {MOST}" if seeds is None else str(seeds)


def _route(estimate: Estimate) -> str:
    """How an estimate came about, in words."""
    part, df = estimate.parts[0], f"{estimate.df:.3g} degrees of freedom"
    return {"pooled": f"Residual spread {part.s:.2g} of {estimate.k} methods over {estimate.n} seeds, {df}",
            "paired": f"Paired t test over {estimate.n} seeds, {df}",
            "level": f"Spread {part.s:.2g} over {estimate.n} seeds, {df}",
            "combined": f"Spreads of {len(estimate.parts)} scenarios, {df}",
            "identical": f"Identical in all {estimate.n} seeds"}[estimate.route]


# -- words -------------------------------------------------------------------------------------------------------

def decide(expected: Expected, low: float, high: float) -> str:
    """Of a bound, a direction or a rank: holds where all of the interval is as claimed, fails where none of it is."""
    ends = {expected.fits(low), expected.fits(high)}
    return {(True,): HOLDS, (False,): FAILS}.get(tuple(ends), UNDECIDED)


def closeness(number: float, margin: float, near: tuple[float, float], likely: tuple[float, float], slack: float = ROUNDING) -> str:
    """confirmed where the 90 % interval lies within the margin, contradicted where the number lies outside of where further runs would."""
    if number - margin < near[0] and near[1] < number + margin:
        return CONFIRMED
    return CONTRADICTED if number + slack < likely[0] or number - slack > likely[1] else OPEN


WORDS = {CONFIRMED: HOLDS, CONTRADICTED: FAILS, OPEN: UNDECIDED}


# -- a claim -----------------------------------------------------------------------------------------------------

def judge(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict on one claim of a paper."""
    if not claim.expected.testable:
        return Verdict(claim, UNTESTED, "no number settles it")
    numbers = [evidence.printed.numbers.get(spot) for spot in claim.spots]
    published = None if None in numbers else claim.difference(dict(zip(claim.spots, numbers)).__getitem__)
    found = {spot: evidence.source(spot) for spot in claim.spots}
    if None in found.values():
        return Verdict(claim, UNTESTED, "nothing that a run measures", published)
    tree = _of_runs(claim.tree, found.__getitem__)
    if tree is None:
        return Verdict(claim, UNTESTED, "both sides are the same run here", published)
    sources = list(dict.fromkeys(found.values()))
    there = sum(bool(evidence.values(source)) for source in sources)
    if there < len(sources):
        ran = sum(cell in evidence.results for cell, _ in sources)
        missing = f"{ran} of {len(sources)} cells have run" if ran < len(sources) else f"{there} of {len(sources)} numbers are there"
        return Verdict(claim, WAITS, missing, published)
    pool = tuple(dict.fromkeys(source for spot in claim.spots for source in evidence.pool(spot)))
    return _Case(claim, evidence, tree, sources, pool).verdict(published)


def _of_runs(tree: Tree, source) -> Tree | None:
    """A tree of spots as one of runs, without comparisons of a run with itself; None where nothing is left."""
    if isinstance(tree, Form):
        form = tree.gathered(source)
        return form if form.coefficients else None
    parts = tuple(filter(None, (_of_runs(part, source) for part in tree.parts)))
    return Extreme(tree.kind, parts) if parts else None


class _Case:
    """One claim whose runs are all there."""

    def __init__(self, claim: Claim, evidence: Evidence, tree: Tree, sources: list[Source], pool: tuple[Source, ...]):
        self.claim, self.expected, self.evidence, self.tree, self.sources, self.pool = claim, claim.expected, evidence, tree, sources, pool
        self.leaves = tree.leaves()
        self.bound = self.expected.number if self.expected.kind == "bound" else 0.0
        self.difference = all(abs(sum(c for _, c in leaf.coefficients)) < 1e-9 for leaf in self.leaves)

    def verdict(self, published: float | None) -> Verdict:
        common = self._common()
        if not all(common.values()):
            return Verdict(self.claim, WAITS, "the runs share no seed", published)
        seeds = min(len(self.evidence.values(source)) for source in self.sources)
        point = self.expected_value({source: sum(self._at(source, block) for block in common[source[0].scenario]) / len(common[source[0].scenario])
                                     for source in self.sources})
        base = Verdict(self.claim, WAITS, "one seed gives no interval", published, point, seeds=seeds, by_seed=self._by_seed(common),
                       partitions=len({digest for blocks in common.values() for _, digest in blocks}))
        if seeds < ENOUGH:
            return replace(base, word=self.pointed(point), reason="") if self.difference else base
        family = self.family()
        if family is None:
            return replace(base, reason="the runs share no seed")
        if any(estimate.still for estimate in family.estimates):
            return replace(base, word=self.pointed(point), reason="no spread over the seeds: is the seed used?")
        return self.tested(base, family)

    # -- numbers of the runs --

    def _common(self) -> dict[str, list]:
        """Blocks that all runs of the claim share, by scenario."""
        found: dict[str, set] = {}
        for source in self.sources:
            blocks = set(self.evidence.values(source))
            found[source[0].scenario] = found.get(source[0].scenario, blocks) & blocks
        return {scenario: sorted(blocks) for scenario, blocks in found.items()}

    def _at(self, source: Source, block) -> float:
        return self.evidence.values(source)[block]

    def _by_seed(self, common: dict[str, list]) -> tuple[tuple[int, float], ...]:
        """The claim's own number in every seed that all its runs have."""
        block = {scenario: dict((seed, (seed, digest)) for seed, digest in blocks) for scenario, blocks in common.items()}
        seeds = sorted(set.intersection(*(set(found) for found in block.values())))
        return tuple((seed, self.expected_value({source: self._at(source, block[source[0].scenario][seed]) for source in self.sources}))
                     for seed in seeds)

    def expected_value(self, numbers: dict[Source, float]) -> float:
        """The claim's difference, or rank, of given numbers."""
        if self.expected.kind == "rank":
            return self.claim.place(leaf.at(numbers.__getitem__) for leaf in self.leaves)
        return self.tree.value(lambda form: form.at(numbers.__getitem__))

    def pointed(self, point: float) -> str:
        """The word that one number points to."""
        if self.expected.kind == "value" or self.equality:
            return HOLDS if abs(point - self.expected.number) <= (SIZE if self.equality else CLOSE) else FAILS
        return HOLDS if self.expected.fits(point) else FAILS

    @property
    def equality(self) -> bool:
        """Of a difference that is said to be 0."""
        return self.expected.kind in ("size", "about") and not self.expected.sized

    # -- estimates --

    def family(self, scale: bool = False) -> Family | None:
        estimates = tuple(self.evidence.estimate(leaf, self.pool, scale) for leaf in self.leaves)
        if None in estimates:
            return None
        one_against_others = len(self.leaves) > 1 and all(estimate.balanced for estimate in estimates) and self._around_one()
        return Family(estimates, "Dunnett" if one_against_others else "Holm", self.bound)

    def _around_one(self) -> bool:
        """Whether every comparison is that of the same run with another one."""
        sides = [set(leaf.coefficients) for leaf in self.leaves]
        return all(len(side) == 2 and {abs(c) for _, c in side} == {1.0} for side in sides) and bool(set.intersection(*sides))

    def fold(self, values: Sequence[float]) -> float:
        return self.tree.value(dict(zip(self.leaves, values)).__getitem__)

    def ends(self, ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """Simultaneous intervals of the comparisons as one of the claim."""
        if self.expected.kind == "rank":
            return rank_ends(ends, self.expected.low)
        return self.fold([low for low, _ in ends]), self.fold([high for _, high in ends])

    # -- the word --

    def tested(self, base: Verdict, family: Family) -> Verdict:
        low, high = self.ends(family.ends())
        point = base.point if self.expected.kind == "rank" else self.fold([estimate.d for estimate in family.estimates])
        word, size, likely = self.words(family)
        word, reason = self._on_the_other_scale(word)
        members = self._members(family)
        p, deciding = self._statement(word, members)
        if self.expected.kind == "value" and measures.scale(self.sources[0][1]) == "logit":
            low, high = max(low, 0.0), min(high, 100.0)
        if all(estimate.route == "identical" for estimate in family.estimates):
            reason = "identical in every seed"
        apart = dict.fromkeys(name for estimate in family.estimates for name in estimate.apart)
        return replace(base, word=word, reason=reason, point=point, low=low, high=high, size=size, likely=likely, p=p,
                       way=family.way if len(members) > 1 else "", members=members, deciding=deciding, every=isinstance(self.tree, Form) or (self.tree.kind == "min") == self.upward,
                       apart=tuple(method_label(self.evidence.paper, name) for name in apart),
                       outlook=None if word != UNDECIDED or reason else self._outlook(family, members, point))

    def words(self, family: Family) -> tuple[str, str, tuple[float, float] | None]:
        """(word, size, where a result like the paper's would lie)."""
        ends, number = self.ends(family.ends()), self.expected.number
        if self.expected.kind in ("bound", "rank"):
            return decide(self.expected, *ends), "", None
        near = self.ends(family.ends(NEAR))
        if self.expected.kind == "abs":
            return self._inside(near, ends), "", None
        likely = self.ends(family.ends(runs=self.evidence.paper.runs))
        if self.expected.sized:
            size = closeness(number, max(SIZE, SHARE * abs(number)), near, likely)
            return decide(self.expected, *ends), size, likely
        margin, slack = (SIZE, ROUNDING) if self.equality else (CLOSE, 0.0)
        return WORDS[closeness(number, margin, near, likely, slack)], "", likely

    def _inside(self, near: tuple[float, float], ends: tuple[float, float]) -> str:
        """Of `abs<x`: the 90 % interval within, which is what two one-sided tests ask, or the 95 % interval outside."""
        x = self.expected.number
        if -x < near[0] and near[1] < x:
            return HOLDS
        return FAILS if ends[0] >= x or ends[1] <= -x else UNDECIDED

    def _on_the_other_scale(self, word: str) -> tuple[str, str]:
        """(word, reason): a direction near 0 or 100, or of spreads and losses, counts only where it is the same on the other scale."""
        if not (self.bound == 0 and (self.expected.kind == "bound" or self.expected.sized)) or not self._bent():
            return word, ""
        family = self.family(scale=True)
        if family is None or any(estimate.still for estimate in family.estimates):
            return word, ""
        other = decide(self.expected, *self.ends(family.ends()))
        return (word, "") if other == word else (UNDECIDED, "depends on the scale")

    def _bent(self) -> bool:
        """Whether the other scale is to be asked."""
        if any(leaf.constant for leaf in self.leaves):
            return False
        values = {source: list(self.evidence.values(source).values()) for source in (*self.sources, *self.pool)}
        curved = [source for source in values if measures.scale(source[1]) == "ln"]
        if any(value <= 0 for source in curved for value in values[source]):
            return False
        means = [sum(values[source]) / len(values[source]) for source in self.sources if measures.scale(source[1]) == "logit"]
        return bool(curved) or any(mean < EDGE or mean > 100 - EDGE for mean in means)

    # -- what it rests on --

    def _members(self, family: Family) -> tuple[Member, ...]:
        return tuple(Member(self._name(leaf), estimate, *ends, p, alone) for leaf, estimate, ends, p, alone
                     in zip(self.leaves, family.estimates, family.ends(), family.p, family.raw))

    def _name(self, leaf: Form) -> str:
        """What a comparison does not share with the others."""
        shared = set.intersection(*({source for source, _ in other.coefficients} for other in self.leaves))
        own = [source for source, _ in leaf.coefficients if source not in shared] or [source for source, _ in leaf.coefficients]
        return listed(dict.fromkeys(method_label(self.evidence.paper, cell.method) for cell, _ in own))

    @property
    def upward(self) -> bool:
        """Whether the claim is that the difference lies above something."""
        if self.expected.kind == "rank":
            return not self.expected.low
        return self.expected.number > 0 if self.expected.sized else self.expected.sign.startswith(">")

    def _statement(self, word: str, members: tuple[Member, ...]) -> tuple[float, Member]:
        """(p, the comparison it comes from) of what the word says: the largest p of `all of`, the smallest of `any of`."""
        if self.expected.kind == "rank":
            return self._of_rank(word, members)
        if self.expected.kind in ("abs", "value") or self.equality:
            return max(((self._of_closeness(word, member.estimate), member) for member in members), key=lambda found: found[0])
        p, _, member = self._hangs(self.tree, dict(zip(self.leaves, members)), self.upward != (word == FAILS))
        return p, member

    def _hangs(self, tree: Tree, members: dict[Form, Member], upward: bool, any_of: bool = False) -> tuple[float, float, Member]:
        """(p, minus the lead, comparison) that a statement hangs on; of equal p the smallest lead. In `any of`, a comparison that points
        the other way has p 1."""
        if isinstance(tree, Form):
            lead = (members[tree].estimate.d - self.bound) * (1 if upward else -1)
            return 1.0 if any_of and lead < 0 else members[tree].p, -lead, members[tree]
        all_of = (tree.kind == "min") == upward
        found = [self._hangs(part, members, upward, not all_of) for part in tree.parts]
        return (max if all_of else min)(found, key=lambda one: one[:2])

    def _of_rank(self, word: str, members: tuple[Member, ...]) -> tuple[float, Member]:
        """To be among the first k of m, m - k others must be behind; not to be, k must be ahead. Sorted as in `_hangs`."""
        k, fails = int(self.expected.number), word == FAILS
        leads = [member.estimate.d * (1 if self.upward != fails else -1) for member in members]
        ordered = sorted((1.0 if lead < 0 else member.p, -lead, i) for i, (lead, member) in enumerate(zip(leads, members)))
        wanted = k if fails else len(members) + 1 - k
        p, _, i = ordered[max(min(wanted, len(members)), 1) - 1]
        return p, members[i]

    def _of_closeness(self, word: str, estimate: Estimate) -> float:
        x = self.expected.number
        if self.expected.kind == "abs":
            return two_sided(estimate, x if estimate.d > 0 else -x) if word == FAILS else tost(estimate, x)
        if word == FAILS:
            return two_sided(estimate, x, self.evidence.paper.runs)
        return tost(estimate, SIZE if self.equality else CLOSE, x)

    def _outlook(self, family: Family, members: tuple[Member, ...], point: float) -> Outlook | None:
        """By the comparison that the word would hang on, which is that of `fails` where the claim points that way."""
        if self.expected.kind not in ("bound", "rank") and not self.expected.sized:
            return None
        _, member = self._statement(self.pointed(point), members)
        n, estimate = member.estimate.n, member.estimate
        needed = first_of(lambda n: decide(self.expected, *self.ends(family.grown(n))) != UNDECIDED, n)
        powered = first_of(lambda n: power(family, estimate, n) >= POWER, n)
        next_one = above(estimate, self.bound, runs=1)
        cells = set().union(*(self.evidence.rows(leaf, self.pool) for leaf in self.leaves))
        return Outlook(needed, powered, next_one if self.upward else 1 - next_one, again(estimate, self.bound),
                       (needed - n) * self.evidence.hours(cells) if needed and needed > n else None)
