"""Attacks: the worked example, and what holds of every attacked image."""

import pytest
import torch
from federation import close, pictures
from torch import nn

from pipeline.attacks import pgd
from pipeline.engine.handle import Handle
from pipeline.losses import cross_entropy
from pipeline.models import Network

X, Y = torch.tensor([[0.2, 0.9], [0.5, 0.5]]).reshape(2, 1, 1, 2), torch.tensor([1, 0])


def linear(rows=((1.0, -1.0), (-1.0, 1.0))) -> Handle:
    network = Network(nn.Flatten(1), nn.Linear(2, 2, bias=False))
    network.head.weight.data = torch.tensor(rows)
    return Handle(network)


def fgsm(model, images, labels, eps):
    return pgd(model, images, labels, eps, eps, 1, random_start=False)


def loss_at(model, images):
    return cross_entropy(model(images), Y).item()


def test_the_gradient_of_the_worked_example():
    model = linear()
    gradient = model.input_gradient(lambda x: cross_entropy(model(x), Y), X)
    close(gradient.flatten(1), [[0.197816, -0.197816], [-0.5, 0.5]])


def test_one_step_of_the_worked_example():
    close(fgsm(linear(), X, Y, 0.3).flatten(1), [[0.5, 0.6], [0.2, 0.8]])


def test_more_steps_end_at_the_edge_of_the_ball():
    close(pgd(linear(), X, Y, 0.3, 0.2, 3, random_start=False).flatten(1), [[0.5, 0.6], [0.2, 0.8]])
    close(pgd(linear(), X, Y, 0.3, 0.2, 6, random_start=True).flatten(1), [[0.5, 0.6], [0.2, 0.8]])


def test_the_losses_of_the_worked_example():
    model = linear()
    assert loss_at(model, X) == pytest.approx(0.456782, abs=1e-6)
    assert loss_at(model, fgsm(model, X, Y, 0.3)) == pytest.approx(1.030711, abs=1e-6)


def test_a_random_start_is_drawn_by_key_within_the_ball():
    first, second = (pgd(linear(), X, Y, 0.3, 1e-9, 1) for _ in range(2))
    assert torch.equal(first, second)
    assert 0.01 < float((first - X).abs().max()) <= 0.3 + 1e-6


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("eps, step, steps", [(0.3, 0.01, 20), (0.1, 0.4, 3), (0.5, 0.25, 10)])
def test_attacked_images_stay_in_the_ball_and_in_range_and_hurt(eps, step, steps, start):
    world = pictures((40,))
    model = Handle(world.network(0, world.new_model()))
    images = world.clients[0].images
    labels = world.clients[0].labels
    before, saved = cross_entropy(model(images), labels), images.clone()
    attacked = pgd(model, images, labels, eps, step, steps, start)
    assert attacked.min() >= 0
    assert attacked.max() <= 1
    assert float((attacked - images).abs().max()) <= eps + 1e-6
    assert cross_entropy(model(attacked), labels) > before
    assert torch.equal(images, saved)
    assert not attacked.requires_grad
    assert attacked.shape == images.shape
    assert all(p.grad is None for p in model.params.values())
