"""What clusters share: cells go there, other stages stay here; what comes back is recorded in bulk."""

import itertools
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pipeline import files
from pipeline.engines import Engine, Job, Task, file_name
from pipeline.engines.delivery import Order, clock_ahead, delivered
from pipeline.engines.recording import record
from pipeline.errors import FedReproError
from pipeline.schema import Cell, check

SECONDS_BETWEEN_LOOKS = 1.0  # at the folders of deliveries
SECONDS_BETWEEN_POLLS = 5.0  # of the cluster's queue
GRACE = 30.0  # seconds until a job that the queue forgot counts as failed: its files may come late
AT_ONCE = 50  # cells that are recorded together: writing a long dvc.lock takes seconds, once for all of them
PASSED_ON = ("FEDREPRO_DEVICE", "FEDREPRO_EXECUTOR", "FEDREPRO_PRECISION", "FEDREPRO_CHECKPOINT_SECONDS")


@dataclass(frozen=True)
class State:
    """What the cluster says of a job that has not ended."""

    where: str = "queued"


@dataclass(eq=False)
class Sent:
    """A cell that a cluster has taken. `id` is the cluster's, `name` tells jobs of re-created clusters, which
    use the same ids again, apart."""

    task: Task
    order: Order
    mark: Path  # the file that outlives this process
    id: str = ""
    name: str = ""
    where: str = "queued"
    code: int | None = None
    seen: float = field(default_factory=time.monotonic)

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> int | None:
        return self.code

    def refuse(self, *lines: str) -> None:
        """Failed here, for the reason that these lines give in its log; a job of an earlier call goes on."""
        with open(self.task.log, "a", encoding="utf-8") as log:
            log.write("".join(f"{line}\n" for line in lines))
        self.code = 2

    def fail(self, *lines: str) -> None:
        """Failed, and no job is left of it."""
        self.refuse(*lines)
        self.mark.unlink(missing_ok=True)


class Cluster:
    """Base of the engines that train elsewhere. A subclass sends jobs, lists those that have not ended and
    ends them."""

    title: str  # which cluster: `slurm cluster 'mini'`
    outlives = True  # whether jobs go on when this process ends

    def __init__(self, local: Engine, root: Path):
        self.local, self.root, self.cores = local, root, local.cores
        self.pending: list[Sent] = []
        self.sent: list[Sent] = []
        self.looked = self.polled = 0.0
        self.grown = False
        self.full = 0  # jobs that had not ended when the cluster took no more
        self.refused = 0.0  # when it took no more; 0: it took all
        self.hope = 0.0  # when one of ours last held a place that will be free

    # A subclass has these three.
    def send(self, jobs: list[Sent]) -> list[Sent]:
        """Submit; sets `id` and `name` of each, or fails it. Those that the cluster has no room for yet."""
        raise NotImplementedError

    def states(self) -> dict[tuple[str, str], State]:
        """(id, name) -> state of every job that has not ended."""
        raise NotImplementedError

    def end(self, jobs: list[tuple[str, str]]) -> None:
        """End jobs, given as (id, name)."""
        raise NotImplementedError

    def last_words(self, job: Sent) -> list[str]:
        """What the cluster itself says of a job that has ended without a word of its own."""
        return []

    # -- the interface ---------------------------------------------------------------------------------------

    def far(self, task: Task) -> bool:
        return task.cell is not None

    def submit(self, task: Task, force: bool) -> Job:
        """A cell goes with the next submission, unless it is handed over already or an earlier call has left
        it running."""
        if task.cell is None:
            return self.local.submit(task, force)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        mark = self._mark(task)
        left = _read(mark)
        job = Sent(task, Order(task.cell, "", {}, {}), mark)
        try:
            precision = os.environ.get("FEDREPRO_PRECISION") or "fp32"
            job.order = Order.of(Cell.parse(task.cell), precision, self.root)
        except FedReproError as error:
            job.refuse(f"error: {error}")
            return job
        if delivered(job.order, self.root):
            self.sent.append(job)
        elif left and left.title != self.title:
            job.refuse(
                f"error: {task.cell} is at {left.title} as job {left.id}; end it there with "
                f"--cancel, or delete {os.path.relpath(mark)}"
            )
        elif left and (left.id, left.name) in self.earlier:
            job.id, job.name = left.id, left.name
            if left.digests == job.order.digests:
                self.sent.append(job)
            else:
                job.refuse(
                    f"error: {task.cell}: job {job.id} trains it with other parameters or code than "
                    "today's; --cancel ends it"
                )
        else:
            for path in (task.log, task.events):
                path.unlink(missing_ok=True)
            self.pending.append(job)
            self.grown = True
        return job

    def poll(self) -> None:
        """Submit what has gathered since the last call brought nothing more, and see what has come back."""
        alive = sum(job.code is None for job in self.sent)
        waits = self.refused and alive >= max(self.full, 1)
        rested = time.monotonic() - self.refused >= SECONDS_BETWEEN_POLLS
        if self.pending and not self.grown and not waits and rested:
            self._send()
        self.grown = False
        now = time.monotonic()
        if now - self.looked >= SECONDS_BETWEEN_LOOKS:
            self._record()
            self.looked = time.monotonic()
        running = [job for job in self.sent if job.code is None]
        if running and now - self.polled >= SECONDS_BETWEEN_POLLS:
            self._see(running)
            self.polled = time.monotonic()

    def cancel(self, tasks: Sequence[Task]) -> int:
        """End what is left of these stages."""
        marks = [self._mark(task) for task in tasks]
        found = {mark: left for mark in marks if (left := _read(mark)) and left.title == self.title}
        alive = self.earlier & {(left.id, left.name) for left in found.values()}
        if alive:
            self.end(sorted(alive))
        for mark in found:
            mark.unlink()
        return len(alive)

    def close(self) -> str:
        """Jobs stay where they are."""
        self.local.close()
        left = [job for job in self.sent if job.code is None and job.id]
        return self.farewell(len(left)) if left else ""

    def kill(self) -> None:
        self.local.kill()

    def farewell(self, jobs: int) -> str:
        """What becomes of jobs that have not ended."""
        return (
            f"{jobs} {'job goes' if jobs == 1 else 'jobs go'} on at {self.title}: the same command "
            "attaches again and records what has ended, with --cancel it ends them"
        )

    @cached_property
    def earlier(self) -> set[tuple[str, str]]:
        """The jobs that had not ended when this process first asked."""
        return set(self.states())

    # -- inside ----------------------------------------------------------------------------------------------

    def _mark(self, task: Task) -> Path:
        return self.root / ".cells" / "jobs" / f"{file_name(task.name)}.json"

    def environment(self) -> dict[str, str]:
        """What a worker must know of ours. Only a server can take runs from several machines."""
        tracked = os.environ.get("MLFLOW_TRACKING_URI", "")
        server = tracked.startswith("http")
        return {
            "OMP_NUM_THREADS": "1",
            **({"MLFLOW_TRACKING_URI": tracked} if server else {"FEDREPRO_TRACKING": "off"}),
            **{name: os.environ[name] for name in PASSED_ON if os.environ.get(name)},
        }

    def _send(self) -> None:
        """What finds no room waits until a job has ended, and fails where none is left that could."""
        jobs, self.pending = self.pending, []
        held = self.send(jobs)
        for job in jobs:
            if job.code is None and job.id:
                self.sent.append(job)
                if not self.outlives:
                    continue
                files.write_json(
                    job.mark,
                    {
                        "cell": job.order.cell,
                        "title": self.title,
                        "id": job.id,
                        "name": job.name,
                        "digests": job.order.digests,
                    },
                )
        now = time.monotonic()
        self.full = sum(job.code is None for job in self.sent)
        if self.full or not self.refused:
            self.hope = now
        self.refused = now if held else 0.0
        for job in held:
            if now - self.hope <= GRACE:  # the cluster counts a job for a while after its end
                job.where = "waits for room in the queue"
                self.pending.append(job)
            else:
                job.fail(f"error: {self.title} has no room for another job of this user")
        self.polled = time.monotonic()

    def _record(self) -> None:
        """Record what has been handed over since the last time."""
        back = (
            (job, path) for job in self.sent if job.code is None and (path := delivered(job.order, self.root))
        )
        arrived = {job.task: (job, path) for job, path in itertools.islice(back, AT_ONCE)}
        if not arrived:
            return
        ahead = [0.0]
        for task, error in record([(t, j.order, p) for t, (j, p) in arrived.items()], self.root).items():
            job, path = arrived[task]
            if error:
                job.fail(f"error: {error}")
            else:
                job.code = 0
                job.mark.unlink(missing_ok=True)
                ahead.append(clock_ahead(path))
        if any(ahead):
            print(f"warning: the clock of a worker is {max(ahead):.0f} s ahead of this machine's", flush=True)

    def _see(self, jobs: Iterable[Sent]) -> None:
        """Where jobs are; one that the cluster forgot, and whose delivery does not come, has failed."""
        try:
            states = self.states()
        except FedReproError:  # a controller that restarts; the jobs know nothing of it
            for job in jobs:
                job.seen = time.monotonic()
            return
        for job in jobs:
            if state := states.get((job.id, job.name)):
                job.where, job.seen = state.where, time.monotonic()
            elif job.id and time.monotonic() - job.seen > GRACE:
                job.fail(
                    *self.last_words(job),
                    f"ERROR: failed to run: job {job.id} of {self.title} ended without a result",
                )


@dataclass(frozen=True)
class Mark:
    """What outlives this process of a job: `title` is the cluster's, `id` and `name` are the job's there."""

    cell: str
    title: str
    id: str
    name: str
    digests: dict[str, str]


def _read(path: Path) -> Mark | None:
    """What is noted of a job; None where that is nothing that can be used."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return check(Mark, found, "")
    except (OSError, ValueError, TypeError, RecursionError, FedReproError):
        return None
