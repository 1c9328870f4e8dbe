"""`fedrepro run [STAGE ...]`: run stages that are missing or have changed, several at once.

`dvc repro` runs the same stages one after another. If a stage fails, only stages that need it are skipped,
and the exit code is 1. After Ctrl-C (exit code 130) the next call continues. `schedule` decides which stage
may begin; the executor of `pipeline.clusters` starts its process.
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
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline.cells.experiment import Experiment
from pipeline.clusters import executor
from pipeline.clusters.interface import Executor
from pipeline.commands import unchanged
from pipeline.commands.interrupts import INTERRUPTED
from pipeline.commands.schedule import Schedule, StageState, Task
from pipeline.commands.sync import show_grids, sync
from pipeline.errors import NO_REPOSITORY, FedReproError, ParamError, conflict, unknown
from pipeline.place import cores
from pipeline.schema import MINIATURE, MINIATURES, ROOT, Cell, load_paper, papers, planned, shorten
from pipeline.training.checks import check_environment, runnable
from pipeline.training.progress import clock

# The file of the current folder whose stages are run if none is named.
PROJECT = "dvc.yaml"
# Between two lines of progress, without a terminal.
SECONDS_BETWEEN_LINES = 10.0
# Between two updates of the progress in a terminal.
SECONDS_BETWEEN_FRAMES = 0.5
# Between two looks at the stages that run.
SECONDS_BETWEEN_POLLS = 0.1
# At most so many running stages are shown.
ROWS = 8
# Units of a time that is left: (from how many seconds on it is used, its length in seconds, its name)
UNITS = ((2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
# Beginnings of what a job says that is in a cluster's queue, or waits for room there.
QUEUED = ("queued", "waits")


def main(
    stages: Sequence[str] = (),
    jobs: int | None = None,
    force: bool = False,
    on: str = "local",
    **options: Any,
) -> int:
    """Run the stages that are missing or have changed; returns the exit code.

    stages   names that `targets` accepts; empty: the stages of the current folder's dvc.yaml
    jobs     number of stages, or of cells on a cluster, that run at once; None: the default of the executor
    force    also run stages that have not changed
    on       the cluster, or "local"; see `pipeline.clusters.executor`, also for `options`

    Raises ParamError for an unknown name, and FedReproError if DVC cannot read its files.
    """
    is_local = on == "local"
    check_environment(here=is_local)
    if force and not is_local:
        raise ParamError("--force: a cluster trains what is missing; train again on this machine")
    asked = unchanged.key(stages)
    number = None
    if is_local and not force:
        number = unchanged.known(asked, unchanged.root_of(Path.cwd()))
    if number is not None:
        print(f"nothing to do: {number} stages are up to date")
        return 0
    from dvc.exceptions import DvcException

    if Path.cwd().is_relative_to(ROOT) and not options.get("cancel"):
        for path in sync():  # cells and scenarios that were added to paper.yaml
            print(f"{shorten(path)}: written, as paper.yaml says", flush=True)
    chosen = [target for stage in stages for target in targets(stage)]
    if stages and Path.cwd().is_relative_to(ROOT) and not any(map(_is_place, stages)):
        os.chdir(ROOT)  # a paper's or a cell's name means the same in every folder
    if not chosen and not Path(PROJECT).exists():
        raise FedReproError(f"this folder has no {PROJECT}: name a paper or a cell, or go to the root folder")
    hidden = list(filter(_hidden, chosen or [PROJECT]))
    if hidden:
        show_grids(targets=[os.path.abspath(target.partition(":")[0]) for target in hidden])
    where = executor(on, jobs if jobs and is_local else cores(), jobs, options)
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
    """What DVC says when it cannot read the repository, in one line.

    The place in a file is in the error's cause. Marks of a merge conflict are named as such.
    """
    text = str(error)
    if "is not a git repository" in text:
        return NO_REPOSITORY
    if "not inside of a DVC repository" in text:
        return "this folder lies in no checkout of FedRepro: go to one and call this again"
    quoted = re.search("'(.*?)'", text)
    if quoted and Path(quoted[1]).is_file():
        file = quoted[1]
        where = conflict(Path(file).read_text(encoding="utf-8", errors="replace"))
        if where and file.endswith("dvc.lock"):  # a cell that loses its entry trains again
            where = where.partition(";")[0] + "; keep both parts, of a stage in both one, without marks"
        if where:
            return file + where
    cause = " ".join(str(error.__cause__ or "").split()).replace('in "<unicode string>",', "at")
    return f"{text}: {cause}" if cause else text


def _is_place(name: str) -> bool:
    """Whether a target names a file, which DVC looks for from the current folder."""
    return ":" in name or name.endswith(".yaml")


def _hidden(target: str) -> bool:
    """Whether .dvcignore hides the target's file from DVC."""
    path = Path(os.path.abspath(target.partition(":")[0]))
    return path.name == PROJECT and any(path.match(f"{ROOT}/{place}") for place in ("data/*", "papers/*/*/*"))


def targets(name: str) -> list[str]:
    """The targets of `dvc repro --glob` that a name stands for.

    name  `mini` or `across`, of every paper; a paper (fedcrl); a scenario (fedcrl/mini); a cell
          (fedcrl/mini/fedprox); anything else is a stage or a file, as for DVC

    Raises ParamError for an unknown scenario or cell.
    """
    if not name.strip(":"):  # from a shell variable that is not set; to DVC it would be every stage
        raise ParamError("run: a stage without a name")
    if name in MINIATURES:
        found = []
        for paper in papers():
            miniature = load_paper(paper).miniature
            if miniature and (name == MINIATURE or miniature.others):
                found.append(f"papers/{paper}/dvc.yaml:{name}@*")
        if name == MINIATURE:
            found.append("report")
        return found
    if name in papers():
        files = (f"papers/{name}/dvc.yaml", f"papers/{name}/grids/dvc.yaml")
        return [file for file in files if (ROOT / file).exists()]
    if _is_place(name):
        return [name]
    is_scenario = name.count("/") == 1 and name.partition("/")[0] in papers()
    is_cell = name.count("/") == 2
    if is_scenario or is_cell:
        return [cell.stage(load_paper(cell.paper)) or name for cell in named(name)]
    return [name]


def named(name: str) -> list[Cell]:
    """The cells that a name stands for; ParamError for an unknown name.

    name  paper/scenario/method, or paper/scenario for all its cells
    """
    if name.count("/") != 1:
        cell = Cell.parse(name)
        Experiment.of(cell)
        return [cell]
    key, scenario = name.split("/")
    load_paper(key)
    every = planned(key)
    cells = [cell for cell in every if cell.scenario == scenario]
    if not cells:
        known = {cell.scenario for cell in every}
        raise ParamError(f"papers/{key}/paper.yaml: grids: {unknown('scenario', scenario, known)}")
    return cells


def partition_stage(cell: Cell) -> str:
    """The stage that prepares a cell's data and divides them over its clients."""
    if cell.partition == MINIATURE:
        return f"papers/{cell.paper}/dvc.yaml:partition-mini"
    has_public: dict[str, bool] = {}
    for name, scenario in load_paper(cell.paper).scenarios.items():
        if name not in MINIATURES:
            has_public[name] = scenario.public is not None
    # `sync` writes two stages if some scenarios have public images and others have none.
    two_stages = len(set(has_public.values())) > 1
    stage = "partition-public" if two_stages and has_public[cell.partition] else "partition"
    return f"papers/{cell.paper}/grids/dvc.yaml:{stage}@{cell.partition}"


def bring_partition(cell: Cell) -> None:
    """Run the stage of a cell's partition if it is not here, as in a fresh clone; FedReproError if that
    fails."""
    if (ROOT / "papers" / cell.paper / "partitions" / cell.partition).is_dir():
        return
    with contextlib.chdir(ROOT):
        code = main([partition_stage(cell)])
    if code:
        raise FedReproError(f"{cell.paper}/{cell.scenario}: its clients cannot be drawn here: see above")


# -- progress ------------------------------------------------------------------------------------------------


class Display:
    """Prints a line for every stage that ended, and what is running: in a terminal below these lines, else as
    a line now and then.

    schedule  the stages
    jobs      how many run at once, for the time that is left
    console   where it prints; None: the standard output
    """

    def __init__(self, schedule: Schedule, jobs: int, console: Console | None = None):
        self.schedule = schedule
        self.jobs = jobs
        self.console = console or Console()
        # Without a terminal it writes nothing.
        self.foot = Live(console=self.console, auto_refresh=False, transient=True)
        # Seconds of the clock at the start, and when the running stages were shown last.
        self.begun = time.monotonic()
        self.drawn = self.begun
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
        interval = SECONDS_BETWEEN_FRAMES if self.console.is_terminal else SECONDS_BETWEEN_LINES
        if now - self.drawn >= interval and self.schedule.of(StageState.RUNNING):
            self.drawn = now
            self.draw(now)

    def say(self, line: str) -> None:
        """Print a line that stays, as it is."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def draw(self, now: float) -> None:
        """Show what is running: trainings that report a round first, what is queued at a cluster last.

        now  seconds of the clock
        """
        states = {task: task.progress() for task in self.schedule.of(StageState.RUNNING)}
        running = sorted(states, key=lambda task: (_queued(task), "round" not in states[task]))
        parts = [_words(task, states[task]) for task in running[:ROWS]]
        rest = Counter("queued" if _queued(task) else "more" for task in running[ROWS:])
        if rest:
            parts.append(", ".join(f"{count} {what}" for what, count in rest.items()))

        seconds_left = {task: state["left"] for task, state in states.items() if "left" in state}
        left = self.schedule.left(self.jobs, seconds_left)
        done = len(self.schedule.of(StageState.DONE, StageState.UNCHANGED))
        count = len(self.schedule.tasks)
        not_done = _counts(self.schedule, StageState.FAILED, StageState.SKIPPED)
        total = f"{done}/{count} stages done{not_done}, {clock(now - self.begun)} so far"
        if left is not None:
            total += f", {between(*left)} left"
        if self.console.is_terminal:
            self.foot.update(Text("\n".join([total, *parts])), refresh=True)
        else:
            self.say(f"           {total}; running: {'; '.join(parts)}")


def between(low: float, high: float) -> str:
    """A range of seconds in words, rounded outwards: `20 to 40 seconds`, `8 to 11 minutes`, `3 to 5 hours`.

    Seconds are rounded to tens.
    """
    unit, name = next((unit, name) for least, unit, name in UNITS if high >= least)
    first = math.floor(low / unit)
    last = math.ceil(high / unit)
    if name == "seconds":
        first = math.floor(first / 10) * 10
        last = math.ceil(last / 10) * 10
    return f"{first} to {last} {name}"


def _counts(schedule: Schedule, *states: StageState) -> str:
    """How many stages are in each of these states, if any: `, 1 failed, 2 skipped`."""
    counts = {state: len(schedule.of(state)) for state in states}
    return "".join(f", {count} {state}" for state, count in counts.items() if count)


def _words(task: Task, progress: dict) -> str:
    """A running stage in a line: `NAME (on n2), seed 0, round 3/20, 61.26 %, 1:05 left`."""
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
    """Whether a stage waits at a cluster."""
    return task.job is not None and task.job.where.startswith(QUEUED)


# -- the loop ------------------------------------------------------------------------------------------------


def run(schedule: Schedule, jobs: int, where: Executor) -> int:
    """Run what has changed; returns the exit code.

    schedule  the stages
    jobs      how many run at once, for the time that is left
    where     the executor that starts their processes

    Raises ParamError, before any cell trains, if one of the cells cannot be trained.
    """
    # Signals that asked to stop. An exception instead could interrupt DVC while it writes a file in this
    # process.
    stopped: list[int] = []
    unchecked = [Cell.parse(task.cell) for task in schedule.tasks if task.cell]

    def stop(number: int, frame: FrameType | None) -> None:
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
                    # Check all cells at once, rather than each after hours of other stages.
                    for cell in unchecked:
                        runnable(Experiment.of(cell))
                    unchecked = []
                schedule.launch(where)
                for task in schedule.poll(where):
                    screen.ended(task)
                screen.show()
                is_blocked = any(task.blocker for task in schedule.of(StageState.WAITING))
                if is_blocked or schedule.of(StageState.RUNNING):
                    time.sleep(SECONDS_BETWEEN_POLLS)
    finally:
        left = where.close()
        schedule.record(last=True)
        for number, handler in before.items():
            signal.signal(number, handler)
    if left:
        print(left, flush=True)
    return _summary(schedule, screen, bool(stopped))


def _summary(schedule: Schedule, screen: Display, stopped: bool) -> int:
    """Print the last lines, which name every failed stage; returns the exit code.

    stopped  whether a signal ended the run
    """
    done = len(schedule.of(StageState.DONE))
    total = len(schedule.tasks)
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
        # `make repro` sets FEDREPRO_FORCE to nothing: trained seeds count although it has --force.
        again = schedule.force and os.environ.get("FEDREPRO_FORCE", "1")
        way = "begins again, since it has --force" if again else "goes on from here"
        what = f"stopped: {names}" if names else "stopped"
        print(f"{what}; the same command {way}", file=sys.stderr)
        return INTERRUPTED
    return int(bool(schedule.of(StageState.FAILED)))
