"""What the measured numbers say of the published ones: every claim of a paper, and the order of the methods.

A claim's statistic is the difference that it speaks of, of the means over seeds. Its interval is the 95 % percentile
bootstrap over seeds (scipy.stats.bootstrap, seeded by the claim); runs of one comparison that have the same seeds are
drawn together. With two or three seeds that is the range of the seeds, so that a claim that holds holds in each of them.
"""
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from pipeline.params import Cell, Paper
from pipeline.report.claims import ABOUT, Claim, Expected, Printed, Select, Spot
from pipeline.report.words import method_words, minus, pretty, setting_words, split_setting
from pipeline.results import lower_is_better

HOLDS, FAILS, UNDECIDED, WAITS, UNTESTED = "holds", "fails", "undecided", "not enough runs", "not tested"
TESTED = (HOLDS, FAILS, UNDECIDED)
AVERAGES = ("Avg", "AVG")                         # the column that sums up a block; where there is none, every column counts
RESAMPLES = 1999
CONFIDENCE = 0.95
ROUNDING = 0.005                                  # of a printed number with two decimals
ENOUGH = 2                                        # seeds for more than an indication
RANKED = 5                                        # methods that an order needs: of four, no order differs from chance at 5 %

MEANINGS = (                                      # what the pages say of the words
    ("measured", f"the difference that the claim speaks of, of the means over seeds, and in brackets its interval: 95 % percentile "
     f"bootstrap over seeds ({RESAMPLES:,} draws, seeded). Runs with the same seeds are drawn together. With two or three seeds the interval is the "
     "range over the seeds, which is narrower than a true 95 % interval."),
    ("holds", "all of the interval is as claimed: on the claimed side of 0 or of the bound, or within the claimed ranks. With two or three "
     "seeds: it is so in every seed. A claim of one value (“reaches 68.40”) holds where the interval has that value."),
    ("fails", "nothing of the interval is as claimed."),
    ("undecided", "the interval has both; more seeds may tell."),
    ("size", "a claim that names a size (“by 8.47 points”) holds by its sign alone; beside it stands whether the interval has the published "
     "size (widened by 0.5 where the paper says “about”)."),
    ("indicative", "fewer than two seeds, so there is no interval: the verdict says which way the one difference points, and no more. "
     "A table is indicative as soon as one number that it is judged by is."),
    ("not enough runs", "a cell of the claim has not run; of a claim about one value, that there is one seed."),
    ("not tested", "about a figure or in words, or of numbers that no run measures, or both sides are one and the same run here."),
    ("order of the methods", "Kendall's τ-b between the measured and the published numbers of a column (the averages where the table has "
     "them), from five measured methods on: 1 is the same order, 0 no relation, −1 the reverse; p is its probability, or that of one further from 0, where the order "
     "is chance. The winner is the method that is best in print. A table that measures another one's numbers once more, in another setting, has a verdict of its "
     "own and no part in the paper's."),
)

Source = tuple[Cell, str]                         # a run and one of its measures


@dataclass(frozen=True)
class Verdict:
    """What the runs say of one claim."""
    claim: Claim
    word: str                                     # holds, fails, undecided, not enough runs, not tested
    reason: str = ""                              # why there is no answer
    printed: float | None = None                  # the difference of the published numbers
    point: float | None = None                    # the difference of the measured means
    low: float | None = None                      # its interval; None for one seed
    high: float | None = None
    seeds: int = 0                                # of the run that has the fewest

    @property
    def tested(self) -> bool:
        return self.word in TESTED

    @property
    def indicative(self) -> bool:
        """Too few seeds to say more than which way it points."""
        return self.tested and self.seeds < ENOUGH

    @property
    def words(self) -> str:
        return f"{self.word} (indicative)" if self.indicative else self.word

    @property
    def measured(self) -> str:
        """`+3.20 [+1.10, +5.00]`, without the interval for one seed; empty where nothing was compared."""
        if self.point is None:
            return ""
        span = "" if self.low is None else f" [{self._shown(self.low)}, {self._shown(self.high)}]"
        return self._shown(self.point) + span

    @property
    def published(self) -> str:
        return "" if self.printed is None else self._shown(self.printed)

    @property
    def size(self) -> str:
        """Of a claim that names a size: whether the interval holds it."""
        if not self.claim.expected.sized or self.low is None:
            return ""
        return f"size {minus(f'{self.claim.expected.number:+g}')} {'outside' if self.sign_alone else 'within'} the interval"

    @property
    def sign_alone(self) -> bool:
        """Of a claim that names a size: its sign may hold, its size does not."""
        return self.claim.expected.sized and self.low is not None and not within(self.claim.expected, self.low, self.high)

    def _shown(self, value: float) -> str:
        kind = self.claim.expected.kind
        return minus(f"{value:.0f}" if kind == "rank" else f"{value:.2f}" if kind == "value" else f"{value:+.2f}")


@dataclass(frozen=True)
class Order:
    """How the measured order of the methods in one column agrees with the published one."""
    title: str
    tau: float | None                             # Kendall's tau-b; None where a side has only ties
    p: float | None                               # its two-sided p-value
    methods: int                                  # that are measured
    printed: int
    winner: str                                   # best in print
    place: int | None                             # of the winner among the measured ones; None where it has not run
    seeds: int                                    # of the run that has the fewest

    @property
    def correlation(self) -> str:
        return "" if self.tau is None else minus(f"{self.tau:.2f}") + f" (p = {self.p:.2f})"


@dataclass(frozen=True)
class Judgement:
    """The verdict on a table, or on all of a paper."""
    verdicts: list[Verdict]
    orders: list[Order]
    several: bool = False                         # of a paper: tables that may rest on different numbers of seeds

    @property
    def tested(self) -> bool:
        return bool(self.orders) or any(verdict.tested for verdict in self.verdicts)

    @property
    def seeds(self) -> int:
        """Of the run with the fewest that a verdict or an order rests on."""
        return min([v.seeds for v in self.verdicts if v.tested] + [order.seeds for order in self.orders], default=0)

    @property
    def indicative(self) -> bool:
        """As soon as one number that it rests on has too few seeds."""
        return self.tested and self.seeds < ENOUGH

    @property
    def shares(self) -> str:
        """How many of the claims hold, and what became of the others."""
        count = Counter((verdict.word, verdict.indicative) for verdict in self.verdicts)
        parts = []
        for soft in (False, True):
            held, failed, open_ = (count[word, soft] for word in TESTED)
            total = held + failed + open_
            share = f"{held} of {total} tested {_claims(total)}", f"({100 * held / total:.0f} %)" if total else ""
            agreeing = 1 if total == 1 else held
            if total and soft:
                parts.append(f"with one seed, {share[0]} {_verb(agreeing, 'point')} the claimed way {share[1]}")
            elif total:
                alone = sum(verdict.word == HOLDS and verdict.sign_alone for verdict in self.verdicts)
                rest = [f"{n} {words}" for n, words in ((alone, "of them in sign alone"), (failed, _verb(failed, "fail")), (open_, "undecided")) if n]
                parts.append(", ".join([f"{share[0]} {_verb(agreeing, 'hold')} {share[1]}", *rest]))
        waiting, untested = count[WAITS, False], count[UNTESTED, False]
        if waiting:
            parts.append(f"{waiting} {_claims(waiting)} {_verb(waiting, 'wait')} for runs")
        if untested:
            parts.append(f"{untested} cannot be tested by a run")
        return "; ".join(parts)

    @property
    def ranking(self) -> str:
        """Rank correlation over the columns, and how often the published winner comes first."""
        winners = [order.place for order in self.orders if order.place]
        parts = [f"order of the methods against the published one: Kendall's τ {self._correlation}"] if self._correlation else []
        if winners:
            first = sum(place == 1 for place in winners)
            parts.append(f"the published winner comes first in {first} of {len(winners)}" if len(winners) > 1
                         else f"the published winner {self._winner()} comes {ordinal(winners[0])}")
        return "; ".join(parts)

    @property
    def _correlation(self) -> str:
        """`0.44 (p = 0.12)`, or the mean over several columns and its range; empty where there is no order."""
        ranked = [order for order in self.orders if order.tau is not None]
        if len(ranked) < 2:
            return "".join(order.correlation for order in ranked)
        taus = [order.tau for order in ranked]
        return minus(f"{fmean(taus):.2f} on average over {len(taus)} columns ({min(taus):.2f} to {max(taus):.2f})")

    def _winner(self) -> str:
        order = next(order for order in self.orders if order.place)
        return order.winner

    @property
    def brief(self) -> str:
        """For an overview: claims that hold of those that were tested, and the mean rank correlation."""
        tested = [verdict for verdict in self.verdicts if verdict.tested]
        soft, parts = sum(verdict.indicative for verdict in tested), []
        if tested:
            held = sum(verdict.word == HOLDS for verdict in tested)
            parts.append(f"{held} of {len(tested)} tested {_claims(len(tested))} {_verb(len(tested), 'hold')}" + (f" ({soft} rest on one seed)" if soft else ""))
        if len(tested) < len(self.verdicts):
            parts.append(f"{len(self.verdicts) - len(tested)} of {len(self.verdicts)} claims without an answer")
        if self._correlation:
            parts.append(f"Kendall's τ of the orders {self._correlation}")
        return "; ".join(parts) + "." if parts else ""

    @property
    def summary(self) -> str:
        """All of it in a line; empty for a table without claims and without an order."""
        text = "; ".join(filter(None, (self.shares, self.ranking)))
        return text[:1].upper() + text[1:] + "." if text else ""

    @property
    def strength(self) -> str:
        """What stands in front of the summary."""
        if not self.tested:
            return "No verdict yet"
        if self.indicative:
            if all(found.seeds < ENOUGH for found in [v for v in self.verdicts if v.tested] + self.orders):
                return "Indicative, one seed"
            return "Verdict, in part indicative" if self.several else "Indicative, some numbers have one seed"
        return f"Verdict, {self.seeds} seeds or more"


def _claims(count: int) -> str:
    return "claim" if count == 1 else "claims"


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def ordinal(place: int) -> str:
    """1 -> `1st`."""
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


# -- claims ------------------------------------------------------------------------------------------------------

def variants(paper: Paper) -> dict[str, tuple[str, str]]:
    """{`table2-full`: (`table2`, `full`)}: tables that measure the same printed numbers once more, in other scenarios."""
    split = {key: key.partition("-")[::2] for key in paper.tables}
    return {key: (base, name) for key, (base, name) in split.items()
            if name and base in paper.tables and paper.tables[base].published == paper.tables[key].published}


def judge(claim: Claim, key: str, paper: Paper, results: dict[Cell, dict], printed: Printed, variant: str = "") -> Verdict:
    """The verdict on one claim of the paper `key`, by the tables themselves or by their variant of that name."""
    if not claim.expected.testable:
        return Verdict(claim, UNTESTED, {"figure": "about a figure", "text": "no number of a table settles it"}[claim.expected.kind])
    numbers = [printed.numbers.get(spot) for spot in claim.spots]
    published = None if None in numbers else claim.difference(dict(zip(claim.spots, numbers)).__getitem__)
    found = {spot: source(spot, key, paper, variant) for spot in claim.spots}
    if None in found.values():
        return Verdict(claim, UNTESTED, "nothing that a run measures", published)
    if _same(claim, found):
        return Verdict(claim, UNTESTED, "both sides are the same run here", published)
    wanted = list(dict.fromkeys(found.values()))
    samples = {at: values_of(at, results) for at in wanted}
    ran = sum(values is not None for values in samples.values())
    if ran < len(wanted):
        return Verdict(claim, WAITS, f"{ran} of {len(wanted)} cells have run", published)
    return _tested(claim, published, found, samples)


def _tested(claim: Claim, published: float | None, found: dict[Spot, Source], samples: dict[Source, dict[int, float]]) -> Verdict:
    arrays = {at: np.array(list(by_seed.values())) for at, by_seed in samples.items()}

    def statistic(*drawn, axis=-1):
        means = dict(zip(arrays, (values.mean(axis) for values in drawn)))
        return claim.difference(lambda spot: means[found[spot]])

    point, seeds = float(statistic(*arrays.values())), min(map(len, arrays.values()))
    if seeds < ENOUGH:
        if claim.expected.kind == "value":
            return Verdict(claim, WAITS, "one seed gives no interval", published, point, seeds=seeds)
        return Verdict(claim, decide(claim.expected, point, point), "", published, point, seeds=seeds)
    together = len({tuple(by_seed) for by_seed in samples.values()}) == 1
    low, high = interval(list(arrays.values()), statistic, together, zlib.crc32(f"{claim.id} {claim.text}".encode()))
    return Verdict(claim, decide(claim.expected, low, high), "", published, point, low, high, seeds)


def decide(expected: Expected, low: float, high: float) -> str:
    """holds where all of the interval is as claimed, fails where none of it is. A number without a sign holds where the interval has it."""
    if expected.kind in ("value", "size", "about") and not expected.sized:
        return HOLDS if within(expected, low, high) else FAILS
    ends = {expected.fits(low), expected.fits(high)}
    if ends == {True}:
        return HOLDS
    around = expected.kind == "abs" and low < 0 < high
    return UNDECIDED if True in ends or around else FAILS


def within(expected: Expected, low: float, high: float) -> bool:
    """Whether the interval holds the number of the claim, as printed."""
    slack = ABOUT if expected.kind == "about" else ROUNDING
    return low - slack <= expected.number <= high + slack


def interval(samples: list[np.ndarray], statistic: Callable, together: bool, seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of a statistic of samples over seeds, each of two seeds or more."""
    from scipy import stats                       # a second of import that an empty report need not pay

    found = stats.bootstrap(samples, statistic, paired=together, n_resamples=RESAMPLES, confidence_level=CONFIDENCE,
                            method="percentile", vectorized=True, rng=np.random.default_rng(seed))
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def source(spot: Spot, key: str, paper: Paper, variant: str = "") -> Source | None:
    """The run and the measure that a spot is; None for what no run measures."""
    if not spot.table:
        method = next(name for name in paper.methods if paper.label(name) == spot.method)
        return Cell(key, spot.scenario, method), spot.measure
    table = paper.tables.get(f"{spot.table}-{variant}", paper.tables[spot.table])
    block, method = table.block(spot.setting, spot.dataset, spot.method), paper.method_of(table, spot.method)
    measure = block and table.measure(block, spot.column)
    return (Cell(key, block.scenario, method), measure) if measure and method else None


def values_of(at: Source, results: dict[Cell, dict]) -> dict[int, float] | None:
    """{seed: number} of a finished run, seeds in order; None where it has not run."""
    cell, measure = at
    values = results[cell]["measures"].get(measure) if cell in results else None
    return dict(sorted(zip(results[cell]["seeds"], values))) if values else None


def _same(claim: Claim, found: dict[Spot, Source]) -> bool:
    """Whether the claim compares a run with itself: two rows of the paper that are one method here."""
    plain = isinstance(claim.left, Select) and isinstance(claim.right, Select) and claim.expected.kind != "rank"
    return plain and found[claim.left.spots[0]] == found[claim.right.spots[0]]


# -- the order of the methods ------------------------------------------------------------------------------------

def orders(name: str, key: str, paper: Paper, results: dict[Cell, dict], printed: Printed) -> list[Order]:
    """Measured against published order in every column of table `name` that sums up a block, from RANKED measured methods on."""
    groups: dict[tuple[str, str, str], list[Spot]] = {}
    for record in printed.records[name]:
        spot = printed.spot(name, record)
        if printed.numbers[spot] is not None and not printed.is_mean(name, spot.method) and source(spot, key, paper):
            groups.setdefault((spot.setting, spot.dataset, spot.column), []).append(spot)
    blocks = {(setting, dataset) for setting, dataset, column in groups if column in AVERAGES}
    summing = {at: spots for at, spots in groups.items() if at[2] in AVERAGES or at[:2] not in blocks}
    found = [_order(_title(at, summing), spots, key, paper, results, printed) for at, spots in summing.items()]
    return [order for order in found if order]


def _order(title: str, spots: list[Spot], key: str, paper: Paper, results, printed: Printed) -> Order | None:
    measured = {spot: values for spot in spots if (values := values_of(source(spot, key, paper), results))}
    if len(measured) < RANKED:
        return None
    from scipy import stats

    lower = lower_is_better(source(spots[0], key, paper)[1])
    means = {spot: fmean(values.values()) for spot, values in measured.items()}
    tau, p = stats.kendalltau([printed.numbers[spot] for spot in means], list(means.values()))
    best = (min if lower else max)(spots, key=lambda spot: printed.numbers[spot])
    place = 1 + sum((value < means[best]) if lower else (value > means[best]) for value in means.values()) if best in means else None
    return Order(title, *((None, None) if np.isnan(tau) else (float(tau), float(p))), len(means), len(spots), method_words(best.method), place,
                 min(map(len, measured.values())))


def _title(at: tuple[str, str, str], groups: Iterable[tuple[str, str, str]]) -> str:
    """What tells a column from the others: data set, the parts of the setting that differ, column."""
    settings = [split_setting(setting) for setting, _, _ in groups]
    own = [setting_words(part) for part in split_setting(at[0]) if not all(part in other for other in settings)]
    columns, datasets = {column for _, _, column in groups}, {dataset for _, dataset, _ in groups}
    column = at[2] if len(columns) > 1 and at[2] not in (at[1], *AVERAGES) else ""
    words = [at[1] if len(datasets) > 1 else "", *own, pretty(column)]
    return ", ".join(filter(None, words)) or at[1] or pretty(at[2])
