"""Compare published with measured numbers: the data of dot charts, ranks of methods, and axes of claims.

A setting is a printed column that compares methods by an average. It is shown beside what was measured for
it: in the paper's setting, in other ones, by shortened runs, and after tuning. `page` shows these settings;
the templates draw them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from matplotlib.ticker import MaxNLocator

from pipeline.cells.results import Summary, lower_is_better, summarise
from pipeline.report.claims import Claim
from pipeline.report.measures import numbers
from pipeline.report.published import common
from pipeline.report.study import Study
from pipeline.report.tables import TableView
from pipeline.report.verdicts import SHORTENED, Verdict
from pipeline.report.words import GROUPS
from pipeline.schema import Cell

# Last parts of the names of measures that are means over clients or domains.
AVERAGES = ("average", "weighted", "AVG")
# Headings that papers give the column of such a mean.
HEADINGS = ("Avg", "AVG", "Acc.", "average")
# Methods from which on a column is ranked and drawn.
FEWEST = 4
# Charts on a page, at most.
CHARTS = 2
# Rows of these charts together, at most: else only the first chart is drawn, and the second is in the table.
MOST_ROWS = 24
# Percent points that the axis of the claims shows on either side of 0, at most.
FARTHEST = 20.0
# Share of its length by which an axis reaches beyond the numbers that it shows.
AXIS_MARGIN = 0.04
# Tick marks of an axis, about.
TICKS = 5
# Steps between tick marks, times a power of ten.
TICK_STEPS = [1, 2, 4, 5, 10]
# Steps of the colour of a rank, from the last to the best.
SHADES = 10
# Added to the place of a claim about another column of the same table, so that it comes after all claims
# about the column: more than a paper has main claims.
ANOTHER_COLUMN = 100


def sums_up(measure: str) -> bool:
    """Whether a measure is the mean over clients or domains, of the models that the tables score."""
    return not measure.startswith(("pre.", "post.")) and measure.rpartition(".")[2] in AVERAGES


# -- settings ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    """The rank of a method.

    place  1 for the best
    shade  of its colour: SHADES for the best, 0 for the last
    """

    place: int
    shade: int


def ranked(numbers: dict[str, float], low: bool = False) -> dict[str, Rank]:
    """The rank of every name by its number with two decimals; equal numbers share a place.

    numbers  name -> number
    low      whether small numbers are the better ones
    """
    sign = 1 if low else -1
    rounded = {name: sign * round(number, 2) for name, number in numbers.items()}
    rivals = len(numbers) - 1
    ranks = {}
    for name, number in rounded.items():
        better = sum(other < number for other in rounded.values())
        shade = round(SHADES * (rivals - better) / max(rivals, 1))
        ranks[name] = Rank(1 + better, shade)
    return ranks


@dataclass(frozen=True)
class Column:
    """The measured numbers of one setting.

    heading   name of the setting
    numbers   method as printed -> mean and standard deviation, over the seeds that all have
    scenario  of the runs
    measure   of the runs
    runs      method as printed -> seed -> number
    main      whether it is the paper's own setting
    short     whether training is shortened; such numbers are not compared with the printed ones
    """

    heading: str
    numbers: dict[str, Summary]
    scenario: str
    measure: str
    runs: dict[str, dict[int, float]]
    main: bool = False
    short: bool = False

    @property
    def seeds(self) -> int:
        """The number of seeds of the method that has the fewest."""
        return min(number.seeds for number in self.numbers.values())

    @cached_property
    def places(self) -> dict[str, Rank]:
        """The rank of every method by its measured mean."""
        means = {name: number.mean for name, number in self.numbers.items()}
        return ranked(means, lower_is_better(self.measure))


@dataclass
class Setting:
    """One printed column with everything that was measured for it.

    title    in words
    table    key of the paper's table
    printed  method as printed -> printed number
    columns  measured ones, in the order of the tables; the first is compared with the printed one
    """

    title: str
    table: str
    printed: dict[str, float]
    columns: list[Column] = field(default_factory=list)

    @property
    def first(self) -> Column:
        """The measured column that is compared with the printed one."""
        return self.columns[0]

    @cached_property
    def places(self) -> dict[str, Rank]:
        """The rank of every method by its printed number."""
        return ranked(self.printed)

    @property
    def rows(self) -> list[tuple[str, Summary, float | None]]:
        """(method, measured, printed number) of the first column, the best measured method first.

        The printed number is None if there is none, or if training is shortened.
        """
        printed = {} if self.first.short else self.printed
        numbers = sorted(self.first.numbers.items(), key=lambda item: -item[1].mean)
        return [(name, number, printed.get(name)) for name, number in numbers]

    @property
    def axis(self) -> "Axis":
        """The axis that shows all numbers of `rows`."""
        printed = [number for _, _, number in self.rows if number is not None]
        return Axis.of_summaries(self.first.numbers.values(), printed)


def settings(views: Iterable[TableView], main: Sequence[Claim] = ()) -> list[Setting]:
    """The printed columns that compare methods by an average and that were measured, also by shortened runs.

    views  tables of a paper
    main   its main claims, whose columns come first
    """
    # The printed numbers of a column -> its setting.
    known: dict[tuple, Setting] = {}
    for view in views:
        methods = {row.name.partition(" (")[0] for row in view.panel.rows}
        # An ablation has fewer methods, in several variants.
        if len(methods) >= FEWEST:
            for i in range(len(view.panel.levels)):
                _add(known, view, i)
    measured = [setting for setting in known.values() if setting.columns]
    return sorted(measured, key=lambda setting: _importance(setting, main))


def _add(known: dict[tuple, Setting], view: TableView, i: int) -> None:
    """Add a column of a table to the setting with the same printed numbers, or make a new setting.

    known  printed numbers -> setting
    view   the table
    i      index of the column
    """
    values = {row.name: row.values[i] for row in view.panel.rows if not row.mean}
    printed = {name: value.printed for name, value in values.items() if value.printed is not None}
    # Empty for a column of differences.
    measure = next((value.measure for value in values.values() if value.measure), "")
    if len(printed) < FEWEST or not sums_up(measure):
        return

    new = Setting(_title(view, i, measure), view.key, printed)
    setting = known.setdefault(tuple(printed.items()), new)
    runs = {name: value.by_seed for name, value in values.items() if value.cell}
    if len(runs) >= FEWEST:
        [scenario, *_] = [value.cell.scenario for value in values.values() if value.cell]
        variant = view.number.partition(", ")[2]
        heading = variant or view.heading
        setting.columns.append(Column(heading, _common(runs), scenario, measure, runs, main=not variant))
    elif not runs:
        cells = {name: Cell.parse(value.target) for name, value in values.items() if value.target}
        names = {column.scenario for column in setting.columns}
        short = _shortened(view.study, cells, measure)
        setting.columns += [column for column in short if column.scenario not in names]


def add_tuned(compared: Iterable[Setting], scenario: str, runs: dict[str, dict[int, float]]) -> None:
    """Add a column of tuned methods to every setting that has a column of their scenario.

    compared  the settings
    scenario  in which the methods were tuned
    runs      method -> seed -> accuracy after tuning, in percent
    """
    for setting in compared:
        like = next((column for column in setting.columns if column.scenario == scenario), None)
        known = {name: by_seed for name, by_seed in runs.items() if name in setting.printed}
        if like and len(known) >= FEWEST and common(known.values())[0]:
            column = Column("tuned alike", _common(known), scenario, like.measure, known, short=like.short)
            setting.columns.append(column)


def _common(runs: dict[str, dict[int, float]]) -> dict[str, Summary]:
    """Name -> mean and standard deviation of a run, over the seeds that all runs have.

    runs  name -> seed -> number
    """
    return dict(zip(runs, map(summarise, common(runs.values()))))


def _shortened(study: Study, cells: dict[str, Cell], measure: str) -> list[Column]:
    """The columns of shortened scenarios (`<scenario>-short`) for a column of which nothing has run.

    cells    method as printed -> its cell in the paper's scenario
    measure  of the column
    """
    # Scenario -> method as printed -> seed -> number.
    runs: dict[str, dict[str, dict[int, float]]] = {}
    for name, cell in cells.items():
        short = study.shortened(cell)
        if short in study.results and measure in study.results[short]["measures"]:
            by_seed = numbers(short, study.results[short], measure, study.root)
            runs.setdefault(short.scenario, {})[name] = by_seed
    columns = []
    for scenario, by_method in runs.items():
        if len(by_method) >= FEWEST:
            columns.append(Column(SHORTENED, _common(by_method), scenario, measure, by_method, short=True))
    return columns


def _title(view: TableView, i: int, measure: str) -> str:
    """The title of a column: its headings without the name of the average, or else the table's data set.

    i        index of the column
    measure  of the column, whose group is named at the end
    """
    *upper, last = dict.fromkeys(view.panel.levels[i])
    parts = list(filter(None, [view.panel.title, *upper]))
    if not parts and last not in HEADINGS:
        parts = [last]
    if not parts:
        parts = list({key.split("|")[1] for key in view.table.blocks})
    group = GROUPS.get(measure.partition(".")[0], "")
    if group:
        parts.append(group)
    return ", ".join(dict.fromkeys(parts))


def _importance(setting: Setting, main: Iterable[Claim]) -> float:
    """A key to sort settings by: the place of the first main claim about its column, else of the first one
    about another column of its table; infinite if there is none."""
    parts = setting.title.split(", ")
    places = []
    for place, claim in enumerate(main):
        for spot in claim.spots:
            if spot.table == setting.table:
                places.append(place if spot.dataset in parts else place + ANOTHER_COLUMN)
    return min(places, default=math.inf)


def compared_cells(study: Study, compared: list[Setting]) -> dict[str, list[Cell]]:
    """Scenario -> the finished cells of the methods that its column compares.

    study     of the paper
    compared  the settings
    """
    # The first of several columns of a scenario in a setting comes last and stays.
    columns = {column.scenario: column for setting in compared for column in setting.columns[::-1]}
    cells = {}
    for scenario, column in columns.items():
        finished = study.runs[scenario]
        cells[scenario] = [cell for cell in finished if study.label(cell.method) in column.numbers]
    return cells


# -- on an axis ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """A horizontal axis from `low` to `high`; positions are percent of its width."""

    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, numbers: Sequence[float]) -> "Axis":
        """An axis that shows all of these numbers, one or more."""
        span = max(numbers) - min(numbers)
        margin = AXIS_MARGIN * (span or 1.0)
        low = min(numbers) - margin
        high = max(numbers) + margin
        ticks = MaxNLocator(TICKS, steps=TICK_STEPS).tick_values(low, high)
        return cls(low, high, tuple(round(float(tick), 6) for tick in ticks if low <= tick <= high))

    @classmethod
    def of_summaries(cls, summaries: Iterable[Summary], others: Iterable[float] = ()) -> "Axis":
        """An axis that shows means with one standard deviation on either side, and other numbers.

        summaries  the means and standard deviations
        others     further numbers
        """
        ends = []
        for number in summaries:
            std = number.std or 0
            ends += [number.mean - std, number.mean + std]
        return cls.over([*ends, *others])

    def beyond(self, *numbers: float | None) -> tuple[bool, bool]:
        """(whether some of these numbers lie left of the axis, whether some lie right of it); None: no
        number."""
        known = [number for number in numbers if number is not None]
        left = any(number < self.low for number in known)
        right = any(number > self.high for number in known)
        return left, right

    def at(self, number: float) -> float:
        """The position of a number, in percent of the width; the end of the axis for one beyond it."""
        share = (number - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0), 1), 2)


def charts(compared: list[Setting]) -> list[Setting]:
    """The settings that are drawn: the first ones whose measured column is of the paper's setting or of
    shortened runs; CHARTS at most, and one alone if they have more than MOST_ROWS rows."""
    drawn = [setting for setting in compared if setting.first.main or setting.first.short][:CHARTS]
    rows = sum(len(setting.rows) for setting in drawn)
    return drawn[:1] if rows > MOST_ROWS else drawn


def claims_axis(verdicts: list[Verdict]) -> Axis | None:
    """The axis of all claimed differences in percent points; None if no claim has one.

    Numbers beyond FARTHEST, and ends of intervals beyond the axis, are drawn at its ends.
    """
    numbers = []
    for verdict in verdicts:
        if verdict.points and verdict.point is not None:
            numbers += [verdict.point, verdict.printed or 0.0]
    if not numbers:
        return None
    span = min(max(1.0, *map(abs, numbers)), FARTHEST)
    return Axis.over([-span, span])
