"""Train all seeds of a cell in one process, with their local training stacked.

Every seed has its own thread and runs as it would alone; only one thread runs at a time. Before its local
training, a seed waits until every other seed has come to its local training or has ended. Then the executor
trains all waiting seeds together.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from pipeline.engine.phase import Phase
from pipeline.engine.trained import Joining, Trained

Waiting = tuple[int, Joining, Phase, Future]  # a seed's place, its executor, its phase, what comes of it


class _Seeds:
    """The threads of the seeds; `events` are rows, phases, results and errors, each with its kind."""

    def __init__(self) -> None:
        self.turn, self.stopped = threading.Lock(), threading.Event()
        self.events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def work(self, train: Callable, place: int, job: Any) -> None:
        def share(executor: Joining) -> SimpleNamespace:
            return SimpleNamespace(run=partial(self.run, place, executor))

        with self.turn:
            try:
                result = train(job, lambda row: self.events.put(("row", row)), share)
                self.events.put(("done", result))
            except CancelledError:  # another seed failed, or the user stopped the run
                pass
            except BaseException as error:
                self.events.put(("error", error))

    def run(self, place: int, executor: Joining, phase: Phase) -> Trained:
        """Run a seed's phase with those of the others, which have the turn meanwhile."""
        outcome: Future[Trained] = Future()
        self.events.put(("phase", (place, executor, phase, outcome)))
        if self.stopped.is_set():
            outcome.cancel()
        self.turn.release()
        try:
            return outcome.result()
        finally:
            self.turn.acquire()


def together(train: Callable, jobs: Sequence) -> Iterator[tuple[str, Any]]:
    """`train(job, report, share)` for all jobs at once: ("row", row) as they report, ("done", result) as they
    end, here and not in their threads. The first error ends all of them."""
    torch.set_num_threads(1)
    seeds, running = _Seeds(), len(jobs)
    waiting: list[Waiting] = []
    given = ((train, *each) for each in enumerate(jobs))
    threads = [threading.Thread(target=seeds.work, args=each, daemon=True) for each in given]
    for thread in threads:
        thread.start()
    try:
        while running:
            kind, value = seeds.events.get()
            if kind == "error":
                raise value
            if kind == "phase":
                waiting.append(value)
            else:
                running -= kind == "done"
                yield kind, value
            if waiting and len(waiting) == running:
                _run(waiting)
                waiting = []
    finally:
        seeds.stopped.set()
        while not seeds.events.empty():
            kind, value = seeds.events.get()
            waiting += [value] if kind == "phase" else []
        for *_, outcome in waiting:
            outcome.cancel()
        for thread in threads:
            thread.join(timeout=1.0)


def _run(waiting: list[Waiting]) -> None:
    """Run the phases that wait; an error is raised by every seed, which reports its round."""
    _, executors, phases, outcomes = zip(*sorted(waiting, key=lambda each: each[0]))
    try:
        results = executors[0].run_all(phases)
    except Exception as error:
        for outcome in outcomes:
            outcome.set_exception(error)
        return
    for outcome, trained in zip(outcomes, results, strict=True):
        outcome.set_result(trained)
