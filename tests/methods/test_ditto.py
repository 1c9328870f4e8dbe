"""Ditto: a personal model beside FedAvg's."""

import pytest
from federation import image_world, run, same
from tiny import ANCHOR, head, start, tiny

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
