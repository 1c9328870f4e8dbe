"""The page of a paper, as plain data for its template."""

import re
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from pipeline.cells.results import Summary, is_percent, lower_is_better, ordered, summarise
from pipeline.report.comparison import (
    SHORT,
    Axis,
    ClaimRow,
    Dots,
    Ranks,
    Setting,
    charts,
    claim_row,
    claims_axis,
    compared_cells,
    other_setting,
    place_of,
    ranks,
    settings,
    sums_up,
)
from pipeline.report.drawings import FigureView, curves, figures
from pipeline.report.published import Head, Panel, Row, Value, columns, mark, merge_heads
from pipeline.report.study import Batch, Numbered, Study, ValueRow, deviations, grouped, provenance, values
from pipeline.report.tables import TableView, table_view
from pipeline.report.verdicts import Chip, count, variants, verdicts
from pipeline.report.words import bibtex, measure_words
from pipeline.schema import CEILING, MINIATURE, Cell, Paper, printed

# Steps of the colour that shows the distance to the print.
TINTS = 6


# -- numbers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """A position of a table as shown; empty where nothing was measured."""

    mean: str = ""
    spread: str = ""
    printed: str = ""
    difference: str = ""
    mark: str = ""
    # u1 to u6: above the print, d1 to d6: below
    tint: str = ""
    file: str = ""
    # of the model that is not the main line
    other: bool = False


@dataclass(frozen=True)
class Line:
    name: str
    own: bool
    mean: bool
    stub: list[str]
    numbers: list[Number]


@dataclass(frozen=True)
class Grid:
    """A panel cut to what was measured."""

    title: str
    stub: list[str]
    heads: list[list[Head]]
    lines: list[Line]


@dataclass(frozen=True)
class Tab:
    """A table under a tab, or in a fold."""

    key: str
    label: str
    title: str
    note: str
    grids: list[Grid]
    seeds: str
    # of our own: no table of the paper
    beside: bool = False
    done: str = ""
    # which model the main line scores; empty where results have no other
    line: str = ""
    # the table that has the other rows
    rest: str = ""


def number(value: Value) -> Number:
    if value.number is None:
        return Number()
    way, share = value.tint
    step = min(TINTS, round(share * TINTS + 0.49)) if way else 0
    return Number(
        value.mean,
        value.spread,
        value.published,
        value.apart,
        value.mark,
        f"{way[0]}{step}" if step else "",
        value.file,
        value.measure.startswith(OTHER),
    )


def other_model(study: Study, value: Value) -> Number:
    """The same measure of the clients' models on the other side of local training."""
    if not value.cell or not value.measure:
        return Number(other=True)
    result = study.results[value.cell]
    hook = "post" if result["hook"] == "pre" else "pre"
    numbers = result["measures"].get(f"{hook}.{value.measure}")
    if not numbers:
        return Number(other=True)
    measured = Value("measured", summarise(numbers), printed=value.printed)
    return Number(measured.mean, measured.spread, "", measured.apart, file=value.file, other=True)


# The model that a column of averages scores, by the result's hook, and the column beside it.
LINES = {"pre": "before local training", "post": "after local training"}
OTHERS = {"pre": LINES["post"], "post": LINES["pre"]}
MIXED = "the other model"
# Measures of that other model, where paper.yaml gives it a column.
OTHER = ("pre.", "post.", "other.")


def tab(study: Study, view: TableView, base: TableView | None = None) -> Tab:
    """A table of the paper, cut to its measured columns and rows; averages come first in their group.

    base: the table whose printed numbers it measures in another setting; rows that are the same runs as there
    stand there alone.
    """
    there = {value.cell for value in _values(base)} if base else set()
    panels = [
        replace(panel, rows=[row for row in panel.rows if _differs(row, there)]) for panel in view.panels
    ]
    values = [value for panel in panels for row in panel.rows for value in row.values]
    left = any(len(panel.rows) < len(whole.rows) for panel, whole in zip(panels, view.panels))
    return Tab(
        view.key,
        view.number.partition(", ")[2] if base and base.measured else view.heading,
        ", ".join(filter(None, [f"{view.heading}: {view.title}", "" if base else view.about])),
        view.note,
        [grid for panel in panels if (grid := cut(study, panel))],
        seeds([value.number for value in values if value.number and value.cell]),
        done="" if view.measured == view.fillable else f"{view.measured} of {view.fillable}",
        line=main_line(study, values),
        rest=base.heading if base and left else "",
    )


def _values(view: TableView) -> list[Value]:
    return [value for panel in view.panels for row in panel.rows for value in row.values]


def _differs(row: Row, there: set[Cell | None]) -> bool:
    cells = {value.cell for value in row.values if value.cell}
    return not cells or not cells <= there


def main_line(study: Study, values: list[Value]) -> str:
    """Which model the main line scores, where results have the other one too."""
    cells = {v.cell for v in values if v.cell and other_model(study, v).mean not in ("", v.mean)}
    hooks = sorted({study.results[cell]["hook"] for cell in cells}, reverse=True)
    return ", ".join(LINES[hook] for hook in hooks) if len(hooks) < 2 else "as each method is scored"


def own_tab(study: Study, scenario: str) -> Tab | None:
    """The table of a scenario that no table of the paper shows; None where nothing of it has run."""
    runs = {cell: study.results[cell] for cell in study.asked(scenario) if cell in study.results}
    if not runs:
        return None
    every = dict.fromkeys(name for run in runs.values() for name in run["measures"])
    names = [n for n in ordered(every) if is_percent(n) and not n.startswith(("pre.", "post.", "method."))]
    if any("." in name for name in names):
        names = [name for name in names if "." in name]
    if not scenario.endswith(SHORT):
        names = [name for name in names if sums_up(name) or lower_is_better(name)]
    rows = []
    for cell, run in runs.items():
        values = [
            Value("measured", summarise(run["measures"][name]), cell=cell, measure=name)
            if name in run["measures"]
            else Value("outside")
            for name in names
        ]
        rows.append(Row(study.label(cell.method), [study.label(cell.method)], values))
    rivals = [row for row, cell in zip(rows, runs) if study.paper.algorithm(cell.method) != CEILING]
    for i, name in enumerate(names):
        mark([row.values[i] for row in rivals], lower_is_better(name))
    heads = merge_heads(
        [measure_words(name).split(", ", 1) if "." in name else [measure_words(name)] for name in names]
    )
    grid = cut(study, Panel("", ["method"], heads, rows))
    summaries = [value.number for row in rows for value in row.values if value.number]
    beside = scenario in study.paper.beside
    return Tab(
        scenario,
        _label(study, scenario),
        study.title(scenario),
        "",
        [grid] if grid else [],
        seeds(summaries),
        beside,
        line=main_line(study, [value for row in rows for value in row.values]),
    )


def _label(study: Study, scenario: str) -> str:
    """The first words of a scenario's title, as many as no other scenario begins with."""
    parts = study.title(scenario).split(", ")
    others = [study.title(one) for one in study.paper.scenarios if one != scenario]
    n = next(
        (n for n in range(1, len(parts)) if not any(o.startswith(", ".join(parts[:n])) for o in others)), 1
    )
    return ", ".join(parts[:n])


def seeds(numbers: list[Summary]) -> str:
    """`5`, `1 to 3`: seeds behind the numbers."""
    few, most = min(n.seeds for n in numbers), max(n.seeds for n in numbers)
    return f"{few}" if few == most else f"{few} to {most}"


def cut(study: Study, panel: Panel) -> Grid | None:
    """A panel without the columns and rows that have no measured number; None where nothing is left."""
    rows = [row for row in panel.rows if any(value.number for value in row.values)]
    texts = columns(panel.heads)
    measured = [i for i in range(len(texts)) if any(row.values[i].number for row in rows)]
    if not measured:
        return None
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in measured:
        groups.setdefault(tuple(texts[i][:-1]), []).append(i)
    heads: list[list[str]] = []
    numbers: list[list[Number]] = [[] for _ in rows]
    for group in groups.values():
        given = any(_measure(rows, i).startswith(OTHER) for i in group)
        for i in sorted(group, key=lambda i: _order(_measure(rows, i))):
            heads.append(texts[i])
            for line, row in zip(numbers, rows):
                line.append(number(row.values[i]))
            if sums_up(_measure(rows, i)) and not given and (label := _other(study, rows, i)):
                heads.append([*texts[i][:-1], label])
                for line, row in zip(numbers, rows):
                    line.append(other_model(study, row.values[i]))
    shared = [level for level in range(len(heads[0]) - 1) if len({head[level] for head in heads}) == 1]
    title = ", ".join(filter(None, [panel.title, *(heads[0][level] for level in shared)]))
    merged = merge_heads([[text for level, text in enumerate(head) if level not in shared] for head in heads])
    # a column of words that says the same of every row goes into the note of the main line
    stubs = [i for i in range(len(panel.stub)) if i == 0 or len({row.stub[i] for row in rows}) > 1]
    lines = [
        Line(row.name, row.name == study.name, row.mean, [row.stub[i] for i in stubs], n)
        for row, n in zip(rows, numbers)
    ]
    return Grid(title, [panel.stub[i] for i in stubs], merged, lines)


def _measure(rows: list[Row], i: int) -> str:
    return next((row.values[i].measure for row in rows if row.values[i].measure), "")


def _order(measure: str) -> int:
    """The average first, then that of the other model."""
    return 0 if sums_up(measure) else 1 if measure.startswith(OTHER) else 2


def _other(study: Study, rows: list[Row], i: int) -> str:
    """Heading of the second column of an average; empty where no result has it."""
    values = [row.values[i] for row in rows if row.values[i].cell]
    if not any(other_model(study, value).mean not in ("", value.mean) for value in values):
        return ""
    hooks = {study.results[value.cell]["hook"] for value in values if value.cell}
    return OTHERS[hooks.pop()] if len(hooks) == 1 else MIXED


# -- the page ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """Everything about one paper."""

    key: str
    name: str
    paper: Paper
    headline: str
    counts: dict[Chip, int]
    main: list[ClaimRow]
    claims: list[ClaimRow]
    axis: Axis | None
    # what the settings are called in which other tables judge claims
    elsewhere: list[str]
    settings: list[Setting]
    dots: list[Dots]
    ranks: Ranks | None
    tabs: list[Tab]
    # tables without a measured number: heading, title, file of the printed numbers
    waiting: list[tuple[str, str, str]]
    mini: Tab | None
    figures: list[FigureView]
    # (setting, accuracy over rounds)
    curves: list[tuple[str, Markup]]
    why: list[str]
    command: str
    cite: str
    done: int
    planned: int
    deviations: list[tuple[str, list[str]]]
    # by the methods that have them
    readings: dict[str, list[Numbered]]
    values: list[ValueRow]
    provenance: list[tuple[str, list[Batch]]]
    problems: list[str]

    @property
    def stale(self) -> int:
        """Runs, but for the miniature's, that today's code is not known to give."""
        return sum(
            cell[-1] == "stale" for _, groups in self.provenance for one in groups for cell in one.cells
        )

    @property
    def measured(self) -> list[ClaimRow]:
        """Claims with a number, those that are decided first."""
        order = list(Chip)
        rows = [row for row in self.claims if row.verdict.chip not in (Chip.NOT_RUN, Chip.NOT_TESTABLE)]
        return sorted(rows, key=lambda row: order.index(row.verdict.chip))

    @property
    def line(self) -> str:
        """Which model most tables score."""
        lines = [tab.line for tab in self.tabs if tab.line]
        return max(dict.fromkeys(lines), key=lines.count, default="")

    @property
    def by_verdict(self) -> list[ClaimRow]:
        return [*self.measured, *sorted(self.open, key=lambda row: list(Chip).index(row.verdict.chip))]

    @property
    def open(self) -> list[ClaimRow]:
        """Claims without a number."""
        return [row for row in self.claims if row.verdict.chip in (Chip.NOT_RUN, Chip.NOT_TESTABLE)]

    @property
    def reference(self) -> str:
        """`Fu et al., 2025`."""
        first, *others = self.paper.authors.split(", ")
        year = re.search(r"\((\d{4})\)", self.paper.reference)
        return f"{first.split()[-1]}{' et al.' if others else ''}" + (f", {year[1]}" if year else "")

    @property
    def place(self) -> tuple[int, int, int] | None:
        """(measured place, of so many methods, printed place) of the paper's method in its first setting."""
        for setting in self.settings[:1]:
            means = {name: round(n.mean, 2) for name, n in setting.columns[0].numbers.items()}
            if self.name in means and self.name in setting.printed:
                return place_of(self.name, means), len(means), place_of(self.name, setting.printed)
        return None


def page(study: Study) -> Page:
    """The context of one paper."""
    paper, found = study.paper, verdicts(study)
    axis = claims_axis(found)
    rows = {verdict.claim.id: claim_row(verdict, axis) for verdict in found}
    main = [rows[name] for name in paper.main]
    views = [table_view(key, study) for key in paper.tables]
    compared = settings(study, views, [row.verdict.claim for row in main])
    drawn = charts(compared, study.name)
    cells = printed(study.key, study.root)
    settled = [other_setting(name) for verdict in found if verdict.seeds for name, _ in verdict.elsewhere]
    return Page(
        key=study.key,
        name=study.name,
        paper=paper,
        counts=count(found),
        main=main,
        claims=list(rows.values()),
        axis=axis,
        elsewhere=list(dict.fromkeys(settled)),
        settings=compared,
        dots=drawn,
        ranks=ranks(compared, study.name, drawn),
        tabs=_tabs(study, views),
        waiting=[(v.heading, v.title, paper.tables[v.key].published) for v in views if not v.measured],
        done=sum(cell in study.results for cell in cells),
        planned=len(cells),
        **_texts(study, compared),
        **_folds(study, compared),
    )


def _texts(study: Study, compared: list[Setting]) -> dict[str, Any]:
    """What paper.yaml says in words; numbers without a scenario are those of the first setting."""
    paper, scenario = study.paper, compared[0].columns[0].scenario if compared else ""
    return {
        "headline": study.filled(paper.headline, "headline", scenario),
        "why": [study.filled(text, "why", scenario) for text in paper.why],
        "command": command(study, compared),
        "cite": bibtex(paper, study.key),
    }


def _folds(study: Study, compared: list[Setting]) -> dict[str, Any]:
    cells = compared_cells(study, compared)
    return {
        "mini": own_tab(study, MINIATURE),
        "figures": figures(study),
        "curves": [(study.title(name), curves(study, name, several)) for name, several in cells.items()],
        "deviations": deviations(study),
        "readings": grouped(study.readings),
        "values": values(study),
        "provenance": provenance(study),
        "problems": list(study.problems.values()),
    }


def _tabs(study: Study, views: list[TableView]) -> list[Tab]:
    """The measured tables, then the additional scenarios; a label that several would have becomes the whole
    heading."""
    by_key = {view.key: view for view in views}
    bases = {key: by_key[base] for key, (base, _) in variants(study.paper).items()}
    tabs = [tab(study, view, bases.get(view.key)) for view in views if view.measured]
    labels = [one.label for one in tabs]
    tabs = [
        replace(one, label=by_key[one.key].heading) if labels.count(one.label) > 1 else one for one in tabs
    ]
    return tabs + [own for scenario in study.paper.beside if (own := own_tab(study, scenario))]


def command(study: Study, compared: list[Setting]) -> str:
    """Trains the paper's method in its main setting with other seeds."""
    column = compared[0].columns[0] if compared else None
    own = [name for name in study.paper.methods if study.paper.label(name) == study.name]
    scenario = column.scenario if column else next(iter(study.paper.scenarios))
    return f"fedrepro run {study.cell(scenario, [*own, *study.paper.methods][0])} --seeds 7,8"
