"""What the measured numbers say about one claim of a paper: a verdict in a word, and sentences with its
evidence."""
from dataclasses import dataclass

from pipeline.report.claims import Claim
from pipeline.report.statistics import ALPHA, MOST, POINT, POWER, Estimate, above
from pipeline.report.words import hours_words, listed, minus, p_words

HOLDS, FAILS, UNDECIDED, WAITS, UNTESTED = "holds", "fails", "undecided", "not enough runs", "not tested"
TESTED = (HOLDS, FAILS, UNDECIDED)
CONFIRMED, CONTRADICTED, OPEN = "confirmed", "contradicted", "open"


@dataclass(frozen=True)
class Member:
    """One of the comparisons that a claim joins."""
    name: str                                     # of the rival, or of what differs
    estimate: Estimate
    low: float
    high: float
    p: float                                      # adjusted for the others
    alone: float                                  # p of this comparison on its own

    @property
    def apart(self) -> bool:
        """Whether one of its rows was set apart, so that it has a spread of its own."""
        return self.estimate.route == "paired" and bool(self.estimate.apart)


@dataclass(frozen=True)
class Outlook:
    """What more seeds would show for an undecided claim, if difference and spread stay as they are."""
    needed: int | None                            # seeds until the interval decides; None: more than MOST
    powered: int | None                           # seeds that decide with POWER
    next_one: float                               # chance that the next seed shows the claimed direction
    again: float                                  # chance that a repetition with as many has the same sign
    hours: float | None                           # of one process, of all compared rows, to `needed`
    of: str = ""                                  # of several comparisons, the one that the chances are about


@dataclass(frozen=True)
class Verdict:
    """What the runs say about one claim."""
    claim: Claim
    word: str                                     # one of the five above; of a sized claim its direction
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
    deciding: Member | None = None                # the comparison that decides the verdict
    every: bool = True                            # the claim is one of all its comparisons, not of any
    apart: tuple[str, ...] = ()                   # rows beside the deciding comparison with their own spread
    partitions: int = 0                           # that the seeds used
    points: bool = True                           # the difference is one of percentages
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
        """The verdict; of a claim that names a size its direction and its size, each with a verdict."""
        return "; ".join(f"{what} {word}".strip() for what, word in self.parts)

    @property
    def parts(self) -> list[tuple[str, str]]:
        """[("direction", "holds"), ("size", "contradicted")], or the one verdict without a name."""
        word = self.word + (" (indicative)" if self.indicative else "")
        return [("direction", word), ("size", self.size)] if self.size else [("", word)]

    @property
    def scaled(self) -> bool:
        """Whether the difference is one of percent points, which the claims' common scale can show."""
        return self.points and self.point is not None and self.claim.expected.kind not in ("rank", "value")

    @property
    def quote(self) -> str:
        """`Measured +4.01 [+2.50, +5.22] over 3 seeds, published +7.02: the direction holds, the size is
        contradicted.`; empty where nothing was compared."""
        if not self.tested or not self.measured:
            return ""
        seeds = f" over {self.seeds} seeds" if self.seeds > 1 else " with one seed"
        printed = f", published {self.published}" if self.published else ""
        says = {HOLDS: "holds", FAILS: "fails", UNDECIDED: "is undecided"}[self.word]
        soft = ", as far as one number without an interval can say" if self.indicative else ""
        size = f", the size is {self.size}" if self.size else ""
        what = "the direction" if self.size else "the claim"
        return f"Measured {self.measured}{seeds}{printed}: {what} {says}{size}{soft}."

    @property
    def measured(self) -> str:
        """`+3.20 [+1.10, +5.00]`; empty where nothing was compared.

        The interval is left out where there is none, or where one of its ends comes from a row that was set
        apart, which says nothing about the others; the deciding comparison then has its own.
        """
        if self.point is None:
            return ""
        wide = any({member.low, member.high} & {self.low, self.high}
                   for member in self.members if member.apart)
        span = "" if self.low is None or self.high is None or wide else f" {self.span(self.low, self.high)}"
        return self.shown(self.point) + span

    @property
    def published(self) -> str:
        return "" if self.printed is None else self.shown(self.printed)

    @property
    def sentences(self) -> list[str]:
        """The evidence for the verdict in sentences that can be quoted; empty where nothing was compared."""
        if not self.tested:
            return []
        parts = [self._seeds(), self._how(), self._rival(), self._size(), self._practical(), self._more()]
        return [text for text in parts if text]

    def shown(self, value: float) -> str:
        form = {"rank": ".0f", "value": ".2f"}.get(self.claim.expected.kind, "+.2f")
        return minus(format(value, form))

    def span(self, low: float, high: float) -> str:
        return f"[{self.shown(low)}, {self.shown(high)}]"

    def _seeds(self) -> str:
        """The raw numbers: with few of them a reader wants to see each, and its sign."""
        if len(self.by_seed) < 2:
            return ""
        values = ", ".join(f"{self.shown(value)} (seed {seed})" for seed, value in self.by_seed)
        if self.claim.expected.kind not in ("rank", "value"):
            values += f": {sum(value > 0 for _, value in self.by_seed)} of {len(self.by_seed)} above 0"
        which = ", each by the comparison that counts in it" if self.way else ""
        return f"By seed{which}: {values}."

    def _how(self) -> str:
        if self.deciding is None or self.p is None:
            return ""
        text = _route(self.deciding.estimate)
        if self.way:
            steps = ", step-down" if self.way == "Holm" else ""
            text += f", {len(self.members)} comparisons at once ({self.way}{steps})"
        if self.apart:
            whose = "their" if len(self.apart) > 1 else "its"
            text += f"; {listed(self.apart)} set apart, as {whose} spread differs"
        return f"{text}: {p_words(self.p)}."

    def _rival(self) -> str:
        """The comparison that decides the verdict, and others that are open."""
        if not self.way or not self.deciding:
            return ""
        one, all_of = self.deciding, self.every != (self.word == FAILS)
        leads = {(HOLDS, False): "It holds through", (FAILS, False): "It fails because of",
                 (UNDECIDED, True): "It is left open by"}
        lead = leads.get((self.word, all_of), "The closest comparison is with")
        low, high, d = (minus(f"{value:+.2f}") for value in (one.low, one.high, one.estimate.d))
        text = f"{lead} {one.name}: {d} [{low}, {high}], adjusted {p_words(one.p)}"
        others = [member for member in self.members if member is not one and member.p >= ALPHA]
        if self.word == UNDECIDED and self.every and others:
            text += f"; also open: {listed(map(self._open, others))}"
        return f"{text}."

    def _open(self, member: Member) -> str:
        alone = f", alone {p_words(member.alone)}" if member.apart else ""
        return f"{member.name} ({minus(f'{member.estimate.d:+.2f}')}, {p_words(member.p)}{alone})"

    def _size(self) -> str:
        if not self.size or self.likely is None:
            return ""
        number = minus(f"{self.claim.expected.number:+g}")
        likely = self.span(*self.likely)
        return f"Size {number}: {self.size}; a result like the paper's would lie within {likely}."

    def _practical(self) -> str:
        """The t posterior under a flat prior: an interval around 0 is no proof of equality."""
        if not self.deciding or not self.points or self.claim.expected.kind in ("value", "rank"):
            return ""
        higher, lower = above(self.deciding.estimate, POINT), 1 - above(self.deciding.estimate, -POINT)
        against = f" than {self.deciding.name}" if self.way and self.every else ""
        return (f"Chance of more than {POINT:g} point higher{against}: {higher:.0%}, lower: {lower:.0%}, "
                f"practically equal: {max(1 - higher - lower, 0):.0%}.")

    def _more(self) -> str:
        if not self.outlook:
            return ""
        look, hours = self.outlook, ""
        if look.hours:
            hours = f" ({hours_words(look.hours)} more of one process, for all compared rows)"
        agrees = self.point is None or self.claim.expected.fits(self.point)
        seeds = (f"If difference and spread stay as measured, {_count(look.needed)} seeds decide it"
                 f"{'' if agrees else ', against the claim'}{hours}")
        power, same = f"{POWER:.0%} power", f"a repetition has the same sign with {look.again:.0%}."
        if look.of:
            return (f"{seeds}. For {look.of} alone: {power} with {_count(look.powered)} seeds; the next seed "
                    f"agrees with a chance of {look.next_one:.0%}; {same}")
        return (f"{seeds}; for {power} {_count(look.powered)}. The next seed agrees with the claim with a "
                f"chance of {look.next_one:.0%}; {same}")


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
