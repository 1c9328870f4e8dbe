"""The time left that `fedrepro run` shows, on recorded seconds (recorded_seconds.csv): 73 cells of the
miniatures with both seeds, trained on an Intel Xeon, which is what is expected, and on an AMD EPYC."""

import csv
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.commands import schedule
from pipeline.commands.run import between
from pipeline.commands.schedule import ENDING, OVERHEAD, Schedule, Task

RECORDED = Path(__file__).with_name("recorded_seconds.csv")
# Seconds of the other stages on the machine that is timed, over the expected ones.
PACE_OF_OTHERS = 1.3
TRACK, REPORT = OVERHEAD["stages.track"], OVERHEAD["stages.report"]


def plan_of(*tasks: Task) -> Schedule:
    """A schedule of tasks whose upstream, work and cell are set."""
    plan = Schedule.__new__(Schedule)
    plan.tasks, plan.force = list(tasks), False
    for task in tasks:
        for needed in task.upstream:
            needed.downstream.append(task)
    for task in reversed(tasks):
        task.rank = task.work + max((needing.rank for needing in task.downstream), default=0.0)
    return plan


def task_of(name: str, work: float, *upstream: Task, cell: bool = False) -> Task:
    task = Task(None, name, Path(name), cell=name if cell else None, upstream=list(upstream))
    task.work = work
    return task


class Replay:
    """A run of recorded stages on two cores, with a clock of its own."""

    cores = 2

    def __init__(self, monkeypatch):
        self.now, self.lasting = 0.0, dict[Task, float]()
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        rows = list(csv.DictReader(RECORDED.read_text(encoding="utf-8").splitlines()))
        tasks, results = [], []
        for paper in dict.fromkeys(row["cell"].partition("/")[0] for row in rows):
            tasks.append(first := task_of(f"{paper}/partition", OVERHEAD[""]))
            for row in (row for row in rows if row["cell"].startswith(f"{paper}/")):
                one = task_of(row["cell"], OVERHEAD[""] + float(row["expected"]), first, cell=True)
                one.known = [1.0, 1.0]
                self.lasting[one] = OVERHEAD[""] + float(row["measured"])
                tasks.append(one)
            cells = [task for task in tasks if first in task.upstream]
            results.append(task_of(f"{paper}/results", OVERHEAD["stages.results"], *cells))
        ends = task_of("track", TRACK, *results), task_of("report", REPORT, *results)
        self.plan = plan_of(*tasks, *results, *ends)
        for task in self.plan.tasks:
            self.lasting.setdefault(task, PACE_OF_OTHERS * task.work)

    def far(self, task: Task) -> bool:
        return False

    def submit(self, task: Task, force: bool) -> SimpleNamespace:
        return SimpleNamespace()

    def end_of(self, task: Task) -> float:
        return task.begun + self.lasting[task] / task.workers

    def times(self) -> list[float]:
        """Run it; returns when stages ended."""
        return [self.now for _ in self.steps()]

    def steps(self):
        """Run it, and stop at the end of every stage, when the next ones have begun."""
        while True:
            for task in list(self.plan._unchecked()):
                task.state = schedule.StageState.READY
            self.plan.launch(self)
            yield
            if not (running := self.plan.of(schedule.StageState.RUNNING)):
                return
            ended = min(running, key=self.end_of)
            self.now = self.end_of(ended)
            ended.state, ended.seconds = schedule.StageState.DONE, self.now - ended.begun

    def shown(self) -> tuple[float, float] | None:
        """What is shown now; a training has reported what it needs until its last round."""
        reported = {
            task: max(self.end_of(task) - self.now - ENDING, 0.0)
            for task in self.plan.of(schedule.StageState.RUNNING)
            if task.cell
        }
        return self.plan.left(self.cores, reported)


def shown_at(monkeypatch, moment: float) -> tuple[tuple[float, float], float]:
    """(what is shown, what it is in truth) about `moment`, a number of seconds or a share of the whole."""
    whole = Replay(monkeypatch).times()[-1]
    moment = moment * whole if moment <= 1 else moment
    replay = Replay(monkeypatch)
    for _ in replay.steps():
        if replay.now >= moment:
            break
    return replay.shown(), whole - replay.now


def test_after_a_minute_it_is_within_a_half(monkeypatch):
    """Three of 73 cells are done, on a machine that favours other ones."""
    (low, high), truth = shown_at(monkeypatch, 60.0)
    assert low <= truth <= 1.5 * high


@pytest.mark.parametrize("moment", [0.25, 0.5, 0.75, 0.95])
def test_what_is_shown_has_the_truth_between_its_ends(monkeypatch, moment):
    (low, high), truth = shown_at(monkeypatch, moment)
    assert low <= truth <= high


@pytest.mark.parametrize("moment", [0.25, 0.5, 0.75, 0.95])
def test_from_a_quarter_on_it_is_right_within_a_quarter(monkeypatch, moment):
    (low, high), truth = shown_at(monkeypatch, moment)
    assert abs((low + high) / 2 - truth) <= truth / 4


def test_the_range_gets_narrower(monkeypatch):
    ranges = [shown_at(monkeypatch, moment)[0] for moment in (0.25, 0.5, 0.75)]
    assert all(one[1] / one[0] > other[1] / other[0] for one, other in pairwise(ranges))


def test_what_comes_after_the_trainings_counts(monkeypatch):
    """The report is not `0:01 left` for a minute."""
    replay = Replay(monkeypatch)
    for _ in replay.steps():
        if all(task.state == schedule.StageState.DONE for task in replay.plan.tasks if task.cell):
            break
    low, high = replay.shown()
    assert low > REPORT
    assert high > PACE_OF_OTHERS * REPORT


def test_nothing_is_shown_before_a_training_tells_how_fast_it_goes(monkeypatch):
    replay = Replay(monkeypatch)
    next(replay.steps())
    assert replay.plan.left(2, {}) is None


def test_a_stage_that_takes_longer_than_expected_is_not_yet_at_its_end(monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    one, two = task_of("one", 100.0, cell=True), task_of("two", 100.0, cell=True)
    plan = plan_of(one, two)
    one.state, one.seconds = schedule.StageState.DONE, 100.0
    two.state, two.begun = schedule.StageState.RUNNING, 0.0
    low, high = plan.left(1, {})
    assert 0 < low < 1 < high < 2


def test_a_stage_waits_for_those_that_it_needs(monkeypatch):
    """Two cells at once on two cores, then a report that keeps one of them busy."""
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    done, one, two = (task_of(name, 100.0, cell=True) for name in ("done", "one", "two"))
    plan = plan_of(done, one, two, task_of("report", 50.0, one, two))
    done.state, done.seconds = schedule.StageState.DONE, 300.0
    low, high = plan.left(2, {})
    assert (low * high) ** 0.5 == pytest.approx(3 * 150)


@pytest.mark.parametrize(
    "low, high, words",
    [
        (479.0, 601.0, "7 to 11 minutes"),
        (3 * 3600.0, 4.5 * 3600, "3 to 5 hours"),
        (60.0, 7199.0, "1 to 120 minutes"),
        (12.0, 38.0, "10 to 40 seconds"),
        (0.9, 1.1, "0 to 10 seconds"),
    ],
)
def test_a_range_is_rounded_outwards(low, high, words):
    assert between(low, high) == words
