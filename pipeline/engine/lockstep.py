"""Run the seeds of a cell (scenario and method) in one process, with their local training stacked.

Every seed runs as it would alone, in its thread; one thread runs at a time. A seed that comes to a
local phase waits until all the others have come to one or have ended; then the executor steps all that wait
together.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pipeline.engine.phase import Phase
from pipeline.engine.trained import Trained

STOP_SECONDS = 30.0


class Stopped(Exception):
    """Another seed failed, or the user stopped the run."""


class _Lockstep:
    """Whose turn it is, and the phases that wait."""

    def __init__(self, seeds: int):
        self.turn = threading.Condition()
        self.running, self.stopped = seeds, False
        self.waiting: dict[int, tuple[object, Phase]] = {}  # seed's place -> (its executor, its phase)
        self.outcomes: dict[int, Trained | BaseException] = {}

    def run(self, place: int, executor, phase: Phase) -> Trained:
        """Run a seed's phase together with those of the others. The caller has the turn, and passes it on
        while this seed waits."""
        self.waiting[place] = executor, phase
        self.run_waiting()
        while place not in self.outcomes:
            if self.stopped:
                raise Stopped
            self.turn.wait()
        outcome = self.outcomes.pop(place)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def run_waiting(self) -> None:
        """Run the waiting phases as soon as every seed is waiting or has ended."""
        if not self.waiting or len(self.waiting) < self.running or self.stopped:
            return
        places = sorted(self.waiting)
        executors, phases = zip(*(self.waiting[place] for place in places))
        self.waiting.clear()
        try:
            self.outcomes |= zip(
                places, executors[0].run_all(phases, [phase.clients for phase in phases]), strict=True
            )
        except BaseException as error:  # every waiting seed raises it, and so reports its round
            self.outcomes |= dict.fromkeys(places, error)
        self.turn.notify_all()

    def stop(self) -> None:
        """Have every waiting seed end."""
        self.stopped = True
        if self.turn.acquire(timeout=STOP_SECONDS):  # after the phase that runs now
            self.turn.notify_all()
            self.turn.release()

    def ended(self) -> None:
        self.running -= 1
        self.run_waiting()


class _Shared:
    """A seed's executor while it shares its phases."""

    def __init__(self, lockstep: _Lockstep, place: int, executor):
        self.lockstep, self.place, self.executor = lockstep, place, executor

    def run(self, phase: Phase) -> Trained:
        return self.lockstep.run(self.place, self.executor, phase)


def together(train: Callable, jobs: Sequence) -> Iterator[tuple[str, object]]:
    """`train(job, report, share)` for all jobs at once: ("row", row) as they report, ("done", result) as they
    end, here and not in their threads. The first error ends all of them."""
    lockstep = _Lockstep(len(jobs))
    events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def report(row: dict) -> None:
        events.put(("row", row))

    def work(place: int, job) -> None:
        with lockstep.turn:
            try:
                if not lockstep.stopped:
                    events.put(("done", train(job, report, partial(_Shared, lockstep, place))))
            except Stopped:
                pass
            except BaseException as error:
                lockstep.stopped = True  # before the others go on
                lockstep.turn.notify_all()
                events.put(("error", error))
            finally:
                lockstep.ended()

    threads = [threading.Thread(target=work, args=given, daemon=True) for given in enumerate(jobs)]
    for thread in threads:
        thread.start()
    waiting = len(jobs)
    try:
        while waiting:
            kind, value = events.get()
            if kind == "error":
                raise value
            waiting -= kind == "done"
            yield kind, value
    finally:
        lockstep.stop()
        for thread in threads:
            thread.join(timeout=1.0)
