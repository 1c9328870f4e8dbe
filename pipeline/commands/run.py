"""`fedrepro run [stage ...] --jobs N`: what `dvc repro` does, with N stages at once and a live table.

Stages are named as for `dvc repro`: a stage, a group, a dvc.yaml, `path/dvc.yaml:stage`, or a pattern;
without one, all of ./dvc.yaml. A cell whose results are in git is not trained for its representations alone,
unless a stage that is run needs them. A failed stage stops only what needs it; the exit code is then 1. After
Ctrl-C (130) the next call goes on.
"""

import difflib
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pipeline.cells.checks import check_environment, runnable
from pipeline.cells.experiment import Experiment
from pipeline.cells.progress import clock
from pipeline.commands import own_seeds
from pipeline.commands.group import Group
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
    UnknownStage,
)
from pipeline.commands.sync import sync
from pipeline.engines import Engine, engine
from pipeline.engines.local import Local
from pipeline.errors import NO_REPOSITORY, FedReproError, ParamError, conflict, unknown
from pipeline.place import cores
from pipeline.schema import MINIATURE, MINIATURES, ROOT, Cell, load_paper, papers, planned, shorten

SECONDS_BETWEEN_LINES = 10.0  # without a terminal
SECONDS_BETWEEN_TABLES = 0.5
PROJECT = "dvc.yaml"  # what is run without a target
FEW = 5  # names of stages in an error
MOST = 8  # stages that run, in a line
NARROWEST = 20  # columns of a stage's name, in 80 of a terminal
QUEUED = ("queued", "waits")  # in a cluster's queue, or for room there
TAIL = 8  # lines of the log of a failed stage


def main(
    stages: Sequence[str] = (),
    jobs: int | None = None,
    force: bool = False,
    on: str = "local",
    seeds: str = "",
    **options: str,
) -> int:
    """Run the stages; returns the exit code. `seeds`: train cells with these instead, outside of git; `on`
    and `options`: see `pipeline.engines.engine`."""
    check_environment(here=on == "local")
    if seeds:
        return _own_seeds(stages, seeds, jobs, on)
    if force and on != "local":
        raise ParamError("--force: a cluster trains what is missing; train again on this machine")
    chosen = [target for stage in stages for target in targets(stage)]
    if stages and Path.cwd().is_relative_to(ROOT) and not any(map(_is_place, stages)):
        os.chdir(ROOT)  # a paper's or a cell's name means the same in every folder
    if Path.cwd().is_relative_to(ROOT) and (other := sync(check=True)):
        raise FedReproError(f"{shorten(other[0])}: not as paper.yaml says; `fedrepro sync` writes it")
    if not chosen and not Path(PROJECT).exists():
        raise FedReproError(
            f"this folder has no {PROJECT}: name a paper, a cell or `{MINIATURE}`, or go to the root folder"
        )
    here = Local(lambda: Group(schedule.repo.lock.lockfile), jobs if jobs and on == "local" else cores())
    where = engine(on, here, jobs, options)
    try:
        from dvc.exceptions import DvcException
    except ImportError:
        raise FedReproError("DVC is not installed here; `make install` makes an environment, .venv") from None
    try:
        schedule = Schedule(chosen, force, lambda line: print(line, flush=True))
    except UnknownStage as error:
        target, names = error.args
        groups = sorted({name.split("@")[0] for name in names})
        near = difflib.get_close_matches(target, [*papers(), *names, *groups], n=1, cutoff=0.5)
        if near or len(groups) <= FEW:
            raise FedReproError(unknown("stage", target, near or groups)) from None
        some = ", ".join(map(repr, difflib.get_close_matches(target, groups, n=FEW, cutoff=0.0)))
        raise FedReproError(
            f"unknown stage {target!r} ({some} and {len(groups) - FEW} others; "
            "a paper, a cell or `mini` will do)"
        ) from None
    except DvcException as error:
        raise FedReproError(_told(error)) from None
    except KeyboardInterrupt:
        return 130
    if options.get("cancel"):
        ended = where.cancel(schedule.tasks)
        print(f"{ended} {'job' if ended == 1 else 'jobs'} cancelled")
        return 0
    return run(schedule, jobs or cores(), where)


def _own_seeds(names: Sequence[str], seeds: str, jobs: int | None, on: str) -> int:
    """Bring the cells' data, then train them with a user's own seeds."""
    if on != "local":
        raise ParamError("--seeds: trains on this machine only")
    wanted, chosen = own_seeds.parse(seeds), own_seeds.cells(names)
    if code := main(list(dict.fromkeys(map(own_seeds.partition_stage, chosen))), jobs):
        return code
    if jobs:
        os.environ["FEDREPRO_WORKERS"] = str(jobs)
    own_seeds.train(chosen, wanted)
    return 0


def _told(error: Exception) -> str:
    """What DVC says of the whole repository, in one line; the place in a file is in its cause."""
    said = str(error)
    if "is not a git repository" in said:
        return NO_REPOSITORY
    if "not inside of a DVC repository" in said:
        return "this folder lies in no checkout of FedRepro: go to one and call this again"
    if (named := re.search("'(.*?)'", said)) and Path(named[1]).is_file():
        if where := conflict(Path(named[1]).read_text(encoding="utf-8", errors="replace")):
            return named[1] + where
    cause = " ".join(str(error.__cause__ or "").split()).replace('in "<unicode string>",', "at")
    return f"{said}{': ' * bool(cause)}{cause}"


def _is_place(name: str) -> bool:
    """Whether DVC looks for it from the folder that the command was called in."""
    return ":" in name or name.endswith(".yaml")


def targets(name: str) -> list[str]:
    """What `dvc repro --glob` takes for a stage, a cell (fedcrl/mini/fedprox), a scenario (fedcrl/mini), a
    paper (fedcrl) or `mini` and `across`, of every paper."""
    if not name.strip(":"):  # of a variable that is not set; to DVC it is every stage
        raise ParamError("run: a stage without a name")
    if name in MINIATURES:
        return [
            f"papers/{paper}/dvc.yaml:{name}@*"
            for paper in papers()
            if (mini := load_paper(paper).miniature) and (name == MINIATURE or mini.others)
        ] + (["report"] if name == MINIATURE else [])
    if name in papers():
        return [f"papers/{name}/dvc.yaml"]
    if _is_place(name):
        return [name]
    if name.count("/") == 1 and (key := name.partition("/")[0]) in papers():
        paper, scenario = load_paper(key), name.partition("/")[2]
        cells = [cell for cell in planned(key) if cell.scenario == scenario]
        if not cells:
            known = {cell.scenario for cell in planned(key)}
            raise ParamError(f"papers/{key}/paper.yaml: grids: {unknown('scenario', scenario, known)}")
        return [cell.stage(paper) for cell in cells]
    if name.count("/") == 2:
        cell = Cell.parse(name)
        cell.resolve()  # reports a wrong name before DVC reads everything
        return [cell.stage(load_paper(cell.paper)) or name]
    return [name]


def run(schedule: Schedule, jobs: int, engine: Engine) -> int:
    """Run what has changed, at most `jobs` stages at once; returns the exit code."""
    stopped: list[int] = []
    unchecked = [Cell.parse(task.cell) for task in schedule.tasks if task.cell]

    # Sets a flag: an exception could interrupt DVC while it writes a file in this process.
    def stop(number, frame) -> None:
        if stopped:
            engine.kill()  # on the second signal
        stopped.append(number)

    before = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        with _display(schedule, jobs) as display:
            while not stopped and schedule.of(WAITING, READY, RUNNING):
                schedule.check(SECONDS_BETWEEN_TABLES)
                if unchecked and schedule.of(READY):
                    for cell in unchecked:  # now, not hours of other stages later
                        runnable(Experiment.of(cell))
                    unchecked = []
                schedule.launch(engine)
                engine.poll()
                for task in schedule.poll():
                    display.ended(task)
                display.show()
                if schedule.of(RUNNING) or schedule.blocked():
                    time.sleep(0.1)
    finally:
        left = engine.close()
        schedule.end()
        for number, handler in before.items():
            signal.signal(number, handler)
    if left:
        print(left, flush=True)
    return _summary(schedule, display, bool(stopped))


def _summary(schedule: Schedule, display: "Plain", stopped: bool) -> int:
    """The last lines, which name every failed stage; returns the exit code."""
    count, total = Counter(task.state for task in schedule.tasks), len(schedule.tasks)
    if count[UNCHANGED] == total:
        print(f"nothing to do: {total} stages are up to date")
        return 0
    parts = [
        f"{count[DONE]} of {total} stages run",
        *[f"{count[state]} {state}" for state in (UNCHANGED, FAILED, SKIPPED) if count[state]],
    ]
    print(f"{', '.join(parts)} in {clock(time.monotonic() - display.begun)}", flush=True)
    for task in schedule.of(FAILED):
        print(
            f"failed: {task.name}: {task.error().removeprefix('error: ')}\n        log: "
            f"{os.path.relpath(task.log)}",
            file=sys.stderr,
        )
    if stopped:
        running = [task.name for task in schedule.of(RUNNING)]
        names = ", ".join(running[:MOST]) + f" and {len(running) - MOST} more" * (len(running) > MOST)
        anew = schedule.force and os.environ.get("FEDREPRO_FORCE", "1")  # not so in `make repro`
        way = "begins again, since it has --force" if anew else "goes on from here"
        print(f"stopped{': ' * bool(names)}{names}; the same command {way}", file=sys.stderr)
        return 130
    return 1 if count[FAILED] else 0


# -- what is shown -------------------------------------------------------------------------------------------


class Plain:
    """A line for every stage that ended; now and then one about those that run."""

    def __init__(self, schedule: Schedule, jobs: int):
        self.schedule, self.jobs = schedule, jobs
        self.begun = self.shown = time.monotonic()
        self.latest: dict[Task, dict] = {}
        self.told: dict[Task, str] = {}
        self.every = SECONDS_BETWEEN_LINES

    def __enter__(self) -> "Plain":
        return self

    def __exit__(self, *error) -> None:
        pass

    def ended(self, task: Task) -> None:
        """Say that a stage is done or has failed."""
        settled = len(self.schedule.tasks) - len(self.schedule.of(WAITING, READY, RUNNING))
        state, accuracy = self._state(task), ""
        if task.state == DONE and state.get("done"):
            accuracy = f"  accuracy {state['accuracy']:.2f} %"
        self.say(
            f"{settled:>4}/{len(self.schedule.tasks)}  {task.state:<7}{clock(task.seconds):>8}  "
            f"{task.name}{accuracy}"
        )
        if task.state == FAILED:
            for line in task.tail(TAIL):
                self.say(f"           | {line}")

    def show(self) -> None:
        """Show the stages that run, if it is time to, and at once what waits for another process."""
        for task in self.schedule.blocked():
            if self.told.get(task) != task.blocker:
                self.told[task] = task.blocker
                self.say(f"           {task.name} waits for {task.blocker}")
        now = time.monotonic()
        if now - self.shown >= self.every and self.schedule.of(RUNNING):
            self.shown = now
            self.draw(now)

    def say(self, line: str) -> None:
        """A line that stays."""
        print(line, flush=True)

    def draw(self, now: float) -> None:
        """One line about what runs."""
        rows, rest = self.rows(now, MOST)
        told = [
            ", ".join(filter(None, (name, training, accuracy, left and f"{left} left")))
            for name, training, accuracy, _, left in rows
        ]
        self.say(f"           {self.total(now)}; running: {'; '.join(filter(None, (*told, rest)))}")

    def rows(self, now: float, most: int, width: int = 1000) -> tuple[list[tuple[str, ...]], str]:
        """Stage in `width` columns, seed and round, accuracy, time so far and time left of what runs: at most
        so many rows, trainings that have told a round first; and in words what is left out. More than a few
        that wait in a cluster's queue are only counted."""
        running = sorted(self.schedule.of(RUNNING), key=lambda task: "round" not in self._state(task))
        queued = [task for task in running if _where(task).startswith(QUEUED)]
        begun = [task for task in running if task not in queued]
        shown = [*begun, *(queued if len(queued) <= FEW else [])][:most]
        folded = {"more": len(set(begun) - set(shown)), "queued": len(set(queued) - set(shown))}
        rows: list[tuple[str, ...]] = []
        for task in shown:
            state = self._state(task)
            rows.append(
                (
                    _fitted(task.name, _where(task), width),
                    f"seed {state['seed']}, round {state['round']}/{state['rounds']}"
                    if "round" in state
                    else "",
                    f"{state['accuracy']:.2f} %" if "accuracy" in state else "",
                    clock(now - task.begun),
                    clock(max(state["at"] + state["left"] - now, 0)) if "left" in state else "",
                )
            )
        return rows, ", ".join(f"{count} {what}" for what, count in folded.items() if count)

    def total(self, now: float) -> str:
        """`7/23 stages done, 1 failed, 0:40 so far, about 1:20 left`."""
        states = {task: self._state(task) for task in self.schedule.of(RUNNING)}
        told = {
            task: max(state["at"] + state["left"] - now, 0.0)
            for task, state in states.items()
            if "left" in state
        }
        count, left = Counter(task.state for task in self.schedule.tasks), self.schedule.left(self.jobs, told)
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
            try:
                state |= {key: value for key, value in json.loads(line).items() if value is not None} | {
                    "at": time.monotonic()
                }
            except ValueError:
                continue
        return state


class Table(Plain):
    """A table at the foot of the terminal, above it a line for every stage that ended."""

    def __init__(self, schedule: Schedule, jobs: int, console):
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
        grid = Grid(
            box=box.SIMPLE_HEAD,
            caption=f"  and {rest}\n{total}" if rest else total,
            caption_justify="left",
            caption_style="bold",
        )
        grid.add_column("stage", min_width=NARROWEST, no_wrap=True)
        for title, width, side in columns:
            grid.add_column(title, justify=side, min_width=width, no_wrap=True)
        for row in rows:
            grid.add_row(*row)
        self.live.update(grid, refresh=True)


def _where(task: Task) -> str:
    return task.process.where if task.process else ""


def _fitted(name: str, where: str, width: int) -> str:
    """`…dir-01-fedprox (on n2)`: the end of the name, which tells cells apart, and where it runs if there is
    room for both."""
    place = f" ({where})" if where and width - len(where) - 3 >= min(len(name), NARROWEST) else ""
    room = width - len(place)
    return (name if len(name) <= room else f"…{name[1 - room :]}") + place


def _display(schedule: Schedule, jobs: int) -> Plain:
    from rich.console import Console

    console = Console()
    return Table(schedule, jobs, console) if console.is_terminal else Plain(schedule, jobs)
