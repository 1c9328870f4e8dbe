"""A table of a paper in the paper's own layout, with the measured numbers beside the published ones.

Measured numbers come from results alone; a published number is only ever the `published` text of a Value.
"""
import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from string import ascii_lowercase

from pipeline.cells.readings import described
from pipeline.cells.results import Summary, lower_is_better, summarise
from pipeline.errors import ParamError, unknown
from pipeline.report.judgement import Judgement, variants
from pipeline.report2.measures import COSTS, numbers
from pipeline.report2.panels import (
    RANKS,
    Panel,
    Row,
    Value,
    compare,
    difference,
    mark,
    merge_heads,
    rank,
    result_path,
)
from pipeline.report2.published import LIKELY, printed_number, read_published
from pipeline.report2.shape import Place, Shape, Titles, places_of, row_names, shape_of, split_panels, stub_of
from pipeline.report.standings import Standing
from pipeline.report2.study import Study
from pipeline.report2.words import measure_words, method_words, pretty, waiting_words
from pipeline.schema import DELTA, Cell, Table

DOUBT = re.compile("inconsistency|oddity|likely|filled from")
# Notes about rank marks, arrows and signs; a report shows these on measured numbers only.
MARKS = re.compile("mark|arrow|sign [+-]")
HYPHEN = re.compile(r"(?<![\w.)/-])-(?=\d)")           # of a negative number
# heading of the column that says whether a client's model is scored before or after local training
SCORED = "scored"
HOOKS = {"pre": "before", "post": "after"}    # local training


@dataclass(frozen=True)
class Note:
    """What differs from the paper in a scenario."""
    scenario: str
    title: str
    texts: list[str]
    mark: str                         # D1: how the tables refer to it


@dataclass
class TableView:
    key: str
    number: str
    title: str
    about: str                        # what all columns share: setting and data set
    note: str
    panels: list[Panel]
    measured: int                     # positions with a measured number
    fillable: int                     # positions that runs fill, measured ones included
    left: list[Cell]                  # that have a stage and have not run
    problems: list[str]               # results that cannot be used
    remarks: list[str]                # what is wrong or uncertain in the published numbers
    baseline: str                     # what a delta column is against
    legend: str                       # what the signs mean that occur in it
    footnotes: list[tuple[str, str]]  # (letter, text) of remarks on rows
    scenarios: list[str]              # that a measured number comes from
    judgement: Judgement = field(default_factory=lambda: Judgement([], []))
    deviations: list[Note] = field(default_factory=list)    # of its scenarios
    standing: Standing | None = None    # mean ranks of the methods over its scenarios
    hours: float | None = None          # of one process for what is left; None where nobody can say

    @property
    def waits(self) -> str:
        """`9 cells, about 137 hours of one process`; empty where nothing is left."""
        return waiting_words(len(self.left), self.hours) if self.left else ""

    @property
    def heading(self) -> str:
        """`Table 2`; a table inset of a figure keeps the figure's number."""
        return self.number if self.number.startswith("Fig") else f"Table {self.number}"

    @property
    def settings_only(self) -> bool:
        return not self.fillable


# -- filling in what was measured ----------------------------------------------------------------------------

class Filler:
    """Finds the measured number for a position of one table."""

    def __init__(self, study: Study, table: Table):
        self.study, self.table = study, table
        self.results = study.results
        self.left: dict[Cell, None] = {}             # asked for and not run, in order

    def measure(self, setting: str, place: Place, label: str) -> str | None:
        """The measure that a position shows; None where it shows none."""
        block = self.table.block(setting, place.dataset, label)
        return self.table.measure(block, place.column) if block else None

    def value(self, setting: str, place: Place, label: str, printed: bool) -> Value:
        """What was measured for a method in a column; missing where a grid plans it or the paper prints a
        number."""
        block, method = self.table.block(setting, place.dataset, label), self.method(label)
        measure = self.measure(setting, place, label)
        if block is None or measure is None or method is None:
            return Value("outside")
        cell = self.study.cell(block.scenario, method)
        if cell in self.results:
            measured = [*numbers(cell, self.results[cell], measure, self.study.root).values()]
            return (
                Value("measured", summarise(measured), cell=cell, measure=measure)
                if measured
                else Value("missing", problem=_unmeasured(cell, measure), measure=measure)
            )
        target, problem = self.study.target(cell), self.study.problems.get(cell, "")
        if target:
            self.left[cell] = None
        return (
            Value("missing", target=target, problem=problem, measure=measure)
            if target or printed or problem
            else Value("outside")
        )

    def previous(self, setting: str, place: Place, label: str) -> Value:
        """What was measured for the same method and measure in the default setting that a block varies."""
        block, method = self.table.block(setting, place.dataset, label), self.method(label)
        result = (
            self.results.get(self.study.cell(block.previous, method))
            if block and block.previous and method
            else None
        )
        measured = result and result["measures"].get(self.measure(setting, place, label))
        return Value("measured", summarise(measured)) if measured else Value("outside")

    def method(self, label: str) -> str | None:
        """Key of the method in a printed row."""
        return self.study.paper.method_of(self.table, label)

    def cells(self, label: str, settings: list[tuple[str, Place]]) -> list[Cell]:
        """The cells whose numbers a printed row shows at these places; none for a mean."""
        method = self.method(label)
        blocks = [block for setting, place in settings
                  if (block := self.table.block(setting, place.dataset, label))
                  and self.measure(setting, place, label)]
        return (
            list(dict.fromkeys(self.study.cell(block.scenario, method) for block in blocks)) if method else []
        )

    def hooks(self, cells: list[Cell]) -> str:
        """Which models of the clients the cells score: as they were run, else as they would be."""
        found = dict.fromkeys(
            self.results[cell]["hook"] if cell in self.results else hook_of(cell, self.study.root)
            for cell in cells
        )
        return ", ".join(HOOKS[hook] for hook in found if hook)

    def is_mean(self, label: str) -> bool:
        """Whether a printed row is the mean over the methods instead of one of them."""
        return label in self.table.rows and self.table.rows[label] is None


def hook_of(cell: Cell, root: Path) -> str:
    """The hook of a cell that has not run: the scenario's or the method's; empty for an algorithm without
    code."""
    scenario, algorithm, hyper = cell.resolve(root)
    kind = described(algorithm, cell.paper, root)
    return scenario.evaluation.hook or (kind.says("headline", hyper) if kind else "")


def _unmeasured(cell: Cell, measure: str) -> str:
    return (f"{result_path(cell)}: the measure {measure!r} is missing; another version of FedRepro wrote it, "
            "run the cell again")


class Body:
    """The values of one panel: {(row name, place): Value}."""

    def __init__(self, panel, names, places, shape: Shape, filler: Filler):
        self.names, self.filler = names, filler
        self.own_settings = (
            {record[shape.row]: record["setting"] for record in panel} if shape.settings_in_rows else {}
        )
        self.printed = {(record[shape.row], shape.place(record)): record["value"] for record in panel}
        self.numbers = {(record[shape.row], shape.place(record)): printed_number(record)
                        for record in panel if "likely=" not in record["note"]}
        self.plain = [place for place in places if place.column != DELTA]
        self.methods = [name for name in names if not filler.is_mean(name)]
        self.values = {
            (name, place): filler.value(self.setting(name, place), place, name, (name, place) in self.printed)
            for name in names
            for place in self.plain
        }
        self._mark()
        for name in names:
            if name not in self.methods:
                self._average(name)
        for place in self.plain:
            self._sign(place)
        for place in places:
            if place.column == DELTA:
                self._subtract(place)
        for position, value in self.values.items():
            value.published = re.sub(r"^-(?=\d)", "−", self.printed.get(position, ""))
            value.printed = self.numbers.get(position)

    def cells(self, name: str) -> list[Cell]:
        """Those that a row's numbers come from."""
        return self.filler.cells(name, [(self.setting(name, place), place) for place in self.plain])

    def setting(self, name: str, place: Place) -> str:
        return self.own_settings.get(name, place.setting)

    def baseline(self, name: str, delta: Place) -> str:
        """The method that paper.yaml names, else the one of the row's setting that is printed without a
        delta."""
        block = [other for other in self.names if self.setting(other, delta) == self.setting(name, delta)]
        return self.filler.table.baseline or next(
            (other for other in block if (other, delta) not in self.printed), ""
        )

    def _groups(self, place: Place) -> dict[tuple[str, bool], list[str]]:
        """Methods of a column that compare with one another: {(setting, lower is better): names}."""
        groups: dict[tuple[str, bool], list[str]] = {}
        for name in self.methods:
            setting = self.setting(name, place)
            groups.setdefault(
                (setting, lower_is_better(self.filler.measure(setting, place, name) or "")), []
            ).append(name)
        return groups

    def _mark(self):
        for place in self.plain:
            for (_, lower), names in self._groups(place).items():
                mark([self.values[name, place] for name in names], lower)

    def _printed(self, names: list[str], place: Place) -> list[Value]:
        """The values of the methods for which the paper prints a number in a column."""
        return [self.values[name, place] for name in names if (name, place) in self.printed]

    def _average(self, row: str):
        """The mean over the methods that the paper prints in a column, once all of them are measured."""
        for place in self.plain:
            others = self._printed(self.methods, place)
            if any(value.state == "missing" for value in others):
                self.values[row, place] = Value("missing")
            elif means := [value.number.mean for value in others if value.number]:
                self.values[row, place] = Value("measured", Summary(fmean(means), None, 1))

    def _sign(self, place: Place):
        """The paper's marks, of measured numbers: rank and arrow once the column is complete, plus and minus
        per method."""
        asked = self.filler.table.marks
        means = [self.values[name, place] for name in self.names if name not in self.methods]
        for (setting, lower), names in self._groups(place).items():
            printed = self._printed(names, place)
            if "rank" in asked and all(value.state == "measured" for value in printed):
                rank(printed, lower)
            for name in names:
                value = self.values[name, place]
                for mean in means if "average" in asked else []:
                    compare(value, mean, lower, "↑↓")
                compare(value, self.filler.previous(setting, place, name), lower, "+−")

    def _subtract(self, delta: Place):
        """Measured minus the measured baseline, in the last printed column of the block before delta that is
        no cost."""
        ours = self.filler.table.also
        block = [
            place
            for place in self.plain
            if (place.setting, place.dataset) == (delta.setting, delta.dataset) and place.column not in ours
        ]
        block = [place for place in block if self.filler.measure(place.setting, place, "") not in COSTS]
        for name in self.names:
            baseline = self.baseline(name, delta)
            self.values[name, delta] = Value("outside")
            if block and name != baseline:
                other = self.values.get((baseline, block[-1]), Value("outside"))
                self.values[name, delta] = difference(self.values[name, block[-1]], other)


# -- the whole table -----------------------------------------------------------------------------------------

def table_view(key: str, study: Study) -> TableView:
    """Table `key` of paper.yaml, ready for a template but for its verdict."""
    table = study.paper.tables[key]
    records = read_published(study.key, table, study.root)
    if key in variants(study.paper):  # it shows only the numbers that it measures again
        records = [
            record
            for record in records
            if table.block(record["setting"], record["dataset"], record["method"])
        ]
    if not records:
        raise ParamError(f"papers/{study.key}/paper.yaml: tables.{key}: none of its blocks is printed in "
                         f"published/{table.published}")
    shape = shape_of(records)
    titles, filler = Titles(records, shape, table), Filler(study, table)
    again = other_measures(table)
    notes = footnotes(study.key, key, table, records, shape.row)
    panels, counted = [], []
    halves = split_panels(records, shape.row)
    for half, names in zip(halves, row_names(halves, shape.row)):
        places = places_of(half, shape, table)
        body = Body(half, names, places, shape, filler)
        panels.append(
            _panel(body, places, titles, shape.row, {name: letter for name, (letter, _) in notes.items()})
        )
        counted += [
            body.values[name, place]
            for name in body.methods
            for place in body.plain
            if place.column not in again
        ]
    shown = dict.fromkeys(value.cell for value in counted if value.cell)
    return TableView(
        key=key, number=table.number, title=table.title, about=titles.about,
        note=" ".join(filter(None, [table.note, study.computed_otherwise(shown)])), panels=panels,
        measured=sum(value.state == "measured" for value in counted),
        fillable=sum(value.state != "outside" for value in counted),
        left=list(filler.left),
        problems=list(dict.fromkeys(value.problem for value in counted if value.problem)),
        remarks=remarks_of(records),
        baseline=_baseline_words(records, table),
        legend=legend({sign.text for value in counted for sign in value.signs}, table),
        footnotes=list(notes.values()),
        scenarios=list(dict.fromkeys(cell.scenario for cell in shown)))


def footnotes(paper: str, key: str, table: Table, records, row: str) -> dict[str, tuple[str, str]]:
    """{printed row: (letter, text)} of the table's remarks; ParamError for a row that is not printed."""
    names = {record[row] for record in records}
    for name in table.remarks:
        if name not in names:
            raise ParamError(
                f"papers/{paper}/paper.yaml: tables.{key}.remarks: {unknown('printed method', name, names)}"
            )
    return {name: (letter, text) for letter, (name, text) in zip(ascii_lowercase, table.remarks.items())}


def other_measures(table: Table) -> dict[str, str]:
    """Our columns that show another accuracy of the same runs. They do not count among the numbers to be
    measured, whereas columns of costs do."""
    return {heading: measure for heading, measure in table.also.items() if measure not in COSTS}


def legend(symbols: set[str], table: Table) -> str:
    """What the signs mean that occur among the measured numbers of a table."""
    means = " and ".join(f"“{name}”" for name, method in table.rows.items() if method is None)
    lines = [(RANKS, "*, †, ‡: best, second and third measured number of a column"),
             ("↑↓", f"↑, ↓: better, worse than the measured {means} of the column"),
             ("+−", "+, −: better, worse than the same method measured in the default setting")]
    found = [text for signs, text in lines if symbols & set(signs)]
    if found and "clients_std" in table.columns.values():
        found.append("for the standard deviation over clients lower is better")
    if table.hook:
        found.append(f"{SCORED}: before or after a round's local training")
    found += [
        f"{heading}: {measure_words(measure)}, which the paper does not print"
        for heading, measure in other_measures(table).items()
    ]
    return "; ".join(found) + "." if found else ""


def _panel(body: Body, places: list[Place], titles: Titles, row: str, notes: dict[str, str]) -> Panel:
    title, levels = titles.split(places)
    names = [titles.row(name) for name in body.names]
    stub, texts = stub_of(body.names, row, names)
    if body.own_settings:
        stub = [*stub, "setting"]
        texts = [
            [*text, titles.setting(body.own_settings.get(name, ""))] for name, text in zip(body.names, texts)
        ]
    if body.filler.table.hook:
        stub = [*stub, SCORED]
        texts = [[*text, body.filler.hooks(body.cells(name))] for name, text in zip(body.names, texts)]
    rows = [
        Row(
            words,
            text,
            [body.values[name, place] for place in places],
            mean=name not in body.methods,
            note=notes.get(name, ""),
        )
        for name, words, text in zip(body.names, names, texts)
    ]
    return Panel(title, stub, merge_heads(levels), rows)


def _baseline_words(records, table: Table) -> str:
    if not any(record["column"] == DELTA for record in records):
        return ""
    return method_words(table.baseline) if table.baseline else "the row that the paper prints without it"


def remarks_of(records) -> list[str]:
    """The transcription's notes that put a number itself in doubt, each with the cells it is about."""
    found: dict[str, list[str]] = {}
    for record in records:
        doubts = [
            LIKELY.sub(r"misread, probably \1", part.strip())
            for part in record["note"].split(";")
            if DOUBT.search(part) and not MARKS.search(part)
        ]
        if doubts:
            words = dict.fromkeys(
                (method_words(record["method"]), record["dataset"], pretty(record["column"]), record["value"])
            )
            found.setdefault("; ".join(doubts), []).append(" ".join(filter(None, words)))
    return [HYPHEN.sub("−", f"{_few(cells)}: {note}") for note, cells in found.items()]


def _few(texts: list[str], most: int = 3) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more
