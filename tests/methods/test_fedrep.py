"""FedRep: first the head, then the features."""

import pytest
from federation import MLP, TINY, image_world, mlp, run, same
from tiny import body, head, start, tiny

from pipeline.engine.state import Clients, State
from pipeline.methods.fedrep import FedRep

ONCE = ([[0.559528, -0.119233], [0.040472, 0.219233]], [0.006415, 0.093585])  # a head's epochs


TWICE = ([[0.604945, -0.055362], [-0.004945, 0.155362]], [0.001201, 0.098799])


@pytest.mark.parametrize(
    "tau_h, tau_b, below, above",
    [
        (1, 1, ([[1.025725, 0.052608], [-0.028604, 0.978489]], [0.009699, 0.091744]), ONCE),
        (0, 1, ([[1.026128, 0.046547], [-0.049247, 0.959940]], [0.011991, 0.081936]), TINY.values()),
        (2, 1, ([[1.023439, 0.054779], [-0.015679, 0.989214]], [0.006486, 0.096639]), TWICE),
        (2, 0, ([[1, 0], [0, 1]], [0, 0.1]), TWICE),
    ],
)
def test_fedrep_phases_of_the_mlp(monkeypatch, tau_h, tau_b, below, above):
    world, model = tiny(monkeypatch, network=mlp), start(MLP)
    method = FedRep(head_epochs=tau_h, feature_epochs=tau_b)
    state = method.round(State(features=model.features, heads=Clients([model.head])), world)
    body(state.features, *below)
    head(state.heads[0], *above)


def test_fedrep_takes_the_scenarios_epochs_for_the_features():
    world = image_world(local_epochs=2)
    given = run(FedRep(head_epochs=1, feature_epochs=2), world, 1)
    assert same(run(FedRep(head_epochs=1), world, 1).features, given.features)


def test_it_sends_the_features():
    world = image_world()
    assert FedRep().traffic(world) == (world.scalars("features"),) * 2


def test_by_default_the_head_has_ten_epochs():
    assert FedRep().head_epochs == 10


@pytest.mark.parametrize(
    "changes, epochs", [({}, 4), ({"unseen": 2, "adaptation": 3}, 3)], ids=["default", "scenario"]
)
def test_newcomers_train_the_head_as_long_as_others_or_as_the_scenario_says(changes, epochs):
    assert FedRep(head_epochs=4).adaptation_epochs(image_world((20, 7), **changes)) == epochs
