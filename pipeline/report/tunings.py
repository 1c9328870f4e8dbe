"""Methods that were tuned alike: what was chosen, and the accuracies before and after.

Each method of a scenario chose among several configurations, by its clients' validation images, and was then
trained with the chosen values. "Before" is the method with the values of its row in paper.yaml.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.cells import choices
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import of_cell, of_tuning, summarise
from pipeline.errors import FedReproError
from pipeline.provenance import identity
from pipeline.report.alike import Alike, compared
from pipeline.report.comparison import sums_up
from pipeline.report.measures import draws
from pipeline.report.study import SHORT, Study, result_file
from pipeline.report.words import counted
from pipeline.schema import MINIATURES, ROOT, Cell
from pipeline.schema.discovery import CEILING

# (seed, digest of its partition): runs of one block are compared as pairs.
Block = tuple[int, str]


@dataclass(frozen=True)
class Tuning:
    """What the tuning of one method of a scenario gave.

    cell            the method of a scenario, as paper.yaml has it
    before          seed -> accuracy with the row's own values, in percent on test images; empty: it has not
                    run
    after           the same with the chosen values
    same            whether the chosen values are the row's own
    configurations  validation accuracy of each configuration, that of the row's own values first; None: it
                    diverged
    older           whether one of the results was made by other code or parameters than today's
    files           (result before, result after), from the repository's root; an empty path: there is none
    measure         name of the accuracy
    hook            side of local training on which `after` is scored, `pre` or `post`; empty: both sides have
                    the same numbers
    """

    cell: Cell
    before: dict[int, float]
    after: dict[int, float]
    same: bool
    configurations: list[float | None]
    older: bool = False
    files: tuple[str, str] = ("", "")
    measure: str = ""
    hook: str = ""

    @classmethod
    def of(cls, cell: Cell, root: Path, measure: str = "") -> "Tuning":
        """Read the files of a tuning.

        cell     the method of a scenario, as paper.yaml has it
        root     folder of the repository
        measure  name of the accuracy by which methods are compared; empty: the main one of each result

        Raises FedReproError for a file that is no tuning of this cell.
        """
        document = choices.read(cell, root)
        results = of_tuning(cell, root)
        tuned = choices.tuned(cell, root)
        untuned = choices.published(cell, root)
        after = results.get(tuned)
        before = results.get(untuned)
        if before is None and after is not None:
            # The scenario's own cell has the row's values, too; seeds with other partitions are left out
            # below.
            untuned = cell
            before = of_cell(cell, root)
        measured = after or before
        if not measure and measured:
            measure = measured["headline"]

        numbers_before = by_block(before, measure) if before else {}
        numbers_after = by_block(after, measure) if after else {}
        if numbers_before and numbers_after:
            # The same seed on another partition is no pair.
            unpaired = moved(numbers_before, numbers_after)
            numbers_before = {
                block: value for block, value in numbers_before.items() if block[0] not in unpaired
            }

        configurations = document["configurations"]
        return cls(
            cell,
            before={seed: value for (seed, _), value in numbers_before.items()},
            after={seed: value for (seed, _), value in numbers_after.items()},
            same=not configurations[document["chosen"]]["changes"],
            configurations=choices.means(configurations),
            older=any(
                result and not identity.current(result, Experiment.of(source, root))
                for source, result in {untuned: before, tuned: after}.items()
            ),
            files=(result_file(untuned) if before else "", result_file(tuned) if after else ""),
            measure=measure,
            hook=_hook(after, measure) if after else "",
        )

    @property
    def file(self) -> str:
        """The file of the configurations that were tried, from the repository's root."""
        return choices.path(self.cell, Path()).as_posix()

    @property
    def words(self) -> str:
        """A note on the two numbers: the row's own values diverged, were chosen, or have not run; else
        empty."""
        if self.configurations[0] is None and not self.before:
            return "diverged"
        if self.same:
            return "same values"
        return "" if self.before else "not run"


def _hook(result: Result, measure: str) -> str:
    """The side of local training on which a result is scored; empty if both sides have the same numbers."""
    other = "pre" if result["hook"] == "post" else "post"
    measures = result["measures"]
    same = measures.get(f"{other}.{measure}") == measures.get(measure)
    return "" if same else result["hook"]


def by_block(result: Result, measure: str) -> dict[Block, float]:
    """(seed, its partition) -> a measure of a result; empty if it has no such measure."""
    return dict(zip(draws(result).items(), result["measures"].get(measure, [])))


def moved(before: Collection[Block], after: Collection[Block]) -> set[int]:
    """The seeds that two results have, but on different partitions.

    before  (seed, digest of its partition) of one result
    after   the same of the other result
    """
    # Not dict(after): both may be dictionaries with blocks as keys.
    partitions = {seed: partition for seed, partition in after}
    return {seed for seed, partition in before if partitions.get(seed, partition) != partition}


class TuningTab:
    """The tuned methods of a scenario on one axis.

    key             names it in links and files
    name            of the paper
    scenario        its name; empty: the miniature
    title           of the scenario
    label           the paper and the scenario in a few words
    tunings         name of a method -> what its tuning gave
    files           name -> the file of the configurations that were tried, from the repository's root
    configurations  how many were tried of a method: `9`, or `8 or 9`
    alike           the table: the best after tuning first, over the seeds that all results have
    axis            that shows all numbers of the table
    before          name -> mean accuracy with the paper's values
    best            the method that leads before tuning; None: none has run before tuning
    changes         percent points that tuning added, of the methods that ran with both values
    """

    def __init__(self, study: Study, scenario: str, several: list[Tuning], labels: dict[str, str]):
        self.key = f"{study.key}-{scenario or 'mini'}"
        self.name = study.name
        self.scenario = scenario
        self.title = study.title(scenario) if scenario else "miniature"
        self.label = f"{study.name}, {self.title.partition(', ')[0]}"
        self.tunings = {labels[study.paper.algorithm(tuning.cell.method)]: tuning for tuning in several}
        self.files = {name: tuning.file for name, tuning in self.tunings.items()}
        tried = sorted({len(tuning.configurations) for tuning in several})
        self.configurations = " or ".join(map(str, tried))
        self.alike = self._alike(study, scenario)
        self.axis = self.alike.axis
        self.before = {row.name: row.before.mean for row in self.alike.rows if row.before}
        self.best = max(self.before, key=self.before.__getitem__, default=None)
        self.changes = [row.number.mean - row.before.mean for row in self.alike.rows if row.before]

    @property
    def stale(self) -> str:
        """A sentence that names the methods with a stale result; empty if there are none."""
        names = [name for name, tuning in self.tunings.items() if tuning.older]
        if not names:
            return ""
        all_methods = f"all {counted(len(names), 'method')}"
        which = all_methods if len(names) == len(self.tunings) else ", ".join(names)
        return f"Stale, by code, parameters or seeds that have changed since: {which}."

    def _alike(self, study: Study, scenario: str) -> Alike:
        """The table, over the seeds that all results have, if there are such."""
        after = {name: tuning.after for name, tuning in self.tunings.items()}
        before = {name: tuning.before for name, tuning in self.tunings.items() if tuning.before}
        shared = sorted(set.intersection(*map(set, (*after.values(), *before.values()))))
        if shared:
            after = {name: _of_seeds(by_seed, shared) for name, by_seed in after.items()}
            before = {name: _of_seeds(by_seed, shared) for name, by_seed in before.items()}

        rows = []
        for row in compared(after, self.name):
            tuning = self.tunings[row.name]
            file_before, file = tuning.files
            number_before = None
            if row.name in before:
                number_before = summarise([*before[row.name].values()])
            rows.append(
                replace(
                    row,
                    before=number_before,
                    words=tuning.words,
                    before_file=file_before,
                    file=file,
                    chance=study.chance_level(tuning.cell) if scenario else 0.0,
                    stale=tuning.older,
                )
            )
        about = (
            f"Every method chose among {self.configurations} configurations, the paper’s values among them, "
            "by its clients’ validation images."
        )
        notes = tuple(self._notes(study, scenario, shared))
        title = f"{self.title}, tuned alike"
        return Alike(f"tuned-{scenario or 'mini'}", title, about, "tuned", "paper’s values", rows, notes)

    def _notes(self, study: Study, scenario: str, shared: list[int]) -> Iterator[str]:
        """Sentences below the table: which seeds are shown, which methods have no number before tuning or
        were not tuned, and which are scored on another side of local training."""
        tunings = self.tunings.values()
        tuned_seeds = set[int]().union(*(tuning.after for tuning in tunings))
        table_seeds = set[int]().union(*(tuning.before for tuning in tunings))
        if shared and (tuned_seeds != set(shared) or table_seeds - set(shared)):
            yield (
                f"Tuned with {counted(len(tuned_seeds), 'seed')}, the table has {len(table_seeds)}: "
                f"shown and compared are the {len(shared)} in common."
            )
        missing = [name for name, tuning in self.tunings.items() if not tuning.before]
        if missing:
            yield f"Without a result for the paper’s values: {', '.join(missing)}."
        if scenario:
            others = self._not_tuned(study, scenario)
            if others:
                yield f"Not tuned: {', '.join(others)}."
        hooks = {tuning.hook for tuning in tunings if tuning.hook}
        if len(hooks) > 1:
            later = [name for name, tuning in self.tunings.items() if tuning.hook == "post"]
            yield f"Scored after local training: {', '.join(later)}; the others before it."

    def _not_tuned(self, study: Study, scenario: str) -> list[str]:
        """The rows of the scenario's table whose algorithm was not tuned."""
        rows = {study.label(cell.method): cell.method for cell in study.runs.get(scenario, {})}
        known = {study.paper.algorithm(tuning.cell.method) for tuning in self.tunings.values()}
        # A centralised model is a ceiling, no rival.
        known.add(CEILING)
        return [name for name, row in rows.items() if study.paper.algorithm(row) not in known]


def _of_seeds(by_seed: Mapping[int, float], seeds: Iterable[int]) -> dict[int, float]:
    """The numbers of these seeds alone."""
    return {seed: by_seed[seed] for seed in seeds}


def tuned_settings(study: Study) -> list[TuningTab]:
    """A table for each scenario of a paper in which methods were tuned, without its miniature."""
    cells = []
    for cell in choices.tuned_cells(study.root):
        if cell.paper == study.key and cell.scenario not in MINIATURES:
            cells.append(cell)
    done, _ = tunings(study.root, {study.key: study}, cells)
    methods = [tuning.cell.method for tuning in done]
    labels = {study.paper.algorithm(method): study.label(method) for method in methods}
    return tuning_tabs({study.key: study}, labels, done)


def tunings(
    root: Path = ROOT, studies: Mapping[str, Study] = {}, cells: Iterable[Cell] | None = None
) -> tuple[list[Tuning], list[str]]:
    """Read the tunings.

    root     folder of the repository
    studies  paper -> its results; the tables of these papers say by which measure methods are compared
    cells    whose tunings are read; None: all

    Returns (the tunings in the order of their paths, a line for each file that was altered).
    """
    done = []
    problems = []
    for cell in choices.tuned_cells(root) if cells is None else cells:
        study = studies.get(cell.paper)
        measure = table_measure(study, cell.scenario) if study else ""
        try:
            done.append(Tuning.of(cell, root, measure))
        except FedReproError as error:
            problems.append(str(error))
    return done, problems


def table_measure(study: Study, scenario: str) -> str:
    """The measure by which a scenario's methods are compared.

    It is the mean that the scenario's `evaluation.headline` names; else the average that the paper's tables
    show of the scenario, or of the one that it shortens. Empty if no table shows it.

    study     of the paper
    scenario  name of the scenario
    """
    declared = study.paper.scenarios.get(scenario)
    if declared is not None and declared.evaluation.headline is not None:
        return declared.evaluation.headline
    known = scenario.removesuffix(SHORT)
    for table in study.paper.tables.values():
        if known in {block.scenario for block in table.blocks.values()}:
            for measure in table.columns.values():
                if measure and sums_up(measure):
                    return measure
    return ""


def tuning_tabs(studies: dict[str, Study], labels: dict[str, str], done: Iterable[Tuning]) -> list[TuningTab]:
    """The tables of methods that were tuned and then trained; scenarios of papers come before miniatures.

    studies  paper -> its results, in the order of the tables
    labels   algorithm -> name of the method
    done     what tunings gave
    """
    # (paper, its scenario; empty: the miniature)
    groups: dict[tuple[str, str], list[Tuning]] = {}
    for tuning in done:
        cell = tuning.cell
        if tuning.after and cell.paper in studies:
            scenario = "" if cell.scenario in MINIATURES else cell.scenario
            groups.setdefault((cell.paper, scenario), []).append(tuning)

    papers = list(studies)
    order = sorted(groups, key=lambda group: (not group[1], papers.index(group[0])))
    return [TuningTab(studies[paper], scenario, groups[paper, scenario], labels) for paper, scenario in order]
