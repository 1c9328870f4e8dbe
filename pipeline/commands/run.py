"""Runs stages that are missing or have changed, several at once, as `dvc repro` does one after another.

If a stage fails, only stages that need it are skipped, and the exit code is 1. After Ctrl-C (exit code 130)
the next call continues.
"""

import contextlib
import math
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline.cells.experiment import Experiment
from pipeline.clusters import executor
from pipeline.commands import unchanged
from pipeline.commands.schedule import Schedule, StageState, Task
from pipeline.commands.sync import show_grids, sync
from pipeline.errors import NO_REPOSITORY, FedReproError, ParamError, conflict, unknown
from pipeline.place import cores
from pipeline.schema import MINIATURE, MINIATURES, ROOT, Cell, load_paper, papers, planned, shorten
from pipeline.training.checks import check_environment, runnable
from pipeline.training.progress import clock

PROJECT = "dvc.yaml"  # what is run without a target
# without a terminal
SECONDS_BETWEEN_LINES = 10.0
# with one
SECONDS_BETWEEN_FRAMES = 0.5
# rows of running stages
ROWS = 8
# of a time left: from how many seconds on, its seconds and its name
UNITS = ((2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
# in a cluster's queue, or for room there
QUEUED = ("queued", "waits")


def main(
    stages: Sequence[str] = (),
    jobs: int | None = None,
    force: bool = False,
    on: str = "local",
    **options: Any,
) -> int:
    """Run the stages that are missing or have changed; returns the exit code.

    stages: names that `targets` accepts; empty: the stages of the current folder's dvc.yaml
    jobs: number of stages, or of cells on a cluster, that run at once; None: the default of the executor
    force: also run stages that have not changed
    on, options: see `pipeline.clusters.executor`
    """
    check_environment(here=on == "local")
    if force and on != "local":
        raise ParamError("--force: a cluster trains what is missing; train again on this machine")
    asked = unchanged.key(stages)
    number = None if force or on != "local" else unchanged.known(asked, unchanged.root_of(Path.cwd()))
    if number is not None:
        print(f"nothing to do: {number} stages are up to date")
        return 0
    from dvc.exceptions import DvcException

    if Path.cwd().is_relative_to(ROOT) and not options.get("cancel"):
        for path in sync():  # of cells and scenarios that paper.yaml has got since
            print(f"{shorten(path)}: written, as paper.yaml says", flush=True)
    chosen = [target for stage in stages for target in targets(stage)]
    if stages and Path.cwd().is_relative_to(ROOT) and not any(map(_is_place, stages)):
        os.chdir(ROOT)  # a paper's or a cell's name means the same in every folder
    if not chosen and not Path(PROJECT).exists():
        raise FedReproError(f"this folder has no {PROJECT}: name a paper or a cell, or go to the root folder")
    if hidden := list(filter(_hidden, chosen or [PROJECT])):
        show_grids(targets=[os.path.abspath(target.partition(":")[0]) for target in hidden])
    where = executor(on, jobs if jobs and on == "local" else cores(), jobs, options)
    try:
        schedule = Schedule(chosen, force, lambda line: print(line, flush=True))
    except DvcException as error:
        raise FedReproError(_in_one_line(error)) from None
    if options.get("cancel"):
        ended = where.cancel(schedule.tasks)
        print(f"{ended} job{'s' * (ended != 1)} cancelled")
        return 0
    places = unchanged.places_of((task.stage for task in schedule.tasks), schedule.root)
    looked = unchanged.state(places, schedule.root)
    code = run(schedule, jobs or cores(), where)
    total = len(schedule.tasks)
    if len(schedule.of(StageState.UNCHANGED)) == total:
        unchanged.remember(asked, schedule.root, total, places, looked)
    return code


def _in_one_line(error: Exception) -> str:
    """What DVC says of the whole repository; the place in a file is in its cause."""
    text = str(error)
    if "is not a git repository" in text:
        return NO_REPOSITORY
    if "not inside of a DVC repository" in text:
        return "this folder lies in no checkout of FedRepro: go to one and call this again"
    if (named := re.search("'(.*?)'", text)) and Path(named[1]).is_file():
        if where := conflict(Path(named[1]).read_text(encoding="utf-8", errors="replace")):
            if named[1].endswith("dvc.lock"):  # a cell that loses its entry trains again
                where = where.partition(";")[0] + "; keep both parts, of a stage in both one, without marks"
            return named[1] + where
    cause = " ".join(str(error.__cause__ or "").split()).replace('in "<unicode string>",', "at")
    return f"{text}: {cause}" if cause else text


def _is_place(name: str) -> bool:
    """Whether DVC looks for it from the folder that the command was called in."""
    return ":" in name or name.endswith(".yaml")


def _hidden(target: str) -> bool:
    """Whether .dvcignore hides the target's file from DVC."""
    path = Path(os.path.abspath(target.partition(":")[0]))
    return path.name == PROJECT and any(path.match(f"{ROOT}/{place}") for place in ("data/*", "papers/*/*/*"))


def targets(name: str) -> list[str]:
    """What `dvc repro --glob` takes for a stage, a cell (fedcrl/mini/fedprox), a scenario (fedcrl/mini), a
    paper (fedcrl) or `mini` and `across`, of every paper."""
    if not name.strip(":"):  # of a variable that is not set; to DVC it is every stage
        raise ParamError("run: a stage without a name")
    if name in MINIATURES:
        return [
            f"papers/{paper}/dvc.yaml:{name}@*"
            for paper in papers()
            if (miniature := load_paper(paper).miniature) and (name == MINIATURE or miniature.others)
        ] + (["report"] if name == MINIATURE else [])
    if name in papers():
        files = (f"papers/{name}/dvc.yaml", f"papers/{name}/grids/dvc.yaml")
        return [file for file in files if (ROOT / file).exists()]
    if _is_place(name):
        return [name]
    if name.count("/") == 1 and name.partition("/")[0] in papers() or name.count("/") == 2:
        return [cell.stage(load_paper(cell.paper)) or name for cell in named(name)]
    return [name]


def named(name: str) -> list[Cell]:
    """The cell of that name, or the cells of a scenario, paper/scenario; ParamError for an unknown name."""
    if name.count("/") != 1:
        cell = Cell.parse(name)
        Experiment.of(cell)
        return [cell]
    key, scenario = name.split("/")
    load_paper(key)
    every = planned(key)
    if not (some := [cell for cell in every if cell.scenario == scenario]):
        known = {cell.scenario for cell in every}
        raise ParamError(f"papers/{key}/paper.yaml: grids: {unknown('scenario', scenario, known)}")
    return some


def partition_stage(cell: Cell) -> str:
    """The stage that brings a cell's data and deals them to its clients."""
    if cell.partition == MINIATURE:
        return f"papers/{cell.paper}/dvc.yaml:partition-mini"
    scenarios = load_paper(cell.paper).scenarios
    public = {name: one.public is not None for name, one in scenarios.items() if name not in MINIATURES}
    mixed = len({*public.values()}) > 1  # see `sync.partitions`
    stage = "partition-public" if mixed and public[cell.partition] else "partition"
    return f"papers/{cell.paper}/grids/dvc.yaml:{stage}@{cell.partition}"


def bring_partition(cell: Cell) -> None:
    """Deal a cell's clients by their stage where none are here, as in a fresh clone. FedReproError where that
    fails."""
    if (ROOT / "papers" / cell.paper / "partitions" / cell.partition).is_dir():
        return
    with contextlib.chdir(ROOT):
        code = main([partition_stage(cell)])
    if code:
        raise FedReproError(f"{cell.paper}/{cell.scenario}: its clients cannot be drawn here: see above")


# -- progress ------------------------------------------------------------------------------------------------


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
        settled = total - len(self.schedule.of(StageState.WAITING, StageState.READY, StageState.RUNNING))
        progress = task.progress()
        done = task.state == StageState.DONE and progress.get("done")
        accuracy = f"  accuracy {progress['accuracy']:.2f} %" if done else ""
        self.say(f"{settled:>4}/{total}  {task.state:<7}{clock(task.seconds):>8}  {task.name}{accuracy}")

    def show(self) -> None:
        """Show the stages that run, if it is time to."""
        now = time.monotonic()
        every = SECONDS_BETWEEN_FRAMES if self.console.is_terminal else SECONDS_BETWEEN_LINES
        if now - self.drawn >= every and self.schedule.of(StageState.RUNNING):
            self.drawn = now
            self.draw(now)

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def draw(self, now: float) -> None:
        """What runs: trainings that report a round first, what waits in a cluster's queue last."""
        states = {task: task.progress() for task in self.schedule.of(StageState.RUNNING)}
        running = sorted(states, key=lambda task: (_queued(task), "round" not in states[task]))
        parts = [_words(task, states[task]) for task in running[:ROWS]]
        if rest := Counter("queued" if _queued(task) else "more" for task in running[ROWS:]):
            parts.append(", ".join(f"{count} {what}" for what, count in rest.items()))
        left = self.schedule.left(
            self.jobs, {task: state["left"] for task, state in states.items() if "left" in state}
        )
        done, count = len(self.schedule.of(StageState.DONE, StageState.UNCHANGED)), len(self.schedule.tasks)
        total = f"{done}/{count} stages done{_counts(self.schedule, StageState.FAILED, StageState.SKIPPED)}, "
        total += f"{clock(now - self.begun)} so far" + ("" if left is None else f", {between(*left)} left")
        if self.console.is_terminal:
            self.foot.update(Text("\n".join([total, *parts])), refresh=True)
        else:
            self.say(f"           {total}; running: {'; '.join(parts)}")


def between(low: float, high: float) -> str:
    """`8 to 11 minutes`, `20 to 40 seconds`, `3 to 5 hours`: a range of seconds, rounded outwards."""
    unit, name = next((unit, name) for least, unit, name in UNITS if high >= least)
    first, last = math.floor(low / unit), math.ceil(high / unit)
    if name == "seconds":
        first, last = first // 10 * 10, -(-last // 10) * 10
    return f"{first} to {last} {name}"


def _counts(schedule: Schedule, *states: StageState) -> str:
    """`, 1 failed, 2 skipped`."""
    return "".join(f", {count} {state}" for state in states if (count := len(schedule.of(state))))


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


# -- the loop ------------------------------------------------------------------------------------------------


def run(schedule: Schedule, jobs: int, where: Any) -> int:
    """Run what has changed, at most `jobs` stages at once; returns the exit code."""
    stopped: list[int] = []
    unchecked = [Cell.parse(task.cell) for task in schedule.tasks if task.cell]

    # Sets a flag: an exception could interrupt DVC while it writes a file in this process.
    def stop(number, frame) -> None:
        if stopped:
            where.kill()  # on the second signal
        stopped.append(number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in signals}
    try:
        screen = Display(schedule, jobs)
        with screen.foot:
            while not stopped and schedule.of(StageState.WAITING, StageState.READY, StageState.RUNNING):
                schedule.check(SECONDS_BETWEEN_FRAMES)
                if unchecked and schedule.of(StageState.READY):
                    for cell in unchecked:  # now, not hours of other stages later
                        runnable(Experiment.of(cell))
                    unchecked = []
                schedule.launch(where)
                for task in schedule.poll(where):
                    screen.ended(task)
                screen.show()
                if schedule.of(StageState.RUNNING) or any(
                    task.blocker for task in schedule.of(StageState.WAITING)
                ):
                    time.sleep(0.1)
    finally:
        left = where.close()
        schedule.record(last=True)
        for number, handler in before.items():
            signal.signal(number, handler)
    if left:
        print(left, flush=True)
    return _summary(schedule, screen, bool(stopped))


def _summary(schedule: Schedule, screen: Display, stopped: bool) -> int:
    """The last lines, which name every failed stage; returns the exit code."""
    done, total = len(schedule.of(StageState.DONE)), len(schedule.tasks)
    if len(schedule.of(StageState.UNCHANGED)) == total:
        print(f"nothing to do: {total} stages are up to date")
        return 0
    counts = _counts(schedule, StageState.UNCHANGED, StageState.FAILED, StageState.SKIPPED)
    print(f"{done} of {total} stages run{counts} in {clock(time.monotonic() - screen.begun)}", flush=True)
    for task in schedule.of(StageState.FAILED):
        print(f"failed: {task.name}: {task.error().removeprefix('error: ')}", file=sys.stderr)
        print(f"        log: {os.path.relpath(task.log)}", file=sys.stderr)
    if stopped:
        running = [task.name for task in schedule.of(StageState.RUNNING)]
        names = ", ".join(running[:ROWS])
        if len(running) > ROWS:
            names += f" and {len(running) - ROWS} more"
        again = schedule.force and os.environ.get("FEDREPRO_FORCE", "1")  # not so in `make repro`
        way = "begins again, since it has --force" if again else "goes on from here"
        print(f"stopped{': ' * bool(names)}{names}; the same command {way}", file=sys.stderr)
        return 130
    return int(bool(schedule.of(StageState.FAILED)))
