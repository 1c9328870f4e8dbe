"""A method reads the world and cannot change it; what a round's training left is the trainer's to watch."""

import dataclasses
import math

import pytest
import torch
from federation import close, image_world, miniature_cells, miniature_world, one_round

from pipeline import methods
from pipeline.engine.phase import LocalOptions
from pipeline.engine.state import tensors_of
from pipeline.engine.trained import Watch
from pipeline.losses import cross_entropy

CELLS = miniature_cells()


def data_of(world) -> list[torch.Tensor]:
    return tensors_of(
        [
            *map(vars, world.clients),
            world.public_images if world.public_data else None,
            world.heldout,
            world.test,
        ]
    )


def test_every_method_is_among_the_miniatures():
    assert CELLS.keys() == set(methods.names())


@pytest.mark.parametrize("algorithm", CELLS)
def test_no_method_changes_the_world(algorithm):
    """Two rounds, the second one twice: attributes and data stay, and nothing is remembered but the state."""
    scenario, _, hyper = CELLS[algorithm].resolve()
    method, world = methods.load(algorithm, hyper, "here"), miniature_world(scenario, rounds=2)
    attributes, images = dict(vars(world)), [tensor.clone() for tensor in data_of(world)]
    state, _ = one_round(method, method.init(world), world.at(1))
    once, again = (one_round(method, state, world.at(2)) for _ in range(2))
    method.deployed(once[0], world.at(2)), method.traffic(world.at(2), once[0])
    assert vars(world).keys() == attributes.keys()
    assert all(vars(world)[name] is value for name, value in attributes.items())
    assert all(map(torch.equal, images, data_of(world)))
    assert once[1].losses == again[1].losses
    for a, b in zip(
        tensors_of([once[0], once[1].models]), tensors_of([again[0], again[1].models]), strict=True
    ):
        close(a, b, 0.0)


def test_a_world_is_frozen_and_another_round_is_another_world():
    world = image_world()
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.round = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.trained = None
    assert world.at(2).round == 2 and world.round == 0
    assert world.at(2).clients is world.clients and world.at(2).executor is world.executor


def fit(model, batch, server_state, client_state):
    return cross_entropy(model(batch.images), batch.labels)


def test_the_trainer_sees_the_last_models_and_the_last_losses():
    """A rule without a loss moves the models and leaves the losses; a phase without epochs leaves nothing."""
    world = image_world()
    world = world.at(1, watch := Watch(world.executor))
    start = world.new_models()
    assert watch.trained is None
    trained = world.local_epochs(start, fit)
    assert watch.trained.models is trained.models and watch.trained.losses == trained.losses
    assert trained.mean_loss([1, 0, 0]) == trained.losses[0]
    stepped = world.local_steps(
        trained.models, lambda model, batches, server_state, client_state: (model.params, client_state)
    )
    assert all(map(math.isnan, stepped.losses)) and math.isnan(stepped.mean_loss(world.sizes))
    assert watch.trained.models is stepped.models and watch.trained.losses == trained.losses
    idle = world.local_epochs(stepped.models, fit, options=LocalOptions(epochs=0))
    assert idle.models is stepped.models is watch.trained.models
