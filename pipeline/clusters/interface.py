"""Executor: what `fedrepro run` asks of a place where stages run, this machine or a cluster."""

from collections.abc import Sequence
from typing import Protocol

from pipeline.clusters.job import Job, StageTask


class Executor(Protocol):
    """Runs stages. `Local` does so on this machine; a `Cluster` trains cells elsewhere."""

    # of this machine that stages may use
    cores: int

    def far(self, task: StageTask) -> bool:
        """Whether the stage uses no core of this machine."""
        ...

    def submit(self, task: StageTask, force: bool) -> Job:
        """Start a stage, or attach to it if it runs already.

        task   its output goes to `task.log`
        force  whether it runs although its outputs are up to date
        """
        ...

    def poll(self) -> None:
        """Set `code` or `trained` of the jobs that have ended since the last call, and `where` of the
        others. It is called several times a second and must not wait."""
        ...

    def close(self) -> str:
        """End what must not outlive this process.

        Returns a sentence about what continues without it; empty if nothing does.
        """
        ...

    def kill(self) -> None:
        """Do the same at once: the user has pressed Ctrl-C a second time."""
        ...

    def cancel(self, tasks: Sequence[StageTask]) -> int:
        """End the jobs of these stages that an earlier process left; returns how many there were."""
        ...
