"""What a cluster's class must have and return (docs/adding-a-cluster.md). One line tells what it lacks."""

import inspect
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pipeline.errors import FedReproError
from pipeline.schema import shorten

if TYPE_CHECKING:
    from pipeline.clusters.cluster import Cluster, Sent


def found(module: ModuleType, name: str) -> type["Cluster"]:
    """The cluster's class in a module.

    Raises FedReproError if the module has no such class, or if the class lacks a method.
    """
    from pipeline.clusters.cluster import Cluster  # which imports this module

    value = getattr(module, name, None)
    if not inspect.isclass(value):
        raise FedReproError(f"{_file(module)}: expected a class {name}, as CLUSTERS names it")
    if not issubclass(value, Cluster):
        raise FedReproError(f"{_place(value)}: expected a subclass of pipeline.clusters.cluster.Cluster")
    needed = ["send", "states"]
    if value.outlives:
        needed.append("end")
    for method in needed:
        if getattr(value, method) is getattr(Cluster, method):
            raise FedReproError(f"{_place(value)}: has no method {method}{_signature(Cluster, method)}")
    return value


def made(kind: type["Cluster"], cores: int, jobs: int | None, options: dict[str, Any]) -> "Cluster":
    """An executor of this class.

    cores    number of cores of this machine that stages may use
    jobs     number of cells that train at once; None: as many as the cluster accepts
    options  what `fedrepro run` was given for this cluster, by name

    Raises FedReproError if the constructor takes other arguments, or leaves the object without what the base
    class needs.
    """
    try:
        inspect.signature(kind).bind(cores, jobs, **options)
    except TypeError as error:
        wanted = ", ".join(["cores", "jobs", *options])
        raise FedReproError(f"{_place(kind)}: is called as {kind.__name__}({wanted}): {error}") from None
    arguments = (cores, jobs)
    cluster = kind(*arguments, **options)  # type: ignore[arg-type]  # a subclass has arguments of its own
    if not hasattr(cluster, "pending"):
        raise FedReproError(f"{_place(kind)}: __init__ does not call super().__init__(cores)")
    title = getattr(cluster, "title", None)
    if not isinstance(title, str) or not title:
        raise FedReproError(f"{_place(kind)}: expected a text as `title`, {_found(title)}")
    return cluster


def wrong_in_send(cluster: "Cluster", jobs: list["Sent"], held: object) -> str:
    """What is wrong with the answer of `send`; empty if nothing is.

    jobs  what it was given
    held  what it returned
    """
    place = f"{_place(type(cluster))}: send"
    if not isinstance(held, list):
        return f"{place}: expected a list of the jobs without room, such as [], {_found(held)}"
    for job in held:
        if not any(job is given for given in jobs):
            return f"{place}: returned a job that it was not given, {_found(job)}"
    for job in jobs:
        if job.code is not None or any(job is other for other in held):
            continue
        for key in ("id", "name"):
            value = getattr(job, key)
            if not isinstance(value, str) or not value:
                return f"{place}: expected a text as `{key}` of the job of {job.order.cell}, {_found(value)}"
    return ""


def checked_states(cluster: "Cluster", answer: object) -> dict[tuple[str, str], str]:
    """The answer of `states`; FedReproError if it is of another kind."""
    place = f"{_place(type(cluster))}: states"
    if not isinstance(answer, dict):
        raise FedReproError(f"{place}: expected a mapping of (id, name) to a text, {_found(answer)}")
    for key, where in answer.items():
        is_pair = isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key)
        if not is_pair:
            raise FedReproError(f"{place}: expected a pair of texts, (id, name), as key, {_found(key)}")
        if not isinstance(where, str) or not where:
            raise FedReproError(f"{place}: expected a text that says where job {key[0]} is, {_found(where)}")
    return answer


def check_end(cluster: "Cluster", answer: object) -> None:
    """FedReproError if `end` returned something: a coroutine or a generator has ended no job."""
    if answer is not None:
        place = f"{_place(type(cluster))}: end"
        raise FedReproError(f"{place}: expected that it ends the jobs and returns nothing, {_found(answer)}")


def _place(kind: type) -> str:
    """`pipeline/clusters/mine.py: class Mine`."""
    return f"{_file(inspect.getmodule(kind))}: class {kind.__name__}"


def _file(module: ModuleType | None) -> str:
    path = getattr(module, "__file__", None)
    return shorten(Path(path)) if path else "?"


def _signature(kind: type, method: str) -> str:
    """The names of its arguments: `(jobs)`."""
    names = list(inspect.signature(getattr(kind, method)).parameters)[1:]
    return f"({', '.join(names)})"


def _found(value: object) -> str:
    return f"not {value!r:.80}"
