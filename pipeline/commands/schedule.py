"""The scheduler of `fedrepro run`: starts each DVC stage when its inputs are ready, and records trained
cells.

DVC says which stage depends on which, and what has changed. It allows several `dvc repro --single-item` at
once if each waits for the lock and something else keeps the order. This module keeps the order.
"""

import contextlib
import heapq
import json
import logging
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from pipeline import locks
from pipeline.clusters.interface import Executor
from pipeline.clusters.job import Job, file_name
from pipeline.commands import lock_entries
from pipeline.errors import DAMAGED, ParamError, unknown
from pipeline.schema import papers
from pipeline.training.progress import event

# After which DVC is asked again whether another process still uses a stage's files.
SECONDS_TO_ASK_AGAIN = 2.0
# Trained cells of so many seconds are recorded together: writing a long dvc.lock takes seconds.
SECONDS_TO_GATHER = 5.0
# At most so many cells are recorded together.
AT_ONCE = 50
# Last lines of a log, among which is DVC's message that another process uses the files.
TAIL = 20
# Last bytes of a file of events, which hold the last report of a training.
EVENTS = 4096
# Seconds of one core that a stage costs besides its training, by what its command has: DVC, imports, files.
# Measured on an Intel Xeon at 2.5 GHz; those of figures and results, which are forks without imports, on an
# AMD EPYC.
OVERHEAD = {
    "stages.report": 51.0,
    "stages.track": 25.0,
    "stages.figures": 3.0,
    "stages.results": 1.0,
    "": 5.0,
}
# Seconds of a training after its last round.
ENDING = 2.0
# By which share of itself a cell's seconds, over the expected ones, differ from the other cells', before this
# run has shown it: 0.6 between an Intel Xeon and an AMD EPYC (tests/commands/recorded_seconds.csv).
SPREAD_OF_CELLS = 0.6
# How much a cell's own seconds, measured elsewhere, count beside the mean of all cells: 1 would be right for
# the machine that they were measured on.
OWN_SHARE = 0.8
# Average cells at the pace of all papers that count as much as a paper's own.
CELLS_OF_ALL = 1.0
# Share by which the time left is uncertain however many cells are done: stages get into each other's way.
UNCERTAINTY = 0.1


class StageState(StrEnum):
    """The state of a stage in this run."""

    # It waits for a stage that it depends on, or for DVC's word whether it has changed.
    WAITING = "waiting"
    # It waits for a core, or for room at a cluster.
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    # It was up to date and has not run.
    UNCHANGED = "unchanged"
    FAILED = "failed"
    # A stage that it depends on has failed.
    SKIPPED = "skipped"


# States of a stage whose outputs another stage may read.
FINISHED = (StageState.DONE, StageState.UNCHANGED)


@dataclass(eq=False)
class Task:
    """A stage in this run.

    stage       DVC's
    name        as `dvc repro` takes it
    log         the file with what it prints
    cell        <paper>/<scenario>/<method> that it trains; None: it trains none
    known       seconds of each seed when the cell was last trained
    work        expected seconds of one core
    rank        work of the longest chain of stages that begins with it
    state       what has become of it
    upstream    stages that it depends on
    downstream  stages that depend on it
    job         its process, or its job at a cluster, once it is started
    workers     cores that it was given
    begun       seconds of the clock when it was started
    seconds     how long it took
    blocker     another process that uses its files, and that it waits for; empty: none
    ask_at      seconds of the clock when to ask again whether that process has ended
    """

    stage: Any
    name: str
    log: Path
    cell: str | None = None
    known: list[float] = field(default_factory=list)
    work: float = 0.0
    rank: float = 0.0
    state: StageState = StageState.WAITING
    upstream: list["Task"] = field(default_factory=list)
    downstream: list["Task"] = field(default_factory=list)
    job: Job | None = None
    workers: int = 1
    begun: float = 0.0
    seconds: float = 0.0
    blocker: str = ""
    ask_at: float = 0.0

    @property
    def events(self) -> Path:
        """The file to which its training reports progress (FEDREPRO_EVENTS)."""
        return self.log.with_suffix(".jsonl")

    def progress(self) -> dict[str, Any]:
        """What its training reported last (`cells.progress`), `left` in seconds from now; empty before."""
        state: dict[str, Any] = {}
        with contextlib.suppress(OSError), open(self.events, "rb") as file:
            written = os.fstat(file.fileno())
            file.seek(max(written.st_size - EVENTS, 0))
            for line in file.read().split(b"\n")[:-1]:
                state |= event(line)
            if "left" in state:
                state["left"] = max(state["left"] - (time.time() - written.st_mtime), 0.0)
        return state

    def pictures_alone_missing(self) -> bool:
        """Whether a cell lacks nothing but representations and models that no stage of the schedule needs.

        These are not in git. The cell is not trained only to make them.
        """
        missing = [Path(out.fs_path) for out in self.stage.outs if not out.exists]
        needed = [dep.fs_path for needing in self.downstream for dep in needing.stage.deps]
        for path in missing:
            if path.parents[1].name not in ("representations", "final-models"):
                return False
            if any(path.is_relative_to(other) for other in needed):
                return False
        return bool(missing)

    def error(self) -> str:
        """The line of the log that best explains why the stage failed."""
        lines = [line for line in map(str.strip, self.tail(1000)) if line and line[:2] != "> "]
        by_dvc = [line for line in lines if line.startswith("ERROR: ")]
        if by_dvc and "failed to run: " not in by_dvc[0]:  # an error of DVC itself
            return by_dvc[0]
        by_stage = [line for line in lines if not line.startswith(("ERROR: ", "Running stage "))]
        errors = [line for line in by_stage if line.startswith("error: ")]
        return (errors or by_stage or by_dvc or ["no output"])[-1]

    def tail(self, lines: int) -> list[str]:
        """The last lines of the log, at most so many; none if there is no log."""
        with contextlib.suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
        return []


class Schedule:
    """The stages that the targets need. Each runs after those that it needs itself, the longest chain first.

    targets  what `dvc repro --glob` takes, relative to the current directory; empty: its dvc.yaml
    force    run also what has not changed
    say      called with each line for the user

    Raises ParamError for a target that is no stage.
    """

    def __init__(self, targets: list[str], force: bool = False, say: Callable[[str], object] = print):
        from dvc.repo import Repo
        from dvc.repo.reproduce import get_active_graph, plan_repro

        logging.getLogger("dvc").setLevel(logging.CRITICAL)  # its warnings and bars would break our table
        self.repo = Repo()
        self.force = force
        self.say = say
        # seconds of the clock when cells were recorded last
        self.recorded = 0.0
        # parameter files that DVC has parsed, see `_parsed_once`
        self.parsed: dict[tuple, Any] = {}
        self.root = Path(self.repo.root_dir)
        with locks.held(self.repo, say):
            for line in locks.mend_held_locks(self.root):
                say(line)
            graph = get_active_graph(self.repo.index.graph)
            planned = plan_repro(graph, self._collect(targets))
        self.tasks: list[Task] = []  # upstream before downstream
        by_stage = {}
        for stage in planned:
            name = stage.addressing
            task = Task(stage, name, self.root / ".cells" / "logs" / f"{file_name(name)}.log")
            by_stage[stage] = task
            self.tasks.append(task)
            for needed in graph.successors(stage):
                task.upstream.append(by_stage[needed])
                by_stage[needed].downstream.append(task)
        self._estimate()

    def check(self, seconds: float) -> None:
        """Ask DVC which stages have changed, of those with nothing left to wait for; ends after about
        `seconds`.

        It is what `dvc repro --single-item` would find out, without a process for each stage. Where another
        process holds DVC's lock for long, the next call tries again.
        """
        from dvc.lock import LockError
        from dvc.repo import lock_repo

        until = time.monotonic() + seconds
        if next(self._unchecked(), None) is None:
            return
        with contextlib.suppress(LockError), lock_repo(self.repo), _parsed_once(self.parsed):
            locks.mend_rwlock(Path(self.repo.tmp_dir, "rwlock"))
            locks.mend_held_locks(self.root)  # copies what has been written since
            while time.monotonic() < until:
                task = next(self._unchecked(), None)
                if task is None:
                    break
                self._check(task)

    def _check(self, task: Task) -> None:
        """Ask DVC whether a stage has changed: then it is ready, else unchanged."""
        from dvc.lock import LockError

        try:
            changed = task.stage.changed(allow_missing=not self.force and task.pictures_alone_missing())
        except LockError as error:
            if self._waits(task, str(error)):
                return
            changed = True
        except Exception:  # `dvc repro` will report it in the stage's log
            changed = True
        task.state = StageState.READY if self.force or changed else StageState.UNCHANGED
        task.blocker = ""

    def _waits(self, task: Task, message: str) -> bool:
        """Whether DVC says that another process uses the files of the stage; the user is told once."""
        users = re.search(r"is being blocked by:\s+\(PID (\d+)\)", message)
        if not users and "Unable to acquire lock" not in message:
            return False
        blocker = f"process {users[1]}" if users else "another DVC"
        if task.blocker != blocker:
            self.say(f"           {task.name} waits for {blocker}")
        task.state = StageState.WAITING
        task.blocker = blocker
        task.ask_at = time.monotonic() + SECONDS_TO_ASK_AGAIN
        return True

    def launch(self, executor: Executor) -> None:
        """Start what is ready, the longest first; cores of this machine that are left over become workers of
        a training stage."""
        for task in filter(executor.far, self._longest_first(StageState.READY)):
            self._start(task, executor)
        here = [task for task in self.of(StageState.RUNNING) if not executor.far(task)]
        free = executor.cores - sum(task.workers for task in here)
        ready = self._longest_first(StageState.READY)
        candidates = len(ready) + len(list(self._unchecked()))
        most = max((len(task.known) for task in self.tasks), default=0)
        for task in ready:
            if free < 1:
                return
            task.workers = min(max(1, free // candidates), len(task.known) or most or 1) if task.cell else 1
            free -= task.workers
            candidates -= 1
            self._start(task, executor)

    def poll(self, executor: Executor) -> Iterator[Task]:
        """The stages that ended since the last call. What needs a failed one is skipped."""
        executor.poll()
        self.record()
        for task in self.of(StageState.RUNNING):
            if task.job is None or task.job.code is None:
                continue
            task.seconds = time.monotonic() - task.begun
            task.state = StageState.DONE if task.job.code == 0 else StageState.FAILED
            if task.state == StageState.FAILED and self._waits(task, "\n".join(task.tail(TAIL))):
                continue
            waiting = list(task.downstream) if task.state == StageState.FAILED else []
            while waiting:
                needing = waiting.pop()
                needing.state = StageState.SKIPPED
                waiting += needing.downstream
            yield task

    def of(self, *states: StageState) -> list[Task]:
        """The tasks in one of the states."""
        return [task for task in self.tasks if task.state in states]

    def left(self, jobs: int, reported: dict[Task, float]) -> tuple[float, float] | None:
        """Between how many seconds it is to the end; None before a training tells how fast it goes here.

        What a stage is expected to take was measured elsewhere and at another time, so it is multiplied by
        the pace of this run: measured over expected seconds, of the cells that are done and of those that
        have `reported` how many seconds they still need, and so for the other stages. The more cells
        are known, the narrower is the range.
        """
        now = time.monotonic()
        measured = {task: task.seconds * task.workers for task in self.of(StageState.DONE)}
        measured |= {task: (now - task.begun + rest) * task.workers for task, rest in reported.items()}
        cells = {task: seconds for task, seconds in measured.items() if task.cell}
        others = {task: seconds for task, seconds in measured.items() if not task.cell}
        if not cells:
            return None
        work = self._expected_work()
        pace_of_cells = _pace(cells, work)
        pace_of_others = _pace(others, work) if others else pace_of_cells
        paces = _pace_by_paper(cells, work)
        expected: dict[Task, float] = {}
        for task in self.of(StageState.RUNNING, StageState.READY, StageState.WAITING):
            pace = paces.get(_paper(task), pace_of_cells) if task.cell else pace_of_others
            expected[task] = work[task] * pace / task.workers
        for task in self.of(StageState.RUNNING):
            rest = expected[task] - (now - task.begun)
            if task in reported:
                rest = reported[task] + pace_of_cells * ENDING
            expected[task] = max(rest, 1.0)
        ratios = [seconds / work[task] / pace_of_cells for task, seconds in cells.items()]
        spread = max(SPREAD_OF_CELLS, pstdev(ratios))
        uncertain = UNCERTAINTY + spread / len(cells) ** 0.5
        until = self._until_done(jobs, expected)
        return until / (1 + uncertain), until * (1 + uncertain)

    def _expected_work(self) -> dict[Task, float]:
        """Seconds of one core that every stage is expected to take.

        For a cell they lie between its own and the mean of all cells: one that took long elsewhere takes less
        long here, relative to the others.
        """
        mean = fmean(task.work for task in self.tasks if task.cell)
        work: dict[Task, float] = {}
        for task in self.tasks:
            work[task] = task.work
            if task.cell:
                work[task] = OWN_SHARE * task.work + (1 - OWN_SHARE) * mean
        return work

    def _until_done(self, jobs: int, expected: dict[Task, float]) -> float:
        """Seconds until the last of the stages ends, if each takes what is `expected` from now on, and
        `launch` starts them: on `jobs` cores, after those that it needs, the longest chain first."""
        missing = {task: sum(needed in expected for needed in task.upstream) for task in expected}
        ends = [(seconds, number, task) for number, (task, seconds) in enumerate(expected.items())]
        running = [end for end in ends if end[2].state == StageState.RUNNING]
        numbers = {task: number for _, number, task in ends}
        ready = [task for task, count in missing.items() if not count and task.state != StageState.RUNNING]
        heapq.heapify(running)
        free = jobs - sum(task.workers for *_, task in running)
        now = 0.0
        while running or ready:
            ready.sort(key=lambda task: task.rank)
            while ready and (free > 0 or not running):
                task = ready.pop()
                heapq.heappush(running, (now + expected[task], numbers[task], task))
                free -= task.workers
            now, _, ended = heapq.heappop(running)
            free += ended.workers
            for task in ended.downstream:
                missing[task] = missing.get(task, 0) - 1
                if missing[task] == 0:
                    ready.append(task)
        return now

    def record(self, last: bool = False) -> None:
        """Enter trained cells into DVC's lock files, those of SECONDS_TO_GATHER together.

        last  do not wait for further cells
        """
        jobs = [
            task.job
            for task in self.of(StageState.RUNNING)
            if task.job and task.job.trained and task.job.code is None
        ]
        busy = len(self.of(StageState.RUNNING)) > len(jobs) or self.of(StageState.READY)
        if not jobs or busy and not last and time.monotonic() - self.recorded < SECONDS_TO_GATHER:
            return
        with _parsed_once(self.parsed):
            errors = record(jobs[:AT_ONCE], self.repo)
        for job, error in errors.items():
            if error:
                job.fail(f"error: {error}")
            else:
                job.code = 0
        self.recorded = time.monotonic()

    # -- inside ----------------------------------------------------------------------------------------------

    def _collect(self, targets: list[str]) -> list:
        """DVC's stages of these targets; ParamError for one that is no stage."""
        from dvc.repo.stage import PROJECT_FILE
        from dvc.stage.exceptions import StageFileDoesNotExistError, StageNotFound

        stages = []
        # For a name DVC would read all its files again.
        known_by_name = {stage.addressing: [stage] for stage in self.repo.index.stages}
        for target in targets or [PROJECT_FILE]:
            matches = known_by_name.get(target, [])
            with contextlib.suppress(StageFileDoesNotExistError, StageNotFound):
                glob = any(sign in target for sign in "*?[")
                matches = matches or self.repo.stage.collect(target, glob=glob)
            if not matches:
                known = [*papers(), *(stage.addressing for stage in self.repo.index.stages)]
                raise ParamError(unknown("stage", target, known))
            stages += matches
        return list(dict.fromkeys(stages))

    def _estimate(self) -> None:
        """How long each stage took when it last ran, and so how long each chain of stages will take."""
        for task in self.tasks:
            for path in (Path(out.fs_path) for out in task.stage.outs):
                if path.name == "result.json" and path.parents[2].name == "runs":
                    task.cell = "/".join((path.parents[3].name, path.parents[1].name, path.parents[0].name))
                    with contextlib.suppress(*DAMAGED):
                        seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
                        task.known = [float(of_seed) for of_seed in seconds]
        mean = fmean([sum(task.known) for task in self.tasks if task.known] or [30.0])
        for task in reversed(self.tasks):
            task.work = next(seconds for name, seconds in OVERHEAD.items() if name in str(task.stage.cmd))
            task.work += (sum(task.known) or mean) if task.cell else 0.0
            task.rank = task.work + max((needing.rank for needing in task.downstream), default=0.0)

    def _longest_first(self, state: StageState) -> list[Task]:
        return sorted(self.of(state), key=lambda task: -task.rank)

    def _unchecked(self) -> Iterator[Task]:
        """The stages that wait for nothing but DVC's word whether they have changed."""
        now = time.monotonic()
        for task in self._longest_first(StageState.WAITING):
            if task.ask_at <= now and all(needed.state in FINISHED for needed in task.upstream):
                yield task

    def _start(self, task: Task, executor: Executor) -> None:
        task.job = executor.submit(task, self.force)
        task.state = StageState.RUNNING
        task.begun = time.monotonic()


def _pace(measured: dict[Task, float], work: dict[Task, float]) -> float:
    """Measured over expected seconds of one core."""
    return sum(measured.values()) / sum(work[task] for task in measured)


def _paper(task: Task) -> str:
    """The paper of a task's cell."""
    return (task.cell or "").partition("/")[0]


def _pace_by_paper(cells: dict[Task, float], work: dict[Task, float]) -> dict[str, float]:
    """The pace of each paper's cells, whose networks and images are alike.

    Besides the measured cells of the paper, CELLS_OF_ALL average cells at the pace of all papers count, so
    that a paper with few measured cells is near the pace of all.

    cells  measured seconds of each cell
    work   expected seconds of each stage
    """
    pace = _pace(cells, work)
    average = fmean(work[task] for task in cells)
    by_paper = {}
    for paper in {_paper(task) for task in cells}:
        of_paper = {task: seconds for task, seconds in cells.items() if _paper(task) == paper}
        expected = sum(work[task] for task in of_paper)
        measured = sum(of_paper.values())
        others = CELLS_OF_ALL * average
        by_paper[paper] = (measured + others * pace) / (expected + others)
    return by_paper


@contextlib.contextmanager
def _parsed_once(known: dict[tuple, Any]) -> Iterator[None]:
    """Let DVC parse each version of a parameter file only once.

    Otherwise it does so for every stage that names the file: it takes 0.04 s for a paper.yaml, which some
    fifty stages name.

    known  what was parsed before; what is parsed now is added
    """
    from dvc.dependency import param

    load = param.load_path

    def parsed(path: str, fs: Any, **how: Any) -> Any:
        found = os.stat(path)
        key = (path, found.st_ino, found.st_mtime_ns, found.st_size, *sorted(how.items()))
        if key not in known:
            known[key] = load(path, fs, **how)
        return known[key]

    param.load_path = parsed
    try:
        yield
    finally:
        param.load_path = load


def record(jobs: list[Job], repo: Any) -> dict[Job, str]:
    """Write the results of trained cells and enter them into dvc.lock.

    jobs  whose seeds are trained
    repo  DVC's

    Returns the error of each job in one line, empty if it was recorded. A job is left out if another process
    holds DVC's lock: it is tried again by the next call.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import lock_repo

    from pipeline.errors import FedReproError

    errors: dict[Job, str] = {}
    by_file = defaultdict(list)
    with contextlib.suppress(LockError), lock_repo(repo):
        for job in jobs:
            stage = job.task.stage
            try:
                job.write()
                stage.save(run_cache=False)
                stage.commit()
                by_file[stage.dvcfile.path].append(job)
            except LockError:
                continue  # a stage reads its folder: the next call
            except (FedReproError, DvcException, OSError) as error:
                errors[job] = " ".join(str(error).split())
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                errors[job] = (
                    f"{job.task.cell}: seeds that are not what training writes ({type(error).__name__})"
                )
        for recorded in by_file.values():
            lock_entries.enter([job.task.stage for job in recorded])
            errors |= dict.fromkeys(recorded, "")
    return errors
