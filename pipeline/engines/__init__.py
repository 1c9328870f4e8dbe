"""Where stages run: on this machine, or the training of cells on a cluster.

An engine takes a stage, says what became of it, and can cancel it; the scheduler
(pipeline/commands/schedule.py) does not know which engine it has. DVC stays on the user's machine: a cluster
trains cells and leaves their seeds in `.cells`; `pipeline/engines/recording.py` makes results of them.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import FedReproError, ParamError, unknown

ENGINES = ("local", "slurm", "ray")


def file_name(stage: str) -> str:
    """What a stage's log and mark are called, without an ending."""
    return re.sub(r"[^\w.@=-]+", "_", stage)


class Task(Protocol):
    """What an engine needs to know of a stage (pipeline/commands/schedule.py)."""

    stage: Any  # DVC's own
    name: str
    log: Path
    cell: str | None
    workers: int
    upstream: list

    @property
    def events(self) -> Path: ...


class Job(Protocol):
    """A stage that an engine has taken."""

    def poll(self) -> int | None:
        """The exit code; None while it waits, runs or is recorded."""

    def wait(self) -> int | None:
        """The exit code of what `close` has ended; None for what goes on elsewhere."""

    @property
    def where(self) -> str:
        """`queued`, `on n2, requeued once`; empty for this machine."""


class Engine(Protocol):
    """Runs stages."""

    cores: int  # that stages of this machine may share

    def far(self, task: Task) -> bool:
        """Does the stage take no core of this machine?"""

    def submit(self, task: Task, force: bool) -> Job:
        """Run the stage, or attach to it where it runs already."""

    def poll(self) -> None:
        """Look what has become of the jobs."""

    def cancel(self, tasks: Sequence[Task]) -> int:
        """End what an earlier call has left running of these stages; how many jobs that was."""

    def close(self) -> str:
        """End what must not outlive this process; a sentence on what goes on, or nothing."""

    def kill(self) -> None:
        """The same at once, for an impatient user."""


def engine(on: str, local: Engine, jobs: int | None, options: dict[str, str]) -> Engine:
    """The engine of that name. `options`: --slurm as text, --address, --gpus; ParamError for one that it does
    not take, FedReproError where its package or its cluster is missing."""
    if on not in ENGINES:
        raise ParamError(f"--on: {unknown('engine', on, ENGINES)}")
    of = {"slurm": "slurm", "address": "ray", "gpus": "ray", "cancel": "slurm"}
    for name, value in options.items():
        if value and of[name] != on:
            raise ParamError(f"--{name} is an option of --on {of[name]}")
    if on == "local":
        return local
    try:
        if on == "slurm":
            from pipeline.engines.slurm import Slurm

            return Slurm(local, jobs, options["slurm"])
        from pipeline.engines.ray import Ray

        return Ray(local, jobs, options["address"], options["gpus"])
    except ImportError as error:
        raise FedReproError(
            f"--on {on} needs the package {error.name}, which is not installed here: "
            f"`.venv/bin/uv pip install --no-deps --require-hashes -r requirements/{on}.lock`"
        ) from None
