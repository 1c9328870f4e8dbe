"""Which DVC stage may run when, and the processes that run them. `pipeline/commands/run.py` is the command.

DVC itself says what depends on what and what has changed. It lets several `dvc repro -s` work at once if each
waits for the lock (`--wait-for-lock`) and something else keeps the order; this module does."""

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.commands import keeping
from pipeline.engines import file_name
from pipeline.files import MACHINE, alive

if TYPE_CHECKING:
    from pipeline.engines import Engine, Job

SECONDS_TO_ASK_AGAIN = 2.0
TAIL = 20  # lines of a log, in which DVC's last words are
# Seconds of one core, on the processor of benchmarks/README.md.
OVERHEAD = 5.0  # what a stage costs besides its training: DVC, imports, files
ENDING = 2.0  # of these, after the last round
EXPECTED = {"stages.report": 14.0, "stages.figures": 3.0, "pipeline import": 8.0}  # on top
IMPORTED = 0.2  # the runs of a cell, or of its tuning, in MLflow
# What becomes of a stage.
WAITING, READY, RUNNING = "waiting", "ready", "running"
DONE, UNCHANGED, FAILED, SKIPPED = "done", "unchanged", "failed", "skipped"


@dataclass(eq=False)
class Task:
    """A stage, what is known of it and what has become of it."""

    stage: Any  # DVC's own
    name: str  # as `dvc repro` takes it
    log: Path
    cell: str | None = None  # <paper>/<scenario>/<method> where the stage trains one
    known: list[float] = field(default_factory=list)  # seconds of each seed when it was last trained
    work: float = OVERHEAD  # seconds of one core that are expected
    rank: float = 0.0  # work of the longest chain of stages that begins here
    state: str = WAITING
    upstream: list["Task"] = field(default_factory=list)
    downstream: list["Task"] = field(default_factory=list)
    process: "Job | None" = None
    workers: int = 1  # cores that it was given
    begun: float = 0.0
    seconds: float = 0.0  # how long it took
    blocker: str = ""  # who uses its files: another process, which it waits for
    ask_at: float = 0.0  # when to ask again whether that one has ended

    @property
    def events(self) -> Path:
        """The file to which its training reports progress (FEDREPRO_EVENTS)."""
        return self.log.with_suffix(".jsonl")

    @property
    def kept(self) -> Path:
        """Its former outputs, while it runs."""
        return self.log.parents[1] / "kept" / f"{os.getpid()}-{MACHINE}" / self.log.stem

    def waits(self, said: str) -> bool:
        """Whether DVC says that another process uses the files of the stage."""
        users = re.search(r"is being blocked by:\s+\(PID (\d+)\): (.*)", said)
        if not users and "Unable to acquire lock" not in said:
            return False
        self.blocker = f"process {users[1]}: {_shown(users[2])}" if users else "another DVC"
        self.state, self.ask_at = WAITING, time.monotonic() + SECONDS_TO_ASK_AGAIN
        return True

    def pictures_alone_missing(self) -> bool:
        """Whether nothing of a cell, tuned or not, is missing but its representations, which git lacks,
        and no stage of the schedule needs them: then it is not trained for them."""
        gone = [out for out in self.stage.outs if not out.exists]
        needed = [dep.fs_path for needing in self.downstream for dep in needing.stage.deps]
        return bool(gone) and not any(
            Path(out.fs_path).parents[1].name != "representations"
            or any(Path(out.fs_path).is_relative_to(path) for path in needed)
            for out in gone
        )

    def error(self) -> str:
        """The line of the log that best explains why the stage failed."""
        lines = [
            line.strip()
            for line in self.tail(1000)
            if line.strip() and not re.match("Running stage |> ", line)
        ]
        at = next((k for k, line in enumerate(lines) if line.startswith("ERROR: ")), len(lines))
        ours, dvcs = lines[:at], lines[at : at + 1]
        if dvcs and "failed to run: " not in dvcs[0]:  # an error of DVC itself
            return dvcs[0]
        return next(
            (line for line in reversed(ours) if line.startswith("error: ")),
            (ours or dvcs or ["no output"])[-1],
        )

    def tail(self, lines: int) -> list[str]:
        """The last lines of the log."""
        with contextlib.suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
        return []


class UnknownStage(Exception):
    """A target that DVC does not know: the target and the names that there are."""


class Schedule:
    """The stages that the targets need, each after those that it needs itself, long ones first.

    Targets are what `dvc repro --glob` takes, relative to the current directory; none is its dvc.yaml.
    """

    def __init__(self, targets: list[str], force: bool = False, say: Callable[[str], object] = print):
        from dvc.repo import Repo
        from dvc.repo.reproduce import get_active_graph, plan_repro

        logging.getLogger("dvc").setLevel(logging.CRITICAL)  # its warnings and bars would break our table
        self.repo, self.force = Repo(), force
        root = Path(self.repo.root_dir)
        keeping.write_whole(root)  # also of cells that a cluster has trained
        with _alone(self.repo, say):
            for line in keeping.mend_held_locks(root):
                say(line)
            graph = get_active_graph(self.repo.index.graph)
            outputs = {Path(out.fs_path) for out in self.repo.index.outs}
            for line in keeping.put_back_of_the_dead(root, outputs):
                say(line)
            planned = plan_repro(graph, self._collect(targets))
        logs = root / ".cells" / "logs"
        self.tasks: list[Task] = []  # upstream before downstream
        by_stage = {}
        for stage in planned:
            name = stage.addressing
            task = Task(stage, name, logs / f"{file_name(name)}.log")
            by_stage[stage] = task
            self.tasks.append(task)
            for needed in graph.successors(stage):
                task.upstream.append(by_stage[needed])
                by_stage[needed].downstream.append(task)
        self._estimate()

    def check(self, seconds: float) -> None:
        """Ask DVC which stages have changed, of those with nothing left to wait for; ends after about
        `seconds`.

        It is what `dvc repro -s` would find out, without a process for each stage. Where another process
        holds DVC's lock for long, the next call tries again.
        """
        from dvc.lock import LockError
        from dvc.repo import lock_repo

        until = time.monotonic() + seconds
        if next(self._unchecked(), None) is None:
            return
        try:
            with lock_repo(self.repo):
                _forget_the_dead(Path(self.repo.tmp_dir, "rwlock"))
                while time.monotonic() < until and (task := next(self._unchecked(), None)):
                    self._check(task)
        except LockError:
            pass

    def _check(self, task: Task) -> None:
        from dvc.lock import LockError

        task.blocker = ""
        try:
            changed = task.stage.changed(allow_missing=not self.force and task.pictures_alone_missing())
        except LockError as error:
            if task.waits(str(error)):
                return
            changed = True
        except Exception:  # `dvc repro` will report it in the stage's log
            changed = True
        task.state = READY if self.force or changed else UNCHANGED

    def launch(self, engine: "Engine") -> None:
        """Start what is ready, the longest first; cores of this machine that are left over become workers of
        a training stage."""
        for task in filter(engine.far, sorted(self.of(READY), key=lambda task: -task.rank)):
            self._start(task, engine)
        free = engine.cores - sum(task.workers for task in self.of(RUNNING) if not engine.far(task))
        ready = sorted(self.of(READY), key=lambda task: -task.rank)
        candidates = len(ready) + len(list(self._unchecked()))
        most = max((len(task.known) for task in self.tasks), default=0)
        for task in ready:
            if free < 1:
                return
            task.workers = min(max(1, free // candidates), len(task.known) or most or 1) if task.cell else 1
            free -= task.workers
            candidates -= 1
            self._start(task, engine)

    def poll(self) -> Iterator[Task]:
        """The stages that ended since the last call. What needs a failed one is skipped."""
        for task in self.of(RUNNING):
            if task.process is None or (code := task.process.poll()) is None:
                continue
            task.seconds = time.monotonic() - task.begun
            task.state = DONE if code == 0 else FAILED
            blocked = code and task.waits("\n".join(task.tail(TAIL)))  # its DVC has deleted nothing
            keeping.put_back(task.kept, when=keeping.NEVER if code == 0 or blocked else keeping.MISSING)
            if blocked:
                continue
            waiting = list(task.downstream) if task.state == FAILED else []
            while waiting:
                needing = waiting.pop()
                needing.state = SKIPPED
                waiting += needing.downstream
            yield task

    def end(self) -> None:
        """Put the former outputs of what was stopped back."""
        for task in self.of(RUNNING):
            done = task.process is not None and task.process.wait() == 0
            keeping.put_back(task.kept, when=keeping.NEVER if done else keeping.ALWAYS)

    def of(self, *states: str) -> list[Task]:
        """The tasks in one of the states."""
        return [task for task in self.tasks if task.state in states]

    def blocked(self) -> list[Task]:
        """The tasks that wait for another process."""
        return [task for task in self.of(WAITING) if task.blocker]

    def left(self, jobs: int, told: dict[Task, float]) -> float | None:
        """Seconds to the end; None before a training has shown how fast it goes here.

        What a stage is expected to take was measured elsewhere and at another time, so it is multiplied by
        the pace of this run: measured over expected, of the stages that are done and of the trainings
        that have `told` how many seconds they still need.
        """
        now, running = time.monotonic(), self.of(RUNNING)
        shown = [(task, task.seconds) for task in self.of(DONE)]
        shown += [(task, now - task.begun + seconds) for task, seconds in told.items()]
        if not any(task.cell for task, _ in shown):
            return None
        pace = sum(s * task.workers for task, s in shown) / sum(task.work for task, _ in shown)
        rest = {task: pace * task.work / task.workers - (now - task.begun) for task in running}
        rest |= {task: seconds + pace * ENDING for task, seconds in told.items()}
        rest = {task: max(seconds, 1.0) for task, seconds in rest.items()}
        waiting = self.of(WAITING, READY)
        work = sum(rest[task] * task.workers for task in running) + pace * sum(task.work for task in waiting)
        chains = [rest[task] + pace * (task.rank - task.work) for task in running]
        return max([work / jobs, *chains, *[pace * task.rank for task in waiting]])

    def _collect(self, targets: list[str]) -> list:
        from dvc.repo.stage import PROJECT_FILE
        from dvc.stage.exceptions import StageFileDoesNotExistError, StageNotFound

        stages = []
        for target in targets or [PROJECT_FILE]:
            found = []
            with contextlib.suppress(StageFileDoesNotExistError, StageNotFound):
                found = self.repo.stage.collect(target, glob=any(c in target for c in "*?["))
            if not found:
                raise UnknownStage(target, [stage.addressing for stage in self.repo.index.stages])
            stages += found
        return list(dict.fromkeys(stages))

    def _estimate(self) -> None:
        """How long each stage took when it last ran, and so how long each chain of stages will take."""
        for task in self.tasks:
            for out in task.stage.outs:
                path = Path(out.fs_path)
                if path.name == "result.json" and path.parents[2].name == "runs":
                    task.cell = "/".join((path.parents[3].name, path.parents[1].name, path.parents[0].name))
                    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                        task.known = [
                            float(seconds)
                            for seconds in json.loads(path.read_text(encoding="utf-8"))["seconds"]
                        ]
        known = [sum(task.known) for task in self.tasks if task.known]
        mean = sum(known) / len(known) if known else 30.0
        for task in reversed(self.tasks):
            command = str(task.stage.cmd)
            task.work = OVERHEAD + sum(extra for name, extra in EXPECTED.items() if name in command)
            task.work += (sum(task.known) or mean) if task.cell else 0.0
            task.work += IMPORTED * self._unimported() if "pipeline import" in command else 0.0
            task.rank = task.work + max((needing.rank for needing in task.downstream), default=0.0)

    def _unimported(self) -> int:
        """About how many files of results MLflow does not know: those of this run, or all where it has no
        database yet."""
        from pipeline.cells.tracking import database  # here: it brings pandas, which most runs do without

        root = Path(self.repo.root_dir)
        if (file := database(root)) is None or (root / file).exists():
            return sum(task.cell is not None for task in self.tasks)
        return sum(
            len(list(root.glob(f"papers/*/{files}")))
            for files in ("runs/*/*/result.json", "tuning/*/*/result.json", "tuning/*/*.json")
        )

    def _unchecked(self) -> Iterator[Task]:
        waiting = sorted(self.of(WAITING), key=lambda task: -task.rank)
        return (
            task
            for task in waiting
            if task.ask_at <= time.monotonic()
            and all(needed.state in (DONE, UNCHANGED) for needed in task.upstream)
        )

    def _start(self, task: Task, engine: "Engine") -> None:
        if not engine.far(task):  # DVC deletes them first; what comes back from elsewhere is renamed
            keeping.keep((Path(out.fs_path) for out in task.stage.outs), task.kept)
        task.process = engine.submit(task, self.force)
        task.state, task.begun = RUNNING, time.monotonic()


@contextlib.contextmanager
def _alone(repo, say: Callable[[str], object]) -> Iterator[None]:
    """With DVC's lock; where another process has it, says which and waits."""
    from dvc.lock import LockError

    told = False
    while True:
        try:
            repo.lock.lock()  # tries for three seconds
            break
        except LockError:
            if not told:
                say(f"waiting for {_holder(Path(repo.lock.lockfile))}, which has DVC's lock")
            told = True
    try:
        yield
    finally:
        repo.lock.unlock()


def _holder(lock: Path) -> str:
    """`process 123: dvc repro`, from the number that DVC leaves in its lock file."""
    import psutil

    try:
        pid = int(lock.read_text(encoding="utf-8"))
        return f"process {pid}: {_shown(' '.join(psutil.Process(pid).cmdline()))}"
    except (OSError, ValueError, psutil.Error):
        return "another process"


def _shown(command: str) -> str:
    """A command line without the folders of its programs."""
    return re.sub(r"\S*/(?=(\w+/__main__\.py|python[\d.]*|dvc|fedrepro)(\s|$))", "", command)[:200]


def _forget_the_dead(path: Path) -> None:
    """Mend DVC's list of which process reads and writes what, which a killed DVC leaves wrong. The caller
    holds the lock. A truncated list stops every command; an entry of a zombie process, as kill -9 leaves one
    in a container, blocks its stage; so does one of this process, which DVC could not take out again after
    it had looked at a stage: the list could not be written."""

    def holds(user: dict) -> bool:
        return user["pid"] != os.getpid() and alive(user["pid"])

    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
        readers = {
            name: [user for user in users if holds(user)] for name, users in lists.get("read", {}).items()
        }
        writers = {name: user for name, user in lists.get("write", {}).items() if holds(user)}
        path.write_text(
            json.dumps({"write": writers, "read": {name: users for name, users in readers.items() if users}}),
            encoding="utf-8",
        )
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError):
        path.unlink()
