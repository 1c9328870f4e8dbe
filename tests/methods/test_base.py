"""What a method is that overrides nothing: the base class."""

import pytest
import torch
from federation import image_world, same

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import State
from pipeline.losses import cross_entropy
from pipeline.methods.base import Method


@pytest.fixture(scope="module")
def world():
    return image_world((5, 4))


def batch_of(world) -> Batch:
    return Batch(world.clients[0].images, world.clients[0].labels)


def test_its_models_are_scored_before_local_training():
    assert Method().headline == "pre"


def test_it_needs_one_network_for_all():
    assert Method().requires == {"one network"}


def test_it_supports_nothing_that_a_paper_has_no_rule_for():
    assert Method().supports == frozenset()


def test_a_client_holds_one_model():
    assert Method().copies == 1


def test_a_servers_model_is_deployed_at_every_client(world):
    model = world.new_model()
    deployed = Method().deployed(State(model=model), world)
    assert len(deployed) == 2
    assert all(mine is model for mine in deployed)


def test_clients_models_are_deployed_as_they_are(world):
    models = world.new_models()
    assert Method().deployed(State(models=models), world) is models


def test_newcomers_get_what_is_deployed(world):
    models = world.new_models()
    assert Method().adapted(State(models=models), world) is models


def test_after_training_clients_hold_what_they_trained(world):
    models = world.new_models()
    assert Method().after_training(State(), models) is models
    assert Method().after_training(State(), None) is None


def test_its_loss_is_the_cross_entropy(world):
    batch, model = batch_of(world), Handle(world.network(0, world.new_model()))
    wanted = cross_entropy(model(batch.images), batch.labels)
    assert torch.equal(Method().loss(model, batch, None, None), wanted)


def test_a_plain_loss_leaves_out_what_is_logged(world):
    class Logs(Method):
        def loss(self, model, batch, server_state, client_state):
            value = super().loss(model, batch, server_state, client_state)
            return value, {"twice": 2 * value}

    batch, model = batch_of(world), Handle(world.network(0, world.new_model()))
    assert torch.equal(Logs().plain_loss(model, batch), cross_entropy(model(batch.images), batch.labels))


def test_it_predicts_by_the_classifier(world):
    images, model = world.clients[0].images, Handle(world.network(0, world.new_model()))
    assert same(Method().scores(model, images, State()), model(images))


def test_it_records_nothing_and_sends_no_vectors():
    assert Method().diagnostics(State()) == {}
    assert Method().vectors(State()) is None


@pytest.mark.parametrize(
    "act",
    [
        lambda world: Method().init(world),
        lambda world: Method().round(State(), world),
        lambda world: Method().traffic(world),
    ],
    ids=["init", "round", "traffic"],
)
def test_what_every_method_must_define_is_not_implemented(act, world):
    with pytest.raises(NotImplementedError):
        act(world)
