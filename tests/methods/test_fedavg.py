"""FedAvg against a plain loop of PyTorch."""

import pytest
import torch
from federation import close, image_clients, image_world, run, same, training

from pipeline import keys
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.methods.fedavg import FedAvg
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


def test_different_networks_are_not_averaged():
    world = image_world(model=[Model("cnn4"), Model("cnn4"), Model("cnn2")])
    with pytest.raises(TrainingError, match="averages models, .* different networks: cnn2, cnn4"):
        FedAvg().init(world)


def test_a_client_without_data_has_no_weight():
    without = World.create([c for c in image_clients((20, 0, 7)) if len(c.labels)], training(), 10, 0)
    assert same(run(FedAvg(), without).model, run(FedAvg(), image_world(sizes=(20, 0, 7))).model)


def test_it_sends_the_whole_model_both_ways():
    world = image_world()
    assert FedAvg().traffic(world) == (world.scalars(), world.scalars())
