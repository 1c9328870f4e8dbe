"""Class prototypes: losses that use them, how clients compute them and how a server aggregates them."""

import math
from types import SimpleNamespace

import pytest
import torch
from federation import close, known, rows, tiny_world
from torch import nn

from pipeline.engine.state import Clients, State
from pipeline.models import Network
from pipeline.prototypes import (
    aggregate_means,
    class_sums,
    cosine,
    logged_means,
    prototype_contrast,
    prototype_distance,
    prototype_scores,
    vectors_sent,
)
from pipeline.schema import Optimiser


def test_distance_of_the_worked_example():
    """The third class is unknown."""
    z = rows([1, 2], [0, 1], [5, 5]).requires_grad_()
    loss = prototype_distance(z, torch.tensor([0, 1, 2]), rows([0, 0], [1, 1], [9, 9]), known(1, 1, 0))
    close(loss, 1.0)
    close(torch.autograd.grad(loss, z)[0], [[0.333333, 0.666667], [-0.333333, 0], [0, 0]])


def test_without_known_classes_the_distance_is_zero():
    z = rows([1, 2], [3, 4]).requires_grad_()
    loss = prototype_distance(z, torch.tensor([0, 1]), torch.zeros(2, 2), known(0, 0))
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, z)[0].any()


def test_a_representation_at_its_prototype_has_no_distance():
    z = rows([1, 2], [3, 4])
    assert prototype_distance(z, torch.tensor([1, 0]), z.flip(0)).item() == 0


def test_prototypes_are_constants_of_both_losses():
    vectors = rows([1, 1], [2, 2]).requires_grad_()
    z = rows([1, 2]).requires_grad_()
    (
        prototype_distance(z, torch.tensor([0]), vectors)
        + prototype_contrast(z, torch.tensor([0]), vectors, 0.5)
    ).backward()
    assert vectors.grad is None
    assert z.grad is not None


H, Y = [[1, 0], [1, 1], [0, 1]], torch.tensor([0, 0, 1])


OMEGA = rows([1, 0], [0, 1], [-1, 0])


@pytest.mark.parametrize(
    "tau, seen, mean", [(0.5, (1, 1, 1), 0.368249), (0.1, (1, 1, 1), 0.231095), (0.5, (1, 1, 0), 0.315668)]
)
def test_contrast_of_the_worked_examples(tau, seen, mean):
    close(prototype_contrast(rows(*H), Y, OMEGA, tau, known=known(*seen)), mean)


@pytest.mark.parametrize("seen", [(1, 0, 0), (0, 0, 0), (0, 0, 1)])
def test_without_a_rival_or_a_positive_the_contrast_is_zero(seen):
    h = rows(*H).requires_grad_()
    loss = prototype_contrast(h, torch.tensor([0, 0, 0]), OMEGA, 0.1, known=known(*seen))
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, h)[0].any()


def test_a_sample_of_an_unknown_class_counts_in_the_mean():
    h = rows(*H)
    part = prototype_contrast(h[:2], Y[:2], OMEGA, 0.5, known=known(1, 0, 1))
    close(prototype_contrast(h, Y, OMEGA, 0.5, known=known(1, 0, 1)), 2 / 3 * part.item())


def test_a_representation_of_zeros_has_cosine_zero_and_no_slope():
    z = torch.zeros(1, 2).requires_grad_()
    assert not cosine(z, OMEGA).any()
    loss = prototype_contrast(torch.relu(z), torch.tensor([0]), OMEGA, 0.1)
    assert loss.item() == pytest.approx(math.log(3))
    assert not torch.autograd.grad(loss, z)[0].any()


def test_below_the_smallest_norm_cosines_fall_with_the_length():
    z, vectors = torch.tensor([[1e-10, 0]]), torch.tensor([[1.0, 0], [1e-9, 0]])
    close(cosine(z, vectors), [[0.01, 0.001]])


def test_the_mean_over_samples_of_the_worked_example():
    """FedCRL Eq. 6."""
    actual = aggregate_means(
        torch.tensor([[[1.0, 0], [0, 2], [0, 0]], [[0, 0], [1, 1], [0, 0]]]),
        torch.tensor([[4, 1, 0], [0, 3, 0]]),
    )
    close(actual.vectors, [[1, 0], [0.75, 1.25], [0, 0]])
    assert actual.known.tolist() == [True, True, False]


def test_what_nobody_holds_stays_as_it_was():
    before = State(vectors=rows([1, 1], [2, 2], [0, 0]), known=known(1, 1, 0))
    actual = aggregate_means(torch.tensor([[[5.0, 5], [0, 0], [0, 0]]]), torch.tensor([[3, 0, 0]]), before)
    close(actual.vectors, [[5, 5], [2, 2], [0, 0]])
    assert actual.known.tolist() == [True, True, False]


def test_vectors_sent_are_of_classes_at_home_up_and_of_all_held_down():
    counts = torch.tensor([[2, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]])
    assert vectors_sent(SimpleNamespace(class_counts=counts), 10) == (10.0, 20.0)


def test_scores_are_minus_mean_squared_distances_of_known_classes():
    queries = rows([1.5, 0.5], [0.5, 2.6], [1.2, 1.9])
    restricted = prototype_scores(queries, rows([2, 0], [0, 3], [2, 2]), known(1, 1, 0))
    assert restricted.argmax(1).tolist() == [0, 1, 1]
    close(-restricted[2, :2], [2.125, 1.325])


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_class_means_by_hand(executor, monkeypatch):
    """One image x = (2, 0), features W x from W = 1, a loss of z_0 + z_1 at rate 1/4: W loses (x, x) / 4, so
    that z is (2, 0) in the first epoch, (1, -1) in the second, (0, -2) in the third."""
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)

    def network():
        return Network(nn.Sequential(nn.Flatten(1), nn.Linear(2, 2, bias=False)), nn.Linear(2, 2))

    world = tiny_world(
        monkeypatch, ([[2.0, 0.0]], [1]), network=network, optimiser=Optimiser(lr=0.25), local_epochs=3
    )
    start = Clients([world.new_model().joined({"features.1.weight": torch.eye(2)})])
    for over, wanted in (("running", [1, -1]), ("last_epoch", [0, -2])):

        def loss(model, batch, server_state, client_state, over=over):
            z = model.features(batch.images)
            return z.sum(1).mean(), class_sums(z, batch.labels, model.classes, over)

        trained = world.local_epochs(start, loss)
        close(logged_means(trained, world.class_counts).means[0], [[0, 0], wanted])
        assert logged_means(trained, world.class_counts).counts.tolist() == [[0, 1]]
        assert trained.losses == pytest.approx([0])
