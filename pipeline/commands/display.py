"""Progress display of `fedrepro run`: live lines of running stages in a terminal, else occasional logs."""

import time
from collections import Counter

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline.cells.progress import clock
from pipeline.commands.schedule import (
    DONE,
    FAILED,
    READY,
    RUNNING,
    SKIPPED,
    UNCHANGED,
    WAITING,
    Schedule,
    Task,
)

# without a terminal
SECONDS_BETWEEN_LINES = 10.0
# with one
SECONDS_BETWEEN_FRAMES = 0.5
# rows of running stages
ROWS = 8
# in a cluster's queue, or for room there
QUEUED = ("queued", "waits")
# lines of the log of a failed stage
TAIL = 8


class Display:
    """A line for every stage that ended; below them, or now and then, what runs."""

    def __init__(self, schedule: Schedule, jobs: int, console: Console | None = None):
        self.schedule, self.jobs, self.console = schedule, jobs, console or Console()
        # writes nothing where there is no terminal
        self.foot = Live(console=self.console, auto_refresh=False, transient=True)
        self.begun = self.drawn = time.monotonic()
        schedule.say = self.say

    def ended(self, task: Task) -> None:
        """Say that a stage is done or has failed."""
        total = len(self.schedule.tasks)
        settled = total - len(self.schedule.of(WAITING, READY, RUNNING))
        progress = task.progress()
        done = task.state == DONE and progress.get("done")
        accuracy = f"  accuracy {progress['accuracy']:.2f} %" if done else ""
        self.say(f"{settled:>4}/{total}  {task.state:<7}{clock(task.seconds):>8}  {task.name}{accuracy}")
        if task.state == FAILED:
            for line in task.tail(TAIL):
                self.say(f"           | {line}")

    def show(self) -> None:
        """Show the stages that run, if it is time to."""
        now = time.monotonic()
        every = SECONDS_BETWEEN_FRAMES if self.console.is_terminal else SECONDS_BETWEEN_LINES
        if now - self.drawn >= every and self.schedule.of(RUNNING):
            self.drawn = now
            self.draw(now)

    def say(self, line: str) -> None:
        """A line that stays."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def draw(self, now: float) -> None:
        """What runs: trainings that report a round first, what waits in a cluster's queue last."""
        states = {task: task.progress() for task in self.schedule.of(RUNNING)}
        running = sorted(states, key=lambda task: (_queued(task), "round" not in states[task]))
        parts = [_words(task, states[task]) for task in running[:ROWS]]
        rest = Counter("queued" if _queued(task) else "more" for task in running[ROWS:])
        if rest:
            parts.append(", ".join(f"{count} {what}" for what, count in rest.items()))
        total = self._total(now, {task: state["left"] for task, state in states.items() if "left" in state})
        if self.console.is_terminal:
            self.foot.update(Text("\n".join([total, *parts])), refresh=True)
        else:
            self.say(f"           {total}; running: {'; '.join(parts)}")

    def _total(self, now: float, reported: dict[Task, float]) -> str:
        """`7/23 stages done, 1 failed, 0:40 so far, about 1:20 left`."""
        count = Counter(task.state for task in self.schedule.tasks)
        left = self.schedule.left(self.jobs, reported)
        return ", ".join(
            [
                f"{count[DONE] + count[UNCHANGED]}/{len(self.schedule.tasks)} stages done",
                *[f"{count[state]} {state}" for state in (FAILED, SKIPPED) if count[state]],
                f"{clock(now - self.begun)} so far",
                *([f"about {clock(left)} left"] if left is not None else []),
            ]
        )


def _words(task: Task, progress: dict) -> str:
    """`NAME (on n2), seed 0, round 3/20, 61.26 %, 1:05 left`."""
    where = task.job.where if task.job else ""
    parts = [f"{task.name} ({where})" if where else task.name]
    if "round" in progress:
        parts.append("seed {seed}, round {round}/{rounds}".format(**progress))
    if "accuracy" in progress:
        parts.append(f"{progress['accuracy']:.2f} %")
    if "left" in progress:
        parts.append(f"{clock(progress['left'])} left")
    return ", ".join(parts)


def _queued(task: Task) -> bool:
    return task.job is not None and task.job.where.startswith(QUEUED)
