"""The engine's verbs: aggregation, local epochs, keys, checkpoints of state."""

import math

import pytest
import torch
from federation import close, image_clients, image_world, params, run, same, training

from pipeline import keys
from pipeline.engine.state import Clients, Params, weighted_mean
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.local import Local
from pipeline.schema import Model


def vectors(*rows):
    return [params({"features.w": row}) for row in rows]


# Worked numbers of FedAvg's mean.
@pytest.mark.parametrize(
    "rows, weights, mean",
    [
        (((1, 2), (3, -2), (0, 10)), (1, 3, 6), (1.0, 5.6)),
        (((1, 2), (3, -2), (0, 10)), (5, 5, 0), (2.0, 0.0)),
        (((1, 2), (4, -1), (0, 0)), (1, 2, 5), (1.125, 0.0)),
    ],
)
def test_weighted_mean(rows, weights, mean):
    close(weighted_mean(vectors(*rows), weights)["features.w"], torch.tensor(mean))


def test_weighted_mean_of_one_model_and_of_integers():
    model = params({"features.w": [0.1, 1 / 3]})
    mean = weighted_mean([model], [7])
    assert same(mean, model) and mean["features.w"] is not model["features.w"]
    models = [Params({"features.n": torch.tensor(n)}) for n in (3, 5, 9)]
    assert weighted_mean(models, [0, 1, 1])["features.n"].item() == 5


def test_keys_differ_in_every_part_and_do_not_depend_on_the_process():
    assert (
        len({keys.key(s, p, c, r) for s in (0, 1) for p in ("a", "b") for c in (0, 1) for r in (0, 1)}) == 16
    )
    assert keys.key(0, "batches", "c0", 1, 0) == 5124794432517932618


def test_local_training_does_not_depend_on_the_other_clients():
    """A client's result is the same whoever else is there: nothing leaks through network or generator."""
    clients = image_clients(model=Model("cnn2", dropout=0.3))
    alone = run(Local(), World.create(clients[2:], training(), 10, 0)).models[0]
    assert same(alone, run(Local(), World.create(clients, training(), 10, 0)).models[2])


def test_dropout_masks_come_from_keys():
    world = image_world(model=Model("cnn2", dropout=0.5))
    assert same(
        run(FedAvg(), world).model, run(FedAvg(), image_world(model=Model("cnn2", dropout=0.5))).model
    )
    assert not same(run(FedAvg(), world).model, run(FedAvg(), image_world(model=Model("cnn2"))).model)


def test_start_models_are_not_changed_by_training():
    world = image_world()
    start = world.new_model()
    copy = Params((name, value.clone()) for name, value in start.items())
    world.local_epochs(world.everyone(start), FedAvg().loss)
    assert same(start, copy)


def test_a_client_without_data_keeps_its_model_and_has_no_weight():
    world = image_world(sizes=(20, 0, 7))
    start = world.new_model()
    end = world.local_epochs(world.everyone(start), FedAvg().loss)
    assert same(end.models[1], start)
    assert math.isnan(end.losses[1])
    assert math.isfinite(end.mean_loss(world.sizes))
    without = World.create([c for c in image_clients((20, 0, 7)) if len(c.labels)], training(), 10, 0)
    assert same(run(FedAvg(), without).model, run(FedAvg(), image_world(sizes=(20, 0, 7))).model)


@pytest.mark.parametrize(
    "n, drop_last, steps", [(33, False, 3), (33, True, 2), (16, False, 1), (7, True, 0), (1, False, 1)]
)
def test_last_incomplete_batch(n, drop_last, steps):
    world, seen = image_world(sizes=(n,), drop_last=drop_last), []

    def loss(model, batch, server_state, client_state):
        seen.append(len(batch.labels))
        return cross_entropy(model(batch.images), batch.labels)

    world.local_epochs(world.new_models(), loss)
    assert len(seen) == steps and sum(seen) == (n if not drop_last else 16 * steps)


def test_batch_of_one_is_left_out_under_batchnorm_only():
    for name, seen_samples in (("resnet10", 16), ("cnn4", 17)):
        world, seen = image_world(sizes=(17,), model=Model(name)), []
        world.local_epochs(
            world.new_models(),
            lambda m, b, *_, seen=seen: seen.append(len(b.labels)) or cross_entropy(m(b.images), b.labels),
        )
        assert sum(seen) == seen_samples


def test_every_epoch_uses_every_image_once_in_a_new_order():
    world, seen = image_world(sizes=(33,), local_epochs=2), []
    world.local_epochs(
        world.new_models(), lambda m, b, *_: seen.append(b.labels) or cross_entropy(m(b.images), b.labels)
    )
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert torch.equal(first.sort().values, second.sort().values) and not torch.equal(first, second)


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


def test_different_networks_start_apart_and_are_not_averaged():
    world = image_world(model=[Model("cnn4"), Model("cnn4"), Model("cnn2")])
    with pytest.raises(TrainingError, match="averages models, .* different networks: cnn2, cnn4"):
        FedAvg().init(world)
    assert len(run(Local(), world, 1).models) == 3
    models = image_world().new_models()
    assert same(models[0], models[2])
    mixed = image_world(model=[Model("cnn4"), Model("cnn4"), Model("cnn2")]).new_models()
    assert not same(mixed[0], mixed[1])


def test_scalars_count_parameters_and_float_buffers():
    world = image_world(model=Model("resnet10"))
    network = world.network(0, world.new_model())
    expected = sum(p.numel() for p in network.parameters()) + sum(
        b.numel() for b in network.buffers() if b.is_floating_point()
    )
    assert world.scalars() == expected == world.scalars("features") + world.scalars("head")
    assert world.scalars("head") == 512 * 10 + 10


def test_uniform_averaging_counts_clients_not_samples():
    world = image_world(sizes=(20, 40, 0), averaging="uniform")
    models = Clients(vectors((1, 2), (3, 4), (100, 100)))
    assert world.average(models)["features.w"].tolist() == [2, 3]
    assert image_world(sizes=(10, 30, 0)).average(models)["features.w"].tolist() == [2.5, 3.5]
