"""Base class of executors that train cells on a cluster and run all other stages on this machine."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from pipeline import files
from pipeline.clusters import contract
from pipeline.clusters.job import Job, StageTask, file_name
from pipeline.clusters.local import Local
from pipeline.clusters.order import Order
from pipeline.errors import DAMAGED, FedReproError
from pipeline.schema import ROOT, Cell, check

# at the folders of seeds
SECONDS_BETWEEN_LOOKS = 1.0
# of the cluster's queue
SECONDS_BETWEEN_POLLS = 5.0
# seconds until a job that the queue forgot counts as failed: its files may come late
GRACE = 30.0
PASSED_ON = ("FEDREPRO_DEVICE", "FEDREPRO_EXECUTOR", "FEDREPRO_PRECISION", "FEDREPRO_CHECKPOINT_SECONDS")


@dataclass(frozen=True)
class Mark:
    """What is remembered about a job after this process ends.

    title: of the cluster
    id: of the job on the cluster; empty until the cluster has told it
    name: of the submission, which no other one has
    digests: executor -> seed -> what the job trains
    position: of the job among those of its submission, from 0
    """

    cell: str
    title: str
    id: str
    name: str
    digests: dict[str, dict[str, str]]
    position: int = 0

    @classmethod
    def read(cls, path: Path) -> "Mark | None":
        """The mark of a file; None if there is none, or none that can be used."""
        with contextlib.suppress(*DAMAGED, FedReproError):
            return check(cls, json.loads(path.read_text(encoding="utf-8")), "")
        return None

    def job(self, living: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
        """Its job among living ones, given as (id, name); None if it has ended or was never submitted.

        A process that ended while it submitted has not stored the id. The job is then found by its name and
        its position, which is the end of an id such as `7_2`; `7` is the only one of its submission.
        """
        for id_, name in living:
            if name != self.name:
                continue
            if id_ == self.id:
                return id_, name
            place = id_.rpartition("_")[2] if "_" in id_ else "0"
            if not self.id and place == str(self.position):
                return id_, name
        return None


@dataclass(eq=False)
class Sent(Job):
    """A cell that was submitted to a cluster.

    id: of the job on the cluster
    name: of the job; it differs even if a new cluster uses the same ids again
    """

    where: str = "queued"
    order: Order = Order("", "", {}, {})
    mark: Path = Path()  # the file that outlives this process
    id: str = ""
    name: str = ""
    seen: float = field(default_factory=time.monotonic)

    @property
    def lives(self) -> bool:
        return self.code is None and not self.trained

    def lost(self, *lines: str) -> None:
        """Mark the job as failed; it does not exist on the cluster any more."""
        self.fail(*lines)
        self.mark.unlink(missing_ok=True)


class Cluster(Local):
    """Base class of executors that train elsewhere. A subclass submits, lists and ends jobs."""

    # which cluster: `slurm cluster 'mini'`
    title: str
    # whether jobs go on when this process ends
    outlives = True

    def __init__(self, cores: int, root: Path = ROOT):
        super().__init__(cores, root)
        self.pending: list[Sent] = []
        self.sent: list[Sent] = []
        self.looked = self.polled = 0.0
        # whether `pending` has grown since the last poll
        self.grown = False
        # jobs that lived when the cluster took no more; 0: it took all
        self.full = 0

    # A subclass has these three, the last where jobs outlive this process.
    def send(self, jobs: list[Sent]) -> list[Sent]:
        """Submit jobs and set `id` and `name` of each, or mark it as failed. Returns jobs for which there
        is no room."""
        raise NotImplementedError

    def announce(self, jobs: list[Sent], name: str) -> None:
        """Store marks of jobs that `send` is about to submit together. If this process ends before the
        cluster tells their ids, a later one finds them by the name.

        name: of the submission, which no other one has
        """
        for position, job in enumerate(jobs):
            job.name = name
            self._store_mark(job, position)

    def states(self) -> dict[tuple[str, str], str]:
        """(id, name) -> where it is, as a text for the user, of every job that has not ended."""
        raise NotImplementedError

    def end(self, jobs: list[tuple[str, str]]) -> None:
        """End jobs, given as (id, name)."""
        raise NotImplementedError

    def last_words(self, job: Sent) -> list[str]:
        """The last lines that the cluster has of a job which ended without a result."""
        return []

    def far(self, task: StageTask) -> bool:
        return task.cell is not None

    def submit(self, task: StageTask, force: bool) -> Job:
        """Add a cell to the next submission, unless it has been trained already or its job still runs."""
        if task.cell is None:
            return super().submit(task, force)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        job = Sent(task, mark=self._mark(task))
        try:
            precision = os.environ.get("FEDREPRO_PRECISION") or "fp32"
            job.order = Order.of(Cell.parse(task.cell), precision, self.root)
        except FedReproError as error:
            job.fail(f"error: {error}")
            return job
        job.write = lambda: job.order.write(self.root)
        left = Mark.read(job.mark)
        found = left.job(self.earlier) if left and left.title == self.title else None
        if job.order.trained_with(self.root):
            self.sent.append(job)
        elif left and left.title != self.title:
            end = f"end it there with --cancel, or delete {os.path.relpath(job.mark)}"
            job.fail(f"error: {task.cell} is at {left.title} as job {left.id or left.name}; {end}")
        elif left and found:
            job.id, job.name = found
            self._attach(job, left)
        else:
            for path in (task.log, task.events):
                path.unlink(missing_ok=True)
            self.pending.append(job)
            self.grown = True
        return job

    def poll(self) -> None:
        """Submit the cells collected since the last call, unless more are still arriving, and look for
        ended jobs."""
        super().poll()
        living = sum(job.lives for job in self.sent)
        rested = time.monotonic() - self.polled >= SECONDS_BETWEEN_POLLS
        if self.pending and not self.grown and (not self.full or living < self.full and rested):
            self._send()
        self.grown, now = False, time.monotonic()
        if now - self.looked >= SECONDS_BETWEEN_LOOKS:
            self.looked = now
            for job in self.sent:
                if job.lives and job.order.trained_with(self.root):
                    job.trained = True
                    job.mark.unlink(missing_ok=True)
        if any(job.lives for job in self.sent) and now - self.polled >= SECONDS_BETWEEN_POLLS:
            self._see()
            self.polled = time.monotonic()

    def cancel(self, tasks: Sequence[StageTask]) -> int:
        """End the jobs of these stages; returns how many were ended."""
        marks = [self._mark(task) for task in tasks]
        marked = {mark: left for mark in marks if (left := Mark.read(mark)) and left.title == self.title}
        living = set(filter(None, (left.job(self.earlier) for left in marked.values())))
        if living:
            end: Callable[..., object] = self.end
            contract.check_end(self, end(sorted(living)))
        for mark in marked:
            mark.unlink()
        return len(living)

    def close(self) -> str:
        """Leave the jobs running, also those that were being submitted."""
        super().close()
        left = sum(job.lives and bool(job.name) for job in {*self.sent, *self.pending})
        return self.farewell(left) if left else ""

    def farewell(self, jobs: int) -> str:
        """A sentence on what happens to jobs that have not ended."""
        return (
            f"{jobs} {'job goes' if jobs == 1 else 'jobs go'} on at {self.title}: the same command "
            "attaches again and records what has ended, with --cancel it ends them"
        )

    @cached_property
    def earlier(self) -> set[tuple[str, str]]:
        """The jobs that had not ended when this process first asked."""
        return set(contract.checked_states(self, self.states()))

    def environment(self) -> dict[str, str]:
        """Environment variables for the workers. MLflow is set only if it is a server, which several
        machines can use."""
        tracked = os.environ.get("MLFLOW_TRACKING_URI", "")
        tracking = (
            {"MLFLOW_TRACKING_URI": tracked} if tracked.startswith("http") else {"FEDREPRO_TRACKING": "off"}
        )
        passed = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
        return {"OMP_NUM_THREADS": "1", **tracking, **passed}

    def _mark(self, task: StageTask) -> Path:
        return self.root / ".cells" / "jobs" / f"{file_name(task.name)}.json"

    def _store_mark(self, job: Sent, position: int = 0) -> None:
        mark = Mark(job.order.cell, self.title, job.id, job.name, job.order.digests, position)
        files.write_json(job.mark, asdict(mark))

    def _attach(self, job: Sent, left: Mark) -> None:
        if left.digests == job.order.digests:
            self.sent.append(job)
        else:
            job.fail(f"error: {left.cell}: job {job.id} trains it with other parameters; --cancel ends it")

    def _send(self) -> None:
        """What finds no room waits."""
        jobs = self.pending
        held = self.send(jobs)
        wrong = contract.wrong_in_send(self, jobs, held)
        if wrong:
            held = []
        for job in held:
            job.name = ""
            job.mark.unlink(missing_ok=True)
        for job in jobs:
            if job.code is None and job.id and isinstance(job.id, str):
                self.sent.append(job)
                if self.outlives:
                    self._store_mark(job)
        self.full = max(sum(job.lives for job in self.sent), 1) if held else 0
        for job in held:  # until one of ours has ended, or one of this user's other jobs
            job.where = "waits for room in the queue"
        self.pending = held
        self.polled = time.monotonic()
        if wrong:  # the marks of what was submitted are stored
            raise FedReproError(wrong)

    def _see(self) -> None:
        """Where jobs are; one that the cluster forgot, and whose seeds do not come, has failed."""
        try:
            answer = self.states()
        except FedReproError:  # a controller that restarts; the jobs know nothing of it
            answer = {(job.id, job.name): job.where for job in self.sent}
        states = contract.checked_states(self, answer)
        for job in filter(lambda job: job.lives, self.sent):
            if where := states.get((job.id, job.name)):
                job.where, job.seen = where, time.monotonic()
            elif job.id and time.monotonic() - job.seen > GRACE:
                ended = f"job {job.id} of {self.title} ended without a result"
                job.lost(*self.last_words(job), f"ERROR: failed to run: {ended}")
