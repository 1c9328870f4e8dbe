"""Data structures for partitioning: the images to divide, the image indices of each client, random
generators."""

from dataclasses import dataclass, field

import numpy as np

from pipeline.data.store import Stored
from pipeline.errors import ParamError, unknown
from pipeline.schema import Data
from pipeline.schema.partitions import Partition

PRIVATE, PUBLIC, HELDOUT = 0, 1, 2  # purposes, whose random numbers are independent of each other


@dataclass(frozen=True)
class Pool:
    """Labels, domains and official split of a stored set, and the printed names of the domains in use.

    labels (N,), domains (N,) index into `names`, -1 where the scenario leaves the domain out; test (N,) bool;
    columns: further (N,) arrays of the set by their names.
    """

    labels: np.ndarray
    domains: np.ndarray
    test: np.ndarray
    names: list[str]
    classes: int
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Data, stored: Stored, where: str) -> "Pool":
        """The stored set seen through the scenario's printed domain names."""
        known = stored.meta["domains"]
        chosen = data.domains or {name: name for name in known}
        for printed, name in chosen.items():
            if name not in known:
                raise ParamError(f"{where}.domains.{printed}: {unknown('domain', name, known)}")
        number = np.full(len(known), -1)
        for i, name in enumerate(chosen.values()):
            number[known.index(name)] = i
        return cls(
            np.asarray(stored.labels),
            number[np.asarray(stored.domains)],
            np.asarray(stored.split) == 1,
            list(chosen),
            len(stored.meta["classes"]),
            stored.columns,
        )

    def of_domain(self, domain: int, test: bool | None = None) -> np.ndarray:
        """Indices of a domain's images, in stored order; only of the test or training part with `test`."""
        here = self.domains == domain
        return np.flatnonzero(here if test is None else here & (self.test == test))

    def by_class(self, indices: np.ndarray) -> list[np.ndarray]:
        """The indices of every class, in their order."""
        return [indices[self.labels[indices] == label] for label in range(self.classes)]


@dataclass
class Parts:
    """Index arrays into the stored set: each client's training and test images, each domain's test
    images, and the training images that no client gets; `public` indexes the public set."""

    clients: list[tuple[str, str]]  # (printed name, printed domain)
    train: list[np.ndarray]
    client_test: list[np.ndarray]
    domain_test: dict[str, np.ndarray]
    warnings: list[str] = field(default_factory=list)
    public: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    heldout: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def generator(settings: Partition, purpose: int, draw: int) -> np.random.Generator:
    """The random generator of one purpose in one draw. NumPy pads a key with zeros, so draw 0 has the same
    numbers as the key without a draw."""
    return np.random.default_rng([settings.seed, purpose, draw])
