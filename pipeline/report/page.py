"""Collect a paper's tables, figures, claims and texts as plain data for the template of its HTML page."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pipeline.cells.results import is_percent, lower_is_better, ordered
from pipeline.report.alike import Alike, compared, scored_alike
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
from pipeline.report.experiments import tuned_settings
from pipeline.report.extras import sections
from pipeline.report.findings import Finding, Findings, discoveries
from pipeline.report.footnotes import footnotes, marks
from pipeline.report.measures import numbers
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
from pipeline.report.verdicts import Chip, Verdict, count, variants
from pipeline.report.words import GROUPS, bibtex, counted, measure_words
from pipeline.schema import MINIATURE, printed
from pipeline.schema.discovery import CEILING

# Main claims of a paper on the overview.
TILES = 4
# verdicts without a number
OPEN = (Chip.NOT_RUN, Chip.NOT_TESTABLE)
# verdicts that speak against the paper
AGAINST = (Chip.FAILS, Chip.CONTRADICTED)

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
    few, most = min(counts), max(counts)
    seeds = (
        counted(few, "seed") if few == most else f"{few} to {most} seeds, in a column over those in common"
    )
    hooks = {study.results[value.cell]["hook"] for value in values if value.cell} - {None, ""}
    line = "as each method is scored" if len(hooks) > 1 else "".join(GROUPS[hook] for hook in hooks)
    shown = cut(panel)
    return Tab(key, label, title, shown, seeds, line, footnotes=tuple(footnotes(study, shown)), **more)


def paper_tab(study: Study, view: TableView, base: TableView | None = None) -> Tab:
    """A table of the paper. base: the table with the same printed numbers in the paper's setting; rows that
    have the same runs and seeds as there are left out."""
    there = {_shown(value) for row in base.panel.rows for value in row.values} if base else set()
    numbers = [{_shown(value) for value in row.values if value.cell} for row in view.panel.rows]
    rows = [row for row, shown in zip(view.panel.rows, numbers) if not shown or shown - there]
    panel = replace(view.panel, rows=rows)
    return _tab(
        study,
        view.key,
        view.number.partition(", ")[2] if base and base.measured else view.heading,
        ", ".join(filter(None, [f"{view.heading}: {view.title}", "" if base else view.layout.about])),
        panel,
        note=view.note,
        done="" if view.measured == view.fillable else f"{view.measured} of {view.fillable}",
        rest=base.heading if base and len(panel.rows) < len(view.panel.rows) else "",
    )


def _shown(value: Value) -> tuple:
    """The run and the seeds of a number."""
    return value.cell, tuple(value.by_seed)


def scenario_tab(study: Study, scenario: str) -> Tab | None:
    """The table of a scenario that no table of the paper shows; None where nothing of it has run."""
    runs = {cell: study.results[cell] for cell in study.planned_in(scenario) if cell in study.results}
    if not runs:
        return None
    every = dict.fromkeys(name for run in runs.values() for name in run["measures"])
    names = [n for n in ordered(every) if is_percent(n) and not n.startswith(("pre.", "post.", "method."))]
    metrics = [name for name in names if name.startswith("metric.")]
    names = [name for name in names if name not in metrics]
    if grouped := any("." in name for name in names):
        names = [name for name in names if "." in name]
    if not scenario.endswith(SHORT):
        names = [name for name in names if sums_up(name) or lower_is_better(name)]
    if not grouped and every.keys() & {"pre.average", "post.average"}:
        unequal = len(study.hooks(runs)) > 1
        names[1:1] = ["before.average", "after.average"] if unequal else ["other.average"]
    names += metrics
    rows = []
    for cell, run in runs.items():
        label, values = study.label(cell.method), []
        for name in names:
            seeds = numbers(cell, run, name, study.root)
            values.append(measured(study, cell, name, seeds) if seeds else Value("outside"))
        rows.append(Row(label, [label], values))
    rivals = [row for row, cell in zip(rows, runs) if study.paper.algorithm(cell.method) != CEILING]
    for i, name in enumerate(names):
        share_seeds(row.values[i] for row in rows)
        if not name.startswith(OTHER):
            mark([row.values[i] for row in rivals], lower_is_better(name))
    words = [measure_words(name) for name in names]
    levels = [text.split(", ", 1) if grouped else [text] for text in words]
    panel, additional = Panel("", ["method"], levels, rows), scenario in study.paper.extra_scenarios
    label, title = _label(study, scenario), study.title(scenario)
    return _tab(study, scenario, label, title, panel, additional=additional)


def _label(study: Study, scenario: str) -> str:
    """The first words of a scenario's title, as many as no other scenario begins with, or all."""
    parts = study.title(scenario).split(", ")
    others = [study.title(one) for one in study.paper.scenarios if one != scenario]
    heads = [", ".join(parts[:n]) for n in range(1, len(parts))]
    unique = [head for head in heads if not any(other.startswith(head) for other in others)]
    return [*unique, ", ".join(parts)][0]


def alike_tab(one: Alike, proposed: str) -> Tab:
    """The table of methods on equal terms.

    proposed  the paper's method
    """
    panel = one.panel(proposed)
    additional = one.key.endswith(SHORT)
    seeds = counted(one.seeds, "seed")
    notes = (*one.notes, *marks(value for row in panel.rows for value in row.values))
    return Tab(one.key, one.title, one.title, panel, seeds, "", one.about, additional, footnotes=notes)


def cut(panel: Panel) -> Panel:
    """A panel without the columns and rows that have no measured number, averages first in their group."""
    rows = [row for row in panel.rows if any(value.number for value in row.values)]
    texts = panel.levels
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in range(len(texts)):
        if any(row.values[i].number for row in rows):
            groups.setdefault(tuple(texts[i][:-1]), []).append(i)
    measures = [
        next((row.values[i].measure for row in rows if row.values[i].measure), "") for i in range(len(texts))
    ]
    # the average first, then that of the other model
    order = [0 if sums_up(measure) else 1 if measure.startswith(OTHER) else 2 for measure in measures]
    chosen = [i for group in groups.values() for i in sorted(group, key=order.__getitem__)]
    heads = [texts[i] for i in chosen]
    shared = [level for level in range(len(heads[0]) - 1) if len({head[level] for head in heads}) == 1]
    title = ", ".join(filter(None, [panel.title, *(heads[0][level] for level in shared)]))
    levels = [[text for level, text in enumerate(head) if level not in shared] for head in heads]
    # a column of words that says the same of every row goes into the note of the main line
    stubs = [i for i in range(len(panel.stub)) if i == 0 or len({row.stub[i] for row in rows}) > 1]
    rows = [
        replace(row, stub=[row.stub[i] for i in stubs], values=[row.values[i] for i in chosen])
        for row in rows
    ]
    return Panel(title, [panel.stub[i] for i in stubs], levels, rows)


# -- the page ------------------------------------------------------------------------------------------------


class Page:
    """Everything about one paper.

    findings    what the results say of every claim; all sentences come from it
    headline    the first sentences; brief: shorter, for the overview and the README
    answers     the questions of paper.yaml with what the results say
    declared    experiments that were declared before their training
    tuned       settings in which every method was tuned alike; alike: charts' settings, by scenario, in which
                every method is scored on one side of local training
    elsewhere   what the settings are called in which other tables judge claims
    line        which model most tables score
    done        cells of the paper's tables that are measured, of `planned`
    every       all cells, with sweeps, shortened runs and miniature; every_done: those that are measured;
                every_stale: of these, by code, parameters or seeds that have changed since
    waiting     tables without a measured number: heading, title, file of the printed numbers
    ranked      methods that the charts show, the paper's first
    outdated    methods of the first chart whose results are of earlier code or parameters
    curves      (setting, accuracy over rounds)
    readings    by the methods that have them
    sections    (title, HTML) of the paper's templates
    """

    def __init__(self, study: Study):
        self.key, self.name, self.paper = study.key, study.name, study.paper
        self.findings = Findings(study)
        self.claims = [one.verdict for one in self.findings.rows.values()]
        # A claim that shortened runs judge is counted with them, not among those that did not run.
        self.counts = count(one for one in self.claims if not one.shortened)
        self.short_counts = count(self.shortened)
        self.against = list(contradictions(study, self.findings.rows.values()))
        self.axis = claims_axis([*self.claims, *self.shortened])
        by_id = {verdict.claim.id: verdict for verdict in self.claims}
        self.main = [by_id[name] for name in self.paper.main]
        self.elsewhere = list(
            dict.fromkeys(name for one in self.claims if one.seeds for name in one.elsewhere)
        )
        views = [TableView(key, study) for key in self.paper.tables]
        self.settings = settings(views, [verdict.claim for verdict in self.main])
        self.dots = charts(self.settings)
        tuned = tuned_settings(study)
        self.tuned = [tab.alike for tab in tuned]
        for tab in tuned:
            add_tuned(self.settings, tab.scenario, {name: one.after for name, one in tab.tunings.items()})
        self.declared = experiments(study)
        equal = [scored_alike(study, one) for one in self.dots]
        self.first_runs = self.settings[0].first.runs if self.settings else {}
        self.outdated = outdated(study, self.dots[0]) if self.dots else []
        self.alike = {chart.first.scenario: one for chart, one in zip(self.dots, equal) if one}
        drawn = dict.fromkeys(name for one in self.dots for name, *_ in one.rows)
        self.ranked = sorted(drawn, key=lambda name: name != self.name)
        first = [*self.tuned, *self.declared]
        before, after = (
            [alike_tab(one, self.name) for one in several] for several in (first, self.alike.values())
        )
        self.tabs = [*before, *self._said(_tabs(study, views)), *after]
        self.by_verdict = in_order(self.claims)
        lines = [tab.line for tab in self.tabs if tab.line]
        self.line = max(dict.fromkeys(lines), key=lines.count, default="")
        self.waiting = [(v.heading, v.title, v.table.published) for v in views if not v.measured]
        cells = printed(study.key, study.root)
        self.done, self.planned = sum(cell in study.results for cell in cells), len(cells)
        measured = [cell for cell in study.cells if cell in study.results]
        self.every, self.every_done = len(study.cells), len(measured)
        self.every_stale = sum(map(study.is_stale, measured))
        self._words(study)
        self._folds(study)

    def _words(self, study: Study) -> None:
        """What paper.yaml says; numbers without a scenario are those of the first setting."""
        scenario = self.settings[0].columns[0].scenario if self.settings else ""
        self.headline, self.brief = headline(self.findings), headline(self.findings, brief=True)
        self.answers = answers(self.findings)
        self.why = [study.filled(text, "why", scenario) for text in self.paper.why]
        # Trains the paper's method in its main setting with other seeds.
        methods = sorted(self.paper.methods, key=lambda name: self.paper.label(name) != self.name)
        cell = study.cell(scenario or next(iter(self.paper.scenarios)), methods[0])
        new = max(study.paper.scenarios[cell.scenario].seeds) + 1
        self.command, self.cite = f"fedrepro run {cell} --seeds {new},{new + 1}", bibtex(self.paper, self.key)

    def _said(self, tabs: list[Tab]) -> list[Tab]:
        """The tables, each with what is said of the first main claim that it shows."""
        said: dict[str, str] = {}
        for one in self.main:
            if one.point is not None:
                said.setdefault(one.claim.table, " ".join(told(self.findings.rows[one.claim.id])))
        return [replace(tab, said=said.get(tab.key, "")) for tab in tabs]

    def _folds(self, study: Study) -> None:
        self.study = study
        self.miniature = scenario_tab(study, MINIATURE)
        self.deviations, self.values = deviations(study), values(study)
        self.readings, self.provenance = readings_by_methods(study), provenance(study)
        self.problems = list(study.problems.values())

    # What takes seconds is made where the page itself is written, not for the pages over all papers.

    @cached_property
    def figures(self) -> list[FigureView]:
        """Those of paper.yaml, drawn."""
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
        """Runs, but for the miniature's, that today's code is not known to give."""
        batches = (cells for _, batches in self.provenance for cells in batches.values())
        return sum(cell[-1].startswith((STALE, NOT_VERIFIED)) for cells in batches for cell in cells)

    @property
    def measured(self) -> list[Verdict]:
        """Claims with a number, those that are decided first."""
        return [one for one in self.by_verdict if one.chip not in OPEN]

    @property
    def open(self) -> list[Verdict]:
        """Claims without a number, first those that shortened runs judge."""
        return sorted((one for one in self.claims if one.chip in OPEN), key=lambda one: one.shortened is None)

    @property
    def shortened(self) -> list[Verdict]:
        """What shortened runs say of claims whose setting has not run."""
        return in_order(one.shortened for one in self.claims if one.shortened)

    @property
    def reference(self) -> str:
        """`Fu et al., 2025`."""
        first, *others = self.paper.authors.split(", ")
        year = re.search(r"\((\d{4})\)", self.paper.reference)
        return f"{first.split()[-1]}{' et al.' if others else ''}" + (f", {year[1]}" if year else "")

    @property
    def place_decided(self) -> bool:
        """Whether the paper's method differs from all rivals of its first setting, over the seeds in common,
        in the paper's own setting; a place that is not decided is not set in bold."""
        column = self.settings[0].first
        runs = {name: number for name, number in self.first_runs.items() if number}
        rows = compared(runs, self.name) if self.name in runs and not column.short else []
        rivals = [row for row in rows if row.name != self.name]
        return bool(rivals) and all(row.interval and row.interval[0] * row.interval[1] > 0 for row in rivals)

    @property
    def place(self) -> tuple[int, int, int] | None:
        """(measured place, of so many methods, printed place) of the paper's method in its first setting."""
        for setting in self.settings[:1]:
            here, there = setting.first.places, setting.places
            if self.name in here.keys() & there:
                return here[self.name].place, len(here), there[self.name].place
        return None


def outdated(study: Study, setting: Setting) -> list[str]:
    """The methods of a chart whose results are of earlier code or parameters, not walked again since."""
    cells = {study.label(cell.method): cell for cell in study.runs.get(setting.first.scenario, {})}
    return [name for name, *_ in setting.rows if name in cells and study.is_stale(cells[name])]


@dataclass(frozen=True)
class Contradiction:
    """A claim that measured numbers speak against.

    verdict   as in the paper's setting
    against   the verdict that speaks against the claim, which may be of another setting
    heading   what that other setting is called; empty for the paper's own
    note      what the table of that setting says
    """

    verdict: Verdict
    against: Verdict
    heading: str = ""
    note: str = ""


def contradictions(study: Study, findings: Iterable[Finding]) -> Iterator[Contradiction]:
    """Of every claim the verdicts that speak against it: in the paper's setting, in other ones, in shortened
    runs, and where the comparison is made equal by a control."""
    notes = {}
    for key, (base, _) in variants(study.paper).items():
        table = study.paper.tables[key]
        notes[base, table.number.partition(", ")[2] or f"Table {table.number}"] = table.note
    for finding in findings:
        claim = finding.verdict
        controlled = {one.kind: one.verdict for one in finding.controls if one.verdict is not None}
        for heading, one in {"": claim, **controlled, **claim.elsewhere}.items():
            if one.chip in AGAINST:
                yield Contradiction(claim, one, heading, notes.get((claim.claim.table, heading), ""))


def in_order(rows: Iterable[Verdict]) -> list[Verdict]:
    """By their verdicts."""
    return sorted(rows, key=lambda one: list(Chip).index(one.chip))


def _tabs(study: Study, views: list[TableView]) -> list[Tab]:
    """The measured tables, then the additional scenarios; a label that several would have becomes the whole
    heading."""
    by_key = {view.key: view for view in views}
    bases = {key: by_key[base] for key, (base, _) in variants(study.paper).items()}
    tabs = [paper_tab(study, view, bases.get(view.key)) for view in views if view.measured]
    labels = [one.label for one in tabs]
    tabs = [
        replace(one, label=by_key[one.key].heading) if labels.count(one.label) > 1 else one for one in tabs
    ]
    return tabs + [
        extra for scenario in study.paper.extra_scenarios if (extra := scenario_tab(study, scenario))
    ]


# -- the overview --------------------------------------------------------------------------------------------


class Overview:
    """What the first page shows, papers with measured claims first.

    main    of every paper the main claims that have a number, without any the first of them
    tested  how many claims are tested; kept: those whose verdict stays at a false discovery rate of 5 %
    withdrawn  of withdrawn.csv: numbers that were shown before and are not any more, with the reason
    """

    def __init__(self, pages: Iterable[Page], withdrawn: Iterable[Mapping[str, str]] = ()):
        self.pages = sorted(pages, key=lambda page: not page.measured)
        known = {page.key for page in self.pages}
        self.withdrawn = [one for one in withdrawn if one["paper"] in known]
        self.main = [
            (page, [one for one in page.main if one.point is not None][:TILES] or page.main[:1])
            for page in self.pages
        ]
        self.axis = claims_axis([one for _, several in self.main for one in several])
        self.counts = _added(page.counts for page in self.pages)
        self.short_counts = _added(page.short_counts for page in self.pages)
        self.against = [(page, one) for page in self.pages for one in page.against]
        found = [one for page in self.pages for one in page.findings.rows.values()]
        kept, self.tested = discoveries(found)
        self.kept = [one for one in found if (one.paper, one.claim.id) in kept]
        self.every = sum(page.every for page in self.pages)
        self.every_done = sum(page.every_done for page in self.pages)
        self.every_stale = sum(page.every_stale for page in self.pages)
        self.done = sum(page.done for page in self.pages)
        self.planned = sum(page.planned for page in self.pages)


def _added(counts: Iterable[Mapping[Chip, int]]) -> dict[Chip, int]:
    """The sum of counts of verdicts; every chip is there, in order."""
    total: Counter[Chip] = Counter()
    for one in counts:
        total.update(one)
    return {chip: total[chip] for chip in Chip}
