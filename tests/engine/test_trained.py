"""What a round's trainer sees of its local phases."""

import dataclasses
import math
import weakref

import pytest
import torch
from federation import image_world, same

from pipeline.engine.phase import LocalOptions
from pipeline.engine.trained import Watch
from pipeline.engine.world import supervised
from pipeline.errors import TrainingError
from pipeline.schema import Optimiser


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


@pytest.mark.parametrize("changes", [{}, {"participation": 2}, {"averaging": "uniform"}, {"local_epochs": 2}])
def test_models_that_are_dropped_have_the_same_mean_and_losses(changes):
    world = image_world((20, 33, 0, 7, 12), **changes)
    kept, dropping = (Watch(world.executor, keep) for keep in (True, False))
    model = world.new_model()
    expected, mean = (world.at(1, watch).local_mean(model, supervised) for watch in (kept, dropping))
    assert same(mean, expected)
    now = world.at(1)
    assert same(mean, now.average(now.local_epochs(now.everyone(model), supervised).models))
    assert not same(mean, model)
    assert str(dropping.trained.losses) == str(kept.trained.losses)
    assert len(kept.trained.models) == 5
    assert len(dropping.trained.models) == 0


def test_of_models_that_are_dropped_one_is_held_at_a_time():
    """What reads them holds the last one, and the first for its entries' types."""
    world = image_world((5,) * 12)
    alive: weakref.WeakSet = weakref.WeakSet()
    held = []

    class Counting(Watch):
        def each(self, phase):
            for k, result in super().each(phase):
                alive.add(result[0]["head.weight"])
                held.append(len(alive))
                yield k, result

    for keep, most in ((False, 3), (True, 0)):
        held.clear()
        world.at(1, Counting(world.executor, keep)).local_mean(world.new_model(), supervised)
        assert max(held, default=0) == most


def test_a_loss_that_is_not_finite_ends_both_ways_with_the_same_words():
    """The third client's images are not finite; the second has none."""
    world = image_world((20, 0, 7), optimiser=Optimiser(lr=0.1))
    broken = dataclasses.replace(world.clients[2], images=world.clients[2].images * torch.nan)
    world = dataclasses.replace(world, clients=(*world.clients[:2], broken)).at(4)
    words = []
    for keep in (True, False):
        watched = world.at(4, Watch(world.executor, keep))
        with pytest.raises(TrainingError) as error:
            watched.local_mean(world.new_model(), supervised)
        words.append(str(error.value))
    assert words[0] == words[1]
    assert words[0].startswith("seed 0, round 4, client c2: the training loss is nan; last finite loss of")
    assert words[0].endswith("(client c0)")


def test_a_parameter_that_is_not_finite_names_its_client():
    world = image_world((20, 7, 9)).at(2)

    def step(model, batches, server_state, client_state):
        worse = torch.nan if len(batches[0].labels) == 7 else 1.0
        return {name: value * worse for name, value in model.params.items()}, client_state

    with pytest.raises(TrainingError, match="round 2, client c1: a parameter is no longer finite"):
        world.local_steps(world.new_models(), step)
