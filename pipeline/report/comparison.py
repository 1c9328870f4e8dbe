"""Compare published with measured numbers: dot charts, method ranks, claims, and the overview of papers."""

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

# Measures that sum up a block of columns.
AVERAGES = ("average", "weighted", "AVG")
# How papers head such a column.
HEADINGS = ("Avg", "AVG", "Acc.", "average")
# Fewer methods than this make no ranking.
FEWEST = 4
# Charts of a page.
CHARTS = 2
# Rows of these charts together, at most: where there are more, only the first is drawn and the table has the
# second.
MOST_ROWS = 24
# Percent points from 0 that the axis of the claims shows at most.
FARTHEST = 20.0
# Share of its length by which an axis reaches beyond the numbers that it shows.
AXIS_MARGIN = 0.04
# Added to the place of a claim that is about another column of the table: more than a paper has main claims.
ANOTHER_COLUMN = 100


def sums_up(measure: str) -> bool:
    """Whether a measure is the mean over clients or domains."""
    return not measure.startswith(("pre.", "post.")) and measure.rpartition(".")[2] in AVERAGES


# -- settings ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    """A place among methods; shade: 10 for the first, 0 for the last."""

    place: int
    shade: int


def ranked(numbers: dict[str, float], low: bool = False) -> dict[str, Rank]:
    """The rank of every name by its number with two decimals; equal numbers share a place, 1 is the best."""
    sign = 1 if low else -1
    rounded = {name: sign * round(number, 2) for name, number in numbers.items()}
    rivals = len(numbers) - 1
    ranks = {}
    for name, number in rounded.items():
        better = sum(other < number for other in rounded.values())
        ranks[name] = Rank(1 + better, round(10 * (rivals - better) / max(rivals, 1)))
    return ranks


@dataclass(frozen=True)
class Column:
    """The measured numbers of one setting.

    numbers             method as printed -> mean and spread
    scenario, measure   that are behind them
    runs                method as printed -> number by seed, of the seeds that all have
    main                whether it is the paper's setting
    short               whether training is shortened, which is not comparable with the print
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
        return min(number.seeds for number in self.numbers.values())

    @cached_property
    def places(self) -> dict[str, Rank]:
        means = {name: number.mean for name, number in self.numbers.items()}
        return ranked(means, lower_is_better(self.measure))


@dataclass
class Setting:
    """One printed column with everything that was measured for it; the paper's setting first."""

    title: str
    table: str
    printed: dict[str, float]
    columns: list[Column] = field(default_factory=list)

    @property
    def first(self) -> Column:
        return self.columns[0]

    @cached_property
    def places(self) -> dict[str, Rank]:
        return ranked(self.printed)

    @property
    def rows(self) -> list[tuple[str, Summary, float | None]]:
        """The methods of the first column, best first: (name, measured, printed); without the print of a
        shortened one."""
        printed = {} if self.first.short else self.printed
        numbers = sorted(self.first.numbers.items(), key=lambda item: -item[1].mean)
        return [(name, number, printed.get(name)) for name, number in numbers]

    @property
    def axis(self) -> "Axis":
        marks = [mark for *_, mark in self.rows if mark is not None]
        return Axis.of_summaries(self.first.numbers.values(), marks)


def settings(views: Iterable[TableView], main: Sequence[Claim] = ()) -> list[Setting]:
    """Every printed column that compares methods by an average and that runs have measured, shortened ones
    included; those of the `main` claims first."""
    known: dict[tuple, Setting] = {}
    for view in views:
        if len({row.name.partition(" (")[0] for row in view.panel.rows}) >= FEWEST:  # no ablation
            for i in range(len(view.panel.levels)):
                _add(known, view, i)
    measured = [setting for setting in known.values() if setting.columns]
    return sorted(measured, key=lambda setting: _importance(setting, main))


def _add(known: dict[tuple, Setting], view: TableView, i: int) -> None:
    """Column `i` of a table, under the setting that has the same printed numbers."""
    values = {row.name: row.values[i] for row in view.panel.rows if not row.mean}
    printed = {name: value.printed for name, value in values.items() if value.printed is not None}
    measure = next((value.measure for value in values.values() if value.measure), "")  # no delta has one
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
    """Give every setting with a column of the scenario one more, of its methods as they were tuned alike.

    runs: method -> accuracy by seed
    """
    for setting in compared:
        like = next((column for column in setting.columns if column.scenario == scenario), None)
        known = {name: by_seed for name, by_seed in runs.items() if name in setting.printed}
        if like and len(known) >= FEWEST and common(known.values())[0]:
            column = Column("tuned alike", _common(known), scenario, like.measure, known, short=like.short)
            setting.columns.append(column)


def _common(runs: dict[str, dict[int, float]]) -> dict[str, Summary]:
    """Means of the runs' numbers by seed over the seeds that all of them have."""
    return dict(zip(runs, map(summarise, common(runs.values()))))


def _shortened(study: Study, cells: dict[str, Cell], measure: str) -> list[Column]:
    """What shortened scenarios (`<scenario>-short`) measure for the cells of a column that has not run."""
    runs: dict[str, dict[str, dict[int, float]]] = {}
    for name, cell in cells.items():
        short = study.shortened(cell)
        if short and measure in study.results.get(short, {"measures": ()})["measures"]:
            by_seed = numbers(short, study.results[short], measure, study.root)
            runs.setdefault(short.scenario, {})[name] = by_seed
    columns = []
    for scenario, by_method in runs.items():
        if len(by_method) >= FEWEST:
            columns.append(Column(SHORTENED, _common(by_method), scenario, measure, by_method, short=True))
    return columns


def _title(view: TableView, i: int, measure: str) -> str:
    """What a column is about: its headings without the name of the average, else the table's data set."""
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
    """Place of the first main claim about the setting's column; without one, of the first about its table."""
    parts = setting.title.split(", ")
    places = []
    for place, claim in enumerate(main):
        for spot in claim.spots:
            if spot.table == setting.table:
                places.append(place if spot.dataset in parts else place + ANOTHER_COLUMN)
    return min(places, default=math.inf)


def compared_cells(study: Study, compared: list[Setting]) -> dict[str, list[Cell]]:
    """Scenario -> the finished cells of the methods that its column compares."""
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
        """An axis that shows all the numbers."""
        margin = AXIS_MARGIN * ((max(numbers) - min(numbers)) or 1.0)
        low = min(numbers) - margin
        high = max(numbers) + margin
        ticks = MaxNLocator(5, steps=[1, 2, 4, 5, 10]).tick_values(low, high)
        return cls(low, high, tuple(round(float(tick), 6) for tick in ticks if low <= tick <= high))

    @classmethod
    def of_summaries(cls, summaries: Iterable[Summary], others: Iterable[float] = ()) -> "Axis":
        """An axis that shows means with their standard deviations, and other numbers."""
        ends = []
        for number in summaries:
            std = number.std or 0
            ends += [number.mean - std, number.mean + std]
        return cls.over([*ends, *others])

    def beyond(self, *numbers: float | None) -> tuple[bool, bool]:
        """Whether some of these numbers lie left of the axis, and right of it."""
        known = [number for number in numbers if number is not None]
        return any(number < self.low for number in known), any(number > self.high for number in known)

    def at(self, number: float) -> float:
        """The position of a number; of one beyond the axis that of the axis's end."""
        return round(100 * min(max((number - self.low) / (self.high - self.low), 0), 1), 2)


def charts(compared: list[Setting]) -> list[Setting]:
    """The first settings whose first column can stand for the paper's: the same setting, or a shortened
    one."""
    drawn = [setting for setting in compared if setting.first.main or setting.first.short][:CHARTS]
    rows = sum(len(setting.rows) for setting in drawn)
    return drawn[:1] if rows > MOST_ROWS else drawn


def claims_axis(verdicts: list[Verdict]) -> Axis | None:
    """Of all differences in percent points; what lies beyond FARTHEST is at its ends, and so are ends of
    intervals."""
    numbers = []
    for verdict in verdicts:
        if verdict.points and verdict.point is not None:
            numbers += [verdict.point, verdict.printed or 0.0]
    if not numbers:
        return None
    span = min(max(1.0, *map(abs, numbers)), FARTHEST)
    return Axis.over([-span, span])
