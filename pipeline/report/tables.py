"""A paper's tables laid out as in the paper, with measured and published numbers.

The two kinds of numbers cannot be mixed up: measured numbers come only from results, and a published number
appears only in the fields `published` and `printed` of a `Value`.
"""

import re
from statistics import fmean

from pipeline.cells.results import Summary, is_percent, lower_is_better
from pipeline.errors import ParamError
from pipeline.report.measures import COSTS, numbers
from pipeline.report.published import (
    Layout,
    Panel,
    Place,
    Row,
    Value,
    mark,
    printed_number,
    read_published,
    share_seeds,
)
from pipeline.report.study import Study
from pipeline.report.verdicts import variants
from pipeline.schema import Cell
from pipeline.schema.paper import DELTA


class TableView:
    """A table of a paper, with what was measured.

    key       of the table in paper.yaml
    study     of the paper
    layout    its rows and columns, as the paper prints them
    names     of the rows
    methods   names of the rows that are no means over the others
    plain     columns that are no differences to a baseline
    values    (row name, column) -> its value
    measured  number of positions with a measured number
    fillable  number of positions that runs fill, measured ones included
    note      what paper.yaml says about it, and what was computed otherwise than in the paper
    panel     the table as a page shows it
    """

    def __init__(self, key: str, study: Study):
        self.key = key
        self.study = study
        self.table = study.paper.tables[key]
        self.number = self.table.number
        self.title = self.table.title
        self.layout = Layout(_records(key, study), self.table)
        self.names = self.layout.names
        self.printed = self.layout.printed
        self.plain = [place for place in self.layout.places if place.column != DELTA]
        # A row that paper.yaml gives no method is the mean over the others.
        self.methods = [name for name in self.names if self.table.rows.get(name, "") is not None]
        self.values = {(name, place): self._value(name, place) for name in self.names for place in self.plain}
        self._complete()

        # Columns that only we have count among the numbers to be measured if they are costs, not if they are
        # further accuracies of the same runs.
        extra = {heading for heading, measure in self.table.also.items() if measure not in COSTS}
        shown = [place for place in self.plain if place.column not in extra]
        counted = [self.values[name, place] for name in self.methods for place in shown]
        self.measured = sum(value.state == "measured" for value in counted)
        self.fillable = sum(value.state != "outside" for value in counted)
        cells = dict.fromkeys(value.cell for value in counted if value.cell)
        self.note = " ".join(filter(None, [self.table.note, study.computed_otherwise(cells)]))

        title, levels = self.layout.headers()
        stub = [self.layout.row, "setting"] if self.layout.settings else [self.layout.row]
        self.panel = Panel(title, stub, levels, [self._row(name) for name in self.names])

    def _row(self, name: str) -> Row:
        """A row as a page shows it."""
        stub = self.layout.stub(name)
        values = [self.values[name, place] for place in self.layout.places]
        return Row(stub[0], stub, values, mean=name not in self.methods)

    @property
    def heading(self) -> str:
        """What the paper calls it: `Table 2`; a table inside of a figure has the figure's number."""
        return self.number if self.number.startswith("Fig") else f"Table {self.number}"

    def _complete(self) -> None:
        """Add what is computed from other values (marks, means over rows, differences), and the printed
        numbers."""
        self._mark()
        for name in self.names:
            if name not in self.methods:
                self._average(name)
        for place in self.layout.places:
            if place.column == DELTA:
                self._subtract(place)
        for position, record in self.printed.items():
            value = self.values[position]
            value.published = re.sub(r"^-(?=\d)", "−", record["value"])
            # A number that cannot be read is not compared with the measured one.
            is_garbled = "likely=" in record["note"]
            value.printed = None if is_garbled else printed_number(record)

    def _value(self, name: str, place: Place) -> Value:
        """What was measured for a row in a column.

        A number that was not measured is missing if a grid plans its run, if the paper prints it, or if its
        result is damaged; otherwise it is outside.
        """
        setting = self.setting(name, place)
        source = self.study.source(self.table, setting, place.dataset, name, place.column)
        if source is None:
            return Value("outside")
        cell, measure = source
        if cell in self.study.results:
            by_seed = numbers(cell, self.study.results[cell], measure, self.study.root)
            if by_seed:
                return measured(self.study, cell, measure, by_seed)
            return Value("missing", measure=measure)

        target = self.study.target(cell)
        if target or (name, place) in self.printed or cell in self.study.problems:
            return Value("missing", target=target, measure=measure)
        return Value("outside")

    def setting(self, name: str, place: Place) -> str:
        """The setting of a position, which belongs to its row or to its column.

        name   of the row
        place  the column
        """
        return self.layout.settings.get(name, place.setting)

    def baseline(self, name: str, delta: Place) -> str:
        """The row that a column of differences subtracts from a row: the method that paper.yaml names, else
        the one of the same setting for which the paper prints no difference; empty if there is none.

        name   of the row
        delta  the column of differences
        """
        setting = self.setting(name, delta)
        block = [other for other in self.names if self.setting(other, delta) == setting]
        plain = (other for other in block if (other, delta) not in self.printed)
        return self.table.baseline or next(plain, "")

    def _mark(self) -> None:
        """Mark the best methods of each column, over the seeds that the compared methods share.

        Methods are compared within one setting, and if the same numbers (large or small) are good for them.
        """
        for place in self.plain:
            groups: dict[tuple[str, bool], list[Value]] = {}
            for name in self.methods:
                value = self.values[name, place]
                key = (self.setting(name, place), lower_is_better(value.measure))
                groups.setdefault(key, []).append(value)
            for (_, lower), values in groups.items():
                share_seeds(values)
                mark(values, lower)

    def _average(self, row: str) -> None:
        """Fill a row of means: the mean over the methods that the paper prints in a column, once all of them
        are measured."""
        for place in self.plain:
            others = [self.values[name, place] for name in self.methods if (name, place) in self.printed]
            means = [value.number.mean for value in others if value.number]
            if any(value.state == "missing" for value in others):
                self.values[row, place] = Value("missing")
            elif means:
                self.values[row, place] = Value("measured", number=Summary(fmean(means), None, 1))

    def _subtract(self, delta: Place) -> None:
        """Fill a column of differences to the baseline.

        They are differences in the last column of the same setting and data set that the paper prints and
        that is no cost.
        """
        block = [
            place
            for place in self.plain
            if (place.setting, place.dataset) == (delta.setting, delta.dataset)
            and place.column not in {*self.table.also, *self.layout.units}
        ]
        for name in self.names:
            baseline = self.baseline(name, delta)
            self.values[name, delta] = Value("outside")
            if block and name != baseline:
                other = self.values.get((baseline, block[-1]), Value("outside"))
                self.values[name, delta] = self.values[name, block[-1]].less(other)


def measured(study: Study, cell: Cell, measure: str, by_seed: dict[int, float]) -> Value:
    """A measured number of a finished cell, with whether it is at chance level and whether it is stale.

    study    of the paper
    cell     that was trained
    measure  its name
    by_seed  seed -> number
    """
    value = Value("measured", by_seed, cell=cell, measure=measure, stale=study.is_stale(cell))
    accuracy = is_percent(measure) and measure not in COSTS and not lower_is_better(measure)
    if accuracy and value.number and study.guesses(cell):
        value.chance = value.number.mean < study.chance_level(cell)
    return value


def _records(key: str, study: Study) -> list[dict[str, str]]:
    """The printed numbers of a table; for one that measures another table's numbers in another setting, those
    that it measures. ParamError if there are none."""
    table = study.paper.tables[key]
    records = read_published(study.key, table, study.root)
    if key in variants(study.paper):
        records = [row for row in records if table.block(row["setting"], row["dataset"], row["method"])]
    if not records:
        raise ParamError(
            f"papers/{study.key}/paper.yaml: tables.{key}: none of its blocks is printed in "
            f"published/{table.published}"
        )
    return records
