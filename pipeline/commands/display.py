"""Progress display of `fedrepro run`: live lines of running stages in a terminal, else occasional logs."""

import time
from collections import Counter

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline.cells.progress import clock, event
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
# stages in a cluster's queue that are named
FEW = 5
# in a cluster's queue, or for room there
QUEUED = ("queued", "waits")
# lines of the log of a failed stage
TAIL = 8


class Display:
    """A line for every stage that ended; below them, or now and then, what runs."""

    def __init__(self, schedule: Schedule, jobs: int, console: Console | None = None):
        self.schedule, self.jobs, self.console = schedule, jobs, console or Console()
        terminal = self.console.is_terminal
        self.foot = Live(console=self.console, auto_refresh=False, transient=True) if terminal else None
        self.begun = self.drawn = time.monotonic()
        self.latest: dict[Task, dict] = {}
        self.blockers: dict[Task, str] = {}
        self.every = SECONDS_BETWEEN_FRAMES if self.foot else SECONDS_BETWEEN_LINES

    def __enter__(self) -> "Display":
        if self.foot:
            self.foot.start()
        return self

    def __exit__(self, *error) -> None:
        if self.foot:
            self.foot.stop()

    def ended(self, task: Task) -> None:
        """Say that a stage is done or has failed."""
        total = len(self.schedule.tasks)
        settled = total - len(self.schedule.of(WAITING, READY, RUNNING))
        state = self._state(task)
        done = task.state == DONE and state.get("done")
        accuracy = f"  accuracy {state['accuracy']:.2f} %" if done else ""
        self.say(f"{settled:>4}/{total}  {task.state:<7}{clock(task.seconds):>8}  {task.name}{accuracy}")
        if task.state == FAILED:
            for line in task.tail(TAIL):
                self.say(f"           | {line}")

    def show(self) -> None:
        """Show the stages that run, if it is time to, and at once what waits for another process."""
        for task in self.schedule.blocked():
            if self.blockers.get(task) != task.blocker:
                self.blockers[task] = task.blocker
                self.say(f"           {task.name} waits for {task.blocker}")
        now = time.monotonic()
        if now - self.drawn >= self.every and self.schedule.of(RUNNING):
            self.drawn = now
            self.draw(now)

    def say(self, line: str) -> None:
        """A line that stays."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def draw(self, now: float) -> None:
        """What runs: trainings that report a round first; more than a few that wait in a cluster's queue are
        only counted."""
        running = sorted(self.schedule.of(RUNNING), key=lambda task: "round" not in self._state(task))
        queued = [task for task in running if _where(task).startswith(QUEUED)]
        begun = [task for task in running if task not in queued]
        chosen = [*begun, *(queued if len(queued) <= FEW else [])][:ROWS]
        rest = {"more": len(set(begun) - set(chosen)), "queued": len(set(queued) - set(chosen))}
        parts = [self._words(task, now) for task in chosen]
        parts += [", ".join(f"{count} {what}" for what, count in rest.items() if count)]
        parts = [part for part in parts if part]
        if self.foot:
            self.foot.update(Text("\n".join([self.total(now), *parts])), refresh=True)
        else:
            self.say(f"           {self.total(now)}; running: {'; '.join(parts)}")

    def _words(self, task: Task, now: float) -> str:
        """`NAME (on n2), seed 0, round 3/20, 61.26 %, 1:05 left`."""
        state, where = self._state(task), _where(task)
        parts = [f"{task.name} ({where})" if where else task.name]
        if "round" in state:
            parts.append(f"seed {state['seed']}, round {state['round']}/{state['rounds']}")
        if "accuracy" in state:
            parts.append(f"{state['accuracy']:.2f} %")
        if "left" in state:
            parts.append(f"{clock(_left(state, now))} left")
        return ", ".join(parts)

    def total(self, now: float) -> str:
        """`7/23 stages done, 1 failed, 0:40 so far, about 1:20 left`."""
        states = {task: self._state(task) for task in self.schedule.of(RUNNING)}
        reported = {task: _left(state, now) for task, state in states.items() if "left" in state}
        count = Counter(task.state for task in self.schedule.tasks)
        left = self.schedule.left(self.jobs, reported)
        parts = [
            f"{count[DONE] + count[UNCHANGED]}/{len(self.schedule.tasks)} stages done",
            *[f"{count[state]} {state}" for state in (FAILED, SKIPPED) if count[state]],
            f"{clock(now - self.begun)} so far",
        ]
        return ", ".join(parts + ([f"about {clock(left)} left"] if left is not None else []))

    def _state(self, task: Task) -> dict:
        """The last event that the training of a stage reported, read on from where the previous call
        stopped."""
        state = self.latest.setdefault(task, {"offset": 0})
        try:
            with open(task.events, "rb") as file:
                file.seek(state["offset"])
                lines = file.read().split(b"\n")[:-1]
        except OSError:
            return state
        for line in lines:
            state["offset"] += len(line) + 1
            if values := event(line):
                state |= values | {"at": time.monotonic()}
        return state


def _left(state: dict, now: float) -> float:
    return max(state["at"] + state["left"] - now, 0.0)


def _where(task: Task) -> str:
    return task.job.where if task.job else ""
