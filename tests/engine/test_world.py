"""World: local epochs, batches, clients without data, counts of scalars; a world cannot be changed."""

import dataclasses
import math

import pytest
import torch
from federation import image_world, same

from pipeline.engine.phase import LocalOptions
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import Model


def test_a_loss_sees_the_parts_that_are_trained():
    world, seen = image_world(), []

    def loss(model, batch, *_):
        seen.append(set(model.params))
        return model(batch.images).sum()

    world.local_epochs(world.new_models(), loss, options=LocalOptions("head"))
    assert seen[0] == {"head.weight", "head.bias"}


def test_a_client_without_data_keeps_its_model_and_has_no_loss():
    world = image_world(sizes=(20, 0, 7))
    start = world.new_model()
    end = world.local_epochs(world.everyone(start), FedAvg().loss)
    assert same(end.models[1], start)
    assert math.isnan(end.losses[1])
    assert math.isfinite(end.mean_loss(world.sizes))


@pytest.mark.parametrize(
    "n, setting, steps",
    [
        (33, {}, [16, 16, 1]),
        (33, {"drop_last": True}, [16, 16]),
        (16, {}, [16]),
        (7, {"drop_last": True}, []),
        (1, {}, [1]),
        (17, {"model": Model("resnet10")}, [16]),  # BatchNorm takes no single image
    ],
)
def test_last_incomplete_batch(n, setting, steps):
    world, seen = image_world(sizes=(n,), **setting), []

    def loss(model, batch, server_state, client_state):
        seen.append(len(batch.labels))
        return cross_entropy(model(batch.images), batch.labels)

    world.local_epochs(world.new_models(), loss)
    assert seen == steps


def test_every_epoch_uses_every_image_once_in_a_new_order():
    world, seen = image_world(sizes=(33,), local_epochs=2), []

    def loss(model, batch, *_):
        seen.append(batch.labels)
        return cross_entropy(model(batch.images), batch.labels)

    world.local_epochs(world.new_models(), loss)
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert torch.equal(first.sort().values, second.sort().values)
    assert not torch.equal(first, second)


def test_a_loss_that_is_not_finite_stops_with_round_client_and_last_good_loss():
    world = image_world()
    state = FedAvg().round(FedAvg().init(world), world)
    world = world.at(2)

    def broken(model, batch, server_state, client_state):
        return (
            model(batch.images).sum()
            * (math.nan if len(world.clients[1].labels) and batch.labels.shape[0] == 1 else 1)
            * 0
        )

    with pytest.raises(TrainingError, match=r"round 2, client c1: the training loss is nan; .*client c0"):
        world.local_epochs(world.everyone(state.model), broken)


def test_clients_of_one_network_start_from_one_model():
    models = image_world().new_models()
    assert same(models[0], models[2])


def test_clients_of_different_networks_start_apart():
    """Also those that hold the same one."""
    mixed = image_world(model=[Model("cnn4"), Model("cnn4"), Model("cnn2")]).new_models()
    assert not same(mixed[0], mixed[1])


def test_scalars_count_parameters_and_float_buffers():
    world = image_world(model=Model("resnet10"))
    network = world.network(0, world.new_model())
    expected = sum(p.numel() for p in network.parameters()) + sum(
        b.numel() for b in network.buffers() if b.is_floating_point()
    )
    assert world.scalars() == expected


def test_scalars_of_features_and_head_are_those_of_the_model():
    world = image_world(model=Model("resnet10"))
    assert world.scalars() == world.scalars("features") + world.scalars("head")
    assert world.scalars("head") == 512 * 10 + 10


@pytest.mark.parametrize("name, value", [("round", 1), ("trained", None)])
def test_a_world_cannot_be_changed(name, value):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(image_world(), name, value)


def test_another_round_is_another_world_of_the_same_clients():
    world = image_world()
    assert world.at(2).round == 2
    assert world.round == 0
    assert world.at(2).clients is world.clients
    assert world.at(2).executor is world.executor
