"""The table of clusters, and the choice of the executor that `--on` names.

An executor runs stages as jobs and reports how they end. The scheduler (pipeline/commands/schedule.py) works
with any executor. DVC runs on the user's machine only: an executor that trains a cell elsewhere leaves the
finished seeds in `.cells`, and the scheduler records them.
"""

import tarfile
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pipeline.clusters.interface import Executor
from pipeline.errors import FedReproError, ParamError, unknown


@dataclass(frozen=True)
class Kind:
    """A cluster that `--on` may name (docs/adding-a-cluster.md).

    place: "module:class" of its `Cluster`; it is imported only when this cluster is used
    options: options of `fedrepro run` that it accepts; all but `cancel` are arguments of the class
    lock: the file that pins the additional packages it needs; empty if there are none
    """

    place: str
    options: tuple[str, ...] = ()
    lock: str = ""


CLUSTERS = {
    "slurm": Kind("pipeline.clusters.slurm:Slurm", ("slurm", "cancel"), "requirements/slurm.lock"),
    "ray": Kind("pipeline.clusters.ray:Ray", ("address", "gpus"), "requirements/ray.lock"),
}


def executor(on: str, cores: int, jobs: int | None, options: dict[str, Any]) -> Executor:
    """The executor of this name.

    on: `local`, or a name in CLUSTERS
    cores: number of cores of this machine that stages may use
    jobs: number of cells that train at once on a cluster; None: as many as it accepts
    options: --slurm as text, --address, --gpus, --cancel

    ParamError for an option of another executor; FedReproError if a package or the cluster is missing.
    """
    from pipeline.clusters.local import (
        Local,
    )  # here, since every module of the package imports this one first

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
    from pipeline.clusters import contract  # here, as above

    try:
        cluster = contract.found(import_module(module), name)
    except ImportError as error:
        missing = f"--on {on} needs the package {error.name}"
        lock = CLUSTERS[on].lock
        if lock:
            missing += f", see: `.venv/bin/uv pip install --no-deps --require-hashes -r {lock}`"
        raise FedReproError(missing) from None
    return contract.made(cluster, cores, jobs, {name: options[name] for name in own if name != "cancel"})
