"""Identities and worked numbers of FedAvg, FedProx and Local."""

import pytest
import torch
from federation import B1, B2, TINY, close, image_clients, image_world, params, run, tiny_world, training

from pipeline import keys, methods
from pipeline.engine.phase import LocalOptions
from pipeline.engine.state import State
from pipeline.engine.world import World
from pipeline.errors import ParamError
from pipeline.losses import squared_distance
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedprox import FedProx
from pipeline.models import build
from pipeline.schema import Model, Optimiser


def both():
    return B1[0] + B2[0], B1[1] + B2[1]


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
    world = tiny_world(monkeypatch, both())
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


def test_every_method_file_holds_one_loadable_method():
    assert {"fedavg", "fedprox", "local"} <= set(methods.names())
    for name in methods.names():
        assert methods.load(name, {}, "f: methods.x").headline in ("pre", "post")


@pytest.mark.parametrize(
    "name, hyper, message",
    [
        ("fedporx", {}, "unknown method 'fedporx' .nearest: 'fedprox'"),
        ("fedprox", {"mue": 1}, "unknown key 'mue' .nearest: 'mu'"),
        ("fedprox", {"mu": -1}, r"methods.x.mu: must be at least 0, not -1"),
        ("fedprox", {"mu": "1e-2"}, "methods.x.mu: expected float, not '1e-2'"),
        ("fedprox", {"mu": True}, "methods.x.mu: expected float, not True"),
    ],
)
def test_bad_hyper_parameters(name, hyper, message):
    with pytest.raises(ParamError, match=message):
        methods.load(name, hyper, "papers/p/paper.yaml: methods.x")
