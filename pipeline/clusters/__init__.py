"""Where stages run: on this machine, or the training of cells on a SLURM or a Ray cluster.

An executor takes stages as jobs and says how they end; the loop (pipeline/commands/schedule.py) does not know
which one it has. DVC stays on the user's machine: whatever trains a cell leaves its seeds in `.cells`, and
the loop records them.
"""

import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pipeline.errors import FedReproError, ParamError, unknown


@dataclass(frozen=True)
class Kind:
    """A cluster that `--on` may name (docs/adding-a-cluster.md).

    place: "module:class" of its `Cluster`, which is imported when it is asked for
    options: those of `fedrepro run` that it has; all but `cancel` are given to the class by name
    lock: the file with the packages that it needs, if it needs any
    """

    place: str
    options: tuple[str, ...] = ()
    lock: str = ""


CLUSTERS = {
    "slurm": Kind("pipeline.clusters.slurm:Slurm", ("slurm", "cancel"), "requirements/slurm.lock"),
    "ray": Kind("pipeline.clusters.ray:Ray", ("address", "gpus"), "requirements/ray.lock"),
}


def file_name(stage: str) -> str:
    """What a stage's log and mark are called, without an ending."""
    return re.sub(r"[^\w.@=-]+", "_", stage)


@dataclass(eq=False)
class Job:
    """A stage that an executor has taken.

    task: its Task of pipeline/commands/schedule.py.
    where: `queued`, `on n2, requeued 1x`; empty for this machine.
    code: the exit code; None while it waits, runs or is to be recorded.
    trained: whether the loop is to record it, with what `write` makes of its seeds.
    """

    task: Any
    where: str = ""
    code: int | None = None
    trained: bool = False
    write: Callable[[], object] = lambda: None

    def fail(self, *lines: str) -> None:
        """Failed, for the reason that these lines give in its log."""
        with open(self.task.log, "a", encoding="utf-8") as log:
            log.write("".join(f"{line}\n" for line in lines))
        self.code = 2


def executor(on: str, cores: int, jobs: int | None, options: dict[str, Any]) -> Any:
    """The executor of that name.

    on: `local`, or a name of CLUSTERS
    cores: of this machine, that its stages may share
    jobs: cells at once on a cluster; None for as many as it takes
    options: --slurm as text, --address, --gpus, --cancel
    Raises ParamError for an option of another executor, FedReproError for a missing package or cluster.
    """
    from pipeline.clusters.local import Local

    if on not in ("local", *CLUSTERS):
        raise ParamError(f"--on: {unknown('executor', on, ('local', *CLUSTERS))}")
    own = CLUSTERS[on].options if on in CLUSTERS else ()
    for name, value in options.items():
        if value and name not in own:
            having = [cluster for cluster, kind in CLUSTERS.items() if name in kind.options]
            raise ParamError(f"--{name} is an option of --on {' or '.join(having)}")
    if on == "local":
        return Local(cores)
    if on == "ray" and not hasattr(tarfile, "data_filter"):  # with which its nodes unpack
        raise FedReproError("--on ray: needs Python 3.11.4 or a later one, on every machine")
    module, _, name = CLUSTERS[on].place.partition(":")
    try:
        cluster = getattr(import_module(module), name)
    except ImportError as error:
        missing = f"--on {on} needs the package {error.name}"
        lock = CLUSTERS[on].lock
        if lock:
            missing += f", see: `.venv/bin/uv pip install --no-deps --require-hashes -r {lock}`"
        raise FedReproError(missing) from None
    return cluster(cores, jobs, **{name: options[name] for name in own if name != "cancel"})
