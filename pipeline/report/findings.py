"""What was found, in sentences that a page begins with: who comes first here and in print, which claims hold,
and what other settings change. Every word is computed."""
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from pipeline.cells.results import Summary, lower_is_better
from pipeline.report.judgement import Judgement, Order
from pipeline.report.measures import in_points
from pipeline.report.own_table import OwnTable
from pipeline.report.panels import Value
from pipeline.report.tables import TableView
from pipeline.report.verdicts import CONTRADICTED, FAILS, HOLDS, UNDECIDED, UNTESTED, WAITS, Verdict
from pipeline.report.words import (
    as_number,
    counted,
    lead_words,
    leader,
    listed,
    measure_words,
    minus,
    spelt,
    waiting_words,
)
from pipeline.schema import Paper

PLACES = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
NAMED = 4                                         # columns whose winners are named one by one


def findings(paper: Paper, tables: Sequence[TableView], again: dict[str, tuple[str, str]],
             judgement: Judgement, own: Sequence[OwnTable], tuned: dict[str, dict[str, Summary]],
             left: tuple[int, float | None]) -> list[str]:
    """Who comes first, what became of the claims, and what other settings and equal tuning change, a
    paragraph each.

    again: tables that measure another one's numbers in other settings; tuned: by scenario the accuracy of
    each method after equal tuning, best first; left: cells of the paper's tables that wait, and their hours.
    """
    orders = [order for table in tables if table.key not in again for order in table.judgement.orders]
    measured = sum(table.measured for table in tables if table.key not in again)
    if orders:
        lead = _first(orders)
    elif measured:
        lead = f"{_capital(counted(measured, 'number'))} of its tables measured, too few for an order."
    else:
        time = " of one process" if left[1] is not None else ""
        what = f": {waiting_words(*left)}{time}" if left[0] else ""
        lead = f"Nothing is measured at the paper's own settings yet{what}."
    others = [*_elsewhere(paper, tables, again), *(_beside(paper, table) for table in own)]
    equal = [_leader(f"{title}, each method tuned with the same budget (Across papers)", paper, numbers)
             for title, numbers in tuned.items()]
    paragraphs = lead, claims(judgement.verdicts), *(" ".join(filter(None, some)) for some in (others, equal))
    return [text for text in paragraphs if text]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def nth(place: int) -> str:
    return PLACES[place - 1] if place <= len(PLACES) else f"number {place}"


# -- who comes first -----------------------------------------------------------------------------------------

def _first(orders: list[Order]) -> str:
    """The first method here and in print, of one column in full, of several in a list."""
    if len(orders) == 1:
        return _winner(orders[0])
    same = sum(order.place == 1 for order in orders)
    named = "; ".join(_named(order) for order in orders[:NAMED])
    more = f" and {len(orders) - NAMED} more" if len(orders) > NAMED else ""
    if not same:
        no = "neither column" if len(orders) == 2 else f"none of the {len(orders)} columns"
        return f"In {no} does the method that is best in print come first here ({named}{more})."
    many = f"of the {counted(len(orders), 'column')}"
    return (f"In {spelt(same)} {many} the method that is best in print comes first here, too "
            f"({named}{more}).")


def _named(order: Order) -> str:
    """`MNIST: FPL, FedCCL third` for a column whose winner in print is FedCCL."""
    first = f"{order.title}: {order.ranking[0][0]}"
    if order.place == 1:
        return first
    place = "not run" if order.place is None else nth(order.place)
    return f"{first}, {order.winner} {place}"


def _winner(order: Order) -> str:
    (name, mean, std), *rest = order.ranking
    lead = f"{mean:.2f}{order.unit}, {lead_words(mean, std, *rest[0])}"
    if order.place == 1:
        return f"On {order.title}, {name} comes first here, as in print: {lead}."
    means = {method: number for method, number, _ in order.ranking}
    place = "has not run"
    if order.place is not None:
        place = f"comes {nth(order.place)} with {means[order.winner]:.2f}{order.unit}"
    return (f"On {order.title}, {name} comes first here with {lead}; {order.winner}, first "
            f"in print with {order.best:.2f}{order.unit}, {place}.")


# -- claims --------------------------------------------------------------------------------------------------

def claims(verdicts: Sequence[Verdict]) -> str:
    """`Of ten claims tested with several seeds three hold, none fails and seven are undecided; 16 claims wait
    for runs.`; empty where the paper has none."""
    firm = [verdict for verdict in verdicts if verdict.tested and not verdict.indicative]
    soft = [verdict for verdict in verdicts if verdict.indicative]
    parts = []
    if len(firm) == 1:
        word = {HOLDS: "holds", FAILS: "fails", UNDECIDED: "is undecided"}[firm[0].word]
        parts.append(f"the one claim tested with several seeds {word}: {firm[0].claim.text.rstrip('.')}")
    elif firm:
        parts.append(f"of {counted(len(firm), 'claim')} tested with several seeds {_words(firm)}")
    if soft:
        agree = sum(verdict.word == HOLDS for verdict in soft)
        parts.append(f"{_some(agree)} of {spelt(len(soft))} tested by a single number "
                     f"{_verb(agree or 1, 'point')} the claimed way")
    count = Counter(verdict.word for verdict in verdicts)
    if waiting := count[WAITS]:
        parts.append(f"{counted(waiting, 'claim')} {_verb(waiting, 'wait')} for runs")
    if untested := count[UNTESTED]:
        parts.append(f"{spelt(untested)} cannot be tested by a run")
    return _capital("; ".join(parts)) + "." if parts else ""


def _words(verdicts: Sequence[Verdict]) -> str:
    held, failed, open_ = ([verdict for verdict in verdicts if verdict.word == word]
                           for word in (HOLDS, FAILS, UNDECIDED))
    refuted = sum(verdict.size == CONTRADICTED for verdict in held)
    size = f" ({spelt(refuted)} of them in direction, not in size)" if refuted else ""
    parts = [f"{_some(len(held))} {_verb(len(held) or 1, 'hold')}{size}",
             f"{spelt(len(failed))} {_verb(len(failed), 'fail')}" if failed else "none fails"]
    if open_:
        refuted = sum(verdict.size == CONTRADICTED for verdict in open_)
        size = f" ({counted(refuted, 'printed size')} contradicted)" if refuted else ""
        parts.append(f"{spelt(len(open_))} {'is' if len(open_) == 1 else 'are'} undecided{size}")
    return listed(parts)


def _some(count: int) -> str:
    """`none`, `three`: how many of something."""
    return spelt(count) if count else "none"


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


# -- other settings ------------------------------------------------------------------------------------------

def _elsewhere(paper: Paper, tables: Sequence[TableView], again: dict[str, tuple[str, str]]) -> list[str]:
    """A sentence for each table that measures another one's numbers again: who comes first, and whether the
    numbers lie nearer to the print."""
    whole, found = {table.key: table for table in tables}, []
    for table in (table for table in tables if table.key in again and table.judgement.orders):
        orders = table.judgement.orders
        first = "; ".join(_ahead(paper, order, len(orders) > 1) for order in orders[:NAMED])
        near, far = distance(table, table), distance(whole[again[table.key][0]], table)
        points = f"{near:.1f} points from the print on average" if near is not None else ""
        if near is not None and far is not None:
            points += f" instead of {far:.1f}"
        seeds = " (one seed)" if min(order.seeds for order in orders) == 1 else ""
        found.append(f"{table.title}{seeds}: {first}{'; ' if points else ''}{points}.")
    return found


def _ahead(paper: Paper, order: Order, named: bool) -> str:
    """`FedGA comes first, FedLSA third of nine`, `on MNIST ...` where a table has several columns."""
    names = [name for name, _, _ in order.ranking]
    return f"{f'on {order.title} ' * named}{names[0]} comes first{_place(paper.name, names)}"


def _beside(paper: Paper, table: OwnTable) -> str:
    """Who comes first in a setting of our own, if the paper's method is not the only one, by its headline
    and by its other means."""
    some = f"; {table.done} of {table.planned} measured so far" if table.done < table.planned else ""
    mixed = "; some scored before local training, some after it" if table.mixed else ""
    others = [f"; by {measure_words(measure)} {first}" for measure, ranking in table.others.items()
              if (first := _first_of(paper, _best(ranking)))]
    return _leader(f"{table.title} (not comparable with the print{mixed}{some})", paper,
                   _best(table.ranking), table.headline, "".join(others))


def _best(ranking: Sequence[tuple[str, Summary]]) -> dict[str, Summary]:
    """Of a method's settings the best."""
    best: dict[str, Summary] = {}
    for name, number in ranking:
        best.setdefault(name.partition(" (")[0], number)
    return best


def _leader(what: str, paper: Paper, numbers: dict[str, Summary], measure: str = "average",
            more: str = "") -> str:
    """Who comes first of two or more accuracies, best first, and the paper's method behind it."""
    first = _first_of(paper, numbers, measure)
    return f"{what}: {first}{more}." if first else ""


def _first_of(paper: Paper, numbers: dict[str, Summary], measure: str = "average") -> str:
    if len(numbers) < 2:
        return ""
    name, lead = leader(numbers, measure)
    return f"{name} comes first with {lead}{_place(paper.name, list(numbers))}"


def _place(name: str, names: Sequence[str]) -> str:
    """`, FedLSA second of nine`; empty where it is first or not there."""
    return f", {name} {nth(names.index(name) + 1)} of {spelt(len(names))}" if name in names[1:] else ""


def distance(table: TableView, among: TableView) -> float | None:
    """Mean distance in points of the measured accuracies of a table from the printed ones, of those that the
    other table has, too, from as many seeds."""
    shared = {(position, _seeds(value)) for position, value in accuracies(among)}
    apart = [abs(as_number(value.apart)) for position, value in accuracies(table)
             if (position, _seeds(value)) in shared]
    return fmean(apart) if apart else None


def _seeds(value: Value) -> int:
    return value.number.seeds if value.number else 0


def accuracies(table: TableView) -> list[tuple[tuple[str, str], Value]]:
    """The measured values of a table that are percentages with a printed number beside them, each with its
    row and that number."""
    return [((row.name, value.published), value) for panel in table.panels for row in panel.rows
            for value in row.values
            if value.apart and in_points(value.measure) and not lower_is_better(value.measure)]


def overall(papers: Sequence[tuple[int, int, int]], verdicts: Sequence[Verdict]) -> str:
    """The first sentence of the overview. papers: cells of each that are measured, that are planned, and that
    were measured otherwise than is now asked."""
    done, planned, older = map(sum, zip(*papers)) if papers else (0, 0, 0)
    old = f", {spelt(older)} of them with older code, parameters or draws, or fewer seeds" if older else ""
    some = sum(one[0] > 0 for one in papers)
    whose = f"for {_some(some)} of the {spelt(len(papers))} papers"
    return minus(f"{done} of {planned} cells of the papers' tables, and of further settings for them, are "
                 f"measured so far, {whose}{old}. "
                 f"{claims(verdicts)}")
