"""Check that a stored partition fits its scenario: clients, valid indices, no test image in training.

The partition's digest detects changes; this module detects mistakes.
"""

import numpy as np

from pipeline.data.parts import Parts, Pool
from pipeline.data.store import TRAIN, Stored
from pipeline.errors import ParamError
from pipeline.schema import Scenario, Subset
from pipeline.schema.partitions import Partition


def check(parts: Parts, scenario: Scenario, stored: Stored, public: Stored | None, where: str) -> None:
    """Raises ParamError, beginning with `where` (the partition's folder), for indices out of range or
    repeated, for an image that is both trained on and tested on or that belongs to two clients, for test
    images of the official split among the training images, and for clients other than the scenario's."""
    settings = scenario.partition
    pool = Pool.of(scenario.data, stored, where)
    training: dict[str, np.ndarray] = {}
    tests = {f"the test images of {name}": part for name, part in parts.domain_test.items()}
    for (name, _), train, test in zip(parts.clients, parts.train, parts.client_test, strict=True):
        training[f"the training images of client {name}"] = train
        tests[f"the test images of client {name}"] = test
    training["the held-out images"] = parts.heldout
    for what, indices in (training | tests).items():
        _indices(indices, len(stored), what, where)
    _clients(parts, settings, pool, where)
    _disjoint(training, tests, len(stored), overlap=settings.overlap, where=where)
    for what, indices in (training | tests).items():
        if (pool.domains[indices] < 0).any():
            raise ParamError(f"{where}: {what} include some of a domain that the scenario does not use")
    for what, indices in training.items() if settings.keeps_split else ():
        if pool.test[indices].any():
            raise ParamError(f"{where}: {what} include test images of data/{scenario.data.set}")
    _public(parts.public, scenario, public, where)


def _clients(parts: Parts, settings: Partition, pool: Pool, where: str) -> None:
    if isinstance(settings, Subset):
        sizes = [len(part) for part in parts.train]
        if sizes != list(settings.sizes.values()):
            raise ParamError(
                f"{where}: clients of {sizes} images, the scenario says {list(settings.sizes.values())}"
            )
    if [name for name, _ in parts.clients] != settings.names:
        raise ParamError(f"{where}: other clients than the scenario's {', '.join(settings.names)}")
    for (name, domain), part in zip(parts.clients, parts.train, strict=True):
        if not len(part) and not settings.may_be_empty:
            raise ParamError(f"{where}: client {name} has no training images")
        if domain not in (*pool.names, *parts.domain_test):
            raise ParamError(f"{where}: client {name} is of the domain {domain!r}, which has no images")
        if domain in pool.names and (pool.domains[part] != pool.names.index(domain)).any():
            raise ParamError(f"{where}: client {name} has images of other domains than {domain}")


def _indices(indices: np.ndarray, total: int, what: str, where: str) -> None:
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ParamError(f"{where}: {what} are {indices.dtype} {indices.shape}, expected a list of indices")
    if len(indices) and not (0 <= indices.min() and indices.max() < total):
        raise ParamError(
            f"{where}: {what} go from {indices.min()} to {indices.max()}, expected 0 to {total - 1}"
        )
    if len(np.unique(indices)) != len(indices):
        raise ParamError(f"{where}: {what} name an image twice")


def _disjoint(training: dict, tests: dict, total: int, overlap: bool, where: str) -> None:
    tested = np.zeros(total, bool)
    for indices in tests.values():
        tested[indices] = True
    for what, indices in training.items():
        if tested[indices].any():
            raise ParamError(f"{where}: {what} are among the test images")
    together = np.concatenate(list(training.values()))
    if not overlap and len(np.unique(together)) != len(together):
        raise ParamError(f"{where}: an image belongs to two clients")


def _public(indices: np.ndarray, scenario: Scenario, public: Stored | None, where: str) -> None:
    if scenario.public is None or public is None:
        return
    _indices(indices, len(public), "the public images", where)
    if len(indices) != scenario.public.size:
        raise ParamError(f"{where}: {len(indices)} public images, the scenario says {scenario.public.size}")
    if (public.split[indices] != TRAIN).any():
        raise ParamError(f"{where}: test images of data/{scenario.public.set} among the public images")
