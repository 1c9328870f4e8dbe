"""A table of a paper in the paper's own layout, with the measured numbers beside the published ones.

Measured numbers come from results alone; a published number is only ever the `published` text of a Value.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import class_of
from pipeline.cells.results import Summary, lower_is_better, summarise
from pipeline.errors import ParamError
from pipeline.report.measures import COSTS, numbers
from pipeline.report.published import (
    Panel,
    Place,
    Row,
    Shape,
    Titles,
    Value,
    difference,
    mark,
    merge_heads,
    places_of,
    printed_number,
    read_published,
    row_names,
    shape_of,
    split_panels,
    stub_of,
)
from pipeline.report.study import Study
from pipeline.report.verdicts import variants
from pipeline.schema import DELTA, Cell, Table

# Heading of the column that says whether a client's model is scored before or after local training
SCORED = "scored"
HOOKS = {"pre": "before", "post": "after"}


@dataclass
class TableView:
    """A table of a paper.

    about      what all columns share: setting and data set
    measured   positions with a measured number; fillable: those that runs fill, measured ones included
    """

    key: str
    number: str
    title: str
    about: str
    note: str
    panels: list[Panel]
    measured: int
    fillable: int

    @property
    def heading(self) -> str:
        """`Table 2`; a table inset of a figure keeps the figure's number."""
        return self.number if self.number.startswith("Fig") else f"Table {self.number}"


# -- filling in what was measured ----------------------------------------------------------------------------


class Filler:
    """Finds the measured number for a position of one table."""

    def __init__(self, study: Study, table: Table):
        self.study, self.table = study, table
        self.results = study.results

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
            if measured:
                return Value("measured", summarise(measured), cell=cell, measure=measure)
            return Value("missing", measure=measure)
        target = self.study.target(cell)
        if target or printed or cell in self.study.problems:
            return Value("missing", target=target, measure=measure)
        return Value("outside")

    def method(self, label: str) -> str | None:
        """Key of the method in a printed row."""
        return self.study.paper.method_of(self.table, label)

    def cells(self, label: str, settings: list[tuple[str, Place]]) -> list[Cell]:
        """The cells whose numbers a printed row shows at these places; none for a mean."""
        method = self.method(label)
        blocks = [
            block
            for setting, place in settings
            if (block := self.table.block(setting, place.dataset, label))
            and self.measure(setting, place, label)
        ]
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
    experiment = Experiment.of(cell, root)
    kind = class_of(experiment)
    return experiment.scenario.evaluation.hook or (kind.says("headline", experiment.hyper) if kind else "")


class Body:
    """The values of one panel: {(row name, place): Value}."""

    def __init__(self, panel, names, places, shape: Shape, filler: Filler):
        self.names, self.filler = names, filler
        self.own_settings = (
            {record[shape.row]: record["setting"] for record in panel} if shape.settings_in_rows else {}
        )
        self.printed = {(record[shape.row], shape.place(record)): record["value"] for record in panel}
        self.numbers = {
            (record[shape.row], shape.place(record)): printed_number(record)
            for record in panel
            if "likely=" not in record["note"]
        }
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

    def _average(self, row: str):
        """The mean over the methods that the paper prints in a column, once all of them are measured."""
        for place in self.plain:
            others = [self.values[name, place] for name in self.methods if (name, place) in self.printed]
            if any(value.state == "missing" for value in others):
                self.values[row, place] = Value("missing")
            elif means := [value.number.mean for value in others if value.number]:
                self.values[row, place] = Value("measured", Summary(fmean(means), None, 1))

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
    """Table `key` of paper.yaml, with what was measured."""
    table = study.paper.tables[key]
    records = _records(key, study)
    shape = shape_of(records)
    titles, filler = Titles(records, shape, table), Filler(study, table)
    panels: list[Panel] = []
    counted: list[Value] = []
    halves = split_panels(records, shape.row)
    for half, names in zip(halves, row_names(halves, shape.row)):
        places = places_of(half, shape, table)
        body = Body(half, names, places, shape, filler)
        panels.append(_panel(body, places, titles, shape.row))
        counted += [
            body.values[name, place]
            for name in body.methods
            for place in body.plain
            if place.column not in other_measures(table)
        ]
    shown = dict.fromkeys(value.cell for value in counted if value.cell)
    return TableView(
        key=key,
        number=table.number,
        title=table.title,
        about=titles.about,
        note=" ".join(filter(None, [table.note, study.computed_otherwise(shown)])),
        panels=panels,
        measured=sum(value.state == "measured" for value in counted),
        fillable=sum(value.state != "outside" for value in counted),
    )


def _records(key: str, study: Study) -> list[dict[str, str]]:
    """The printed numbers of a table; of one that measures them in another setting those that it measures."""
    table = study.paper.tables[key]
    records = read_published(study.key, table, study.root)
    if key in variants(study.paper):
        records = [one for one in records if table.block(one["setting"], one["dataset"], one["method"])]
    if not records:
        raise ParamError(
            f"papers/{study.key}/paper.yaml: tables.{key}: none of its blocks is printed in "
            f"published/{table.published}"
        )
    return records


def other_measures(table: Table) -> dict[str, str]:
    """Our columns that show another accuracy of the same runs. They do not count among the numbers to be
    measured, whereas columns of costs do."""
    return {heading: measure for heading, measure in table.also.items() if measure not in COSTS}


def _panel(body: Body, places: list[Place], titles: Titles, row: str) -> Panel:
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
        )
        for name, words, text in zip(body.names, names, texts)
    ]
    return Panel(title, stub, merge_heads(levels), rows)
