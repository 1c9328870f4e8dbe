"""The parts of a page's table: positions, rows and panels, and the marks on its measured numbers."""

from dataclasses import dataclass
from itertools import groupby

from pipeline.cells.results import Summary
from pipeline.report.words import as_number, minus
from pipeline.schema import Cell

# Points between measured and printed at which the colour is full.
FULL = 15.0


@dataclass
class Value:
    """One position of a table.

    state      `measured`; `missing`, to be measured; `outside`, nothing can be measured here; `text`, a fact
               about the run instead of a number; `quoted`, the paper's own words where there is no number to
               compare with
    number     mean and sample standard deviation over the seeds of a measured number
    published  as the paper prints it; printed: the same as a number, None where it is none or misread
    mark       best or second, of the column
    signed     a difference, shown with its sign
    text       of a fact; order: the number that it sorts by
    cell       of a measured number: the run that it comes from
    target     of a missing one: what `fedrepro run` takes to measure it
    problem    of a missing one: why the result that is there cannot be used
    measure    its name in result.json, of a missing number too
    """

    state: str
    number: Summary | None = None
    published: str = ""
    printed: float | None = None
    mark: str = ""
    signed: bool = False
    text: str = ""
    order: float | None = None
    cell: Cell | None = None
    target: str = ""
    problem: str = ""
    measure: str = ""

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
    def file(self) -> str:
        """result.json of the run, from the repository's root."""
        return result_path(self.cell) if self.cell else ""


@dataclass(frozen=True)
class Head:
    """A header cell over `span` columns."""

    text: str
    span: int = 1


@dataclass(frozen=True)
class Row:
    """A row of a panel.

    name    in words
    stub    what the paper prints in front of the numbers, one text per stub column
    mean    the mean over the other rows
    """

    name: str
    stub: list[str]
    values: list[Value]
    mean: bool = False


@dataclass
class Panel:
    """A block of rows under one header; a table printed in two halves has two.

    stub    headings of the stub columns
    heads   header rows, top first
    """

    title: str
    stub: list[str]
    heads: list[list[Head]]
    rows: list[Row]

    @property
    def width(self) -> int:
        return sum(head.span for head in self.heads[-1])

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
            runs = [list(run) for _, run in groupby(levels, key=lambda texts: texts[: depth + 1])]
            rows.append([Head(run[0][depth], len(run)) for run in runs])
    return rows


# -- among measured numbers ------------------------------------------------------------------------


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
    measured = [value for value in values if value.state == "measured"]
    shown = sorted({value.shown for value in measured}, reverse=not lower)
    places = dict(zip(shown, ("best", "second"))) if len(measured) > 1 else {}
    for value in measured:
        value.mark = places.get(value.shown, "")
