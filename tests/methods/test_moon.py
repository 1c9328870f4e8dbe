"""MOON: the contrast with the received and the last models."""

import math

import torch
from federation import B1, MLP, close, image_world, mlp, one_round, watched
from tiny import DOUBLE, start, tiny

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Params, State
from pipeline.losses import cross_entropy
from pipeline.methods.moon import Moon, model_contrast

Z = torch.tensor([[1.0, 0], [1, 1]])


GLOBAL = torch.tensor([[1.0, 1], [0, 2]])


LAST = torch.tensor([[0.0, 1], [1, 0]])


def test_moon_contrast():
    close(model_contrast(Z, GLOBAL, [LAST], 0.5), 0.455384)
    close(model_contrast(Z, GLOBAL, [LAST], 0.1), 0.346998)
    close(model_contrast(Z, GLOBAL, [LAST, -GLOBAL], 0.5), 0.493172)


def test_a_model_that_equals_both_others_has_a_contrast_of_log_two():
    """As in the second round, before its first step, of a client alone: received, last and own are one."""
    close(model_contrast(Z, Z, [Z], 0.5), math.log(2))


def test_without_negatives_the_contrast_is_zero():
    close(model_contrast(Z, GLOBAL, [], 0.5), 0.0)


def test_the_first_loss_of_a_client_alone_is_its_cross_entropy_and_mu_log_two(monkeypatch):
    world, method = tiny(monkeypatch, B1, network=mlp), Moon(mu=3.0)
    first = method.round(State(model=start(MLP), previous=State()), world)
    _, trained = one_round(method, first, world.at(2))
    model = Handle(world.network(0, first.model))
    fit = cross_entropy(model(world.clients[0].images), world.clients[0].labels)
    close(trained.losses, [fit.item() + 3 * math.log(2)])


def test_moon_loss_takes_every_buffered_model(monkeypatch):
    world = tiny(monkeypatch, B1, network=mlp)
    handle = Handle(world.network(0, start(MLP)))
    batch = Batch(torch.tensor(B1[0], dtype=DOUBLE).reshape(-1, 2, 1, 1), torch.tensor(B1[1]))
    others = [Params((n, v * scale + 0.1) for n, v in start(MLP).items()) for scale in (0.5, -0.5, 2.0)]
    method = Moon(mu=2.0)
    actual = method.loss(handle, batch, others[0], {"0": others[1], "1": others[2]})
    near_, *far = (handle.other(model).features(batch.images) for model in others)
    fit = cross_entropy(handle(batch.images), batch.labels)
    close(actual, fit + 2 * model_contrast(handle.features(batch.images), near_, far, 0.5))


def test_the_last_models_are_kept_newest_first():
    world, method = image_world(), Moon(buffer=2)
    state, ends = method.init(world), []
    for number in range(1, 4):
        state, trained = one_round(method, state, world.at(number))
        ends.append(trained.models)
    assert [id(models) for models in state.previous.values()] == [id(ends[2]), id(ends[1])]


def test_by_default_one_last_model_is_kept():
    state, trained = watched(Moon(), image_world(), 2)
    assert [id(models) for models in state.previous.values()] == [id(trained.models)]


def test_it_sends_the_whole_model():
    world = image_world()
    assert Moon().traffic(world) == (world.scalars(), world.scalars())
