"""Job: a stage that an executor runs, here or on a cluster."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class StageTask(Protocol):
    """What an executor may read of a stage in this run (the Task of pipeline/commands/schedule.py)."""

    # DVC's stage; its `cmd` is the command line
    @property
    def stage(self) -> Any: ...

    # as `dvc repro` takes it
    @property
    def name(self) -> str: ...

    # <paper>/<scenario>/<method> that it trains; None: it trains none
    @property
    def cell(self) -> str | None: ...

    # the file with what it prints
    @property
    def log(self) -> Path: ...

    # the file to which its training reports progress
    @property
    def events(self) -> Path: ...

    # cores that it was given
    @property
    def workers(self) -> int: ...

    # stages that it depends on
    @property
    def upstream(self) -> Sequence["StageTask"]: ...


def file_name(stage: str) -> str:
    """The name of a stage's log file and of its mark, without an ending."""
    return re.sub(r"[^\w.@=-]+", "_", stage)


@dataclass(eq=False)
class Job:
    """A stage that an executor runs.

    task: the stage in this run
    where: a text such as `queued` or `on n2, requeued 1x`; empty on this machine
    code: the exit code; None while the job waits, runs or has not been recorded
    trained: whether the scheduler has to record the cell; `write` then makes the result of its seeds
    """

    task: StageTask
    where: str = ""
    code: int | None = None
    trained: bool = False
    write: Callable[[], object] = lambda: None

    def fail(self, *lines: str) -> None:
        """Mark the job as failed and add these lines, the reason, to its log."""
        with open(self.task.log, "a", encoding="utf-8") as log:
            log.write("".join(f"{line}\n" for line in lines))
        self.code = 2
