"""Worked numbers and identities of FINCH, and vectors per class made with it."""

import numpy as np
import pytest
import torch
from federation import close
from scipy.sparse.csgraph import connected_components

from pipeline import clustering
from pipeline.clustering import (
    by_class,
    class_averages,
    cluster_means,
    finch,
    first_neighbours,
    keep_missing,
    representatives,
)
from pipeline.engine.state import State
from pipeline.errors import TrainingError

TWELVE = torch.tensor(
    [
        [1, 0.02],
        [1, 0.10],
        [1, 0.35],
        [1, 0.48],
        [0.02, 1],
        [0.12, 1],
        [0.5, 1],
        [0.6, 1],
        [-1, 0.1],
        [-1, 0.15],
        [-1, -0.3],
        [-1, -0.45],
    ]
)


def counts(partitions):
    return [len(column.unique()) for column in partitions.T]


def same_partition(a, b) -> bool:
    """Up to the names of the labels."""
    return len(set(zip(a.tolist(), b.tolist()))) == len(set(a.tolist())) == len(set(b.tolist()))


def same_partitions(a, b) -> bool:
    return a.shape == b.shape and all(same_partition(x, y) for x, y in zip(a.T, b.T))


def inputs(many=60, seed=0):
    """Rows without near ties: Gaussian, rectified (with rows of zeros) and in groups."""
    rng = np.random.default_rng(seed)
    for trial in range(many):
        n, d = int(rng.integers(1, 120)), int(rng.integers(3, 40))
        x = rng.normal(size=(n, d))
        if trial % 3 == 1:
            x = np.maximum(x, 0)
        elif trial % 3 == 2:
            x = 3 * rng.normal(size=(6, d))[rng.integers(0, 6, n)] + 0.3 * x
        yield torch.from_numpy(x.astype(np.float32))


def neighbours_by_hand(x):
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    distance = 1 - unit @ unit.T
    np.fill_diagonal(distance, np.inf)
    return (distance.argmin(1) if len(x) > 1 else np.zeros(1, int)), distance


def links_by_hand(towards):
    """The link matrix: in how many ways i and j are linked."""
    n = len(towards)
    m = np.array(
        [
            [(towards[i] == j) + 0 + (towards[j] == i) + (towards[i] == towards[j]) for j in range(n)]
            for i in range(n)
        ]
    )
    np.fill_diagonal(m, 0)
    return m


def finch_by_hand(rows, early_exit):
    """FINCH's steps, on dense matrices."""
    rows = rows.double().numpy()
    points, actual, least = rows, [], None
    while True:
        towards, distance = neighbours_by_hand(points)
        m = links_by_hand(towards)
        weighted = np.where(m > 0, m * np.where(np.isinf(distance), 0, distance), 0)
        count, merged = connected_components((m > 0) if least is None else (m > 0) & (weighted <= least))
        labels = merged[actual[-1]] if actual else merged
        if actual and (count == 1 or count == len(points)):
            break
        actual.append(labels)
        if len(actual) > 1 and len(points) - count == 1:
            break
        if early_exit and len(actual) == 1 and len(rows) > 2:
            least = weighted.max()
        points = np.stack([rows[labels == c].mean(0) for c in range(count)])
    return torch.from_numpy(np.stack(actual, axis=1))


def test_a_few_points_in_the_plane():
    actual = finch(TWELVE)
    assert actual.dtype == torch.int64
    assert counts(actual) == [6, 3]
    assert actual[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert actual[:, 1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    close(representatives(TWELVE, "finch"), torch.tensor([[1, 0.2375], [0.31, 1], [-1, -0.125]]), 1e-5)
    assert len(representatives(TWELVE, "first")) == 6
    close(representatives(TWELVE, "mean"), TWELVE.mean(0, keepdim=True), 1e-5)
    assert counts(finch(TWELVE, early_exit=True)) == [6]
    four = finch(torch.tensor([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]))
    assert counts(four) == [2]
    assert four[:, 0].tolist() == [0, 0, 1, 1]
    assert finch(torch.tensor([[1.0, 0], [0, 1], [-1, 0]])).tolist() == [[0], [0], [0]]


@pytest.mark.parametrize("early_exit", [False, True])
def test_its_steps_on_dense_matrices(early_exit):
    depths = set()
    few = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (1, 2, 3)]
    for rows in [*few, *inputs()]:
        wanted = finch_by_hand(rows, early_exit)
        assert same_partitions(finch(rows, early_exit), wanted)
        depths.add(wanted.shape[1])
    assert len(depths) > 1  # some of them have several levels


def test_equal_rows_and_rows_of_zeros():
    rows = torch.tensor([[0.3, 0.7, 0.1]]).repeat(5, 1)
    assert first_neighbours(torch.nn.functional.normalize(rows.double())).tolist() == [1, 0, 0, 0, 0]
    assert finch(rows).tolist() == [[0]] * 5
    assert finch(torch.zeros(6, 3)).tolist() == [[0]] * 6
    rows = torch.tensor([[1, 0.1], [1, 0.2], [-1, 0], [0, 0], [-1, 0.1]])
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    assert first_neighbours(unit).tolist() == [1, 0, 4, 0, 2]
    assert first_neighbours(unit[:4]).tolist() == [1, 0, 3, 0]  # nearer than what points away
    assert finch(rows).tolist() == [[0], [0], [1], [0], [1]]
    assert representatives(rows, "finch").isfinite().all()


def test_blocks_change_nothing(monkeypatch):
    rows = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    whole = finch(rows)
    monkeypatch.setattr(clustering, "BLOCK", 7)
    assert torch.equal(finch(rows), whole)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_refused(bad):
    with pytest.raises(TrainingError, match="not finite"):
        finch(torch.tensor([[1.0, 0], [bad, 1], [0, 1]]))


def test_vectors_of_classes():
    rows, labels = torch.cat([TWELVE, -TWELVE[:1]]), torch.tensor([7] * 12 + [2])
    actual = by_class(rows, labels, "finch")
    assert actual.classes.tolist() == [2, 7, 7, 7]
    close(actual.vectors, torch.tensor([[-1, -0.02], [1, 0.2375], [0.31, 1], [-1, -0.125]]), 1e-5)
    none = by_class(rows[:0], labels[:0], "finch")
    assert none.vectors.shape == (0, 2)
    assert none.classes.shape == (0,)
    assert none.classes.dtype == torch.int64
    old = State(
        vectors=torch.tensor([[1.0, 1], [2, 2], [3, 3]]),
        classes=torch.tensor([0, 1, 1]),
        owners=torch.tensor([4, 5, 6]),
    )
    new = State(vectors=torch.tensor([[9.0, 9]]), classes=torch.tensor([0]), owners=torch.tensor([7]))
    saved = keep_missing(new, old)
    assert saved.vectors.tolist() == [[9, 9], [2, 2], [3, 3]]
    assert saved.classes.tolist() == [0, 1, 1]
    assert saved.owners.tolist() == [7, 5, 6]
    assert keep_missing(new, None) is new
    actual = class_averages(torch.tensor([[1.0, 0], [0, 1], [4, 4]]), torch.tensor([2, 2, 0]), 4)
    assert actual.vectors.tolist() == [[4, 4], [0, 0], [0.5, 0.5], [0, 0]]
    assert actual.known.tolist() == [True, False, True, False]
    rows = torch.tensor([[1e8], [1.0], [-1e8], [4.0]])
    assert cluster_means(rows, torch.tensor([0, 0, 0, 1])).tolist() == [[pytest.approx(1 / 3)], [4.0]]
    assert cluster_means(rows.double(), np.array([1, 0, 0, 0])).dtype == torch.float64
