"""Read the published numbers of a paper's tables from CSV, and rebuild the tables' rows and columns.

The files are papers/<paper>/published/*.csv. A CSV holds one row per printed number, as text, in printed
order. From that order come the rows and the grouped columns.
"""

import math
import re
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from pipeline.cells.results import Summary
from pipeline.errors import ParamError
from pipeline.files import read_csv
from pipeline.report.measures import COSTS
from pipeline.report.words import (
    as_number,
    method_words,
    minus,
    pretty,
    result_path,
    setting_words,
    signed,
    split_setting,
)
from pipeline.schema import PUBLISHED, ROOT, Cell, Table, shorten

PLACE = PUBLISHED[2:6]
NUMBER = r"[+-]?\d{1,15}(?:\.\d{1,15})?"
# A formula has bars, 2|theta|; a name has two letters, which a misread digit has not.
PRINTED = re.compile(rf"|{NUMBER}|[^|]*\|.*|[A-Za-z]{{2}}[A-Za-z0-9 -]*")
LIKELY = re.compile(r"likely=([^\s;]*)")
BLANK = {"", "n/a"}
# Points between measured and printed at which the colour is full, and its steps.
FULL, TINTS = 15.0, 6
# Prefixes of measures of the model on the other side of local training than the headline's.
OTHER = ("pre.", "post.", "other.")


# -- the numbers ---------------------------------------------------------------------------------------------


def read_published(paper: str, table: Table, root: Path = ROOT) -> list[dict[str, str]]:
    """The rows of a published CSV as text; ParamError names file and line of what is no such table, or of a
    value that is neither a number, a formula nor a name."""
    path = root / "papers" / paper / "published" / table.published
    try:
        rows = read_csv(path, PUBLISHED)
    except FileNotFoundError:
        raise ParamError(
            f"{shorten(path)}: no such file, although paper.yaml names it for table {table.number}"
        ) from None
    if not rows:
        raise ParamError(f"{shorten(path)}: no rows")
    places: dict[tuple[str, ...], int] = {}
    for line, row in rows:
        if problem := _problem(row, paper):
            raise ParamError(f"{shorten(path)}:{line}: {problem}")
        place = tuple(row[field] for field in PLACE)
        if (first := places.setdefault(place, line)) != line:
            raise ParamError(f"{shorten(path)}:{line}: {', '.join(place)} is in line {first} already")
    return [row for _, row in rows]


def _problem(row: dict[str, str], paper: str) -> str | None:
    """What is wrong with a row of a paper; None where nothing is."""
    if row["paper"] != paper:
        return f"paper: {row['paper']!r:.80} is not {paper!r}"
    likely = LIKELY.search(row["note"])
    for field, text, form in (
        ("value", row["value"], PRINTED),
        ("std", row["std"], re.compile(rf"|{NUMBER}")),
        ("note", likely[1] if likely else "0", re.compile(NUMBER)),
    ):
        if not form.fullmatch(text):
            return f"{field}: {text!r:.80} is not a number"
    return None


def printed_number(record: dict[str, str]) -> float | None:
    """The number of a published row, or for a garbled one the number that its note gives; None for words and
    formulas."""
    likely = LIKELY.search(record["note"])
    text = likely[1] if likely else record["value"]
    return float(text) if re.fullmatch(NUMBER, text) else None


# -- the shape -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A column of a table; setting is empty where it belongs to the rows."""

    setting: str
    dataset: str
    column: str


@dataclass(frozen=True)
class Shape:
    """Which fields of a published row name its row and which its column."""

    # method, or for a table without methods dataset or setting
    row: str
    settings_in_rows: bool

    def place(self, record) -> Place:
        return Place(
            "" if self.settings_in_rows or self.row == "setting" else record["setting"],
            "" if self.row == "dataset" else record["dataset"],
            record["column"],
        )


def shape_of(records) -> Shape:
    """Rows are methods; in a table without methods they are the data sets, where all have the same columns,
    else the settings."""
    settings = _per(records, "method", "setting")
    if BLANK.issuperset(settings):
        columns = [*_per(records, "dataset", "column").values()]
        return Shape("dataset" if all(names == columns[0] for names in columns) else "setting", False)
    several = len({record["setting"] for record in records}) > 1 < len(settings)
    return Shape("method", several and all(len(names) == 1 for names in settings.values()))


def _per(records, key, value) -> dict[str, list[str]]:
    """Distinct `value`s of each `key`, both in order of appearance."""
    groups: dict[str, dict[str, None]] = {}
    for record in records:
        groups.setdefault(record[key], {})[record[value]] = None
    return {name: [*values] for name, values in groups.items()}


def places_of(records, shape: Shape, table: Table) -> list[Place]:
    """Columns in printed order, block by block; the baseline prints no delta, so delta may appear
    late. Behind each block that is measured come the columns that are ours."""
    blocks: dict[tuple[str, str], list[Place]] = {}
    for record in records:
        place = shape.place(record)
        block = blocks.setdefault((place.setting, place.dataset), [])
        if place not in block:
            block.append(place)
    for at, block in blocks.items():
        if filled := table.blocks.get(f"{at[0]}|{at[1]}"):
            block += [Place(*at, heading) for heading in table.also if table.measure(filled, heading)]
    return [place for block in blocks.values() for place in block]


class Titles:
    """Header texts of a table: what every column shares goes to the caption, what differs into header
    rows."""

    def __init__(self, records, shape: Shape, table: Table):
        title, columns = table.title, {**table.also, **table.columns}
        self.units = {column: COSTS[measure] for column, measure in columns.items() if measure in COSTS}
        parts = {record["setting"]: split_setting(record["setting"]) for record in records}
        first = next(iter(parts.values()))
        self.shared = [part for part in first if all(part in other for other in parts.values())]
        self.settings = {
            setting: [setting_words(p) for p in several if p not in self.shared]
            for setting, several in parts.items()
        }
        if len({*map(len, self.settings.values())}) > 1:  # not comparable part by part
            self.settings = {setting: [", ".join(words)] for setting, words in self.settings.items()}
        self.depth = len(next(iter(self.settings.values())))
        self.datasets = {record["dataset"] for record in records} if shape.row != "dataset" else set()
        data = [name for name in self.datasets if name not in BLANK] if len(self.datasets) == 1 else []
        about = data + [setting_words(part) for part in self.shared]
        self.about = ", ".join(words for words in about if words.lower() not in title.lower())

    def row(self, name: str) -> str:
        """A row's name in words: of a setting, what the others do not share."""
        return (self.setting(name) or "value") if name in self.settings else method_words(name)

    def setting(self, name: str) -> str:
        """A setting in words, without the parts that all settings of the table share."""
        return ", ".join(self.settings.get(name, []))

    def levels(self, place: Place) -> list[str]:
        setting = self.settings.get(place.setting, [""] * self.depth)
        dataset = place.dataset if len(self.datasets) > 1 and place.dataset not in BLANK else ""
        unit = self.units.get(place.column)
        return [*setting, dataset, pretty(place.column) + (f", {unit}" if unit else "")]

    def split(self, places) -> tuple[str, list[list[str]]]:
        """(what the columns of a panel share, the differing levels of each column)."""
        levels = [self.levels(place) for place in places]
        last = len(levels[0]) - 1
        differs = [i == last or len({texts[i] for texts in levels}) > 1 for i in range(last + 1)]
        shared = [text for text, keep in zip(levels[0], differs) if text and not keep]
        return ", ".join(shared), [[text for text, keep in zip(texts, differs) if keep] for texts in levels]


# -- on a page -----------------------------------------------------------------------------------------------


@dataclass
class Value:
    """One position of a table.

    state      `measured`; `missing`, to be measured; `outside`, nothing can be measured here
    number     mean and sample standard deviation over the seeds of a measured number
    published  as the paper prints it; printed: the same as a number, None where it is none or misread
    mark       best or second, of the column
    signed     a difference, written with its sign
    cell       of a measured number: the run that it comes from
    target     of a missing one: what `fedrepro run` takes to measure it
    measure    its name in result.json, of a missing number too
    digits     decimals
    """

    state: str
    number: Summary | None = None
    published: str = ""
    printed: float | None = None
    mark: str = ""
    signed: bool = False
    cell: Cell | None = None
    target: str = ""
    measure: str = ""
    digits: int = 2

    @property
    def other(self) -> bool:
        """Whether it is of the model that is not the main line."""
        return self.measure.startswith(OTHER)

    @property
    def mean(self) -> str:
        form = f"{'+' * self.signed}.{self.digits}f"
        return minus(format(self.number.mean, form)) if self.number else ""

    @property
    def spread(self) -> str:
        return f"{self.number.std:.2f}" if self.number and self.number.std is not None else ""

    @property
    def difference(self) -> str:
        """Measured minus published, of the rounded numbers; empty for a difference, which says it
        already."""
        if self.number is None or self.printed is None or self.signed:
            return ""
        return signed(as_number(self.mean) - self.printed)

    @property
    def tint(self) -> str:
        """The colour of the difference to the print: u1 to u6 above it, d1 to d6 below."""
        difference = as_number(self.difference or "0")
        if not difference or self.other:
            return ""
        step = math.ceil(min(abs(difference) / FULL, 1.0) * TINTS)
        return f"{'u' if difference > 0 else 'd'}{step}"

    @property
    def file(self) -> str:
        """result.json of the run, from the repository's root."""
        return result_path(self.cell) if self.cell else ""


@dataclass(frozen=True)
class Row:
    """A row of a panel.

    name    in words
    stub    what the paper prints in front of the numbers, one text per stub column
    mean    the mean over the other rows
    proposed  whether it is the paper's method
    """

    name: str
    stub: list[str]
    values: list[Value]
    mean: bool = False
    proposed: bool = False


@dataclass
class Panel:
    """A block of rows under one header.

    stub    headings of the stub columns
    levels  heading texts of every column of numbers, the topmost first
    """

    title: str
    stub: list[str]
    levels: list[list[str]]
    rows: list[Row]

    @property
    def heads(self) -> list[list[tuple[str, int]]]:
        """Header rows of (text, columns that it is over), top first: neighbours that agree down to a level
        share one cell there."""
        depth = len(self.levels[0]) if self.levels else 1
        rows = [groupby(self.levels, itemgetter(slice(at))) for at in range(1, depth)]
        above = [[(texts[-1], len([*run])) for texts, run in row] for row in rows]
        return [*above, [(texts[-1], 1) for texts in self.levels]]


def difference(value: Value, baseline: Value) -> Value:
    """What a delta column shows; measured only where both numbers are."""
    states = {value.state, baseline.state}
    if states == {"measured"} and value.number and baseline.number:
        number = Summary(value.number.mean - baseline.number.mean, None, value.number.seeds)
        return Value("measured", number, signed=True)
    return Value("outside" if "outside" in states else "missing", signed=True)


def mark(values: list[Value], lower: bool) -> None:
    """Best and second best of the measured values with two decimals; ties share a mark, one alone has
    none."""
    measured = [value for value in values if value.state == "measured"]
    different = sorted({as_number(value.mean) for value in measured}, reverse=not lower)
    places = dict(zip(different, ("best", "second"))) if len(measured) > 1 else {}
    for value in measured:
        value.mark = places.get(as_number(value.mean), "")
