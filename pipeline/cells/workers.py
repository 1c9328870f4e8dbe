"""Train the seeds of a cell in parallel: in one process each, or batched together in a single process."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import connection, get_context
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from pipeline.cells.loading import load
from pipeline.cells.lockstep import together
from pipeline.cells.seeds import Job, train_seed
from pipeline.engine.environment import default_device, executor_name
from pipeline.errors import NO_MEMORY, FedReproError, WorkerError, short_of_memory


def train_seeds(jobs: list[Job], report: Callable[[dict], None]) -> Iterator[dict]:
    """Train the jobs, FEDREPRO_WORKERS at once, each in a new process, or stacked together in this
    one; yields them as they finish."""
    name = executor_name(default_device())
    left = [job for job in jobs if not job.files.finished.exists()]
    if name == "stacked" and len(jobs) > 1:
        train = partial(train_seed, sharing=max(len(left), 1))
        for kind, value in together(train, jobs):
            if kind == "row":
                report(value)
            else:
                yield value
        return
    workers = min(len(jobs), int(os.environ.get("FEDREPRO_WORKERS", os.cpu_count() or 1)))
    # A forked worker has torch imported already; CUDA and macOS need a fresh interpreter.
    forks = sys.platform == "linux" and not torch.cuda.is_available()
    # Seeds one after the other have separate processes where that costs nothing: the memory that the
    # first took at most would stay with a common one.
    if len(left) <= 1 or workers <= 1 and not forks:
        yield from (train_seed(job, report) for job in jobs)
        return
    if forks and len({job.experiment.partition(job.seed) for job in left}) == 1:
        load(left[0].experiment, left[0].seed)  # forked workers inherit the loaded data
    context: ForkContext | SpawnContext = get_context("fork") if forks else get_context("spawn")
    yield from _in_processes(jobs, workers, context, report)


def _in_processes(
    jobs: list[Job], workers: int, context: ForkContext | SpawnContext, report: Callable[[dict], None]
) -> Iterator[dict]:
    """Train the jobs, so many at once; ends those that still run where one fails."""
    waiting = list(jobs)
    running: dict[Any, tuple[BaseProcess, Job]] = {}  # by the receiving end of each worker's pipe
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_worker, args=(waiting[0], sender), daemon=True)
                process.start()
                sender.close()
                running[receiver] = (process, waiting.pop(0))
            for ready in connection.wait(list(running)):
                worker, job = running[ready]
                kind, value = _receive(ready, worker, job)
                if kind == "row":
                    report(value)
                    continue
                worker.join()
                del running[ready]
                if kind == "error":
                    raise value
                yield value
    finally:
        for worker, _ in running.values():
            worker.terminate()


def _worker(job: Job, sender) -> None:
    """Train one seed and send ("row", ...) after every round, then ("done", ...) or ("error", ...)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops us

    parent = multiprocessing.parent_process()

    def tell(row: dict) -> None:
        if parent is not None and not parent.is_alive():  # the parent was killed: end too
            os._exit(1)
        sender.send(("row", row))

    try:
        sender.send(("done", train_seed(job, tell)))
    except FedReproError as error:
        sender.send(("error", error))
    except (MemoryError, RuntimeError) as error:
        if not short_of_memory(error):
            raise
        sender.send(("error", WorkerError(f"{job.experiment.cell}, seed {job.seed}: {NO_MEMORY}")))


def _receive(receiver, process, job: Job) -> tuple:
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return "error", WorkerError(
            f"{job.experiment.cell}, seed {job.seed}: the worker ended with exit code {process.exitcode} "
            "(-9 is often the system running out of memory); finished rounds stay in .cells"
        )
