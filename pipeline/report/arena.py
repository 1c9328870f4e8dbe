"""The arena of all algorithms: how soon each comes to a common accuracy, what equal tuning changes, and the
findings in a sentence."""
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from pipeline.report.drawings import Drawing
from pipeline.report.panels import Panel, Row, Value, mark, merge_heads
from pipeline.report.ranks import Ranks
from pipeline.report.standings import standing
from pipeline.report.study import Study
from pipeline.report.tuning import Tuning, best_first
from pipeline.report.words import counted, leader, listed, minus, p_words
from pipeline.schema import MINIATURE, MINIATURES, Cell

REFERENCES = ("fedavg", "local")                      # whose accuracy is the target: the first that has run
ROUNDED = 0.00005                                     # of an accuracy in history.csv
TUNED = ("tuned, %", "change")                        # of every miniature, in one table
DETAILS = ("own values, %", *TUNED, "std. over configurations", "chosen")       # of one miniature
At = tuple[str, str]                                  # (algorithm, key of the paper)
Judged = tuple[Ranks, list[str]] | None               # mean ranks, names of the miniatures
Judge = Callable[[Mapping[At, float]], Judged]


@dataclass(frozen=True)
class Speed:
    """Rounds and kilobytes to a target, the accuracy that a plain reference reports in each miniature."""
    panel: Panel
    targets: list[str]                                # in words, a miniature each


@dataclass(frozen=True)
class Column:
    """A miniature, or another scenario of a paper."""
    paper: str                                        # as it spells itself
    scenario: str = ""                                # its title; empty of the miniature

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.paper, self.scenario)))

    @property
    def head(self) -> str:
        """Over the column: of the scenario's title only what comes first."""
        return ", ".join(filter(None, (self.paper, self.scenario.partition(", ")[0])))

    @property
    def place(self) -> str:
        """In a sentence."""
        return f"{self.paper}'s {self.scenario.partition(', ')[0] or 'miniature'}"


@dataclass(frozen=True)
class Tuned:
    """Accuracy with each row's own values and after equal tuning, of the same seeds."""
    panel: Panel                                      # TUNED of all miniatures
    details: list[tuple[str, Panel]]                  # (miniature, DETAILS of what was tuned in it)
    findings: list[str]                               # sentences
    drawing: Drawing | None                           # the mean ranks after tuning, where there are enough
    seeds: str                                        # `5 seeds, in FedLSA's Office-Caltech 3`
    tried: str                                        # how many configurations of each method
    by: str                                           # with how many seeds each


def speed(minis: dict[str, Study], cells: dict[At, Cell], found: dict[At, dict],
          labels: dict[str, str]) -> Speed | None:
    """None where no miniature has a reference and another algorithm."""
    targets = {}
    for key in minis:
        done = [name for name in REFERENCES if (name, key) in found]
        if done and sum(paper == key for _, paper in found) > 1:
            targets[key] = done[0], found[done[0], key]
    rows = []
    for label, algorithm in sorted(labels.items(), key=lambda item: item[0].lower()):
        if any((algorithm, key) in found for key in targets):
            values = [_to_target(minis[key], cells.get((algorithm, key)), found.get((algorithm, key)), target)
                      for key, (_, target) in targets.items()]
            rows.append(Row(label, [label], [value for pair in values for value in pair]))
    if not rows:
        return None
    names = {algorithm: label for label, algorithm in labels.items()}
    heads = merge_heads([[minis[key].name, fact] for key in targets for fact in ("rounds", "kB")])
    return Speed(Panel("", ["algorithm"], heads, rows),
                 [f"{minis[key].name}: {fmean(_reported(result).values()):.2f} %, of {names[reference]}"
                  for key, (reference, result) in targets.items()])


def _reported(result: dict) -> dict[int, float]:
    """Seed -> the accuracy that is reported."""
    return dict(zip(result["seeds"], result["measures"][result["headline"]], strict=True))


def _to_target(study: Study, cell: Cell | None, result: dict | None, reference: dict) -> list[Value]:
    """The first round whose accuracy is at least the reference's of the same seed, median over seeds, and
    what a client has sent and received by then."""
    if cell is None or result is None:
        return [Value("outside"), Value("outside")]
    table, targets = study.history(cell), _reported(reference)
    aim = table["seed"].map(targets)
    reached = table[(table["round"] > 0) & (table[result["headline"]] >= aim - ROUNDED)]
    first, seeds = reached.groupby("seed")["round"].min(), targets.keys() & {*result["seeds"]}
    if len(first) < len(seeds) or not seeds:
        some = f"{len(first)} of {len(seeds)} seeds" if len(first) else "not reached"
        return [Value("text", text=some, order=result["rounds"] + 1.0), Value("outside")]
    rounds = median(first.tolist())
    sent = rounds * result["traffic"]["bytes"] / 1000
    return [Value("text", text=f"{rounds:g}", order=rounds), Value("text", text=f"{sent:,.0f}", order=sent)]


def tuned(minis: dict[str, Study], found: list[Tuning], labels: dict[str, str], judge: Judge) -> Tuned | None:
    """None where nothing was tuned and then trained. A column is a miniature, by its paper's key, or another
    scenario."""
    done = {(minis[one.cell.paper].paper.algorithm(one.cell.method), _column(one.cell)): one for one in found
            if one.cell.paper in minis and one.tuned}
    ordered = sorted(done.values(), key=lambda one: (_mini(one.cell), [*minis].index(one.cell.paper)))
    columns = {_column(one.cell): _named(one.cell, minis[one.cell.paper]) for one in ordered}
    names = {algorithm: label for label, algorithm in sorted(labels.items(), key=lambda item: item[0].lower())
             if any(at[0] == algorithm for at in done)}
    if not names:
        return None
    before = {at: one.published.mean for at, one in done.items() if one.published}
    after = {at: one.tuned.mean for at, one in done.items() if one.tuned}
    ranked = [judge({at: number for at, number in numbers.items() if at[1] in minis})
              for numbers in (before, after)]
    path, last = "figures/across-tuned-ranks.svg", ranked[1]
    return Tuned(_together(done, names, columns),
                 [(column.title, _details(done, names, key)) for key, column in columns.items()],
                 _findings(done, before, after, names, columns, ranked) + _more_seeds(done, minis),
                 standing(last[0], "miniatures", path).drawing if last else None,
                 _seeds(done, columns),
                 _either({len(one.configurations) for one in done.values()}),
                 _by(done, minis))


def _by(done: dict[At, Tuning], minis: dict[str, Study]) -> str:
    """`1 seed`: how many have chosen; empty where paper.yaml tunes none of it any more."""
    asked = (minis[one.cell.paper].paper.tuning.get(one.cell.scenario) for one in done.values())
    counts = {len(one.seeds) for one in asked if one}
    return f"{_either(counts)} seed{'s' * (counts != {1})}" if counts else ""


def _either(counts: set[int]) -> str:
    return " or ".join(map(str, sorted(counts)))


def _seeds(done: dict[At, Tuning], columns: dict[str, Column]) -> str:
    """How many seeds the cells have: most columns', then those of the others."""
    each = {key: _either({one.tuned.seeds for at, one in done.items() if at[1] == key and one.tuned})
            for key in columns}
    usual = Counter(each.values()).most_common(1)[0][0]
    others = [f", in {columns[key].place} {seeds}" for key, seeds in each.items() if seeds != usual]
    return f"{usual} seeds{''.join(others)}"


def _more_seeds(done: dict[At, Tuning], minis: dict[str, Study]) -> list[str]:
    """Why the numbers of a miniature are not those of the page's other sections."""
    found = [(key, one.tuned.seeds) for (_, key), one in done.items() if key in minis and one.tuned]
    here = {seeds for _, seeds in found}
    above = {len(minis[key].paper.scenarios[MINIATURE].seeds) for key, _ in found}
    text = (f"A miniature has {_either(here)} seeds here and {_either(above)} in the page's other sections, "
            "so its numbers differ.")
    return [] if here == above else [text]


def _mini(cell: Cell) -> bool:
    return cell.scenario in MINIATURES


def _named(cell: Cell, study: Study) -> Column:
    return Column(study.name) if _mini(cell) else Column(study.name, study.title(cell.scenario))


def _column(cell: Cell) -> str:
    """The column's key."""
    return cell.paper if _mini(cell) else f"{cell.paper}/{cell.scenario}"


def _together(done: dict[At, Tuning], names: dict[str, str], columns: dict[str, Column]) -> Panel:
    """TUNED of every column, with its best marked. names: algorithm -> label."""
    first = DETAILS.index(TUNED[0])
    rows = [Row(label, [label], [value for column in columns
                                 for value in _values(done.get((algorithm, column)))[first:][:len(TUNED)]])
            for algorithm, label in names.items()]
    return _marked(rows, [[column.head, fact] for column in columns.values() for fact in TUNED])


def _details(done: dict[At, Tuning], names: dict[str, str], column: str) -> Panel:
    """DETAILS of what was tuned in one column."""
    rows = [Row(label, [label], _values(done[algorithm, column]))
            for algorithm, label in names.items() if (algorithm, column) in done]
    return _marked(rows, [[fact] for fact in DETAILS])


def _marked(rows: list[Row], heads: list[list[str]]) -> Panel:
    """With best and second best of every accuracy."""
    for i, texts in enumerate(heads):
        if texts[-1].endswith("%"):
            mark([row.values[i] for row in rows], lower=False)
    return Panel("", ["algorithm"], merge_heads(heads), rows)


def _values(one: Tuning | None) -> list[Value]:
    """DETAILS."""
    if one is None or one.tuned is None:
        return [Value("outside") for _ in DETAILS]
    before, change = Value("outside"), Value("outside")
    if one.configurations[0] is None:                 # which the clients' validation images have shown
        before = Value("excluded", text="diverged")
    if one.published:
        gain = one.tuned.mean - one.published.mean
        before = Value("measured", one.published)
        change = Value("text", text=minus(f"{gain:+.2f}"), order=gain)
    spread = f"{one.spread:.2f}" if one.spread is not None else ""
    return [before, Value("measured", one.tuned), change,
            Value("text", text=spread, order=one.spread), Value("text", text=_words(one))]


def _words(one: Tuning) -> str:
    values = ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                       for name, value in one.values.items())
    lost = f"; {one.diverged} of {len(one.configurations)} configurations diverged" if one.diverged else ""
    return (f"kept: {values}" if one.kept else values) + lost


def _findings(done: dict[At, Tuning], before: dict[At, float], after: dict[At, float],
              names: dict[str, str], columns: dict[str, Column], ranked: list[Judged]) -> list[str]:
    """What equal tuning changes, in words. ranked: before and after."""
    said = _changes(done, before, after, names, columns)
    for column in columns:
        own = [{names[at[0]]: found for at, one in done.items() if at[1] == column and (found := of(one))}
               for of in (lambda one: one.published, lambda one: one.tuned)]
        if min(map(len, own)) > 1:
            (first, lead), (then, last) = (leader(best_first(numbers)) for numbers in own)
            then = "after it" if first == then else f"after it {then}"
            said.append(f"In {columns[column].place} {first} is first before tuning with {lead}, "
                        f"and {then} with {last}.")
    if real := [column.place for column in columns.values() if column.scenario]:
        said.append(f"{listed(real)} {'has' if len(real) == 1 else 'have'} images of the paper, not of a "
                    "miniature, and no part in the mean ranks.")
    for words, judged in zip(("Before", "After"), ranked):
        if judged:
            ranks, blocks = judged
            best = [f"{name} {mean:.2f}" for name, mean in [*ranks.means.items()][:3]]
            said.append(
                f"{words} tuning, the best mean ranks of {len(ranks.means)} algorithms in the miniatures of "
                f"{listed(blocks)} are {listed(best)} (Friedman test, {p_words(ranks.p)}); two algorithms "
                f"differ where theirs lie {ranks.distance:.2f} or more apart (Nemenyi, 5 %), as those of "
                f"{_apart(ranks)}."
            )
    if older := [f"{names[at[0]]} in {columns[at[1]].place}" for at, one in done.items() if one.older]:
        said.append(f"By other code or parameters than today's: {listed(older)}.")
    return said


def _apart(ranks: Ranks) -> str:
    """Which algorithms differ by their mean ranks."""
    found, pairs = ranks.apart, math.comb(len(ranks.means), 2)
    if len(found) == 1:
        return f"{listed(found[0])} alone"
    return f"{len(found) or 'none'} of {pairs} pairs"


def _changes(done: dict[At, Tuning], before: dict[At, float], after: dict[At, float],
             names: dict[str, str], columns: dict[str, Column]) -> list[str]:
    """How far tuning moves the accuracy; nothing where no row's own values were trained."""
    if not before:
        return []
    changes = {at: after[at] - number for at, number in before.items()}
    most = max(changes, key=lambda at: changes[at])
    kept = sum(done[at].kept for at in changes)
    below = sum(change < 0 for change in changes.values())
    return [
        f"Tuning changes the accuracy by {minus(f'{fmean(changes.values()):+.2f}')} points on average over "
        f"{counted(len(changes), 'cell')}, the most for {names[most[0]]} in {columns[most[1]].place} "
        f"({minus(f'{changes[most]:+.2f}')}); {below} of them {'ends' if below == 1 else 'end'} below what "
        f"their own values give, and {kept} {'keeps' if kept == 1 else 'keep'} these values."
    ]
