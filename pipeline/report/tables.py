"""A table of a paper in the paper's own shape, with what was measured beside what was published.

The published CSV holds one row per printed number in printed order. From that order come the panels (a table
that is printed in stacked halves), the rows and the grouped columns. Measured numbers come from results alone;
a published number is only ever the `published` text of a Value.
"""
import re
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import fmean
from string import ascii_lowercase

from pipeline.errors import ParamError, unknown
from pipeline.params import DELTA, Cell, Table
from pipeline.readings import described
from pipeline.report.judgement import Judgement, variants
from pipeline.report.measures import COSTS, numbers
from pipeline.report.published import printed_number, read_published
from pipeline.report.standings import Standing
from pipeline.report.study import Study
from pipeline.report.told import Told, by_row
from pipeline.report.words import measure_words, method_words, minus, option_words, pretty, setting_words, split_setting, variant
from pipeline.results import Summary, lower_is_better, summarise

BLANK = {"", "n/a"}
DOUBT = re.compile("inconsistency|oddity|likely|filled from")
MARKS = re.compile("mark|arrow|sign [+-]")    # of rank marks, arrows and signs, which a report shows of measured numbers alone
RANKS = ("*", "†", "‡")                       # best, second, third of a column
SCORED = "scored"                             # heading of the column that says which of a client's models a row scores
HOOKS = {"pre": "before", "post": "after"}    # local training


# -- what a template shows -----------------------------------------------------------------------------------

@dataclass(frozen=True)
class Sign:
    """What stands behind a measured number, as in the paper: a rank mark, an arrow, a plus or minus."""
    text: str
    kind: str                         # rank, better, worse


@dataclass
class Value:
    """One position of a table.

    state: `measured`; `missing`, to be measured; `outside`, nothing here can be measured; `text`, a fact about
    the run instead of a number; `quoted`, the paper's own words where there is no number to stand beside them;
    `excluded`, a run that there cannot be or that nobody asked for, with the reason in two words.
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
    target: str = ""                  # of a missing one: what `dvc repro` takes to measure it
    problem: str = ""                 # of a missing one: why the result that is there cannot be used
    order: float | None = None        # of a text: the number that it sorts by

    @property
    def mean(self) -> str:
        if self.signed and self.number:
            return minus(f"{self.number.mean:+.2f}")
        return f"{self.number.mean:.2f}" if self.number else ""

    @property
    def spread(self) -> str:
        return f"{self.number.std:.2f}" if self.number and self.number.std is not None else ""

    @property
    def apart(self) -> str:
        """Measured minus published, of the numbers as shown; empty for a difference, which says it already."""
        if self.state != "measured" or self.printed is None or self.signed:
            return ""
        return minus(f"{float(self.mean) - self.printed:+.2f}")

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
        return f"not run: dvc repro {self.target}" if self.target else "not run"


@dataclass(frozen=True)
class Head:
    """A header cell over `span` columns."""
    text: str
    span: int = 1


@dataclass(frozen=True)
class Row:
    name: str                         # the row in words
    stub: list[str]                   # what the paper prints in front of the numbers, one text per stub column
    values: list[Value]
    mean: bool = False                # the mean over the other rows
    note: str = ""                    # letter of its footnote
    told: list[Told] = field(default_factory=list)    # readings of its method

    @property
    def hint(self) -> str:
        """Its readings, short."""
        return "; ".join(f"{told.number}: {told.reading.run}" for told in self.told)

    @property
    def comparable(self) -> bool:
        """Whether measured and published numbers can stand in it side by side."""
        return any(value.published and value.state in ("measured", "missing") for value in self.values)

    @property
    def published_only(self) -> bool:
        """Whether nothing in it can be measured, although the paper prints something."""
        return all(value.state == "outside" for value in self.values) and any(value.published for value in self.values)


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
    waiting: int                      # cells that have not run
    example: str                      # DVC target of the first cell that has not run, empty where there is none
    problems: list[str]               # results that cannot be used
    remarks: list[str]                # what is wrong or uncertain in the published numbers
    baseline: str                     # what a delta column is against
    legend: str                       # what the signs mean that occur in it
    footnotes: list[tuple[str, str]]  # (letter, text) of remarks on rows
    scenarios: list[str]              # that a measured number comes from
    told: list[tuple[str, list[Told]]]        # (methods, their readings)
    judgement: Judgement = field(default_factory=lambda: Judgement([], []))
    deviations: list[tuple[str, str]] = field(default_factory=list)     # (scenario in words, what differs from the paper)
    standing: Standing | None = None    # mean ranks of the methods over its scenarios

    @property
    def heading(self) -> str:
        """`Table 2`; a table inset of a figure keeps the figure's number."""
        return self.number if self.number.startswith("Fig") else f"Table {self.number}"

    @property
    def settings_only(self) -> bool:
        return not self.fillable


# -- the paper's shape -------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Place:
    """A column of a table; setting is empty where it belongs to the rows."""
    setting: str
    dataset: str
    column: str


@dataclass(frozen=True)
class Shape:
    """Which fields of a published row name its row and which its column."""
    row: str                          # method, or for a table without methods dataset or setting
    settings_in_rows: bool

    def place(self, record) -> Place:
        return Place("" if self.settings_in_rows or self.row == "setting" else record["setting"],
                     "" if self.row == "dataset" else record["dataset"], record["column"])


def shape_of(records) -> Shape:
    """Rows are methods; a table of data sets or of sizes has none, and takes what differs least in its columns."""
    settings = _per(records, "method", "setting")
    if all(method in BLANK for method in settings):
        columns = list(_per(records, "dataset", "column").values())
        same = all(names == columns[0] for names in columns)
        return Shape("dataset" if same else "setting", False)
    several = len({record["setting"] for record in records}) > 1
    return Shape("method", several and len(settings) > 1 and all(len(found) == 1 for found in settings.values()))


def _per(records, key, value) -> dict[str, list[str]]:
    """Distinct `value`s of each `key`, both in order of appearance."""
    found: dict[str, list[str]] = {}
    for record in records:
        names = found.setdefault(record[key], [])
        if record[value] not in names:
            names.append(record[value])
    return found


def split_panels(records, row: str) -> list[list[dict]]:
    """Cut where a row's name comes back after others: there the paper starts the next half of the table."""
    panels: list[list[dict]] = []
    seen: set[str] = set()
    for name, run in groupby(records, key=lambda record: record[row]):
        if not panels or name in seen and row == "method":
            panels.append([])
            seen = set()
        seen.add(name)
        panels[-1] += run
    return panels


def _row_names(panels, row: str) -> list[list[str]]:
    """Each panel's rows; a panel that lacks rows of another one (lost in print) gets them back, empty."""
    names = [list(dict.fromkeys(record[row] for record in panel)) for panel in panels]
    return [next((other for other in names if set(own) < set(other)), own) for own in names]


def _places(panel, shape: Shape, table: Table) -> list[Place]:
    """Columns in printed order, kept together by block; the baseline prints no delta, so delta may appear late. Behind each block that
    is measured comes what stands beside it, and what is ours."""
    blocks: dict[tuple, list[Place]] = {}
    for record in panel:
        place = shape.place(record)
        block = blocks.setdefault((place.setting, place.dataset), [])
        if place not in block:
            block.append(place)
    for at, block in blocks.items():
        block += [Place(*at, heading) for heading in table.beside if f"{at[0]}|{at[1]}" in table.blocks]
    for (setting, dataset), block in blocks.items():
        own = table.blocks.get(f"{setting}|{dataset}")
        block += [Place(setting, dataset, column) for column in (own.also if own else ())]
    return [place for block in blocks.values() for place in block]


class Titles:
    """Header texts of a table: what every column shares goes to the caption, what differs into header rows."""

    def __init__(self, records, shape: Shape, table: Table):
        title, columns = table.title, dict(table.columns)
        for block in table.blocks.values():
            columns |= block.also
        self.units = {column: COSTS[measure] for column, measure in columns.items() if measure in COSTS}
        parts = {record["setting"]: split_setting(record["setting"]) for record in records}
        first = next(iter(parts.values()))
        self.shared = [part for part in first if all(part in other for other in parts.values())]
        own = {setting: [setting_words(p) for p in found if p not in self.shared] for setting, found in parts.items()}
        if len({len(found) for found in own.values()}) > 1:      # not comparable part by part
            own = {setting: [", ".join(found)] for setting, found in own.items()}
        self.settings = own
        self.depth = len(next(iter(own.values())))
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


def merge_heads(levels: list[list[str]]) -> list[list[Head]]:
    """Header rows from each column's texts: neighbours that agree down to a level share one cell there."""
    rows = []
    for depth in range(len(levels[0])):
        if depth == len(levels[0]) - 1:
            rows.append([Head(texts[depth]) for texts in levels])
        else:
            runs = [list(run) for _, run in groupby(levels, key=lambda texts: texts[:depth + 1])]
            rows.append([Head(run[0][depth], len(run)) for run in runs])
    return rows


def stub_of(names: list[str], row: str, words: list[str]) -> tuple[list[str], list[list[str]]]:
    """(headings, texts of each row): `words`, or for an ablation, as the paper shows it, a check mark per component."""
    variants = [variant(name) for name in names]
    keys = list(dict.fromkeys(key for _, options in variants for key in options))
    values = {key: [options.get(key) for _, options in variants] for key in keys}
    keys = [key for key in keys if len(set(values[key])) > 1]
    if not keys or not all(options for _, options in variants) or len({base for base, _ in variants}) > 1:
        return [row], [[text] for text in words]
    columns = [_checks(values[key]) for key in keys]
    return [option_words(key) for key in keys], [list(texts) for texts in zip(*columns)]


def _checks(values: list[str | None]) -> list[str]:
    if set(values) <= {"0", "1", None}:
        return ["✓" if value == "1" else "" for value in values]
    return [value or "" for value in values]


# -- filling in what was measured ----------------------------------------------------------------------------------

class Filler:
    """Finds the measured number for a position of one table."""

    def __init__(self, study: Study, table: Table):
        self.study, self.table = study, table
        self.results = study.results

    def measure(self, setting: str, place: Place, label: str) -> str | None:
        """The measure that a position shows; None where it shows none."""
        block = self.table.block(setting, place.dataset, label)
        return block and self.table.measure(block, place.column)

    def value(self, setting: str, place: Place, label: str, printed: bool) -> Value:
        """What was measured for a method in a column; missing where a grid plans it or the paper prints a number."""
        measure, method = self.measure(setting, place, label), self.method(label)
        if measure is None or method is None:
            return Value("outside")
        cell = self.study.cell(self.table.block(setting, place.dataset, label).scenario, method)
        if cell in self.results:
            measured = [*numbers(cell, self.results[cell], measure, self.study.root).values()]
            return Value("measured", summarise(measured), cell=cell) if measured else Value("missing", problem=_unmeasured(cell, measure))
        target, problem = self.study.paper.stage(cell), self.study.problems.get(cell, "")
        return Value("missing", target=target, problem=problem) if target or printed or problem else Value("outside")

    def previous(self, setting: str, place: Place, label: str) -> Value:
        """What was measured for the same method and measure in the default setting that a block varies."""
        block, method = self.table.block(setting, place.dataset, label), self.method(label)
        result = self.results.get(self.study.cell(block.previous, method)) if block and block.previous and method else None
        measured = result and result["measures"].get(self.measure(setting, place, label))
        return Value("measured", summarise(measured)) if measured else Value("outside")

    def method(self, label: str) -> str | None:
        """Key of the method in a printed row."""
        return self.study.paper.method_of(self.table, label)

    def cells(self, label: str, settings: list[tuple[str, Place]]) -> list[Cell]:
        """The cells whose numbers a printed row shows at these places; none for a mean."""
        method = self.method(label)
        blocks = [self.table.block(setting, place.dataset, label) for setting, place in settings if self.measure(setting, place, label)]
        return list(dict.fromkeys(self.study.cell(block.scenario, method) for block in blocks)) if method else []

    def hooks(self, cells: list[Cell]) -> str:
        """Which models of the clients the cells score: as they were run, else as they would be."""
        found = dict.fromkeys(self.results[cell]["hook"] if cell in self.results else hook_of(cell, self.study.root) for cell in cells)
        return ", ".join(HOOKS[hook] for hook in found if hook)

    def is_mean(self, label: str) -> bool:
        """Whether a printed row is the mean over the methods instead of one of them."""
        return label in self.table.rows and self.table.rows[label] is None


def hook_of(cell: Cell, root: Path) -> str:
    """The hook of a cell that has not run: the scenario's or the method's; empty for an algorithm without code."""
    scenario, algorithm, hyper = cell.resolve(root)
    kind = described(algorithm)
    return scenario.evaluation.hook or (kind.says("headline", hyper) if kind else "")


def _unmeasured(cell: Cell, measure: str) -> str:
    return f"{result_path(cell)}: the measure {measure!r} is missing; another version of FedRepro wrote it, run the cell again"


def result_path(cell: Cell) -> str:
    """papers/<paper>/runs/<scenario>/<method>/result.json, as a link wants it."""
    return f"papers/{cell.paper}/runs/{cell.scenario}/{cell.method}/result.json"


class Body:
    """The values of one panel: {(row name, place): Value}."""

    def __init__(self, panel, names, places, shape: Shape, filler: Filler):
        self.names, self.filler = names, filler
        self.own_settings = {record[shape.row]: record["setting"] for record in panel} if shape.settings_in_rows else {}
        self.printed = {(record[shape.row], shape.place(record)): record["value"] for record in panel}
        self.numbers = {(record[shape.row], shape.place(record)): printed_number(record)
                        for record in panel if "likely=" not in record["note"]}
        self.plain = [place for place in places if place.column != DELTA]
        self.methods = [name for name in names if not filler.is_mean(name)]
        self.values = {(name, place): filler.value(self.setting(name, place), place, name, (name, place) in self.printed)
                       for name in names for place in self.plain}
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
            value.published = self.printed.get(position, "")
            value.printed = self.numbers.get(position)

    def cells(self, name: str) -> list[Cell]:
        """Those that a row's numbers come from."""
        return self.filler.cells(name, [(self.setting(name, place), place) for place in self.plain])

    def setting(self, name: str, place: Place) -> str:
        return self.own_settings.get(name, place.setting)

    def baseline(self, name: str, delta: Place) -> str:
        """The method that paper.yaml names, else the one of the row's setting that is printed without a delta."""
        block = [other for other in self.names if self.setting(other, delta) == self.setting(name, delta)]
        return self.filler.table.baseline or next((other for other in block if (other, delta) not in self.printed), "")

    def _groups(self, place: Place) -> dict[tuple[str, bool], list[str]]:
        """Methods of a column that compare with one another: {(setting, lower is better): names}."""
        groups: dict[tuple[str, bool], list[str]] = {}
        for name in self.methods:
            setting = self.setting(name, place)
            groups.setdefault((setting, lower_is_better(self.filler.measure(setting, place, name) or "")), []).append(name)
        return groups

    def _mark(self):
        for place in self.plain:
            for (_, lower), names in self._groups(place).items():
                mark([self.values[name, place] for name in names], lower)

    def _printed(self, names: list[str], place: Place) -> list[Value]:
        """The values of the methods for which the paper prints a number in a column."""
        return [self.values[name, place] for name in names if (name, place) in self.printed]

    def _average(self, row: str):
        """The mean over the methods that the paper prints in a column, once every one of them is measured."""
        for place in self.plain:
            others = self._printed(self.methods, place)
            if any(value.state == "missing" for value in others):
                self.values[row, place] = Value("missing")
            elif means := [value.number.mean for value in others if value.number]:
                self.values[row, place] = Value("measured", Summary(fmean(means), None, 1))

    def _sign(self, place: Place):
        """The paper's marks, of measured numbers: rank and arrow once the column is complete, plus and minus per method."""
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
        """Measured minus the measured baseline, in the last column of the block before delta that is no cost."""
        block = [place for place in self.plain if (place.setting, place.dataset) == (delta.setting, delta.dataset)]
        block = [place for place in block if self.filler.measure(place.setting, place, "") not in COSTS]
        for name in self.names:
            baseline = self.baseline(name, delta)
            other = self.values.get((baseline, block[-1]), Value("outside"))
            self.values[name, delta] = difference(self.values[name, block[-1]], other) if name != baseline else Value("outside")


def difference(value: Value, baseline: Value) -> Value:
    """What a delta column shows; measured only where both numbers are."""
    states = {value.state, baseline.state}
    if states == {"measured"}:
        number = Summary(value.number.mean - baseline.number.mean, None, value.number.seeds)
        return Value("measured", number, signed=True)
    return Value("outside" if "outside" in states else "missing", signed=True)


def mark(values: list[Value], lower: bool) -> None:
    """Best and second best of the measured values as shown (two decimals); ties share a mark, one alone has none."""
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
    shown = sorted({float(value.mean) for value in measured}, reverse=not lower)
    places = dict(zip(shown, names))
    return [(value, places[float(value.mean)]) for value in measured if float(value.mean) in places]


def compare(value: Value, other: Value, lower: bool, symbols: str) -> None:
    """A sign for better (first of `symbols`) or worse than `other`, as shown; none where one is not measured or they are equal."""
    if value.state != "measured" or other.state != "measured" or value.mean == other.mean:
        return
    better = (float(value.mean) < float(other.mean)) == lower
    value.signs.append(Sign(symbols[0], "better") if better else Sign(symbols[1], "worse"))


# -- the whole table -------------------------------------------------------------------------------------------------

def table_view(key: str, study: Study) -> TableView:
    """Table `key` of paper.yaml, ready for a template but for its verdict."""
    table = study.paper.tables[key]
    records = read_published(study.key, table, study.root)
    if key in variants(study.paper):                        # it shows only what it measures once more
        records = [record for record in records if table.block(record["setting"], record["dataset"], record["method"])]
    shape = shape_of(records)
    titles, filler = Titles(records, shape, table), Filler(study, table)
    notes = footnotes(study.key, key, table, records, shape.row)
    panels, counted, told = [], [], {}
    halves = split_panels(records, shape.row)
    for half, names in zip(halves, _row_names(halves, shape.row)):
        places = _places(half, shape, table)
        body = Body(half, names, places, shape, filler)
        panels.append(_panel(body, places, titles, shape.row, {name: letter for name, (letter, _) in notes.items()}))
        counted += [body.values[name, place] for name in body.methods for place in body.plain if place.column not in table.beside]
        for name, row in zip(body.names, panels[-1].rows):
            told.setdefault(filler.method(name), {}).update(dict.fromkeys(row.told))
    return TableView(
        key=key, number=table.number, title=table.title, about=titles.about, note=table.note, panels=panels,
        measured=sum(value.state == "measured" for value in counted),
        fillable=sum(value.state != "outside" for value in counted),
        waiting=len({value.target for value in counted if value.state == "missing" and value.target}),
        example=next((value.target for value in counted if value.state == "missing" and value.target), ""),
        problems=list(dict.fromkeys(value.problem for value in counted if value.problem)),
        remarks=remarks_of(records),
        baseline=_baseline_words(records, table),
        legend=legend({sign.text for value in counted for sign in value.signs}, table),
        footnotes=list(notes.values()),
        scenarios=list(dict.fromkeys(value.cell.scenario for value in counted if value.cell)),
        told=by_row(study.paper, {method: list(found) for method, found in told.items()}))


def footnotes(paper: str, key: str, table: Table, records, row: str) -> dict[str, tuple[str, str]]:
    """{printed row: (letter, text)} of the table's remarks; ParamError for a row that is not printed."""
    names = {record[row] for record in records}
    for name in table.remarks:
        if name not in names:
            raise ParamError(f"papers/{paper}/paper.yaml: tables.{key}.remarks: {unknown('printed method', name, names)}")
    return {name: (letter, text) for letter, (name, text) in zip(ascii_lowercase, table.remarks.items())}


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
    found += [f"{heading}: {measure_words(measure)}, which the paper does not print" for heading, measure in table.beside.items()]
    return "; ".join(found) + "." if found else ""


def _panel(body: Body, places: list[Place], titles: Titles, row: str, notes: dict[str, str]) -> Panel:
    title, levels = titles.split(places)
    names = [titles.row(name) for name in body.names]
    stub, texts = stub_of(body.names, row, names)
    if body.own_settings:
        stub = [*stub, "setting"]
        texts = [[*text, titles.setting(body.own_settings.get(name, ""))] for name, text in zip(body.names, texts)]
    cells = {name: body.cells(name) for name in body.names}
    if body.filler.table.hook:
        stub = [*stub, SCORED]
        texts = [[*text, body.filler.hooks(cells[name])] for name, text in zip(body.names, texts)]
    told = {name: list(dict.fromkeys(told for cell in cells[name] for told in body.filler.study.readings.get(cell, []))) for name in body.names}
    rows = [Row(words, text, [body.values[name, place] for place in places], mean=name not in body.methods, note=notes.get(name, ""),
                told=told[name]) for name, words, text in zip(body.names, names, texts)]
    return Panel(title, stub, merge_heads(levels), rows)


def _baseline_words(records, table: Table) -> str:
    if not any(record["column"] == DELTA for record in records):
        return ""
    return method_words(table.baseline) if table.baseline else "the row that the paper prints without it"


def remarks_of(records) -> list[str]:
    """The transcription's notes that put a number itself in doubt, each with the cells it is about."""
    found: dict[str, list[str]] = {}
    for record in records:
        doubts = [part.strip() for part in record["note"].split(";") if DOUBT.search(part) and not MARKS.search(part)]
        if doubts:
            words = dict.fromkeys((method_words(record["method"]), record["dataset"], pretty(record["column"]), record["value"]))
            found.setdefault("; ".join(doubts), []).append(" ".join(filter(None, words)))
    return [f"{_few(cells)}: {note}" for note, cells in found.items()]


def _few(texts: list[str], most: int = 3) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more
