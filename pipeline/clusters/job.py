"""Job: a stage that an executor runs, here or on a cluster."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def file_name(stage: str) -> str:
    """The name of a stage's log file and of its mark, without an ending."""
    return re.sub(r"[^\w.@=-]+", "_", stage)


@dataclass(eq=False)
class Job:
    """A stage that an executor runs.

    task: the Task of pipeline/commands/schedule.py
    where: a text such as `queued` or `on n2, requeued 1x`; empty on this machine
    code: the exit code; None while the job waits, runs or has not been recorded
    trained: whether the scheduler has to record the cell; `write` then makes the result of its seeds
    """

    task: Any
    where: str = ""
    code: int | None = None
    trained: bool = False
    write: Callable[[], object] = lambda: None

    def fail(self, *lines: str) -> None:
        """Mark the job as failed and add these lines, the reason, to its log."""
        with open(self.task.log, "a", encoding="utf-8") as log:
            log.write("".join(f"{line}\n" for line in lines))
        self.code = 2
