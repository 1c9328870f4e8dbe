"""Rounds of methods with prototypes, written out in plain PyTorch."""

import torch
from federation import mlp, tiny_world
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, normalize

from pipeline.engine.state import Params, weighted_mean
from pipeline.models import Network
from pipeline.schema import Optimiser


def labels(*values):
    return torch.tensor(values)


CLIENTS = (
    [[[1.0, 2.0], [-1.0, 0.5], [2.0, 0.3], [0.4, 1.5], [0.2, 0.9]], [0, 1, 1, 0, 0]],
    [[[0.5, -1.0], [2.0, 1.0], [1.2, 0.8]], [1, 1, 1]],
    [[[0.7, 0.1], [0.1, 0.6], [-0.3, 1.1], [1.5, 0.2]], [0, 2, 2, 1]],
)


LR = 0.1


def hand_world(monkeypatch, **changes):
    return tiny_world(
        monkeypatch,
        *CLIENTS,
        network=mlp3,
        dtype=torch.float64,
        classes=4,
        batch_size=8,
        optimiser=Optimiser(lr=LR),
        **changes,
    )


def mlp3():
    network = mlp()
    # Nobody holds the fourth class.
    return Network(network.features, torch.nn.Linear(2, 4))


def features(network, model, images):
    inside = {
        name.removeprefix("features."): value for name, value in model.items() if name.startswith("features.")
    }
    return functional_call(network.features, inside, images)


def by_hand(world, rounds, objective, collect):
    """FedAvg with one full-batch step per client: objective(z, logits, labels, memory, t, k) per client, and
    what the server keeps, collect([(z, labels)], memory), from the trained local models."""
    network, model, memory = mlp3().double(), world.new_model(), None
    for t in range(rounds):
        trained, seen = [], []
        for k, client in enumerate(world.clients):
            moving = {name: value.clone().requires_grad_() for name, value in model.items()}
            z = features(network, moving, client.images)
            logits = z @ moving["head.weight"].T + moving["head.bias"]
            value = objective(z, logits, client.labels, memory, t, k)
            slopes = torch.autograd.grad(value, list(moving.values()))
            trained.append(
                Params((name, (p - LR * g).detach()) for (name, p), g in zip(moving.items(), slopes))
            )
            seen.append((features(network, trained[-1], client.images), client.labels))
        memory = collect(seen, memory)
        model = weighted_mean(trained, world.sizes)
    return model


def info_nce(z, y, vectors, classes, tau, similarity=lambda z, p: cosine_similarity(z, p, dim=0, eps=1e-8)):
    """Sample by sample, with exponentials, for tests only."""
    values = []
    for sample, label in zip(z, y):
        terms = [torch.exp(similarity(sample, p) / tau) for p in vectors]
        positive = [term for term, c in zip(terms, classes) if c == label]
        values.append(-torch.log(sum(positive) / sum(terms)) if positive else torch.zeros((), dtype=z.dtype))
    return sum(values) / len(values)


def unit_means(seen, weighted):
    """{class: mean of unit representations} over samples, or over clients' means."""
    actual = {}
    for c in range(4):
        mine = [normalize(z, dim=1)[y == c] for z, y in seen if (y == c).any()]
        if mine:
            actual[c] = (
                torch.cat(mine).mean(0) if weighted else torch.stack([part.mean(0) for part in mine]).mean(0)
            )
    return actual
