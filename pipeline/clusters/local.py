"""The local executor: runs DVC stages as processes of this machine, and trainings and figures as forks.

A stage is a process `dvc repro --single-item`. Cells, their figures and tables of results are instead forks
of a process that has already imported what they need. This saves five CPU seconds each, which is longer than
a small cell trains.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from pipeline import arithmetic
from pipeline.cells.experiment import Experiment
from pipeline.clusters import fork, guard
from pipeline.clusters.job import Job, StageTask
from pipeline.clusters.worker import train_here
from pipeline.place import HOME, cards, short_temporary, surroundings
from pipeline.schema import ROOT, Cell

FORKS = sys.platform == "linux"
# Arithmetic -> what forks for it, of this process.
SERVERS: dict[str | None, forkserver.ForkServer] = {}
# In the command of the stage that draws the reports.
REPORT = "stages.report"


class Local:
    """Runs stages on this machine. The clusters are subclasses, because only cells run elsewhere."""

    def __init__(self, cores: int, root: Path = ROOT):
        self.cores, self.root = cores, root
        self.processes: dict[Job, Callable[[], int | None]] = {}
        self.card: dict[Job, str] = {}
        self._guard: subprocess.Popen | None = None

    def far(self, task: StageTask) -> bool:
        """Whether the stage uses no core of this machine."""
        return False

    def submit(self, task: StageTask, force: bool) -> Job:
        """Run the stage, or attach to it if it runs already; its output goes to its log."""
        task.log.parent.mkdir(parents=True, exist_ok=True)
        task.events.unlink(missing_ok=True)
        job = Job(task)
        start = self._fork if _is_fork(task) else self._repro
        environment = self._environment(task, force)
        if task.cell and len(self.cards) > 1:  # each cell on one card, that with the fewest
            busy = [self.card[other] for other in self.processes if other in self.card]
            self.card[job] = environment["CUDA_VISIBLE_DEVICES"] = min(self.cards, key=busy.count)
        self.processes[job] = start(task, environment, force)
        return job

    def poll(self) -> None:
        for job, exit_code in list(self.processes.items()):
            if (code := exit_code()) is None:
                continue
            del self.processes[job]
            if not _is_fork(job.task):
                job.code = code  # DVC has recorded it
            elif code:
                job.fail(f"ERROR: failed to run: exit code {code}")
            else:
                job.trained = True

    def close(self) -> str:
        """End what must not outlive this process; returns a sentence about what continues, or nothing."""
        if self._guard:
            self._guard.communicate()  # closes the pipe and waits
        return ""

    def kill(self) -> None:
        """Do the same at once, for an impatient user."""
        if self._guard:
            guard.kill(self._guard.pid)

    def cancel(self, tasks: Sequence[StageTask]) -> int:
        """Nothing: jobs of this machine end with the process that started them."""
        return 0

    @cached_property
    def cards(self) -> list[str]:
        """The GPUs over which cells are distributed; none if FEDREPRO_DEVICE chooses a device."""
        return cards()

    @property
    def group(self) -> int:
        """The process group of all stages; its first process, the guard, ends it when our pipe closes."""
        if self._guard is None:
            command = [sys.executable, "-I", guard.__file__]
            self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
        return self._guard.pid

    def server(self, kind: str | None) -> forkserver.ForkServer:
        """A process with torch already imported under an arithmetic (`portable` or None), from which
        others are forked."""
        if kind in SERVERS:
            return SERVERS[kind]
        server = SERVERS[kind] = forkserver.ForkServer()
        server.set_forkserver_preload(fork.IMPORTS)
        before = dict(os.environ)
        os.environ.update(arithmetic.environment(kind), OMP_NUM_THREADS="1")
        # A Ctrl-C reaches every process of the terminal. The server ignores it only once it has imported
        # torch; until then it would end with a traceback. So it begins with the signal blocked, which its
        # forks inherit (this process ends them). The tracker comes first: starting it takes a block away.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with short_temporary():  # where its socket lies
                server.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.environ.clear()
            os.environ.update(before)
        return server

    def _environment(self, task: StageTask, force: bool) -> dict[str, str]:
        # A report draws its pages in so many processes: it runs last, or beside `track` alone.
        most = self.cores if REPORT in str(task.stage.cmd) else task.workers
        workers = min(most, int(os.environ.get("FEDREPRO_WORKERS") or most))
        return {
            "OMP_NUM_THREADS": "1",
            "FEDREPRO_WORKERS": str(workers),
            "FEDREPRO_EVENTS": str(task.events),
            **({"FEDREPRO_FORCE": os.environ.get("FEDREPRO_FORCE", "1")} if force else {}),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "DVC_NO_ANALYTICS": "1",
        }

    def _repro(self, task: StageTask, environment: dict[str, str], force: bool) -> Callable[[], int | None]:
        command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item"]
        with open(task.log, "wb") as log:
            return subprocess.Popen(
                [*command, *["--force"] * force, task.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=surroundings(HOME) | environment,
                process_group=self.group,
            ).poll

    def _fork(self, task: StageTask, environment: dict[str, str], force: bool) -> Callable[[], int | None]:
        kind, words = self._arithmetic_of(task), fork.arguments_of(task)
        environment = arithmetic.environment(kind) | environment
        work, what = (train_here, task.cell) if words is None else (fork.run_here, words)
        arguments = (what, str(self.root), str(task.log), self.group, environment)
        process = multiprocessing.get_context("forkserver").Process(target=work, args=arguments)
        with _forked_by(self.server(kind)):
            process.start()
        return lambda: process.exitcode

    def _arithmetic_of(self, task: StageTask) -> str | None:
        """That of a cell's scenario; of a figure that of the miniatures, which most are of. Tables of results
        hold numbers of files alone: whichever is there."""
        if task.cell is not None and _trains_cell(task):
            return Experiment.of(Cell.parse(task.cell)).scenario.arithmetic
        words = fork.arguments_of(task) or [""]
        there = list(SERVERS) if words[0] == fork.RESULTS[-1] else []
        return there[0] if there else "portable"


@contextlib.contextmanager
def _forked_by(server: forkserver.ForkServer) -> Iterator[None]:
    """Meanwhile multiprocessing takes new processes from this server; by itself it knows one."""
    before = forkserver.connect_to_new_process
    forkserver.connect_to_new_process = server.connect_to_new_process
    try:
        yield
    finally:
        forkserver.connect_to_new_process = before


def _is_fork(task: StageTask) -> bool:
    """Is it a stage whose imports take longer than its work, or may?"""
    return FORKS and (fork.arguments_of(task) is not None or _trains_cell(task))


def _trains_cell(task: StageTask) -> bool:
    return task.cell is not None and task.stage.cmd == f"python -m stages.train {task.cell}"
