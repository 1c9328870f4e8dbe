"""Read the published numbers of a paper's tables from CSV files, and rebuild the rows and columns of the
tables.

The files are papers/<paper>/published/*.csv. A file has one row for each number, as text, in the paper's
order. The order determines the rows and the grouped columns.
"""

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pipeline.cells.results import Summary, summarise
from pipeline.errors import ParamError
from pipeline.files import read_csv
from pipeline.report.measures import COSTS
from pipeline.report.words import interval_words, method_words, minus, pretty, setting_words, split_setting
from pipeline.schema import ROOT, Cell, Table, shorten
from pipeline.schema.paper import NUMBER, PUBLISHED

# Fields of a row that say where a number is printed: setting, data set, method and column.
PLACE = PUBLISHED[2:6]
# What a value may be: nothing, a number, a formula or a name. A formula has bars, 2|theta|; a name has two
# letters, which a misread digit has not.
PRINTED = rf"|{NUMBER}|[^|]*\|.*|[A-Za-z]{{2}}[A-Za-z0-9 -]*"
# The number that a note gives for a garbled one.
LIKELY = re.compile(r"likely=([^\s;]*)")
# Fields of a row that has no such thing, for example no data set.
BLANK = {"", "n/a"}
# Percent points between measured and printed number from which on the colour is full.
FULL_COLOUR = 15.0
# Steps of the colour up to there; the style sheet has a class for each.
TINTS = 6
# Prefixes of measures of the model on the other side of local training than the headline's.
OTHER = ("pre.", "post.", "other.")
# Marks behind a number, and what they say in a table's note.
CHANCE = "°"
STALE = "†"
MARKS = {
    CHANCE: "at chance level: below 1.5 times the share of one class",
    STALE: "by code, parameters or seeds that have changed since",
}


# -- the numbers ---------------------------------------------------------------------------------------------


def read_published(paper: str, table: Table, root: Path = ROOT) -> list[dict[str, str]]:
    """The rows of a published CSV as text, in printed order.

    paper  key of its folder
    table  names the file

    Raises ParamError, with file and line, for what is no such table, or for a value that is neither a number,
    a formula nor a name.
    """
    path = root / "papers" / paper / "published" / table.published
    try:
        rows = read_csv(path, PUBLISHED)
    except FileNotFoundError:
        raise ParamError(
            f"{shorten(path)}: no such file, although paper.yaml names it for table {table.number}"
        ) from None
    if not rows:
        raise ParamError(f"{shorten(path)}: no rows")
    lines: dict[tuple[str, ...], int] = {}
    for line, row in rows:
        where = f"{shorten(path)}:{line}"
        if row["paper"] != paper:
            raise ParamError(f"{where}: paper: {row['paper']!r:.80} is not {paper!r}")
        likely = LIKELY.search(row["note"])
        note = likely[1] if likely else "0"
        forms = (("value", row["value"], PRINTED), ("std", row["std"], f"|{NUMBER}"), ("note", note, NUMBER))
        for name, text, form in forms:
            if not re.fullmatch(form, text):
                raise ParamError(f"{where}: {name}: {text!r:.80} is not a number")
        place = tuple(row[name] for name in PLACE)
        first = lines.setdefault(place, line)
        if first != line:
            raise ParamError(f"{where}: {', '.join(place)} is in line {first} already")
    return [row for _, row in rows]


def printed_number(record: dict[str, str]) -> float | None:
    """The number of a published row, or for a garbled one the number that its note gives; None for words and
    formulas."""
    likely = LIKELY.search(record["note"])
    text = likely[1] if likely else record["value"]
    return float(text) if re.fullmatch(NUMBER, text) else None


# -- the shape -----------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A column of a table; setting and data set are empty where they belong to the rows."""

    setting: str
    dataset: str
    column: str


class Layout:
    """How a paper lays out a table: rows, columns and their header texts, from the records in printed order.

    row       the field that names a row: method; in a table without methods the data set, where all have the
              same columns, else the setting
    settings  row -> its setting, where settings belong to the rows
    printed   (row, place) -> the published record
    places    columns, block by block; behind each block that is measured come those that are ours
    about     what all columns share, for the caption
    """

    def __init__(self, records: list[dict[str, str]], table: Table):
        methods = _per(records, "method", "setting")
        by_row = False
        self.row = "method"
        if BLANK.issuperset(methods):
            columns = [*_per(records, "dataset", "column").values()]
            self.row = "dataset" if all(names == columns[0] for names in columns) else "setting"
        elif len({record["setting"] for record in records}) > 1 and len(methods) > 1:
            by_row = all(len(settings) == 1 for settings in methods.values())
        self.settings = {record[self.row]: record["setting"] for record in records} if by_row else {}
        self.names = list(dict.fromkeys(record[self.row] for record in records))
        fields_of_row = {self.row, "setting"} if by_row else {self.row}
        self.printed = {(record[self.row], _place(record, fields_of_row)): record for record in records}

        # The baseline prints no delta, so delta may appear late in its block.
        blocks: dict[tuple[str, str], dict[Place, None]] = {}
        for _, place in self.printed:
            blocks.setdefault((place.setting, place.dataset), {})[place] = None
        for (setting, dataset), block in blocks.items():
            filled = table.blocks.get(f"{setting}|{dataset}")
            ours = [name for name in table.also if filled and table.measure(filled, name)]
            block |= dict.fromkeys(Place(setting, dataset, name) for name in ours)
        self.places = [place for block in blocks.values() for place in block]
        self._headers(records, table)

    def _headers(self, records: list[dict[str, str]], table: Table) -> None:
        """The words of settings, units and data sets, and what all columns share."""
        measures = {**table.also, **table.columns}
        self.units = {column: f", {COSTS[name]}" for column, name in measures.items() if name in COSTS}

        parts = {record["setting"]: split_setting(record["setting"]) for record in records}
        first = next(iter(parts.values()))
        shared = [part for part in first if all(part in other for other in parts.values())]
        self.words: dict[str, list[str]] = {}
        for setting, several in parts.items():
            self.words[setting] = [setting_words(part) for part in several if part not in shared]
        if len({*map(len, self.words.values())}) > 1:  # not comparable part by part
            self.words = {setting: [", ".join(several)] for setting, several in self.words.items()}

        self.datasets = {record["dataset"] for record in records} if self.row != "dataset" else set()
        common_data = self.datasets - BLANK if len(self.datasets) == 1 else set()
        about = [*common_data, *map(setting_words, shared)]
        self.about = ", ".join(text for text in about if text.lower() not in table.title.lower())

    def stub(self, name: str) -> list[str]:
        """A row's name in words, and its setting where that belongs to the rows."""
        if name in self.words:
            text = self.setting(name) or "value"
        else:
            text = method_words(name)
        return [text, self.setting(self.settings.get(name, ""))] if self.settings else [text]

    def setting(self, name: str) -> str:
        """A setting in words, without the parts that all settings of the table share."""
        return ", ".join(self.words.get(name, []))

    def headers(self) -> tuple[str, list[list[str]]]:
        """(what the columns share, the differing header texts of each column, the topmost first)."""
        blank = [""] * len(next(iter(self.words.values())))
        several_datasets = len(self.datasets) > 1
        columns = []
        for place in self.places:
            dataset = place.dataset if several_datasets and place.dataset not in BLANK else ""
            column = pretty(place.column) + self.units.get(place.column, "")
            columns.append([*self.words.get(place.setting, blank), dataset, column])

        # What is the same in all columns is said once; the last level, the column itself, always stays.
        levels = [*zip(*columns, strict=True)]
        same = [len(set(texts)) == 1 for texts in levels[:-1]]
        kept = [level for level, alike in zip(levels, [*same, False], strict=True) if not alike]
        shared = [texts[0] for texts, alike in zip(levels, same) if alike and texts[0]]
        return ", ".join(shared), [list(texts) for texts in zip(*kept, strict=True)]


def _place(record: dict[str, str], fields_of_row: Collection[str]) -> Place:
    """The column of a published row, without what belongs to the table's row."""
    values = ("" if key in fields_of_row else record[key] for key in Place._fields)
    return Place(*values)


def _per(records: list[dict[str, str]], key: str, value: str) -> dict[str, list[str]]:
    """Distinct values of a field for each of another one, both in order of appearance."""
    groups: dict[str, dict[str, None]] = {}
    for record in records:
        groups.setdefault(record[key], {})[record[value]] = None
    return {name: [*values] for name, values in groups.items()}


# -- on a page -----------------------------------------------------------------------------------------------


@dataclass
class Value:
    """One position of a table.

    state      `measured`; `missing`, to be measured; `outside`, nothing can be measured here
    by_seed    of a measured number, the seeds that it is compared over; empty for one that is computed from
               others
    number     its mean and sample standard deviation over these seeds
    published  as the paper prints it
    printed    the same as a number; None where it is none or misread
    mark       `best` or `second` of the column; empty: neither
    signed     whether it is a difference, which is written with its sign
    cell       of a measured number: the run that it comes from
    target     of a missing one: what `fedrepro run` takes to measure it
    measure    its name in result.json, of a missing number too
    every      seeds of the run, of which `by_seed` may be a part
    chance     whether it is an accuracy at chance level, which is never marked as the best
    stale      whether code or parameters have changed since it was measured
    interval   of a difference: the ends of its 95 % interval; None where there is none
    """

    state: str
    by_seed: dict[int, float] = field(default_factory=dict)
    number: Summary | None = None
    published: str = ""
    printed: float | None = None
    mark: str = ""
    signed: bool = False
    cell: Cell | None = None
    target: str = ""
    measure: str = ""
    every: tuple[int, ...] = ()
    chance: bool = False
    stale: bool = False
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.by_seed:
            self.number = summarise([*self.by_seed.values()])
            self.every = self.every or tuple(sorted(self.by_seed))

    def over(self, seeds: Collection[int]) -> None:
        """Keep the numbers of these seeds alone."""
        self.by_seed = {seed: number for seed, number in self.by_seed.items() if seed in seeds}
        self.number = summarise([*self.by_seed.values()])

    @property
    def other(self) -> bool:
        """True for the model (before or after local training) that the table does not score."""
        return self.measure.startswith(OTHER)

    @property
    def mean(self) -> str:
        """With two decimals; empty where nothing was measured."""
        if not self.number:
            return ""
        return minus(format(self.number.mean, "+.2f" if self.signed else ".2f"))

    @property
    def ends(self) -> str:
        """`[−4.4, 4.6]`; empty where there is no interval."""
        return interval_words(*self.interval) if self.interval else ""

    @property
    def signs(self) -> str:
        """What is to be known of the number before it is quoted, as marks behind it (`MARKS`)."""
        return CHANCE * self.chance + STALE * self.stale

    @property
    def spread(self) -> str:
        return f"{self.number.std:.2f}" if self.number and self.number.std is not None else ""

    @property
    def difference(self) -> float | None:
        """Measured minus published, of the rounded numbers; None for a difference, which says it already."""
        if self.number is None or self.printed is None or self.signed:
            return None
        return round(self.number.mean, 2) - self.printed

    @property
    def tint(self) -> str:
        """The colour of the difference to the print: u1 to u6 above it, d1 to d6 below."""
        difference = round(self.difference or 0.0, 2)
        if not difference or self.other:
            return ""
        side = "u" if difference > 0 else "d"
        step = math.ceil(min(abs(difference) / FULL_COLOUR, 1.0) * TINTS)
        return f"{side}{step}"

    def less(self, baseline: "Value") -> "Value":
        """What a delta column shows; measured only where both numbers are."""
        states = {self.state, baseline.state}
        if states == {"measured"}:
            ours, theirs = _means([self, baseline])
            return Value("measured", number=Summary(ours - theirs, None, 1), signed=True)
        return Value("outside" if "outside" in states else "missing", signed=True)


@dataclass(frozen=True)
class Row:
    """A row of a panel.

    name  in words
    stub  what the paper prints in front of the numbers, one text per stub column
    mean  the mean over the other rows
    """

    name: str
    stub: list[str]
    values: list[Value]
    mean: bool = False


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
        rows = []
        for level in range(1, depth):
            neighbours = groupby(self.levels, itemgetter(slice(level)))
            rows.append([(texts[-1], len([*columns])) for texts, columns in neighbours])
        return [*rows, [(texts[-1], 1) for texts in self.levels]]


def share_seeds(values: Iterable[Value]) -> None:
    """Cut numbers that are compared to the seeds that all of them have, so that every mean that is shown is
    one that can be compared. Where no seed is in all, each keeps its own."""
    runs = [value for value in values if value.by_seed]
    shared = _seeds_in_all([value.by_seed for value in runs])
    for value in runs:
        if shared and len(shared) < len(value.by_seed):
            value.over(shared)


def common(runs: Iterable[dict[int, float]]) -> list[list[float]]:
    """The numbers of each run over the seeds that all of them have: a mean over three seeds is not compared
    with means over one. Where no seed is in all, each has its whole mean."""
    runs = list(runs)
    shared = _seeds_in_all(runs)
    numbers = []
    for run in runs:
        numbers.append([number for seed, number in run.items() if seed in shared or not shared])
    return numbers


def _seeds_in_all(runs: list[dict[int, float]]) -> set[int]:
    """The seeds that every run has; none of no runs."""
    return set.intersection(*map(set, runs)) if runs else set()


def _means(values: list[Value]) -> list[float]:
    """Of measured values, to be compared."""
    means = []
    for value, numbers in zip(values, common(value.by_seed for value in values)):
        # A number without seeds is computed from others.
        computed = value.number.mean if value.number else math.nan
        means.append(fmean(numbers) if numbers else computed)
    return means


def mark(values: list[Value], lower: bool) -> None:
    """Mark the best and the second best of the measured values, with two decimals. Ties share a mark; a value
    alone and a value at chance level have none.

    lower: whether small numbers are the better ones
    """
    measured = [value for value in values if value.number]
    means = [round(mean, 2) for mean in _means(measured)]
    marks = dict(zip(sorted({*means}, reverse=not lower), ("best", "second")))
    for value, mean in zip(measured, means):
        marked = len(means) > 1 and not value.chance
        value.mark = marks.get(mean, "") if marked else ""
