"""Identities and worked numbers of attacks and of training on them."""

import dataclasses

import pytest
import torch
from federation import CNN4, close, image_clients, run, same, training, watched
from torch import nn

from pipeline.attacks import pgd
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import State
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedavg_plus import FedAvgPlus
from pipeline.methods.fedccl import FedCCL
from pipeline.methods.fedccl_plus import FedCCLPlus
from pipeline.models import Network

X, Y = torch.tensor([[0.2, 0.9], [0.5, 0.5]]).reshape(2, 1, 1, 2), torch.tensor([1, 0])


def linear(rows=((1.0, -1.0), (-1.0, 1.0))) -> Handle:
    network = Network(nn.Flatten(1), nn.Linear(2, 2, bias=False))
    network.head.weight.data = torch.tensor(rows)
    return Handle(network)


def pictures(sizes=(20, 33, 7), model=CNN4, **changes) -> World:
    """Clients whose pixels lie in [0, 1]."""
    clients = [dataclasses.replace(c, images=c.images.sigmoid()) for c in image_clients(sizes, model)]
    return World.create(clients, training(**changes), 10, 0)


def fgsm(model, images, labels, eps):
    return pgd(model, images, labels, eps, eps, 1, random_start=False)


def loss_at(model, images):
    return cross_entropy(model(images), Y).item()


def test_the_worked_example():
    model = linear()
    gradient = model.input_gradient(lambda x: cross_entropy(model(x), Y), X)
    close(gradient.flatten(1), [[0.197816, -0.197816], [-0.5, 0.5]])
    close(fgsm(model, X, Y, 0.3).flatten(1), [[0.5, 0.6], [0.2, 0.8]])
    close(pgd(model, X, Y, 0.3, 0.2, 3, random_start=False).flatten(1), [[0.5, 0.6], [0.2, 0.8]])
    assert loss_at(model, X) == pytest.approx(0.456782, abs=1e-6)
    assert loss_at(model, fgsm(model, X, Y, 0.3)) == pytest.approx(1.030711, abs=1e-6)
    close(pgd(model, X, Y, 0.3, 0.2, 6, random_start=True).flatten(1), [[0.5, 0.6], [0.2, 0.8]])
    first, second = (pgd(linear(), X, Y, 0.3, 1e-9, 1) for _ in range(2))
    assert torch.equal(first, second) and 0.01 < float((first - X).abs().max()) <= 0.3 + 1e-6


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
    assert torch.equal(images, saved) and not attacked.requires_grad and attacked.shape == images.shape
    assert all(p.grad is None for p in model.params.values())


FEDAVG, FEDCCL = FedAvgPlus(eps=0.1, steps=3), FedCCLPlus(eps=0.1, steps=3)


@pytest.mark.parametrize("plain, plus", [(FedAvg, FedAvgPlus), (FedCCL, FedCCLPlus)])
def test_without_eps_a_method_is_the_plain_one(plain, plus):
    ends = run(plain(), pictures(), 2)
    assert same(run(plus(eps=0), pictures(), 2), ends)
    assert not same(run(plus(eps=0.1, steps=1), pictures(), 1), run(plain(), pictures(), 1), within=1e-4)


def test_fedccl_plus_without_contrasts_is_fedavg_plus_and_so_is_its_first_round():
    plain = dataclasses.replace(FEDCCL, local_contrast=False, global_contrast=False)
    assert same(run(plain, pictures(), 2).model, run(FEDAVG, pictures(), 2).model)
    assert not same(run(FEDCCL, pictures(), 2).model, run(FEDAVG, pictures(), 2).model)
    assert same(run(FEDCCL, pictures(), 1).model, run(FEDAVG, pictures(), 1).model)


def test_signals_come_from_clean_images_and_the_trained_models():
    world = pictures()
    state, trained = watched(FEDCCL, world, 1)
    assert same(state.signals, FedCCL().signals(trained.models, None, world))


def test_the_loss_is_that_of_the_attacked_images_alone():
    world = pictures()
    model, client = Handle(world.network(0, world.new_model())), world.clients[0]
    batch = Batch(client.images, client.labels)
    value = FedAvgPlus(eps=0.1, random_start=False, steps=2).loss(model, batch, State(), None)
    attacked = pgd(model, client.images, client.labels, 0.1, 0.025, 2, random_start=False)
    assert torch.equal(value, cross_entropy(model(attacked), client.labels))


def test_pixels_out_of_range_are_refused():
    for method in (FEDAVG, FEDCCL):
        with pytest.raises(TrainingError, match=r"client c0: attacks need pixels in \[0, 1\]"):
            method.init(World.create(image_clients((20,)), training(), 10, 0))
