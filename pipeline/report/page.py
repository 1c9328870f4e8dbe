"""Collect a paper's tables, figures, claims and texts as plain data for the template of its HTML page."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from pipeline.cells.documents import Result
from pipeline.cells.results import is_percent, lower_is_better, ordered
from pipeline.report.alike import Alike, compared, scored_alike
from pipeline.report.citations import bibtex
from pipeline.report.comparison import (
    Setting,
    add_tuned,
    charts,
    claims_axis,
    compared_cells,
    settings,
    sums_up,
)
from pipeline.report.declared import experiments
from pipeline.report.drawings import FigureView, curves, figures
from pipeline.report.findings import Finding, Findings, discoveries
from pipeline.report.footnotes import footnotes, marks
from pipeline.report.measures import numbers
from pipeline.report.paper_files import sections
from pipeline.report.published import OTHER, Panel, Row, Value, mark, share_seeds
from pipeline.report.sentences import answers, headline, told
from pipeline.report.study import (
    NOT_VERIFIED,
    SHORT,
    STALE,
    Study,
    deviations,
    provenance,
    readings_by_methods,
    values,
)
from pipeline.report.tables import TableView, measured
from pipeline.report.tunings import tuned_settings
from pipeline.report.verdicts import Chip, Verdict, count, variants
from pipeline.report.words import GROUPS, counted, measure_words
from pipeline.schema import MINIATURE, Cell, printed
from pipeline.schema.discovery import CEILING

# Main claims of a paper that the overview shows: as many as fit in one line.
TILES = 4
# Verdicts without a number.
OPEN = (Chip.NOT_RUN, Chip.NOT_TESTABLE)
# Verdicts that speak against the paper.
AGAINST = (Chip.FAILS, Chip.CONTRADICTED)

Item = TypeVar("Item")

# -- tables --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tab:
    """A table under a tab, or in a fold.

    panel       cut to what was measured
    additional  ours: no table of the paper
    done        `3 of 8` numbers measured; empty: all
    line        which model the main line scores; empty where results have no other
    rest        the table that has the other rows
    footnotes   what has to be known of its runs, in sentences
    said        what the findings say of the main claim that it shows
    """

    key: str
    label: str
    title: str
    panel: Panel
    seeds: str
    line: str
    note: str = ""
    additional: bool = False
    done: str = ""
    rest: str = ""
    said: str = ""
    footnotes: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """The sentences below the table: paper.yaml's, then those of its runs."""
        return [*filter(None, [self.note]), *self.footnotes]


def _tab(study: Study, key: str, label: str, title: str, panel: Panel, **more: Any) -> Tab:
    """A table, cut to its measured columns and rows; averages come first in their group."""
    values = [value for row in panel.rows for value in row.values]
    counts = [value.number.seeds for value in values if value.number and value.cell] or [0]
    fewest = min(counts)
    most = max(counts)
    if fewest == most:
        seeds = counted(fewest, "seed")
    else:
        seeds = f"{fewest} to {most} seeds, in a column over those in common"

    hooks = {study.results[value.cell]["hook"] for value in values if value.cell} - {None, ""}
    line = "as each method is scored" if len(hooks) > 1 else "".join(GROUPS[hook] for hook in hooks)
    shown = cut(panel)
    return Tab(key, label, title, shown, seeds, line, footnotes=tuple(footnotes(study, shown)), **more)


def paper_tab(study: Study, view: TableView, base: TableView | None = None) -> Tab:
    """A table of the paper. base: the table with the same printed numbers in the paper's setting; rows that
    have the same runs and seeds as there are left out."""
    shown_in_base = _runs_and_seeds(base.panel.rows) if base else set()
    rows = []
    for row in view.panel.rows:
        numbers = {(value.cell, tuple(value.by_seed)) for value in row.values if value.cell}
        if not numbers or numbers - shown_in_base:
            rows.append(row)
    panel = replace(view.panel, rows=rows)

    title = f"{view.heading}: {view.title}"
    if not base and view.layout.about:
        title = f"{title}, {view.layout.about}"
    return _tab(
        study,
        view.key,
        view.number.partition(", ")[2] if base and base.measured else view.heading,
        title,
        panel,
        note=view.note,
        done="" if view.measured == view.fillable else f"{view.measured} of {view.fillable}",
        rest=base.heading if base and len(panel.rows) < len(view.panel.rows) else "",
    )


def _runs_and_seeds(rows: Iterable[Row]) -> set[tuple[Cell | None, tuple[int, ...]]]:
    """The run and the seeds of every number of these rows."""
    return {(value.cell, tuple(value.by_seed)) for row in rows for value in row.values}


def scenario_tab(study: Study, scenario: str) -> Tab | None:
    """The table of a scenario that no table of the paper shows; None where nothing of it has run."""
    runs = {cell: study.results[cell] for cell in study.planned_in(scenario) if cell in study.results}
    if not runs:
        return None
    names, grouped = _columns(study, scenario, runs)

    rows = []
    for cell, run in runs.items():
        values = []
        for name in names:
            seeds = numbers(cell, run, name, study.root)
            values.append(measured(study, cell, name, seeds) if seeds else Value("outside"))
        label = study.label(cell.method)
        rows.append(Row(label, [label], values))

    rivals = [row for row, cell in zip(rows, runs) if study.paper.algorithm(cell.method) != CEILING]
    for i, name in enumerate(names):
        share_seeds(row.values[i] for row in rows)
        if not name.startswith(OTHER):
            mark([row.values[i] for row in rivals], lower_is_better(name))

    headings = [measure_words(name) for name in names]
    levels = [text.split(", ", 1) if grouped else [text] for text in headings]
    return _tab(
        study,
        scenario,
        _label(study, scenario),
        study.title(scenario),
        Panel("", ["method"], levels, rows),
        additional=scenario in study.paper.extra_scenarios,
    )


def _columns(study: Study, scenario: str, runs: Mapping[Cell, Result]) -> tuple[list[str], bool]:
    """(the measures that the table of a scenario shows, whether they are in groups, as `clean.average`)."""
    known = dict.fromkeys(name for run in runs.values() for name in run["measures"])
    percent = [name for name in ordered(known) if is_percent(name)]
    metrics = [name for name in percent if name.startswith("metric.")]
    names = [name for name in percent if not name.startswith(("pre.", "post.", "method.", "metric."))]
    grouped = any("." in name for name in names)
    if grouped:
        names = [name for name in names if "." in name]
    if not scenario.endswith(SHORT):
        names = [name for name in names if sums_up(name) or lower_is_better(name)]
    # The mean that the scenario names comes first.
    main = study.paper.scenarios[scenario].evaluation.headline or "average"
    names.sort(key=lambda name: name != main)
    if not grouped and known.keys() & {f"pre.{main}", f"post.{main}"}:
        # Behind it; where methods are scored on different sides of local training, both sides.
        unequal = len(study.hooks(runs)) > 1
        names[1:1] = [f"before.{main}", f"after.{main}"] if unequal else [f"other.{main}"]
    return names + metrics, grouped


def _label(study: Study, scenario: str) -> str:
    """The first words of a scenario's title, as many as no other scenario begins with, or all."""
    title = study.title(scenario)
    parts = title.split(", ")
    others = [study.title(other) for other in study.paper.scenarios if other != scenario]
    for n in range(1, len(parts)):
        head = ", ".join(parts[:n])
        if not any(other.startswith(head) for other in others):
            return head
    return title


def alike_tab(alike: Alike, proposed: str) -> Tab:
    """The table of methods on equal terms.

    proposed  the paper's method
    """
    panel = alike.panel(proposed)
    values = [value for row in panel.rows for value in row.values]
    return Tab(
        alike.key,
        alike.title,
        alike.title,
        panel,
        seeds=counted(alike.seeds, "seed"),
        line="",
        note=alike.about,
        additional=alike.key.endswith(SHORT),
        footnotes=(*alike.notes, *marks(values)),
    )


def cut(panel: Panel) -> Panel:
    """A panel without the columns and rows that have no measured number, averages first in their group."""
    rows = [row for row in panel.rows if any(value.number for value in row.values)]
    texts = panel.levels
    groups: dict[tuple[str, ...], list[int]] = {}
    for column in range(len(texts)):
        if any(row.values[column].number for row in rows):
            groups.setdefault(tuple(texts[column][:-1]), []).append(column)

    columns: list[int] = []
    for group in groups.values():
        columns += sorted(group, key=lambda column: _place_in_group(rows, column))
    heads = [texts[column] for column in columns]

    # What all columns have in common goes into the title.
    depth = len(heads[0])
    shared = [level for level in range(depth - 1) if _are_alike(head[level] for head in heads)]
    different = [level for level in range(depth) if level not in shared]
    title = ", ".join(filter(None, [panel.title, *(heads[0][level] for level in shared)]))
    levels = [_at(head, different) for head in heads]

    # A column of words that says the same of every row goes into the note of the main line.
    stubs = [i for i in range(len(panel.stub)) if i == 0 or not _are_alike(row.stub[i] for row in rows)]
    kept = [replace(row, stub=_at(row.stub, stubs), values=_at(row.values, columns)) for row in rows]
    return Panel(title, _at(panel.stub, stubs), levels, kept)


def _at(items: Sequence[Item], places: Iterable[int]) -> list[Item]:
    """The items at these places, in their order."""
    return [items[place] for place in places]


def _place_in_group(rows: Iterable[Row], column: int) -> int:
    """Of a column in its group, to sort by: the average comes first, then that of the other model."""
    measures = [row.values[column].measure for row in rows]
    measure = next(filter(None, measures), "")
    if sums_up(measure):
        return 0
    return 1 if measure.startswith(OTHER) else 2


def _are_alike(texts: Iterable[str]) -> bool:
    """Whether all are the same text; False of no text."""
    return len(set(texts)) == 1


# -- the page ------------------------------------------------------------------------------------------------


class Page:
    """Everything about one paper.

    findings     what the results say of every claim; all sentences come from it
    headline     the first sentences
    brief        the same, shorter, for the overview and the README
    answers      the questions of paper.yaml with what the results say
    declared     experiments that were declared before their training
    tuned        settings in which every method was tuned alike
    alike        scenario of a chart -> its methods, all scored on one side of local training
    elsewhere    what the settings are called in which other tables judge claims
    line         which model most tables score
    planned      number of the cells that the paper's tables need
    done         how many of these are measured
    every        number of all cells, with sweeps, shortened runs and miniature
    every_done   how many of these are measured
    every_stale  how many of the measured ones are by code, parameters or seeds that have changed since
    waiting      tables without a measured number: heading, title, file of the printed numbers
    ranked       methods that the charts show, the paper's first
    outdated     methods of the first chart whose results are of earlier code or parameters
    readings     by the methods that have them
    """

    def __init__(self, study: Study):
        self.study = study
        self.key = study.key
        self.name = study.name
        self.paper = study.paper
        self._judge()
        views = [TableView(key, study) for key in self.paper.tables]
        self._chart(views)
        self._tabulate(views)
        self._count_cells()
        self._words()
        self._folds()

    def _judge(self) -> None:
        """The claims and their verdicts."""
        self.findings = Findings(self.study)
        self.claims = [finding.verdict for finding in self.findings.rows.values()]
        self.by_verdict = in_order(self.claims)
        by_id = {verdict.claim.id: verdict for verdict in self.claims}
        self.main = [by_id[name] for name in self.paper.main]
        # A claim that shortened runs judge is counted with them, not among those that did not run.
        self.counts = count(verdict for verdict in self.claims if not verdict.shortened)
        self.short_counts = count(self.shortened)
        self.against = list(contradictions(self.study, self.findings.rows.values()))
        self.axis = claims_axis([*self.claims, *self.shortened])
        headings: dict[str, None] = {}
        for verdict in self.claims:
            if verdict.seeds:
                headings |= dict.fromkeys(verdict.elsewhere)
        self.elsewhere = list(headings)

    def _chart(self, views: list[TableView]) -> None:
        """The settings, their charts, and where methods are on equal terms."""
        self.settings = settings(views, [verdict.claim for verdict in self.main])
        self.dots = charts(self.settings)
        tuned = tuned_settings(self.study)
        self.tuned = [tab.alike for tab in tuned]
        for tab in tuned:
            accuracies = {name: tuning.after for name, tuning in tab.tunings.items()}
            add_tuned(self.settings, tab.scenario, accuracies)
        self.declared = experiments(self.study)
        self.first_runs = self.settings[0].first.runs if self.settings else {}
        self.outdated = outdated(self.study, self.dots[0]) if self.dots else []
        self.alike: dict[str, Alike] = {}
        for chart in self.dots:
            equal = scored_alike(self.study, chart)
            if equal:
                self.alike[chart.first.scenario] = equal
        drawn: dict[str, None] = {}
        for chart in self.dots:
            drawn |= dict.fromkeys(name for name, *_ in chart.rows)
        self.ranked = sorted(drawn, key=lambda name: name != self.name)

    def _tabulate(self, views: list[TableView]) -> None:
        """The tables: first those in which methods were tuned alike or that were declared."""
        before = [alike_tab(alike, self.name) for alike in (*self.tuned, *self.declared)]
        after = [alike_tab(alike, self.name) for alike in self.alike.values()]
        self.tabs = [*before, *self._said(_tabs(self.study, views)), *after]
        lines = [tab.line for tab in self.tabs if tab.line]
        self.line = max(dict.fromkeys(lines), key=lines.count, default="")
        self.waiting = [
            (view.heading, view.title, view.table.published) for view in views if not view.measured
        ]

    def _count_cells(self) -> None:
        """How many cells there are, how many are measured, and by which code."""
        study = self.study
        cells = printed(study.key, study.root)
        self.planned = len(cells)
        self.done = sum(cell in study.results for cell in cells)
        measured = [cell for cell in study.cells if cell in study.results]
        self.every = len(study.cells)
        self.every_done = len(measured)
        self.every_stale = sum(map(study.is_stale, measured))

    def _words(self) -> None:
        """The texts of the page: its first sentences, and those of paper.yaml.

        Numbers in them that name no scenario are of the first setting.
        """
        study = self.study
        scenario = self.settings[0].columns[0].scenario if self.settings else ""
        self.headline = headline(self.findings)
        self.brief = headline(self.findings, brief=True)
        self.answers = answers(self.findings)
        self.why = [study.filled(text, "why", scenario) for text in self.paper.why]
        # Trains the paper's method in its main setting with other seeds.
        methods = sorted(self.paper.methods, key=lambda name: self.paper.label(name) != self.name)
        cell = study.cell(scenario or next(iter(self.paper.scenarios)), methods[0])
        new = max(study.paper.scenarios[cell.scenario].seeds) + 1
        self.command = f"fedrepro run {cell} --seeds {new},{new + 1}"
        self.cite = bibtex(self.paper, self.key)

    def _said(self, tabs: list[Tab]) -> list[Tab]:
        """The tables, each with the sentences about the first main claim that it shows."""
        said: dict[str, str] = {}
        for verdict in self.main:
            if verdict.point is not None:
                sentences = told(self.findings.rows[verdict.claim.id])
                said.setdefault(verdict.claim.table, " ".join(sentences))
        return [replace(tab, said=said.get(tab.key, "")) for tab in tabs]

    def _folds(self) -> None:
        """The parts of the page below the tables, which are folded at first."""
        self.miniature = scenario_tab(self.study, MINIATURE)
        self.deviations = deviations(self.study)
        self.values = values(self.study)
        self.readings = readings_by_methods(self.study)
        self.provenance = provenance(self.study)
        self.problems = list(self.study.problems.values())

    # What takes seconds is made only when the page itself is written: the pages over all papers do not need
    # it.

    @cached_property
    def figures(self) -> list[FigureView]:
        """The figures of paper.yaml, drawn."""
        return figures(self.study)

    @cached_property
    def curves(self) -> list[tuple[str, Any]]:
        """(title, drawing) of every setting."""
        cells = compared_cells(self.study, self.settings)
        return [(self.study.title(name), curves(self.study, several)) for name, several in cells.items()]

    @cached_property
    def sections(self) -> list[tuple[str, Any]]:
        """(title, HTML) of the paper's own sections."""
        return list(sections(self.study))

    @property
    def stale(self) -> int:
        """The number of runs, without the miniature's, that today's code is not known to reproduce."""
        count = 0
        for _, batches in self.provenance:
            for cells in batches.values():
                count += sum(cell[-1].startswith((STALE, NOT_VERIFIED)) for cell in cells)
        return count

    @property
    def measured(self) -> list[Verdict]:
        """Claims with a number, those that are decided first."""
        return [verdict for verdict in self.by_verdict if verdict.chip not in OPEN]

    @property
    def open(self) -> list[Verdict]:
        """Claims without a number, first those that shortened runs judge."""
        without = [verdict for verdict in self.claims if verdict.chip in OPEN]
        return sorted(without, key=lambda verdict: verdict.shortened is None)

    @property
    def shortened(self) -> list[Verdict]:
        """The verdicts of shortened runs on claims whose setting has not run."""
        return in_order(verdict.shortened for verdict in self.claims if verdict.shortened)

    @property
    def reference(self) -> str:
        """The paper in short, `Fu et al., 2025`."""
        first, *others = self.paper.authors.split(", ")
        year = re.search(r"\((\d{4})\)", self.paper.reference)
        names = first.split()[-1] + (" et al." if others else "")
        return f"{names}, {year[1]}" if year else names

    @property
    def place_decided(self) -> bool:
        """Whether the paper's method differs significantly from each rival in its first setting, over the
        seeds in common. False for shortened runs. Only a decided place is set in bold."""
        column = self.settings[0].first
        runs = {name: number for name, number in self.first_runs.items() if number}
        rows = compared(runs, self.name) if self.name in runs and not column.short else []
        rivals = [row for row in rows if row.name != self.name]
        return bool(rivals) and all(row.interval and row.interval[0] * row.interval[1] > 0 for row in rivals)

    @property
    def place(self) -> tuple[int, int, int] | None:
        """The rank of the paper's method in its first setting: (measured, number of methods, printed); None
        if one of the two ranks is not known."""
        if not self.settings:
            return None
        measured_places = self.settings[0].first.places
        printed_places = self.settings[0].places
        if self.name not in measured_places or self.name not in printed_places:
            return None
        return measured_places[self.name].place, len(measured_places), printed_places[self.name].place


def outdated(study: Study, setting: Setting) -> list[str]:
    """The methods of a chart whose results are of earlier code or parameters, and were not verified since."""
    cells = {study.label(cell.method): cell for cell in study.runs.get(setting.first.scenario, {})}
    return [name for name, *_ in setting.rows if name in cells and study.is_stale(cells[name])]


@dataclass(frozen=True)
class Contradiction:
    """A claim that measured numbers contradict.

    verdict   on the claim in the paper's setting
    against   the verdict that contradicts the claim, which may be of another setting
    heading   name of that other setting; empty for the paper's own
    note      of the table of that setting
    """

    verdict: Verdict
    against: Verdict
    heading: str = ""
    note: str = ""


def contradictions(study: Study, findings: Iterable[Finding]) -> Iterator[Contradiction]:
    """For each claim the verdicts that contradict it.

    These are of the paper's setting, of other settings, of shortened runs, and of the claim's controls.
    """
    notes = {}
    for key, (base, _) in variants(study.paper).items():
        table = study.paper.tables[key]
        notes[base, table.number.partition(", ")[2] or f"Table {table.number}"] = table.note
    for finding in findings:
        claim = finding.verdict
        controlled = {control.kind: control.verdict for control in finding.controls if control.verdict}
        for heading, verdict in {"": claim, **controlled, **claim.elsewhere}.items():
            if verdict.chip in AGAINST:
                yield Contradiction(claim, verdict, heading, notes.get((claim.claim.table, heading), ""))


def in_order(rows: Iterable[Verdict]) -> list[Verdict]:
    """The claims, sorted by their verdicts in the order of `Chip`."""
    order = list(Chip)
    return sorted(rows, key=lambda verdict: order.index(verdict.chip))


def _tabs(study: Study, views: list[TableView]) -> list[Tab]:
    """The measured tables, then the additional scenarios.

    If several tables have the same label, each has its whole heading instead.
    """
    by_key = {view.key: view for view in views}
    bases = {key: by_key[base] for key, (base, _) in variants(study.paper).items()}
    tabs = [paper_tab(study, view, bases.get(view.key)) for view in views if view.measured]
    labels = [tab.label for tab in tabs]
    distinct = []
    for tab in tabs:
        if labels.count(tab.label) > 1:
            tab = replace(tab, label=by_key[tab.key].heading)
        distinct.append(tab)
    additional = [scenario_tab(study, scenario) for scenario in study.paper.extra_scenarios]
    return [*distinct, *filter(None, additional)]


# -- the overview --------------------------------------------------------------------------------------------


class Overview:
    """The content of the first page, on which papers with measured claims come first.

    main       (page, main claims that have a number) of every paper; the first main claim if none has one
    tested     how many claims are tested
    kept       the tested claims whose verdict stays at a false discovery rate of 5 %
    withdrawn  rows of withdrawn.csv: numbers that are no longer shown, with the reason
    """

    def __init__(self, pages: Iterable[Page], withdrawn: Iterable[Mapping[str, str]] = ()):
        self.pages = sorted(pages, key=lambda page: not page.measured)
        known = {page.key for page in self.pages}
        self.withdrawn = [row for row in withdrawn if row["paper"] in known]
        self.main = [(page, _tiles(page)) for page in self.pages]
        self.axis = claims_axis([verdict for _, tiles in self.main for verdict in tiles])
        self.counts = _added(page.counts for page in self.pages)
        self.short_counts = _added(page.short_counts for page in self.pages)
        self.against = [(page, contradiction) for page in self.pages for contradiction in page.against]
        findings = [finding for page in self.pages for finding in page.findings.rows.values()]
        kept, self.tested = discoveries(findings)
        self.kept = [finding for finding in findings if (finding.paper, finding.claim.id) in kept]
        self.every = sum(page.every for page in self.pages)
        self.every_done = sum(page.every_done for page in self.pages)
        self.every_stale = sum(page.every_stale for page in self.pages)
        self.done = sum(page.done for page in self.pages)
        self.planned = sum(page.planned for page in self.pages)


def _tiles(page: Page) -> list[Verdict]:
    """The main claims of a paper that the overview shows."""
    measured = [verdict for verdict in page.main if verdict.point is not None]
    return measured[:TILES] or page.main[:1]


def _added(counts: Iterable[Mapping[Chip, int]]) -> dict[Chip, int]:
    """The sum of counts of verdicts; every chip is there, in order."""
    total: Counter[Chip] = Counter()
    for counted_verdicts in counts:
        total.update(counted_verdicts)
    return {chip: total[chip] for chip in Chip}
