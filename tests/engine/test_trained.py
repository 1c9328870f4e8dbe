"""What a round's trainer sees of its local phases."""

import math

import pytest
from federation import image_world

from pipeline.engine.phase import LocalOptions
from pipeline.engine.trained import Watch
from pipeline.engine.world import supervised


@pytest.fixture
def watched():
    """A world in round 1, its watch, and what a phase of local epochs left."""
    world = image_world()
    watch = Watch(world.executor)
    world = world.at(1, watch)
    assert watch.trained is None
    return world, watch, world.local_epochs(world.new_models(), supervised)


def moved(world, models):
    """A phase by a rule without a loss."""
    return world.local_steps(
        models, lambda model, batches, server_state, client_state: (model.params, client_state)
    )


def test_the_trainer_sees_models_and_losses_of_a_phase(watched):
    _, watch, trained = watched
    assert watch.trained.models is trained.models
    assert watch.trained.losses == trained.losses
    assert trained.mean_loss([1, 0, 0]) == trained.losses[0]


def test_a_rule_without_a_loss_has_none(watched):
    world, _, trained = watched
    stepped = moved(world, trained.models)
    assert all(map(math.isnan, stepped.losses))
    assert math.isnan(stepped.mean_loss(world.sizes))


def test_a_rule_without_a_loss_moves_the_models_and_leaves_the_losses(watched):
    world, watch, trained = watched
    stepped = moved(world, trained.models)
    assert watch.trained.models is stepped.models
    assert watch.trained.losses == trained.losses


def test_a_phase_without_epochs_leaves_nothing(watched):
    world, watch, trained = watched
    stepped = moved(world, trained.models)
    idle = world.local_epochs(stepped.models, supervised, options=LocalOptions(epochs=0))
    assert idle.models is stepped.models is watch.trained.models
