"""Comparisons on equal terms: all methods tuned alike, or all scored after local training.

A method may lead because it was tuned more than its rivals, or because it alone is scored after local
training. A table of this kind removes one such inequality. It shows for each method the accuracy on equal
terms beside that of the paper's setting, and how far the paper's method is ahead: the difference over the
seeds that all methods have, with its 95 % interval (Student's t over the seeds).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.cells.results import Summary, lower_is_better, summarise
from pipeline.report.comparison import Axis, Setting
from pipeline.report.measures import numbers
from pipeline.report.published import Panel, Row, Value, mark
from pipeline.report.statistics import one_sample
from pipeline.report.study import Study, result_file
from pipeline.report.words import counted
from pipeline.schema import Cell


@dataclass(frozen=True)
class AlikeRow:
    """One method of a comparison on equal terms.

    name          of the method
    number        its accuracy on equal terms in percent, over the seeds that all rows have
    before        its accuracy in the paper's setting; None: that has not run
    ahead         points by which the paper's method is ahead of it; None for the paper's method itself
    interval      the 95 % interval of `ahead`; None with one seed
    file          the result.json of `number`
    before_file   the result.json of `before`
    words         a note on the row, or empty
    chance        accuracy in percent below which a run is at chance level; 0: that is not known
    stale         whether code or parameters have changed since `number` was measured
    before_stale  whether they have since `before` was
    """

    name: str
    number: Summary
    before: Summary | None = None
    ahead: float | None = None
    interval: tuple[float, float] | None = None
    file: str = ""
    before_file: str = ""
    words: str = ""
    chance: float = 0.0
    stale: bool = False
    before_stale: bool = False

    def value(self, number: Summary | None, stale: bool) -> Value:
        """A position of a table.

        number  `number` or `before` of the row; None: there is none
        stale   whether code or parameters have changed since it was measured
        """
        if number is None:
            return Value("outside")
        return Value("measured", number=number, chance=number.mean < self.chance, stale=stale)


@dataclass(frozen=True)
class Alike:
    """A comparison of methods on equal terms, the best first.

    key     names it in links and files
    title   what is compared
    about   how it is compared, in a sentence or two
    unit    heading of the numbers on equal terms
    before  heading of the numbers of the paper's setting, whose mark is the hollow one; empty: there are none
    rows    the methods
    notes   sentences below the table
    """

    key: str
    title: str
    about: str
    unit: str
    before: str
    rows: list[AlikeRow]
    notes: tuple[str, ...] = field(default=())

    @property
    def axis(self) -> Axis:
        """The axis that shows all numbers."""
        numbers = []
        for row in self.rows:
            numbers.append(row.number)
            if row.before:
                numbers.append(row.before)
        return Axis.of_summaries(numbers)

    @property
    def seeds(self) -> int:
        """The number of seeds of the row that has the fewest."""
        return min(row.number.seeds for row in self.rows)

    def panel(self, proposed: str) -> Panel:
        """The comparison as a table of a page, with the rows in its order.

        proposed  name of the paper's method; the last column says how far it is ahead of each row
        """
        rows = []
        for row in self.rows:
            first = row.value(row.number, row.stale)
            second = row.value(row.before, row.before_stale)
            last = Value("outside")
            if row.ahead is not None:
                difference = Summary(row.ahead, None, row.number.seeds)
                last = Value("measured", number=difference, signed=True, interval=row.interval)
            values = [first, second, last] if self.before else [first, last]
            rows.append(Row(row.name, [row.name], values))

        headings = [self.unit, self.before, f"{proposed} minus it [95 %]"]
        heads = [[heading] for heading in headings if heading]
        # The best accuracies are marked; the last column has differences.
        for column in range(len(heads) - 1):
            mark([row.values[column] for row in rows], lower=False)
        return Panel("", ["method"], heads, rows)


def compared(runs: Mapping[str, Mapping[int, float]], proposed: str, lower: bool = False) -> list[AlikeRow]:
    """The rows of a comparison, the best first, over the seeds that all runs have.

    If no seed is in all runs, each row has its own seeds, and no difference.

    runs      name -> seed -> accuracy in percent
    proposed  name of the paper's method, which is compared with each other one
    lower     whether small numbers are the better ones
    """
    # The seeds that all runs have; none without runs.
    shared = sorted(set[int]().union(*runs.values()).intersection(*runs.values()))
    rows = []
    for name, by_seed in runs.items():
        values = [by_seed[seed] for seed in shared] if shared else [*by_seed.values()]
        row = AlikeRow(name, summarise(values))
        if shared and name != proposed and proposed in runs:
            differences = np.array([runs[proposed][seed] - by_seed[seed] for seed in shared])
            estimate = one_sample(differences)
            interval = estimate.interval() if len(differences) > 1 else None
            # A difference that rounds to 0 has no sign: adding 0.0 turns -0.0 into it.
            ahead = round(estimate.d, 2) + 0.0
            row = replace(row, ahead=ahead, interval=interval)
        rows.append(row)
    sign = 1 if lower else -1
    return sorted(rows, key=lambda row: sign * row.number.mean)


def scored_alike(study: Study, setting: Setting) -> Alike | None:
    """A setting's methods, all scored after local training.

    study    of the paper
    setting  whose methods are compared

    Returns None if its tables score all methods on the same side of local training anyway, or if a method was
    not scored after it.
    """
    column = setting.first
    cells = {study.label(cell.method): cell for cell in study.runs.get(column.scenario, {})}
    cells = {name: cells[name] for name in column.numbers if name in cells}
    sides = study.hooks(cells.values())
    if len(sides) < 2:
        return None
    after = _by_seed(study, cells, f"after.{column.measure}")
    before = _by_seed(study, cells, f"before.{column.measure}")
    if len(after) < len(cells):
        return None

    shared = set.intersection(*map(set, after.values()))
    rows = []
    for row in compared(after, study.name, lower_is_better(column.measure)):
        seeds = [seed for seed in before.get(row.name, {}) if seed in shared]
        earlier = summarise([before[row.name][seed] for seed in seeds]) if seeds else None
        cell = cells[row.name]
        rows.append(
            replace(
                row,
                before=earlier,
                file=result_file(cell),
                before_file=result_file(cell),
                chance=study.chance_level(cell),
                stale=study.is_stale(cell),
                before_stale=study.is_stale(cell),
            )
        )

    scored_after = {study.label(cell.method) for cell in sides["post"]}
    if study.name in scored_after:
        others = counted(len(sides["pre"]), "method")
        scored = f"{study.name} after local training, {others} before it"
    else:
        others = counted(len(sides["post"]), "method")
        scored = f"{study.name} before local training, {others} after it"
    about = f"The tables score {scored}. Here all are scored after it."
    title = f"{setting.title}, scored alike"
    return Alike(f"alike-{column.scenario}", title, about, "after local training", "before it", rows)


def _by_seed(study: Study, cells: Mapping[str, Cell], measure: str) -> dict[str, dict[int, float]]:
    """Name -> seed -> a measure, of the cells that have it."""
    known = {name: numbers(cell, study.results[cell], measure, study.root) for name, cell in cells.items()}
    return {name: by_seed for name, by_seed in known.items() if by_seed}
