"""Read the published numbers of a paper's tables, and rebuild the tables' rows and columns.

The files are papers/<paper>/published/*.csv. A file has one row for each number, as text, in the order in
which the paper prints them. From this order follow the rows of a table and its grouped columns.

`Layout` is the shape of a table, `Value` one position of it, `Panel` what a page shows.
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
# What a value may be: nothing, a number, a formula or a name. A formula has bars, as 2|theta|; a name begins
# with two letters, which no misread digit does.
PRINTED = rf"|{NUMBER}|[^|]*\|.*|[A-Za-z]{{2}}[A-Za-z0-9 -]*"
# The number that a note gives where the printed one cannot be read: `likely=68.4`.
LIKELY = re.compile(r"likely=([^\s;]*)")
# Texts of a field that a number does not have, for example of the data set.
BLANK = {"", "n/a"}
# Percent points between the measured and the printed number from which on the colour is full.
FULL_COLOUR = 15.0
# Steps of the colour up to there; the style sheet has a class for each.
TINTS = 6
# Prefixes of measures of the model (before or after local training) that the headline does not score.
OTHER = ("pre.", "post.", "other.")
# Marks behind a number.
CHANCE = "°"
STALE = "†"
# Mark -> what it means, for the note of a table.
MARKS = {
    CHANCE: "at chance level: below 1.5 times the share of one class",
    STALE: "by code, parameters or seeds that have changed since",
}


# -- the numbers ---------------------------------------------------------------------------------------------


def read_published(paper: str, table: Table, root: Path = ROOT) -> list[dict[str, str]]:
    """The rows of a published CSV as text, in printed order.

    paper  key of its folder
    table  of paper.yaml, which names the file
    root   folder of the repository

    Raises ParamError, with file and line, for a file that is missing, empty or no such table, for a value
    that is neither a number, a formula nor a name, and for two numbers at one place.
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

    # Place -> the first line that prints a number there.
    lines: dict[tuple[str, ...], int] = {}
    for line, row in rows:
        where = f"{shorten(path)}:{line}"
        if row["paper"] != paper:
            raise ParamError(f"{where}: paper: {row['paper']!r:.80} is not {paper!r}")

        _check_form(where, "value", row["value"], PRINTED)
        _check_form(where, "std", row["std"], f"|{NUMBER}")
        likely = LIKELY.search(row["note"])
        if likely:
            _check_form(where, "note", likely[1], NUMBER)

        place = tuple(row[name] for name in PLACE)
        first = lines.setdefault(place, line)
        if first != line:
            raise ParamError(f"{where}: {', '.join(place)} is in line {first} already")
    return [row for _, row in rows]


def _check_form(where: str, name: str, text: str, form: str) -> None:
    """ParamError if a field's text has not the form of a number.

    where  file and line
    name   of the field
    form   a regular expression
    """
    if not re.fullmatch(form, text):
        raise ParamError(f"{where}: {name}: {text!r:.80} is not a number")


def printed_number(record: dict[str, str]) -> float | None:
    """The number of a published row; None for words and formulas.

    record  the row; where its number cannot be read, its note gives the likely one
    """
    likely = LIKELY.search(record["note"])
    text = likely[1] if likely else record["value"]
    return float(text) if re.fullmatch(NUMBER, text) else None


# -- the shape -----------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A column of numbers of a table; setting and data set are empty if they belong to the rows."""

    setting: str
    dataset: str
    column: str


class Layout:
    """How a paper lays out a table: rows, columns and their header texts.

    records  rows of the published CSV, in printed order
    table    of paper.yaml

    row       the field that names a row: the method; in a table without methods the data set, if all have the
              same columns, else the setting
    names     of the rows
    settings  row -> its setting, if settings belong to the rows; else empty
    printed   (row, place) -> the published record
    places    columns, block by block; behind a measured block come the columns that only we have
    units     column -> its unit as text, of costs
    words     setting -> its parts in words, without those that all settings share
    datasets  names of the data sets; empty if they name the rows
    about     what all columns share, for the caption
    """

    def __init__(self, records: list[dict[str, str]], table: Table):
        methods = _per(records, "method", "setting")
        # Whether a setting belongs to a row, and not to a column.
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

        # (setting, data set) -> its columns. They are collected over all rows, since a baseline prints no
        # difference to itself.
        blocks: dict[tuple[str, str], dict[Place, None]] = {}
        for _, place in self.printed:
            blocks.setdefault((place.setting, place.dataset), {})[place] = None
        for (setting, dataset), block in blocks.items():
            measured_block = table.blocks.get(f"{setting}|{dataset}")
            if measured_block:
                ours = [name for name in table.also if table.measure(measured_block, name)]
                block |= dict.fromkeys(Place(setting, dataset, name) for name in ours)
        self.places = [place for block in blocks.values() for place in block]
        self._headers(records, table)

    def _headers(self, records: list[dict[str, str]], table: Table) -> None:
        """The words of settings, units and data sets, and what all columns share."""
        measures = {**table.also, **table.columns}
        self.units = {column: f", {COSTS[name]}" for column, name in measures.items() if name in COSTS}

        parts = {record["setting"]: split_setting(record["setting"]) for record in records}
        first = next(iter(parts.values()))
        in_all = set(first).intersection(*parts.values())
        shared = [part for part in first if part in in_all]
        self.words: dict[str, list[str]] = {}
        for setting, several in parts.items():
            self.words[setting] = [setting_words(part) for part in several if part not in shared]
        # Settings with different numbers of parts cannot be compared part by part.
        if len({*map(len, self.words.values())}) > 1:
            self.words = {setting: [", ".join(several)] for setting, several in self.words.items()}

        self.datasets = {record["dataset"] for record in records} if self.row != "dataset" else set()
        common_data = self.datasets - BLANK if len(self.datasets) == 1 else set()
        about = [*common_data, *map(setting_words, shared)]
        self.about = ", ".join(text for text in about if text.lower() not in table.title.lower())

    def stub(self, name: str) -> list[str]:
        """The texts in front of a row's numbers: its name in words, and its setting if that belongs to it."""
        if name in self.words:
            text = self.setting(name) or "value"
        else:
            text = method_words(name)
        if not self.settings:
            return [text]
        return [text, self.setting(self.settings.get(name, ""))]

    def setting(self, name: str) -> str:
        """A setting in words, without the parts that all settings of the table share."""
        return ", ".join(self.words.get(name, []))

    def headers(self) -> tuple[str, list[list[str]]]:
        """(header texts that all columns share, the other header texts of each column, the topmost first)."""
        blank = [""] * len(next(iter(self.words.values())))
        several_datasets = len(self.datasets) > 1
        columns = []
        for place in self.places:
            dataset = place.dataset if several_datasets and place.dataset not in BLANK else ""
            column = pretty(place.column) + self.units.get(place.column, "")
            columns.append([*self.words.get(place.setting, blank), dataset, column])

        # A text that all columns share is said once; the lowest level, the column itself, always stays.
        levels = [*zip(*columns, strict=True)]
        same = [len(set(texts)) == 1 for texts in levels[:-1]]
        kept = [level for level, alike in zip(levels, [*same, False], strict=True) if not alike]
        shared = [texts[0] for texts, alike in zip(levels, same) if alike and texts[0]]
        return ", ".join(shared), [list(texts) for texts in zip(*kept, strict=True)]


def _place(record: dict[str, str], fields_of_row: Collection[str]) -> Place:
    """The column of a published number.

    record         its row of the CSV
    fields_of_row  fields that belong to the rows of the table: they are empty in the column
    """
    values = {key: "" if key in fields_of_row else record[key] for key in Place._fields}
    return Place(**values)


def _per(records: list[dict[str, str]], key: str, value: str) -> dict[str, list[str]]:
    """Value of the field `key` -> the distinct values of the field `value`, both in order of appearance."""
    groups: dict[str, dict[str, None]] = {}
    for record in records:
        groups.setdefault(record[key], {})[record[value]] = None
    return {name: [*values] for name, values in groups.items()}


# -- on a page -----------------------------------------------------------------------------------------------


@dataclass
class Value:
    """One position of a table.

    state      `measured`; `missing`: a run would measure it; `outside`: no run measures it
    by_seed    seed -> number, of the seeds that it is compared over; empty if it is computed from others
    number     mean and sample standard deviation over these seeds; None: not measured
    published  as the paper prints it; empty: it prints nothing
    printed    the same as a number; None if it is none, or cannot be read
    mark       `best` or `second` of the column; empty: neither
    signed     whether it is a difference, which is written with its sign
    cell       the run that a measured number comes from; None: it is computed from others, or not measured
    target     what `fedrepro run` takes to measure a missing number; empty: no stage measures it
    measure    its name in result.json, also of a missing number
    every      seeds of the run, of which `by_seed` may be a part
    chance     whether it is an accuracy at chance level, which is never marked as the best
    stale      whether code or parameters have changed since it was measured
    interval   the ends of a difference's 95 % interval; None: there is none
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
        """The number as text, with two decimals; empty if it was not measured."""
        if not self.number:
            return ""
        form = "+.2f" if self.signed else ".2f"
        return minus(format(self.number.mean, form))

    @property
    def ends(self) -> str:
        """The interval as text, `[−4.4, 4.6]`; empty if there is none."""
        if not self.interval:
            return ""
        low, high = self.interval
        return interval_words(low, high)

    @property
    def signs(self) -> str:
        """The marks behind the number, which warn before it is quoted (`MARKS`)."""
        return CHANCE * self.chance + STALE * self.stale

    @property
    def spread(self) -> str:
        """The standard deviation as text, with two decimals; empty if there is none."""
        if self.number is None or self.number.std is None:
            return ""
        return f"{self.number.std:.2f}"

    @property
    def difference(self) -> float | None:
        """Measured number, with two decimals, minus the printed one; None if one is missing, or if it is a
        difference itself."""
        if self.number is None or self.printed is None or self.signed:
            return None
        return round(self.number.mean, 2) - self.printed

    @property
    def tint(self) -> str:
        """Class of the style sheet that colours the difference to the printed number: u1 to u6 above it, d1
        to d6 below it; empty without a difference."""
        difference = round(self.difference or 0.0, 2)
        if not difference or self.other:
            return ""
        side = "u" if difference > 0 else "d"
        step = math.ceil(min(abs(difference) / FULL_COLOUR, 1.0) * TINTS)
        return f"{side}{step}"

    def less(self, baseline: "Value") -> "Value":
        """This value minus a baseline, as a column of differences shows it; measured only if both are."""
        states = {self.state, baseline.state}
        if states == {"measured"}:
            ours, theirs = _means([self, baseline])
            return Value("measured", number=Summary(ours - theirs, None, 1), signed=True)
        return Value("outside" if "outside" in states else "missing", signed=True)


@dataclass(frozen=True)
class Row:
    """A row of a panel.

    name    in words
    stub    texts in front of the numbers, one for each heading of the panel's stub
    values  one for each column
    mean    whether it is the mean over the other rows
    """

    name: str
    stub: list[str]
    values: list[Value]
    mean: bool = False


@dataclass
class Panel:
    """A block of rows under one header.

    title   what its columns share; empty: nothing
    stub    headings of the columns in front of the numbers
    levels  for each column of numbers its heading texts, the topmost first
    rows    from top to bottom
    """

    title: str
    stub: list[str]
    levels: list[list[str]]
    rows: list[Row]

    @property
    def heads(self) -> list[list[tuple[str, int]]]:
        """The header, row by row from the top: (text, number of columns that it spans).

        Neighbouring columns whose texts agree from the top down to a level share one text there.
        """
        depth = len(self.levels[0]) if self.levels else 1
        rows = []
        for level in range(1, depth):
            neighbours = groupby(self.levels, itemgetter(slice(level)))
            rows.append([(texts[-1], len([*columns])) for texts, columns in neighbours])
        return [*rows, [(texts[-1], 1) for texts in self.levels]]


def share_seeds(values: Iterable[Value]) -> None:
    """Reduce values that are compared to the seeds that all of them have, so that the means that are shown
    can be compared. If no seed is in all of them, each keeps its own."""
    runs = [value for value in values if value.by_seed]
    shared = _seeds_in_all([value.by_seed for value in runs])
    for value in runs:
        if shared and len(shared) < len(value.by_seed):
            value.over(shared)


def common(runs: Iterable[dict[int, float]]) -> list[list[float]]:
    """The numbers of each run on the seeds that all runs have, so that a mean over three seeds is not
    compared with a mean over one. If no seed is in all of them, each has all its numbers.

    runs  seed -> number, for each run
    """
    runs = list(runs)
    shared = _seeds_in_all(runs)
    numbers = []
    for run in runs:
        numbers.append([number for seed, number in run.items() if seed in shared or not shared])
    return numbers


def _seeds_in_all(runs: list[dict[int, float]]) -> set[int]:
    """The seeds that every run has; none if there are no runs."""
    return set.intersection(*map(set, runs)) if runs else set()


def _means(values: list[Value]) -> list[float]:
    """The means of measured values, over the seeds that all of them have."""
    means = []
    for value, numbers in zip(values, common(value.by_seed for value in values)):
        # A number without seeds is computed from others.
        computed = value.number.mean if value.number else math.nan
        means.append(fmean(numbers) if numbers else computed)
    return means


def mark(values: list[Value], lower: bool) -> None:
    """Mark the best and the second best of the measured values.

    Values that are equal with two decimals share a mark. A single value has none, nor has one at chance
    level.

    values  of one column
    lower   whether small numbers are the better ones
    """
    measured = [value for value in values if value.number]
    means = [round(mean, 2) for mean in _means(measured)]
    marks = dict(zip(sorted({*means}, reverse=not lower), ("best", "second")))
    for value, mean in zip(measured, means):
        marked = len(means) > 1 and not value.chance
        value.mark = marks.get(mean, "") if marked else ""
