"""Every tuned method: its accuracy with the values of its row and after equal tuning, of the same seeds."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pipeline.cells import choices, provenance
from pipeline.cells.results import Summary, of_tuning, summarise
from pipeline.errors import FedReproError
from pipeline.report.comparison import Axis
from pipeline.report.study import Study
from pipeline.report.words import signed
from pipeline.schema import MINIATURES, ROOT, Cell


@dataclass(frozen=True)
class Tuning:
    """One method of a scenario. before, after: percent on test images (None where the cell has not run);
    kept: whether the chosen values are the row's own; configurations: validation accuracy of each, the row's
    own first (None: diverged); older: whether either is of other code or parameters than today's."""

    cell: Cell
    before: Summary | None
    after: Summary | None
    kept: bool
    configurations: list[float | None]
    older: bool = False

    @property
    def change(self) -> float | None:
        return self.after.mean - self.before.mean if self.before and self.after else None

    @property
    def gain(self) -> str:
        return "kept" if self.kept else "" if self.change is None else signed(self.change, 1)


def tunings(root: Path = ROOT, cells: Iterable[Cell] | None = None) -> tuple[list[Tuning], list[str]]:
    """Every method that was tuned, of all cells or of these, in the order of the paths, and a line for each
    file that was altered."""
    found, problems = [], []
    for cell in choices.found(root) if cells is None else cells:
        try:
            found.append(_tuning(cell, root))
        except FedReproError as error:
            problems.append(str(error))
    return found, problems


def _tuning(cell: Cell, root: Path) -> Tuning:
    document, results = choices.read(cell, root), of_tuning(cell, root)
    chosen = document["configurations"][document["chosen"]]
    pair = [find(cell, root) for find in (choices.published, choices.tuned)]
    before, after = map(results.get, pair)
    if before and after and before["seeds"] != after["seeds"]:
        # One is from before a change of the seeds.
        after = None
    return Tuning(
        cell,
        _headline(before),
        _headline(after),
        not chosen["changes"],
        choices.means(document["configurations"]),
        any(one in results and not provenance.current(results[one], one, root) for one in pair),
    )


def _headline(result: dict | None) -> Summary | None:
    return None if result is None else summarise(result["measures"][result["headline"]])


# -- the page ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tab:
    """A scenario's methods on one axis, the best after tuning first: (name, whether it is the paper's own,
    numbers, what was tried and chosen)."""

    key: str
    label: str
    title: str
    axis: Axis
    rows: list[tuple[str, bool, Tuning, str]]

    @property
    def first(self) -> tuple[str, Summary] | None:
        """Who leads before tuning."""
        before = [(name, one.before) for name, _, one, _ in self.rows if one.before]
        return max(before, key=lambda pair: pair[1].mean, default=None)


@dataclass(frozen=True)
class Tuned:
    """changes: points of every pair of numbers, and their mean; kept: methods that keep their values."""

    tabs: list[Tab]
    changes: list[float]
    mean: str
    kept: int
    older: list[str]


def tuned(studies: dict[str, Study], labels: dict[str, str], found: Iterable[Tuning]) -> Tuned | None:
    """None where nothing was tuned and then trained; scenarios of the papers come before the miniatures.

    labels: algorithm -> name
    """
    columns: dict[tuple[str, str], list[Tuning]] = {}
    for one in found:
        if one.after and one.cell.paper in studies:
            scenario = "" if one.cell.scenario in MINIATURES else one.cell.scenario
            columns.setdefault((one.cell.paper, scenario), []).append(one)
    order = sorted(columns, key=lambda at: (not at[1], [*studies].index(at[0])))
    shown = [one for at in order for one in columns[at]]
    changes = [one.change for one in shown if one.change is not None]
    return (
        Tuned(
            [_tab(studies[key], scenario, columns[key, scenario], labels) for key, scenario in order],
            changes,
            signed(fmean(changes), 1) if changes else "",
            sum(one.kept for one in shown if one.before),
            [str(one.cell) for one in shown if one.older],
        )
        if shown
        else None
    )


def _tab(study: Study, scenario: str, several: list[Tuning], labels: dict[str, str]) -> Tab:
    ends = [
        n.mean + sign * (n.std or 0)
        for one in several
        for n in (one.before, one.after)
        if n
        for sign in (-1, 1)
    ]
    rows = []
    for one in several:
        name = labels[study.paper.algorithm(one.cell.method)]
        rows.append((name, name == study.name, one, choices.path(one.cell, Path()).as_posix()))
    rows.sort(key=lambda row: -row[2].after.mean if row[2].after else 0)
    title = study.title(scenario) if scenario else "miniature"
    return Tab(
        f"{study.key}-{scenario or 'mini'}",
        f"{study.name}, {title.partition(', ')[0]}",
        title,
        Axis.over(ends),
        rows,
    )
