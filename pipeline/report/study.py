"""Study: a paper's results, readings, settings, deviations of data and unusable files, for its pages."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from pipeline.cells import stamps
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import Reading, filled, hyper_parameters, readings_of, settings_of
from pipeline.cells.results import history
from pipeline.data.registry import find
from pipeline.provenance import identity
from pipeline.report.words import method_words, variant
from pipeline.schema import (
    ACROSS,
    MINIATURE,
    MINIATURES,
    ROOT,
    Cell,
    Paper,
    Table,
    load_paper,
    papers,
    planned,
    printed,
)

# At most so many rows of one algorithm are named one by one.
NAMED_ROWS = 3
# Words for a result that today's code has neither made nor reproduced.
STALE = "stale"
NOT_VERIFIED = "not verified"
# Ends the name of a scenario that is cut down to what a CPU can train.
SHORT = "-short"
# An accuracy below CHANCE_LEVEL / classes, in percent, counts as chance level. It is 1.5 times that of one
# answer for all images.
CHANCE_LEVEL = 150.0


@dataclass(frozen=True)
class Study:
    """A paper and the results of its cells.

    key       name of its folder under papers/
    paper     its paper.yaml
    results   finished cell -> its result.json
    root      folder of the repository
    problems  cell -> why its result cannot be used
    currency  finished cell -> whether it is what today's code and parameters give, as far as asked for
    """

    key: str
    paper: Paper
    results: dict[Cell, Result] = field(default_factory=dict)
    root: Path = ROOT
    problems: dict[Cell, str] = field(default_factory=dict)
    currency: dict[Cell, bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, key: str, results: dict[Cell, Result], root: Path = ROOT, problems: Mapping[Cell, str] = {}
    ) -> "Study":
        """The study of one paper, without runs of the miniature that paper.yaml no longer asks for.

        key       of the paper
        results   of all papers
        root      folder of the repository
        problems  of all papers: cell -> why its result cannot be used
        """
        stages = {*planned(key, root)}
        cells = []
        for cell in results:
            if cell.paper == key and (cell in stages or cell.scenario not in MINIATURES):
                cells.append(cell)
        broken = {cell: text for cell, text in problems.items() if cell.paper == key}
        return cls(key, load_paper(key, root), {cell: results[cell] for cell in cells}, root, broken)

    @property
    def name(self) -> str:
        return self.paper.name

    # -- cells --

    @cached_property
    def planned(self) -> list[Cell]:
        """Every cell that has a DVC stage."""
        return planned(self.key, self.root)

    @cached_property
    def grid_cells(self) -> list[Cell]:
        """Cells of the grids with methods that the paper itself compares."""
        methods = {cell.method for cell in printed(self.key, self.root)}
        return [cell for cell in self.planned if cell.scenario not in MINIATURES and cell.method in methods]

    @cached_property
    def grid_methods(self) -> list[str]:
        """The methods of `grid_cells`, in the order of paper.yaml."""
        methods = {cell.method for cell in self.grid_cells}
        return [method for method in self.paper.methods if method in methods]

    def cell(self, scenario: str, method: str) -> Cell:
        """The cell of a scenario and a row of paper.yaml."""
        return Cell(self.key, scenario, method)

    def shortened(self, cell: Cell) -> Cell | None:
        """The same method in `<scenario>-short`, which a CPU can train; None if there is no such scenario."""
        scenario = cell.scenario.removesuffix("-base") + SHORT
        return self.cell(scenario, cell.method) if scenario in self.paper.extra_scenarios else None

    def source(
        self, table: Table, setting: str, dataset: str, label: str, column: str
    ) -> tuple[Cell, str] | None:
        """The run and the measure of a number that a table prints; None if no run measures it.

        table    of the paper
        setting  the place of the number: setting, data set and column as printed
        label    the method as printed
        """
        block = table.block(setting, dataset, label)
        method = self.paper.method_of(table, label)
        if not block or not method:
            return None
        measure = table.measure(block, column)
        return (self.cell(block.scenario, method), measure) if measure else None

    def target(self, cell: Cell) -> str:
        """The name by which `fedrepro run` measures a cell; empty if it has no stage."""
        return str(cell) if cell.stage(self.paper) else ""

    def chance_level(self, cell: Cell) -> float:
        """The accuracy, in percent, below which a run of this cell is at chance level; 0 if the number of
        classes is not known."""
        classes = find(self.paper.scenarios[cell.scenario].data.set, self.root).classes
        return CHANCE_LEVEL / classes if classes else 0.0

    def guesses(self, cell: Cell) -> bool:
        """Whether the main accuracy of a finished cell is at chance level."""
        result = self.results[cell]
        return fmean(result["measures"][result["headline"]]) < self.chance_level(cell)

    def hooks(self, cells: Iterable[Cell]) -> dict[str, list[Cell]]:
        """The finished cells by the side of local training, `pre` or `post`, on which they are scored.

        Cells whose numbers are the same on both sides are left out. So the cells are scored alike unless
        there are two sides.
        """
        sides: dict[str, list[Cell]] = {}
        for cell in cells:
            result = self.results[cell]
            other = "post." if result["hook"] == "pre" else "pre."
            scored = result["measures"][result["headline"]]
            if result["measures"].get(other + result["headline"], scored) != scored:
                sides.setdefault(result["hook"], []).append(cell)
        return sides

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell of the paper: those with a stage, and those that its tables need.

        A cell is one method in one setting with all its seeds. It is measured if it has a result, which may
        be stale.
        """
        return [*dict.fromkeys([*self.planned, *printed(self.key, self.root)])]

    def is_stale(self, cell: Cell) -> bool:
        """Whether code, parameters, seeds or partitions have changed since a finished cell was measured.

        Other than `fedrepro status`, it does not look at the partitions on this machine.
        """
        if cell not in self.currency:
            result = self.results[cell]
            experiment = Experiment.of(cell, self.root)
            self.currency[cell] = (
                identity.current(result, experiment)
                and set(result["seeds"]) == set(experiment.scenario.seeds)
                and not identity.redrawn(result, experiment.scenario)
            )
        return not self.currency[cell]

    def planned_in(self, scenario: str) -> list[Cell]:
        """The planned cells of a scenario."""
        return [cell for cell in self.planned if cell.scenario == scenario]

    def finished(self, scenarios: Iterable[str], methods: Iterable[str]) -> Iterator[Cell]:
        """Finished cells of these scenarios; of all methods if `methods` is empty."""
        methods = list(methods) or list(self.paper.methods)
        for scenario in scenarios:
            for method in methods:
                cell = self.cell(scenario, method)
                if cell in self.results:
                    yield cell

    @cached_property
    def runs(self) -> dict[str, dict[Cell, Result]]:
        """Scenario -> its finished cells, in the order of paper.yaml, but the miniature first."""
        runs = {}
        for scenario in dict.fromkeys([MINIATURE, *self.paper.scenarios]):
            cells = {cell: self.results[cell] for cell in self.finished([scenario], [])}
            if cells:
                runs[scenario] = cells
        return runs

    # -- texts --

    def label(self, method: str) -> str:
        """A method as running text."""
        return method_words(self.paper.label(method))

    def title(self, scenario: str) -> str:
        """The title of a scenario; its name if paper.yaml has no title for it."""
        names = {MINIATURE: "miniature", ACROSS: "miniature, methods of the other papers"}
        return names.get(scenario) or self.paper.titles.get(scenario, scenario)

    def filled(self, text: str, where: str, scenario: str = "") -> str:
        """A text of paper.yaml with its measured numbers (pipeline.cells.readings.filled)."""
        return filled(text, where, self.key, self.results.get, scenario, self.root)

    def computed_otherwise(self, cells: Iterable[Cell]) -> str:
        """A sentence that names the cells with another executor, precision or device than most; empty if all
        have the same."""
        ways: dict[str, list[str]] = {}
        for cell in dict.fromkeys(cell for cell in cells if cell in self.results):
            way = ", ".join(self.results[cell][key] for key in ("executor", "precision", "device"))
            ways.setdefault(way, []).append(f"{self.label(cell.method)} ({cell.scenario})")
        if len(ways) < 2:
            return ""
        most = max(ways, key=lambda way: len(ways[way]))
        others = "; ".join(f"{', '.join(names)}: {way}" for way, names in ways.items() if way != most)
        return f"Not all was computed alike, and training amplifies rounding: {others}; the others: {most}."

    def history(self, cell: Cell) -> pd.DataFrame:
        """The rows of a finished cell's history.csv."""
        return history(cell, self.root)

    @cached_property
    def readings(self) -> dict[Reading, list[str]]:
        """Every reading and the methods that it concerns, as they were run or would be run.

        Those of paper.yaml come first, then those of method after method. A page numbers them in this order.
        """
        methods: dict[Reading, dict[str, None]] = {}
        for cell in sorted(self.grid_cells, key=lambda cell: self.grid_methods.index(cell.method)):
            for reading in readings_of(Experiment.of(cell, self.root), resolved(self.results.get(cell))):
                reading = replace(reading, why=self.filled(reading.why, "readings"))
                methods.setdefault(reading, {})[cell.method] = None
        first = []
        for noted in self.paper.readings:
            reading = Reading(noted.paper, noted.run, self.filled(noted.why, "readings"), noted.option)
            if reading in methods:
                first.append(reading)
        return {reading: [*methods[reading]] for reading in dict.fromkeys([*first, *methods])}


def studies(
    results: dict[Cell, Result], root: Path = ROOT, problems: Mapping[Cell, str] = {}
) -> dict[str, Study]:
    """Every paper by its key, in the order of the pages."""
    return {key: Study.of(key, results, root, problems) for key in papers(root)}


# -- readings and values -------------------------------------------------------------------------------------


class ValueRow(NamedTuple):
    """A value of the scenarios or of a method, and where it comes from.

    rows    name of the method; empty: of the scenarios
    name    of the setting
    value   in words; several if scenarios or rows differ
    source  in words
    """

    rows: str
    name: str
    value: str
    source: str


def result_file(cell: Cell) -> str:
    """The path of a cell's result from the root: papers/<paper>/runs/<scenario>/<method>/result.json."""
    return (cell.folder(Path()) / "result.json").as_posix()


def resolved(result: Result | None) -> dict | None:
    """The hyper-parameters that a result was made with; without the defaults if it has not recorded them."""
    return None if result is None else result.get("resolved", result["hyper"])


def readings_by_methods(study: Study) -> dict[str, list[tuple[str, Reading]]]:
    """The readings by the methods that they concern: methods in words -> (number as `R3`, reading)."""
    groups: dict[str, list[tuple[str, Reading]]] = {}
    for i, (reading, methods) in enumerate(study.readings.items(), 1):
        words = methods_in_words(study.paper, methods, study.grid_methods)
        groups.setdefault(words, []).append((f"R{i}", reading))
    return groups


def methods_in_words(paper: Paper, methods: Collection[str], every: Collection[str]) -> str:
    """Some methods in words; many rows of one algorithm appear under the name that they share.

    paper    its paper.yaml
    methods  that are to be named
    every    all methods that they are chosen from
    """
    if len(every) > 1 and {*methods} == {*every}:
        return "all methods"
    algorithms: dict[str, list[str]] = {}
    for method in every:
        algorithms.setdefault(paper.algorithm(method), []).append(method)
    words = []
    for rows in algorithms.values():
        chosen = [method for method in rows if method in methods]
        if len(chosen) <= NAMED_ROWS:
            words += [method_words(paper.label(method)) for method in chosen]
        else:
            count = "all" if len(chosen) == len(rows) else str(len(chosen))
            base, _ = variant(paper.label(rows[0]))
            words.append(f"{count} rows of {base}")
    return ", ".join(words)


def values(study: Study) -> list[ValueRow]:
    """Every value of the paper's scenarios, and every hyper-parameter that its methods ran with or would.

    Defaults are included. If a reading is the source of a value, its number is given.
    """
    paper = study.paper
    # (algorithm, why) of a reading -> its number
    numbers = {}
    for i, (reading, methods) in enumerate(study.readings.items(), 1):
        for method in methods:
            numbers[paper.algorithm(method), reading.why] = f"R{i}"

    # algorithm -> its name; empty: of the scenarios
    names = {"": ""}
    # (algorithm, name of a value) -> its different values, in order, and its different sources
    different: dict[tuple[str, str], dict[str, None]] = {}
    sources: dict[tuple[str, str], dict[str, None]] = {}
    for cell in study.grid_cells:
        algorithm = paper.algorithm(cell.method)
        experiment = Experiment.of(cell, study.root)
        names.setdefault(algorithm, variant(paper.label(cell.method))[0])
        given = hyper_parameters(experiment, resolved(study.results.get(cell)))
        for owner, settings in (("", settings_of(experiment)), (algorithm, given)):
            for setting in settings:
                row = (owner, setting.name)
                different.setdefault(row, {})[value_words(setting.value)] = None
                known = sources.setdefault(row, {})
                if setting.source:
                    known[numbers.get((owner, setting.source), setting.source)] = None

    order = sorted(different, key=lambda row: row[0] != "")  # the scenarios' first
    rows = []
    for owner, name in order:
        value = "; ".join(different[owner, name])
        rows.append(ValueRow(names[owner], name, value, "; ".join(sources[owner, name])))
    return rows


def value_words(value: Any) -> str:
    """A value of paper.yaml as running text; a network or an optimiser by its name and what is not the
    default."""
    if is_dataclass(value):
        items = {part.name: (getattr(value, part.name), part.default) for part in fields(value)}
        value = {name: item for name, (item, default) in items.items() if item != default}
    if isinstance(value, dict):
        return ", ".join(f"{key} {value_words(item)}".removeprefix("name ") for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(value_words, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- what differs from the paper, and where the numbers come from --------------------------------------------


def deviations(study: Study) -> list[tuple[str, list[str]]]:
    """(scenario, points) on how a reproduction differs from the paper, each point once.

    They are the notes of paper.yaml and what results say of their data.
    """
    sections = []
    said = set[str]()
    for scenario in study.paper.scenarios:
        noted = [study.filled(point, f"notes.{scenario}", scenario) for point in study.paper.points(scenario)]
        found = _of_data(study.runs.get(scenario, {}).values())
        points = [point for point in dict.fromkeys([*noted, *found]) if point not in said]
        said.update(points)
        if points and scenario not in MINIATURES:
            sections.append((study.title(scenario), points))
    return sections


def _of_data(results: Iterable[Result]) -> list[str]:
    """How the data of results differ from the canonical ones, and what their runs warned of."""
    points = []
    for result in results:
        for data in (result["data"], result["public"]):
            if data and data["deviation"]:
                points.append(f"{data['set']}: {data['deviation']}.")
        points += result["warnings"]
    return points


# (seeds, machines) -> the runs with these: (method, hours, commit, digest, file, see `code_words`)
Batches = dict[tuple[str, str], list[tuple[str, ...]]]


def provenance(study: Study) -> list[tuple[str, Batches]]:
    """(scenario, its runs by seeds and machines), for all scenarios with finished cells."""
    sections = []
    for scenario, cells in study.runs.items():
        if scenario == ACROSS:
            continue
        batches: Batches = {}
        for cell, result in cells.items():
            machines = {*map(processor, result.get("machines", [result["versions"]]))}
            # Of the paper's folder if that is a repository of its own, else of the project.
            commit = result["git"].get("paper_commit") or result["git"].get("commit", "")
            run = (
                cell.method,
                f"{sum(result['seconds']) / 3600:.2f}",
                commit[:8],
                result["digest"][:8],
                result_file(cell),
                code_words(cell, result, study),
            )
            batch = (seed_words(result["seeds"]), ", ".join(sorted(machines)))
            batches.setdefault(batch, []).append(run)
        sections.append((study.title(scenario), batches))
    return sections


def code_words(cell: Cell, result: Result, study: Study) -> str:
    """How a result relates to today's code, in words.

    empty                               today's code made it
    verified: 3 of 12 seeds, rounds ..  earlier code made it, and today's has reproduced it
    stale                               neither, or parameters have changed
    not verified since 1a2b3c4d         the same, and an earlier verification no longer counts
    """
    experiment = Experiment.of(cell, study.root)
    if study.is_stale(cell):
        since = identity.unverified_since(result, experiment)
        return f"{NOT_VERIFIED} since {since[:8]}" if since else STALE
    stamp = identity.verified(result, experiment)
    return stamps.words(stamp, len(result["seeds"])).partition(" (")[0] if stamp else ""


def processor(machine: dict) -> str:
    """A processor in one word, `EPYC`: the last one of its name, without its instruction sets."""
    words = machine.get("processor", "unknown").replace("(R)", "").replace("Processor", "").split()
    return [word for word in words if not word.islower() or word.isalpha()][-1]


def seed_words(seeds: list[int]) -> str:
    """Seeds in words: `0–4`, `0, 2`."""
    run = seeds == list(range(seeds[0], seeds[0] + len(seeds))) and len(seeds) > 2
    return f"{seeds[0]}–{seeds[-1]}" if run else ", ".join(map(str, seeds))
