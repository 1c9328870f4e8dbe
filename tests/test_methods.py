"""Identities and worked numbers of FedAvg, FedProx and Local; means, local epochs and keys of the engine. A
method reads the world and cannot change it."""

import dataclasses
import math

import pytest
import torch
from federation import (
    B1,
    B2,
    TINY,
    close,
    image_clients,
    image_world,
    miniature_cells,
    params,
    run,
    same,
    tiny_world,
    training,
)

from pipeline import keys, methods
from pipeline.engine.phase import LocalOptions
from pipeline.engine.state import Params, State, weighted_mean
from pipeline.engine.trained import Watch
from pipeline.engine.world import World, supervised
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy, squared_distance
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedprox import FedProx
from pipeline.methods.local import Local
from pipeline.models import build
from pipeline.schema import Model, Optimiser


def test_three_rounds_equal_a_plain_loop():
    """The same batches and weights in twenty lines of PyTorch, with torch's optimiser."""
    clients, settings = image_clients(seed=1), training(optimiser=Optimiser("sgd", 0.05, 0.9), local_epochs=2)
    world = World.create(clients, settings, 10, 0)
    network = build(Model("cnn4"), 1, 16, 10)
    weights = {name: value.clone() for name, value in FedAvg().init(world).model.items()}
    for number in (1, 2, 3):
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        for client in clients:
            network.load_state_dict(weights)
            optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
            for epoch in (0, 1):
                order = torch.randperm(
                    len(client.labels),
                    generator=keys.torch_generator("batches", 0, "local", number, client.name, epoch),
                )
                for batch in order.split(16):
                    optimiser.zero_grad()
                    torch.nn.functional.cross_entropy(
                        network(client.images[batch]), client.labels[batch]
                    ).backward()
                    optimiser.step()
            for name, value in network.state_dict().items():
                total[name] += value * len(client.labels) / sum(world.sizes)
        weights = total
    ours = run(FedAvg(), world).model
    close(ours, weights, 1e-5)


def test_fedprox_two_steps_from_the_anchor_of_the_tiny_head(monkeypatch):
    anchor = params({"head.weight": [[0.4, 0], [0, 0.4]], "head.bias": [0.1, 0]})
    assert 1 / 2 * squared_distance(params(TINY), anchor).item() == pytest.approx(0.045, abs=1e-6)
    world = tiny_world(monkeypatch, (B1[0] + B2[0], B1[1] + B2[1]))
    state = FedProx(mu=1.0).round(State(model=anchor), world)
    close(state.model["head.weight"], [[0.457167, 0.091731], [-0.057167, 0.308269]])
    close(state.model["head.bias"], [0.091207, 0.008793])


def test_frozen_parts_have_no_penalty():
    world, sizes = image_world(), []
    world.local_epochs(
        world.new_models(),
        lambda m, b, *_: sizes.append(set(m.params)) or m(b.images).sum(),
        options=LocalOptions("head"),
    )
    assert sizes[0] == {"head.weight", "head.bias"}


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


def test_every_method_is_among_the_miniatures():
    assert miniature_cells().keys() == set(methods.method_names())


def test_a_world_is_frozen_and_another_round_is_another_world():
    world = image_world()
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.round = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.trained = None
    assert world.at(2).round == 2 and world.round == 0
    assert world.at(2).clients is world.clients and world.at(2).executor is world.executor


def test_the_trainer_sees_the_last_models_and_the_last_losses():
    """A rule without a loss moves the models and leaves the losses; a phase without epochs leaves nothing."""
    world = image_world()
    world = world.at(1, watch := Watch(world.executor))
    start = world.new_models()
    assert watch.trained is None
    trained = world.local_epochs(start, supervised)
    assert watch.trained.models is trained.models and watch.trained.losses == trained.losses
    assert trained.mean_loss([1, 0, 0]) == trained.losses[0]
    stepped = world.local_steps(
        trained.models, lambda model, batches, server_state, client_state: (model.params, client_state)
    )
    assert all(map(math.isnan, stepped.losses)) and math.isnan(stepped.mean_loss(world.sizes))
    assert watch.trained.models is stepped.models and watch.trained.losses == trained.losses
    idle = world.local_epochs(stepped.models, supervised, options=LocalOptions(epochs=0))
    assert idle.models is stepped.models is watch.trained.models
