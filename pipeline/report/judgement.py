"""Verdicts together: of a table, of a paper, and how far the methods come in the published order."""
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy import stats

from pipeline.cells.results import lower_is_better, summarise
from pipeline.report.claims import Spot
from pipeline.report.evidence import Evidence
from pipeline.report.judging import ENOUGH
from pipeline.report.measures import in_points
from pipeline.report.statistics import ALPHA, holm
from pipeline.report.verdicts import (
    CONFIRMED,
    CONTRADICTED,
    OPEN,
    TESTED,
    UNDECIDED,
    UNTESTED,
    WAITS,
    Verdict,
)
from pipeline.report.words import method_words, minus, p_words, pretty, setting_words, split_setting
from pipeline.schema import Paper

AVERAGES = ("Avg", "AVG")  # the column that sums up a block; without one every column counts
RANKED = 5                                        # with four methods no order differs from chance at 5 %


MEANINGS = (                                      # how the pages explain the words of a verdict
    ("measured",
     "the difference that the claim is about, and in brackets its 95 % interval. Runs with one seed share "
     "initial weights, clients and order, so the methods are compared seed by seed (a randomised block "
     "design). The remaining spread is pooled over the methods that the paper prints side by side and judged "
     "by Student's t; methods that we run in addition to the printed ones do not change a verdict."),
    ("by seed",
     "the claim's own number in each seed. Where a claim compares with several methods, every seed has its "
     "own best rival, so these numbers need not lie around the measured difference, which is the one with "
     "the rival that is best on average."),
    ("set apart",
     "a method whose numbers spread more than the others' (an exact F test) is left out of the pooled spread "
     "and compared by the paired t test. With two or three seeds the test misses some of them."),
    ("several comparisons",
     "a claim that names a best method makes as many comparisons as there are rivals, which are tested "
     "together: by Dunnett's test, whose intervals hold simultaneously, or, where spreads differ, by Holm's "
     "procedure, whose intervals together only say on which side of the bound the differences lie. The "
     "comparison that decides the verdict is named with its own interval."),
    ("holds",
     "the whole interval agrees with the claim: it lies beyond the bound, or within the claimed ranks."),
    ("fails",
     "the whole interval contradicts the claim."),
    ("undecided",
     "part of the interval agrees with the claim and part contradicts it. That is no sign of equality: "
     "“equal” is only said where the 90 % interval lies within the claimed distance (two one-sided tests at "
     "5 %). “Depends on the scale”: for accuracies near 0 or 100 %, or for spreads and losses, the logit or "
     "the logarithm gives another verdict."),
    ("size",
     "a claim that names a size (“by 8.47 points”) is judged twice: its direction, and its size. The size is "
     "confirmed where the 90 % interval lies within half a point of it (or a tenth of it, if that is more); "
     "contradicted where it lies outside the range in which a result from as few runs as the paper's would "
     "fall (95 %); else open."),
    ("one value",
     "“reaches 68.40” holds where the 90 % interval lies within one point of it, and fails where the value "
     "would be contradicted as a size."),
    ("indicative",
     "a run with one seed, or numbers that do not change with the seed: there is no interval, and the "
     "verdict only says in which direction one difference points. A table's verdict is indicative if any "
     "number behind it is."),
    ("more seeds",
     "for an undecided claim: how many seeds decide it if difference and spread stay as measured (half of "
     "all repetitions would need more), how many decide it with a power of 80 %, and what they cost. "
     "Seeds that are added because a claim is undecided test it twice: of equal methods, 8 % instead of 5 % "
     "come out as different where three seeds become five. The notes of a scenario tell of it."),
    ("corrected for all tests",
     "every claim is tested on its own; beside the count stands how many decided claims would remain decided "
     "if all tested claims of the page were corrected as one family (Holm)."),
    ("not enough runs",
     "a number of the claim has not been measured yet; for a claim about one value, there is only one seed."),
    ("not tested",
     "the claim is in words that no number settles, or about numbers that no run measures, or both of its "
     "sides are the same run here, or the difference that decides it is of a run at chance, less than one "
     "and a half times as often right as one answer for all images: it says nothing of the methods."),
    ("mean ranks",
     "where at least three scenarios of a table are measured: the mean rank of every method over them, the "
     "Friedman test in the form of Iman and Davenport, and the distance by which two mean ranks must differ "
     "(Nemenyi). No claim is judged by mean ranks, since they depend on which methods are in the table."),
    ("order of the methods",
     "Kendall's τ-b between the measured and the published numbers of a column (the averages where the table "
     "has them), from five measured methods on: 1 is the same order, 0 no relation, −1 the reverse; p is the "
     "probability of a τ at least this far from 0 if the order were random. The winner is the method with "
     "the best published number. A table that measures another table's numbers again, in another setting, "
     "has its own verdict and does not count in the paper's."),
)


@dataclass(frozen=True)
class Order:
    """How the measured order of the methods in one column agrees with the published one."""
    title: str
    tau: float | None                             # Kendall's tau-b; None where a side has only ties
    p: float | None                               # its two-sided p-value
    methods: int                                  # that are measured
    printed: int
    winner: str                                   # best in print
    place: int | None  # of the winner among the measured ones; None where it has not run
    seeds: int                                    # of the run that has the fewest
    # (method, mean, standard deviation over seeds or None), best first, of equals the winner
    ranking: tuple[tuple[str, float, float | None], ...] = ()
    best: float = 0.0                             # the published number of the winner
    unit: str = " %"                              # behind the numbers

    @property
    def correlation(self) -> str:
        return "" if self.tau is None or self.p is None else f"{minus(f'{self.tau:.2f}')} ({p_words(self.p)})"


@dataclass(frozen=True)
class Judgement:
    """The verdict on a table, or on all of a paper."""
    verdicts: list[Verdict]
    orders: list[Order]
    several: bool = False  # of a paper: tables that may rest on different numbers of seeds

    @property
    def tested(self) -> bool:
        return bool(self.orders) or any(verdict.tested for verdict in self.verdicts)

    @property
    def seeds(self) -> int:
        """Of the run with the fewest that a verdict or an order rests on."""
        return min(
            [v.seeds for v in self.verdicts if v.tested] + [order.seeds for order in self.orders], default=0
        )

    @property
    def indicative(self) -> bool:
        """Whether any number that it rests on has too few seeds, or does not change with the seed."""
        return self.tested and (self.seeds < ENOUGH or any(verdict.indicative for verdict in self.verdicts))

    @property
    def wholly_indicative(self) -> bool:
        """Whether all of it is: the one table, or every verdict and order of a paper."""
        return self.indicative and (self._one_seed or not self.several)

    @property
    def _one_seed(self) -> bool:
        """Whether nothing that was tested has more seeds than too few."""
        return all(found.seeds < ENOUGH for found in [v for v in self.verdicts if v.tested] + self.orders)

    @property
    def shares(self) -> str:
        """How many of the claims hold, and what became of the others."""
        count = Counter((verdict.word, verdict.indicative) for verdict in self.verdicts)
        parts: list[str] = []
        for soft in (False, True):
            held, failed, open_ = (count[word, soft] for word in TESTED)
            total = held + failed + open_
            share = (
                f"{held} of {total} tested {_claims(total)}",
                f"({100 * held / total:.0f} %)" if total else "",
            )
            agreeing = 1 if total == 1 else held
            if total and soft:
                word = "indicative: " if parts or not self.wholly_indicative else ""
                parts.append(f"{word}{share[0]} {_verb(agreeing, 'point')} the claimed way {share[1]}")
            elif total:
                rest = [
                    f"{n} {words}"
                    for n, words in ((failed, _verb(failed, "fail")), (open_, "undecided"))
                    if n
                ]
                parts.append(", ".join([f"{share[0]} {_verb(agreeing, 'hold')} {share[1]}", *rest]))
        parts += [self.sizes] if self.sizes else []
        waiting, untested = count[WAITS, False], count[UNTESTED, False]
        if waiting:
            parts.append(f"{waiting} {_claims(waiting)} {_verb(waiting, 'wait')} for runs")
        if untested:
            parts.append(f"{untested} cannot be tested by a run")
        return "; ".join(parts)

    @property
    def sizes(self) -> str:
        """`of 5 claimed sizes 1 is confirmed, 2 contradicted, 2 open`."""
        count = Counter(verdict.size for verdict in self.verdicts if verdict.size)
        words = ", ".join(f"{count[word]} {word}" for word in (CONFIRMED, CONTRADICTED, OPEN) if count[word])
        sizes = "size" if count.total() == 1 else "sizes"
        return f"of {count.total()} claimed {sizes}: {words}" if words else ""

    @property
    def firm(self) -> str:
        """How many decided claims remain so when all tested ones are corrected as one family; empty where
        fewer than two were tested."""
        tested = [(verdict.word, verdict.p) for verdict in self.verdicts
                  if verdict.tested and verdict.p is not None]
        adjusted = holm([p for _, p in tested])
        decided = [p < ALPHA for (word, _), p in zip(tested, adjusted) if word != UNDECIDED]
        if len(tested) < 2 or not decided:
            return ""
        return (f"{sum(decided)} of {len(decided)} decided {_claims(len(decided))} would remain so, "
                f"corrected for all {len(tested)} tests (Holm)")

    @property
    def ranking(self) -> str:
        """Rank correlation over the columns, and how often the published winner comes first."""
        winners = [order.place for order in self.orders if order.place]
        parts = (
            [f"order of the methods against the published one: Kendall's τ {self._correlation}"]
            if self._correlation
            else []
        )
        if winners:
            first = sum(place == 1 for place in winners)
            parts.append(f"the published winner comes first in {first} of {len(winners)}" if len(winners) > 1
                         else f"the published winner {self._winner()} comes {ordinal(winners[0])}")
        return "; ".join(parts)

    @property
    def _correlation(self) -> str:
        """`0.44 (p = 0.12)`, or the mean over several columns and its range; empty where there is no
        order."""
        taus = [order.tau for order in self.orders if order.tau is not None]
        if len(taus) < 2:
            return "".join(order.correlation for order in self.orders)
        return minus(
            f"{fmean(taus):.2f} on average over {len(taus)} columns ({min(taus):.2f} to {max(taus):.2f})"
        )

    def _winner(self) -> str:
        order = next(order for order in self.orders if order.place)
        return order.winner

    @property
    def summary(self) -> str:
        """All of it in a line; empty for a table without claims and without an order."""
        text = "; ".join(filter(None, (self.shares, self.firm if self.several else "", self.ranking)))
        return text[:1].upper() + text[1:] + "." + self.partition if text else ""

    @property
    def partition(self) -> str:
        """A sentence on the limits of a single partition."""
        counts = {
            verdict.partitions for verdict in self.verdicts if verdict.tested and not verdict.indicative
        }
        one = " All seeds of a scenario share one partition: the words are about that one."
        return one if counts == {1} else ""

    @property
    def strength(self) -> str:
        """The strength of the evidence, which precedes the summary."""
        if not self.tested:
            return "No verdict yet"
        if not self.indicative:
            return f"Verdict, {self.seeds} seeds or more"
        if self._one_seed:
            return "Indicative, one seed"
        if not self.wholly_indicative:
            return "Verdict, in part indicative"
        return ("Indicative, some numbers have one seed" if self.seeds < ENOUGH else
                "Indicative, some numbers do not change with the seed")


def _claims(count: int) -> str:
    return "claim" if count == 1 else "claims"


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def ordinal(place: int) -> str:
    """1 -> `1st`."""
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


def variants(paper: Paper) -> dict[str, tuple[str, str]]:
    """{`table2-full`: (`table2`, `full`)}: tables that measure the same printed numbers again, in other
    scenarios."""
    split = {key: key.partition("-")[::2] for key in paper.tables}
    return {key: (base, name) for key, (base, name) in split.items()
            if name and base in paper.tables and paper.tables[base].published == paper.tables[key].published}


# -- the order of the methods --------------------------------------------------------------------------------

def orders(name: str, evidence: Evidence) -> list[Order]:
    """Measured against published order in every column of table `name` that sums up a block, from RANKED
    methods on."""
    columns = summing(name, evidence)
    found = [_order(_title(at, columns), spots, evidence) for at, spots in columns.items()]
    return [order for order in found if order]


def summing(name: str, evidence: Evidence) -> dict[tuple[str, str, str], list[Spot]]:
    """{(setting, data set, column): printed numbers that runs measure} of the columns that sum up a block."""
    groups: dict[tuple[str, str, str], list[Spot]] = {}
    printed = evidence.printed
    for spot, number in printed.numbers.items():
        counts = spot.table == name and number is not None and not printed.is_mean(name, spot.method)
        if counts and evidence.source(spot):
            groups.setdefault((spot.setting, spot.dataset, spot.column), []).append(spot)
    blocks = {(setting, dataset) for setting, dataset, column in groups if column in AVERAGES}
    return {at: spots for at, spots in groups.items() if at[2] in AVERAGES or at[:2] not in blocks}


def _order(title: str, spots: list[Spot], evidence: Evidence) -> Order | None:
    sources = {spot: source for spot in spots if (source := evidence.source(spot))}
    measured = {spot: values for spot, source in sources.items() if (values := evidence.values(source))}
    if len(measured) < RANKED:
        return None
    lower = lower_is_better(sources[spots[0]][1])
    numbers = evidence.printed.numbers
    printed = {spot: number for spot in spots if (number := numbers[spot]) is not None}
    means = {spot: fmean(values.values()) for spot, values in measured.items()}
    tau, p = stats.kendalltau([printed[spot] for spot in means], list(means.values()))
    best, place = (min if lower else max)(spots, key=printed.__getitem__), None
    if best in means:
        place = 1 + sum((value < means[best]) if lower else (value > means[best]) for value in means.values())
    tau, p = (None, None) if np.isnan(tau) else (float(tau), float(p))
    ranking = [(method_words(spot.method), mean, summarise([*measured[spot].values()]).std)
               for spot, mean in sorted(means.items(), key=lambda item: (item[1] if lower else -item[1],
                                                                         item[0] != best))]
    return Order(title, tau, p, len(means), len(spots), method_words(best.method), place,
                 min(map(len, measured.values())), tuple(ranking), printed[best],
                 " %" if in_points(sources[spots[0]][1]) else "")


def _title(at: tuple[str, str, str], groups: Iterable[tuple[str, str, str]]) -> str:
    """What tells a column from the others: data set, the parts of the setting that differ, column."""
    settings = [split_setting(setting) for setting, _, _ in groups]
    own = [
        setting_words(part) for part in split_setting(at[0]) if not all(part in other for other in settings)
    ]
    columns = {column for _, dataset, column in groups if dataset == at[1]}
    datasets = {dataset for _, dataset, _ in groups}
    column = at[2] if len(columns) > 1 and at[2] not in (at[1], *AVERAGES) else ""
    words = [at[1] if len(datasets) > 1 else "", *own, pretty(column)]
    return ", ".join(filter(None, words)) or at[1] or pretty(at[2])
