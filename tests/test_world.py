"""A method reads the world and cannot change it; what a round's training left is the trainer's to watch."""

import dataclasses
import math

import pytest
from federation import image_world, miniature_cells

from pipeline import methods
from pipeline.engine.phase import LocalOptions
from pipeline.engine.trained import Watch
from pipeline.losses import cross_entropy


def test_every_method_is_among_the_miniatures():
    assert miniature_cells().keys() == set(methods.names())


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
