"""The parts of a page's table: positions, rows and panels, and the marks on its measured numbers."""
from dataclasses import dataclass, field
from itertools import groupby

from pipeline.cells.results import Summary
from pipeline.report2.words import as_number, minus
from pipeline.schema import Cell

RANKS = ("*", "†", "‡")                       # best, second, third of a column
FULL = 15.0  # points between measured and published at which the colour is full


@dataclass(frozen=True)
class Sign:
    """A sign after a measured number, as in the paper: a rank mark, an arrow, a plus or minus."""
    text: str
    kind: str                         # rank, better, worse


@dataclass
class Value:
    """One position of a table.

    state: `measured`; `missing`, to be measured; `outside`, nothing can be measured here; `text`, a fact
    about the run instead of a number; `quoted`, the paper's own words where there is no number to compare
    with; `excluded`, a cell that cannot run or was not asked for, with the reason in two words.
    """
    state: str
    number: Summary | None = None
    published: str = ""
    printed: float | None = None      # the published number, where it is one and not garbled
    mark: str = ""                    # best, second
    signs: list[Sign] = field(default_factory=list)
    signed: bool = False              # a difference, shown with its sign
    text: str = ""
    cell: Cell | None = None          # of a measured number: the run that it comes from
    target: str = ""                  # of a missing one: what `fedrepro run` takes to measure it
    problem: str = ""                 # of a missing one: why the result that is there cannot be used
    order: float | None = None        # of a text: the number that it sorts by
    measure: str = ""                 # its name in result.json, of a missing number too

    @property
    def mean(self) -> str:
        return minus(format(self.number.mean, "+.2f" if self.signed else ".2f")) if self.number else ""

    @property
    def shown(self) -> float:
        """The mean as shown, as a number."""
        return as_number(self.mean)

    @property
    def spread(self) -> str:
        return f"{self.number.std:.2f}" if self.number and self.number.std is not None else ""

    @property
    def apart(self) -> str:
        """Measured minus published, of the numbers as shown; empty for a difference, which says it
        already."""
        if self.state != "measured" or self.number is None or self.printed is None or self.signed:
            return ""
        return minus(f"{float(f'{self.number.mean:.2f}') - self.printed:+.2f}")

    @property
    def tint(self) -> tuple[str, float]:
        """How the difference to the print is coloured: above or below, and how fully, 0 to 1."""
        apart = as_number(self.apart or "0")
        return ("up" if apart > 0 else "down" if apart < 0 else ""), round(min(abs(apart) / FULL, 1.0), 2)

    @property
    def page(self) -> str:
        """Where the run is described, from reports/."""
        return f"runs/{self.cell.paper}/{self.cell.scenario}.html#{self.cell.method}" if self.cell else ""

    @property
    def file(self) -> str:
        """result.json of the run, from the repository's root."""
        return result_path(self.cell) if self.cell else ""

    @property
    def hint(self) -> str:
        """Why there is no number, and what would give one."""
        if self.problem:
            return f"not shown: {self.problem}"
        return f"not run: fedrepro run {self.target}" if self.target else "not run"


@dataclass(frozen=True)
class Head:
    """A header cell over `span` columns."""
    text: str
    span: int = 1


@dataclass(frozen=True)
class Row:
    name: str                         # the row in words
    stub: list[str]  # what the paper prints in front of the numbers, one text per stub column
    values: list[Value]
    mean: bool = False                # the mean over the other rows
    note: str = ""                    # letter of its footnote

    @property
    def measured(self) -> bool:
        return any(value.state == "measured" for value in self.values)

    @property
    def comparable(self) -> bool:
        """Whether measured and published numbers can stand in it side by side."""
        return any(value.published and value.state in ("measured", "missing") for value in self.values)

    @property
    def published_only(self) -> bool:
        """Whether nothing in it can be measured, although the paper prints something."""
        return all(value.state == "outside" for value in self.values) and any(
            value.published for value in self.values
        )


@dataclass
class Panel:
    """A block of rows under one header; a table printed in two halves has two."""
    title: str
    stub: list[str]                   # headings of the stub columns
    heads: list[list[Head]]           # header rows, top first
    rows: list[Row]

    @property
    def width(self) -> int:
        return sum(head.span for head in self.heads[-1])

    @property
    def measured(self) -> bool:
        return any(row.measured for row in self.rows)

    @property
    def waits(self) -> list[bool]:
        """Of every column whether it has no number of ours although others of the panel have."""
        columns = zip(*(row.values for row in self.rows))
        return [self.measured and not any(value.state in ("measured", "text") for value in column)
                for column in columns]

    @property
    def breaks(self) -> list[int]:
        """Columns at which a group of the header's first row begins, except the first."""
        edges, at = [], 0
        for head in self.heads[0][:-1] if len(self.heads) > 1 else []:
            at += head.span
            edges.append(at)
        return edges

    @property
    def columns(self) -> list[str]:
        """Every column's headings in one line, for a format without merged header cells."""
        spread = [[head.text for head in row for _ in range(head.span)] for row in self.heads]
        return [" · ".join(dict.fromkeys(texts)) for texts in zip(*spread)]


def result_path(cell: Cell) -> str:
    """papers/<paper>/runs/<scenario>/<method>/result.json, as a link wants it."""
    return f"papers/{cell.paper}/runs/{cell.scenario}/{cell.method}/result.json"


def merge_heads(levels: list[list[str]]) -> list[list[Head]]:
    """Header rows from each column's texts: neighbours that agree down to a level share one cell there."""
    if not levels:
        return [[]]
    rows = []
    for depth in range(len(levels[0])):
        if depth == len(levels[0]) - 1:
            rows.append([Head(texts[depth]) for texts in levels])
        else:
            runs = [list(run) for _, run in groupby(levels, key=lambda texts: texts[:depth + 1])]
            rows.append([Head(run[0][depth], len(run)) for run in runs])
    return rows


# -- the marks among measured numbers ------------------------------------------------------------------------

def difference(value: Value, baseline: Value) -> Value:
    """What a delta column shows; measured only where both numbers are."""
    states = {value.state, baseline.state}
    if states == {"measured"} and value.number and baseline.number:
        number = Summary(value.number.mean - baseline.number.mean, None, value.number.seeds)
        return Value("measured", number, signed=True)
    return Value("outside" if "outside" in states else "missing", signed=True)


def mark(values: list[Value], lower: bool) -> None:
    """Best and second best of the measured values as shown (two decimals); ties share a mark, one alone has
    none."""
    for value, name in _ranked(values, lower, ("best", "second")):
        value.mark = name


def rank(values: list[Value], lower: bool) -> None:
    """The three best of the measured values get *, † and ‡; ties as for `mark`."""
    for value, symbol in _ranked(values, lower, RANKS):
        value.signs.append(Sign(symbol, "rank"))


def _ranked(values: list[Value], lower: bool, names) -> list[tuple[Value, str]]:
    """(value, name) of the measured values that hold the first places, compared as shown."""
    measured = [value for value in values if value.state == "measured"]
    if len(measured) < 2:
        return []
    shown = sorted({value.shown for value in measured}, reverse=not lower)
    places = dict(zip(shown, names))
    return [(value, places[value.shown]) for value in measured if value.shown in places]


def compare(value: Value, other: Value, lower: bool, symbols: str) -> None:
    """A sign for better (first of `symbols`) or worse than `other`, as shown; none where one is not measured
    or they are equal."""
    if value.state != "measured" or other.state != "measured" or value.mean == other.mean:
        return
    better = (value.shown < other.shown) == lower
    value.signs.append(Sign(symbols[0], "better") if better else Sign(symbols[1], "worse"))
