"""Progress display of `fedrepro run`: a table at the foot of a terminal, or a line now and then."""

import time
from collections import Counter
from typing import Any, Literal

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

SECONDS_BETWEEN_LINES = 10.0  # without a terminal
SECONDS_BETWEEN_TABLES = 0.5
ROWS = 8  # stages that run, in a line
FEW = 5  # stages in a cluster's queue that are named
NARROWEST = 20  # columns of a stage's name, in 80 of a terminal
QUEUED = ("queued", "waits")  # in a cluster's queue, or for room there
TAIL = 8  # lines of the log of a failed stage


class Plain:
    """A line for every stage that ended; now and then one about those that run."""

    def __init__(self, schedule: Schedule, jobs: int):
        self.schedule, self.jobs = schedule, jobs
        self.begun = self.drawn = time.monotonic()
        self.latest: dict[Task, dict] = {}
        self.blockers: dict[Task, str] = {}
        self.every = SECONDS_BETWEEN_LINES

    def __enter__(self) -> "Plain":
        return self

    def __exit__(self, *error) -> None:
        pass

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
        print(line, flush=True)

    def draw(self, now: float) -> None:
        """One line about what runs."""
        rows, rest = self.rows(now, ROWS)
        parts = [
            ", ".join(filter(None, (name, training, accuracy, left and f"{left} left")))
            for name, training, accuracy, _, left in rows
        ]
        self.say(f"           {self.total(now)}; running: {'; '.join(filter(None, (*parts, rest)))}")

    def rows(self, now: float, most: int, width: int = 1000) -> tuple[list[tuple[str, ...]], str]:
        """What runs, and in words what is left out.

        A row has the stage in `width` columns, seed and round, accuracy, time so far and time left; trainings
        that report a round come first. More than a few that wait in a cluster's queue are only counted.
        """
        running = sorted(self.schedule.of(RUNNING), key=lambda task: "round" not in self._state(task))
        queued = [task for task in running if _where(task).startswith(QUEUED)]
        begun = [task for task in running if task not in queued]
        some = [*begun, *(queued if len(queued) <= FEW else [])][:most]
        rest = {"more": len(set(begun) - set(some)), "queued": len(set(queued) - set(some))}
        rows = [self._row(task, now, width) for task in some]
        return rows, ", ".join(f"{count} {what}" for what, count in rest.items() if count)

    def _row(self, task: Task, now: float, width: int) -> tuple[str, ...]:
        state = self._state(task)
        return (
            _fitted(task.name, _where(task), width),
            f"seed {state['seed']}, round {state['round']}/{state['rounds']}" if "round" in state else "",
            f"{state['accuracy']:.2f} %" if "accuracy" in state else "",
            clock(now - task.begun),
            clock(_left(state, now)) if "left" in state else "",
        )

    def total(self, now: float) -> str:
        """`7/23 stages done, 1 failed, 0:40 so far, about 1:20 left`."""
        states = {task: self._state(task) for task in self.schedule.of(RUNNING)}
        reported = {task: _left(state, now) for task, state in states.items() if "left" in state}
        count, left = (
            Counter(task.state for task in self.schedule.tasks),
            self.schedule.left(self.jobs, reported),
        )
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


class Table(Plain):
    """A table at the foot of the terminal, above it a line for every stage that ended."""

    def __init__(self, schedule: Schedule, jobs: int, console: Any):
        from rich.live import Live

        super().__init__(schedule, jobs)
        self.every = SECONDS_BETWEEN_TABLES
        self.live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "Table":
        self.live.start()
        return self

    def __exit__(self, *error) -> None:
        self.live.stop()

    def say(self, line: str) -> None:
        """A line that stays, above the table."""
        self.live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def draw(self, now: float) -> None:
        """The table."""
        from rich import box
        from rich.table import Table as Grid

        columns: list[tuple[str, int, Literal["left", "right"]]] = [
            ("training", 22, "left"),
            ("accuracy", 8, "right"),
            ("time", 7, "right"),
            ("left", 7, "right"),
        ]
        size, total = self.live.console.size, self.total(now)
        room = max(size.width - sum(width + 3 for _, width, _ in columns) - 4, NARROWEST)
        lines = -(-len(total) // size.width) + 6  # of all but the rows
        rows, rest = self.rows(now, max(size.height - lines, 1), room)
        caption = f"  and {rest}\n{total}" if rest else total
        grid = Grid(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", caption_style="bold")
        grid.add_column("stage", min_width=NARROWEST, no_wrap=True)
        for title, width, side in columns:
            grid.add_column(title, justify=side, min_width=width, no_wrap=True)
        for row in rows:
            grid.add_row(*row)
        self.live.update(grid, refresh=True)


def display(schedule: Schedule, jobs: int) -> Plain:
    """A table on a terminal, else lines."""
    from rich.console import Console

    console = Console()
    return Table(schedule, jobs, console) if console.is_terminal else Plain(schedule, jobs)


def _left(state: dict, now: float) -> float:
    return max(state["at"] + state["left"] - now, 0.0)


def _where(task: Task) -> str:
    return task.job.where if task.job else ""


def _fitted(name: str, where: str, width: int) -> str:
    """`…dir-01-fedprox (on n2)`: the end of the name, which distinguishes cells, and where it runs if there
    is room for both."""
    place = f" ({where})" if where and width - len(where) - 3 >= min(len(name), NARROWEST) else ""
    room = width - len(place)
    return (name if len(name) <= room else f"…{name[1 - room :]}") + place
