"""Ditto: a personal model beside FedAvg's."""

import pytest
from federation import image_world, run, same
from tiny import ANCHOR, head, start, tiny

from pipeline.engine.phase import LocalOptions
from pipeline.engine.state import Clients, State
from pipeline.methods.ditto import Ditto
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import Model, Optimiser


@pytest.mark.parametrize(
    "lam, v",
    [
        (1.0, ([[0.545388, -0.059122], [0.016612, 0.216122]], [0.020562, 0.079438])),
        (10.0, ([[0.413422, 0.048007], [-0.013422, 0.351993]], [0.081933, 0.018067])),
    ],
)
def test_ditto_two_batches_of_the_tiny_head(monkeypatch, lam, v):
    state = Ditto(lam=lam).round(State(model=start(ANCHOR), personal=Clients([start()])), tiny(monkeypatch))
    head(state.personal[0], *v)


def test_dittos_global_model_is_fedavgs_bit_for_bit():
    setting = dict(model=Model("cnn4", dropout=0.3), optimiser=Optimiser("adam", 0.003))
    average = run(FedAvg(), image_world(**setting)).model
    for lam in (0.0, 1.0, 10.0):
        assert same(run(Ditto(lam=lam), image_world(**setting)).model, average)


def test_it_sends_the_whole_model():
    world = image_world()
    assert Ditto().traffic(world) == (world.scalars(), world.scalars())


def test_clients_are_scored_by_their_personal_models():
    world = image_world()
    state = run(Ditto(), world, 1)
    assert Ditto().deployed(state, world) is state.personal


@pytest.mark.parametrize(
    "changes, epochs", [({}, 2), ({"unseen": 2, "adaptation": 3}, 3)], ids=["default", "scenario"]
)
def test_newcomers_train_as_long_as_a_personal_model_or_as_the_scenario_says(changes, epochs):
    world = image_world((20, 7), **changes).at(4)
    state = State(model=world.new_model())
    options = LocalOptions(epochs=epochs)
    wanted = world.local_epochs(world.everyone(state.model), FedAvg().loss, options=options).models
    assert same(Ditto(lam=0.0, personal_epochs=2).adapted(state, world), wanted)
