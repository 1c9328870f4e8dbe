"""FINCH clustering, and class prototypes (one or several mean vectors of a class) for FPL and FedCCL.

Prototypes are sent as State(vectors (P, d), classes (P,) int64), sorted by class.
"""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pipeline.engine import State
from pipeline.errors import TrainingError

# How rows are clustered: FINCH's coarsest partition, its finest, or all in one cluster.
Representatives = Literal["finch", "first", "mean"]
# rows whose similarities to all others are held at once
BLOCK = 512
# similarities this near count as equal: the smaller index wins
ROUNDING = 1e-12


def finch(rows: Tensor, early_exit: bool = False) -> Tensor:
    """Cluster rows (n, d) by cosine distance; partitions (n, P) from fine to coarse, labels 0, 1, ... on the
    CPU.

    Every point is in one cluster with its nearest other point. The means of the clusters are the points of
    the next level. As in the authors' code, a level that leaves one cluster or changes nothing is dropped, so
    that a single cluster is returned only if the first level has one (always for n <= 3).

    early_exit: drop links of later levels that are longer than the longest of the first level, where links
        between mutual neighbours count twice (the code's default; federated methods do not use it)

    TrainingError for rows that are not finite.
    """
    rows = rows.detach().float()  # as the authors' code; all that follows is float64
    if not rows.isfinite().all():
        raise TrainingError("FINCH cannot cluster representations that are not finite")
    if not len(rows):
        return torch.zeros(0, 1, dtype=torch.int64)
    points, longest = rows.double(), None
    partitions: list[np.ndarray] = []
    while True:
        units = F.normalize(points, dim=1)
        links, lengths = _links(units, first_neighbours(units), early_exit)
        merged = _components(links if longest is None else links[:, lengths <= longest], len(points))
        before, count = len(points), int(merged.max()) + 1
        if partitions and count in (1, before):
            break
        partitions.append(merged[partitions[-1]] if partitions else merged)
        if count == 1 or before - count == 1:
            break
        if early_exit and longest is None:
            longest = lengths.max()
        points = cluster_means(rows.double(), partitions[-1])
    return torch.from_numpy(np.stack(partitions, axis=1).astype(np.int64))


def first_neighbours(units: Tensor) -> Tensor:
    """(n,): the most similar other row of each of the units (n, d), which have length one or zero.

    Of equal ones it is the first. A single row is its own neighbour. Memory: BLOCK x n.
    """
    nearest = []
    for first in range(0, len(units), BLOCK):
        similar = units[first : first + BLOCK] @ units.T
        itself = torch.arange(len(similar), device=units.device)
        similar[itself, first + itself] = -torch.inf
        nearest.append((similar >= similar.amax(1, keepdim=True) - ROUNDING).to(torch.uint8).argmax(1))
    return torch.cat(nearest)


def _links(units: Tensor, neighbours: Tensor, measured: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (2, L) that share a cluster and, if `measured`, their cosine distances (L,), double for mutual
    neighbours; else none. Pairs that merely have the same neighbour connect nothing new but have a length."""
    n, towards = len(units), neighbours.cpu().numpy()
    if not measured:
        return np.stack([np.arange(n), towards]), np.empty(0)
    steps = sparse.csr_array((np.ones(n), (np.arange(n), towards)), shape=(n, n)) + sparse.eye_array(
        n, format="csr"
    )
    pairs = (steps @ steps.T).tocoo()  # how many times each pair is linked
    distinct = pairs.row != pairs.col
    i, j, ways = pairs.row[distinct], pairs.col[distinct], pairs.data[distinct]
    vectors = units.cpu().numpy()
    return np.stack([i, j]), ways * (1 - (vectors[i] * vectors[j]).sum(1))


def _components(links: np.ndarray, n: int) -> np.ndarray:
    graph = sparse.csr_array((np.ones(links.shape[1]), (links[0], links[1])), shape=(n, n))
    return connected_components(graph, directed=True, connection="weak")[1]


def cluster_means(rows: Tensor, labels: np.ndarray | Tensor) -> Tensor:
    """(clusters, d): the mean of the rows (n, d) of each label, summed in float64 in their order."""
    labels = np.asarray(labels)
    member = sparse.csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))))
    sums = member @ rows.detach().cpu().double().numpy()
    return torch.from_numpy(sums / np.bincount(labels)[:, None]).to(rows)


def representatives(rows: Tensor, how: Representatives) -> Tensor:
    """(K, d): the means of the clusters of rows (n, d); empty without rows."""
    if not len(rows):
        return rows
    partitions = torch.zeros(len(rows), 1, dtype=torch.int64) if how == "mean" else finch(rows)
    return cluster_means(rows, partitions[:, 0 if how == "first" else -1])


def by_class(rows: Tensor, labels: Tensor, how: Representatives) -> State:
    """The representatives of each class. rows (n, d), labels (n,) -> vectors (P, d), classes (P,)."""
    present = labels.unique().tolist()
    means = [representatives(rows[labels == c], how) for c in present]
    counts = torch.tensor([len(vectors) for vectors in means], dtype=torch.int64)
    return State(
        vectors=torch.cat([rows[:0], *means]).detach(),
        classes=torch.tensor(present, dtype=torch.int64).repeat_interleave(counts).to(labels.device),
    )


def keep_missing(new: State, previous: State | None) -> State:
    """`new`, followed by the entries of `previous` for classes that `new` does not have.

    Both have `classes` (P,) and may have further tensors with a row for each vector.
    """
    if previous is None:
        return new
    missing = ~torch.isin(previous.classes, new.classes)
    return State((name, torch.cat([value, previous[name][missing]])) for name, value in new.items())


def class_averages(vectors: Tensor, classes: Tensor, count: int) -> State:
    """The mean vector of each class, from vectors (P, d): vectors (count, d), zero where known (count,) is
    False."""
    member = F.one_hot(classes, count).T.double()
    total = member.sum(1)
    means = member @ vectors.double() / total.clamp(min=1)[:, None]
    return State(vectors=means.to(vectors.dtype), known=total > 0)
