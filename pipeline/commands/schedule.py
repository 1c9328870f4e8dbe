"""Which DVC stage may run when, and the processes that run them. `pipeline/commands/run.py` is the command.

DVC itself says what depends on what and what has changed. It lets several `dvc repro -s` work at once if each
waits for the lock (`--wait-for-lock`) and something else keeps the order; this module does. """
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # this file is also run as a script without our packages: see `Group`
    from pipeline.engines import Engine, Job

OVERHEAD = 3.0  # seconds that a stage costs besides its training: DVC, imports, files
# What becomes of a stage.
WAITING, READY, RUNNING = "waiting", "ready", "running"
DONE, UNCHANGED, FAILED, SKIPPED = "done", "unchanged", "failed", "skipped"


@dataclass(eq=False)
class Task:
    """A stage, what is known of it and what has become of it."""
    stage: Any                           # DVC's own
    name: str                            # as `dvc repro` takes it
    log: Path
    cell: str | None = None              # <paper>/<scenario>/<method> where the stage trains one
    known: list[float] = field(default_factory=list)     # seconds of each seed when it was last trained
    work: float = OVERHEAD               # seconds of one core that are expected
    rank: float = 0.0                    # work of the longest chain of stages that begins here
    state: str = WAITING
    upstream: list["Task"] = field(default_factory=list)
    downstream: list["Task"] = field(default_factory=list)
    process: "Job | None" = None
    workers: int = 1                     # cores that it was given
    begun: float = 0.0
    seconds: float = 0.0                 # how long it took

    @property
    def events(self) -> Path:
        """The file to which its training reports progress (FEDREPRO_EVENTS)."""
        return self.log.with_suffix(".jsonl")

    def error(self) -> str:
        """The line of the log that best explains why the stage failed."""
        lines = [
            line.strip()
            for line in self.tail(1000)
            if line.strip() and not re.match("Running stage |> ", line)
        ]
        at = next((k for k, line in enumerate(lines) if line.startswith("ERROR: ")), len(lines))
        ours, dvcs = lines[:at], lines[at:at + 1]
        if dvcs and "failed to run: " not in dvcs[0]:                 # an error of DVC itself
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

    def __init__(self, targets: list[str], force: bool = False):
        from dvc.repo import Repo
        from dvc.repo.reproduce import get_active_graph, plan_repro
        logging.getLogger("dvc").setLevel(logging.CRITICAL)  # its warnings and bars would break our table
        self.repo, self.force = Repo(), force
        graph = get_active_graph(self.repo.index.graph)
        logs = Path(self.repo.root_dir, ".cells", "logs")
        self.tasks: list[Task] = []                                   # upstream before downstream
        by_stage = {}
        for stage in plan_repro(graph, self._collect(targets)):
            name = stage.addressing
            task = Task(stage, name, logs / (re.sub(r"[^\w.@=-]+", "_", name) + ".log"))
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
                    task.state = READY if self.force or _changed(task.stage) else UNCHANGED
        except LockError:
            pass

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
            waiting = list(task.downstream) if task.state == FAILED else []
            while waiting:
                needing = waiting.pop()
                needing.state = SKIPPED
                waiting += needing.downstream
            yield task

    def of(self, *states: str) -> list[Task]:
        """The tasks in one of the states."""
        return [task for task in self.tasks if task.state in states]

    def left(self, jobs: int) -> float | None:
        """Seconds to the end, from known durations at this run's own pace; None where none is known."""
        if not any(task.known for task in self.tasks):
            return None
        now, finished = time.monotonic(), [task for task in self.of(DONE) if task.cell]
        pace = (
            sum(t.seconds * t.workers for t in finished) / sum(t.work for t in finished) if finished else 1.0
        )
        waiting, running = self.of(WAITING, READY), self.of(RUNNING)
        rest = [max(pace * task.work - (now - task.begun) * task.workers, 0) for task in running]
        chain = max((task.rank for task in waiting), default=0)
        return max((sum(rest) + pace * sum(task.work for task in waiting)) / jobs, pace * chain)

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
        mean = sum(known) / len(known) if known else 0.0
        for task in reversed(self.tasks):
            task.work = OVERHEAD + (sum(task.known) or mean if task.cell else 0.0)
            task.rank = task.work + max((needing.rank for needing in task.downstream), default=0.0)

    def _unchecked(self) -> Iterator[Task]:
        waiting = sorted(self.of(WAITING), key=lambda task: -task.rank)
        return (
            task for task in waiting if all(needed.state in (DONE, UNCHANGED) for needed in task.upstream)
        )

    def _start(self, task: Task, engine: "Engine") -> None:
        task.process = engine.submit(task, self.force)
        task.state, task.begun = RUNNING, time.monotonic()


def _changed(stage) -> bool:
    try:
        return stage.changed()
    except Exception:                    # `dvc repro` will report it in the stage's log
        return True


def _forget_the_dead(path: Path) -> None:
    """Mend DVC's list of which process reads and writes what, which a killed DVC leaves wrong. The caller
    holds the lock. A truncated list stops every command; an entry of a zombie process, as kill -9 leaves one
    in a container, blocks its stage. """
    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
        readers = {
            name: [user for user in users if _alive(user["pid"])]
            for name, users in lists.get("read", {}).items()
        }
        writers = {name: user for name, user in lists.get("write", {}).items() if _alive(user["pid"])}
        path.write_text(
            json.dumps({"write": writers, "read": {name: users for name, users in readers.items() if users}}),
            encoding="utf-8",
        )
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError):
        path.unlink()


def _alive(pid: int) -> bool:
    import psutil
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


# -- processes -----------------------------------------------------------------------------------------------

class Group:
    """Processes that never outlive us: one process group, with a guard in it that ends it once our pipe to it
    closes."""

    def __init__(self, lock: str):
        self.guard = subprocess.Popen(
            [sys.executable, "-I", __file__, lock], stdin=subprocess.PIPE, process_group=0
        )

    def start(self, command: list[str], log, environment: dict[str, str]) -> subprocess.Popen:
        """A process of the group; what it prints goes to the open file `log`."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=self.guard.pid,
        )

    def close(self) -> None:
        """End whatever still runs; returns when it has ended."""
        self.guard.communicate()         # closes the pipe and waits

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.guard.pid, signal.SIGKILL)


def _guard(lock: str) -> None:
    """Wait for the end of the pipe, then end the other processes of our group: SIGINT, then SIGTERM, then
    SIGKILL.

    It first takes DVC's lock, so that no DVC is writing dvc.lock when the signal comes. """
    import zc.lockfile
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    held, until = None, time.monotonic() + 10
    while _others() and held is None and time.monotonic() < until:
        try:
            held = zc.lockfile.LockFile(lock)
        except zc.lockfile.LockError:
            time.sleep(0.05)
    for number, patience in ((signal.SIGINT, 2), (signal.SIGTERM, 3), (signal.SIGKILL, 0)):
        if not _others():
            return
        os.killpg(0, number)
        until = time.monotonic() + patience
        while _others() and time.monotonic() < until:
            time.sleep(0.05)


def _others() -> bool:
    """Does any other process of our group live?"""
    import psutil
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid != os.getpid() and os.getpgid(pid) == os.getpgid(0) and _alive(pid):
                return True
    return False


if __name__ == "__main__":
    _guard(sys.argv[1])
