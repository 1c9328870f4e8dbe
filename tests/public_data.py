"""Clients of small networks with public images, and the public phase written out."""

import torch
import torch.nn.functional as F
from federation import training
from torch import nn

from pipeline.engine import federation as engine
from pipeline.engine.phase import Client
from pipeline.engine.state import Clients
from pipeline.engine.world import World
from pipeline.models import Network
from pipeline.models.layers import conv_bn, pooled
from pipeline.schema import Model, Optimiser
from pipeline.schema import Public as PublicSettings

SIDE, CLASSES, DOUBLE = 8, 4, torch.float64
NETWORKS = ["bn", "plain", "dropout", "bn", "plain"]
SIZES = (12, 7, 9, 0, 1)


def network(model, channels, size, classes) -> Network:
    """Three small networks of different widths: with BatchNorm, without anything random, with dropout."""
    if model.name == "bn":
        return Network(pooled([conv_bn(channels, 6, 3, 2)]), nn.Linear(6, classes))
    width = {"plain": 5, "dropout": 8}[model.name]
    features = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(1), nn.Linear(4 * channels, width), nn.Tanh())
    return Network(features, nn.Linear(width, classes), 0.3 if model.name == "dropout" else 0.0)


def federation(
    monkeypatch, sizes=SIZES, names=NETWORKS, executor="sequential", public=20, batch=8, passes=1, **changes
) -> World:
    """Clients with three-channel images and `public` public ones."""
    monkeypatch.setattr(engine, "build", network)
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    rng = torch.Generator().manual_seed(1)

    def images(n):
        return torch.rand(n, 3, SIDE, SIDE, generator=rng, dtype=DOUBLE) * 2 - 1

    clients = [
        Client(f"c{k}", "only", Model(name), images(n), torch.randint(0, CLASSES, (n,), generator=rng))
        for k, (n, name) in enumerate(zip(sizes, names))
    ]
    settings = training(**{"batch_size": 4, "optimiser": Optimiser("adam", 1e-2), **changes})
    return World.create(
        clients,
        settings,
        CLASSES,
        seed=0,
        public=(images(public), PublicSettings("made up", batch_size=batch, epochs=passes)),
    ).at(1)


def three(monkeypatch, **changes) -> World:
    return federation(monkeypatch, SIZES[:3], NETWORKS[:3], **changes)


def alike(monkeypatch, name="bn", sizes=(12, 7, 9), **changes) -> World:
    """One architecture for all."""
    return federation(monkeypatch, sizes, [name] * len(sizes), **changes)


def same_parameters(a: Clients, b: Clients, within=0.0) -> bool:
    """Without the statistics of BatchNorm."""
    return all(
        (x[name] - y[name]).abs().max() <= within
        for x, y in zip(a, b, strict=True)
        for name in x
        if "running" not in name and "num_batches" not in name
    )


def modules(world, models):
    """Ordinary modules holding the clients' models, in train mode."""
    made = []
    for client, model in zip(world.clients, models):
        made.append(network(client.model, 3, SIDE, CLASSES).to(DOUBLE))
        made[-1].load_state_dict(model)
    return [m.train() for m in made]


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)


def kl(teacher, student):
    p = F.softmax(teacher, 1)
    return (p * (p.log() - F.log_softmax(student, 1))).sum(1).mean()
