"""Worked examples: a linear softmax of two classes, a ReLU layer below it, logits of three classes."""

import torch
from federation import B1, B2, TINY, close, params, tiny_world

from pipeline.engine.state import Params
from pipeline.losses import cross_entropy

B3 = ([[0.0, -1.0], [1.0, 1.0]], [0, 0])  # the third batch of Per-FedAvg's worked example
ANCHOR = {"head.weight": [[0.4, 0], [0, 0.4]], "head.bias": [0.1, 0]}
DOUBLE = torch.float64


def numbers(values) -> torch.Tensor:
    return torch.tensor(values, dtype=DOUBLE)


# logits of three clients, and features of three views
Z = numbers(
    [
        [[2, 0, -1], [0.5, 1.5, 0], [-1, 0, 2], [1, -1, 0.5]],
        [[1, 0.5, -0.5], [0, 2, -1], [0.5, -0.5, 1], [0, 1, 1]],
        [[3, -1, 0], [1, 1, -1], [0, 0.5, 1.5], [2, -0.5, -1]],
    ]
)
Z1, Z2, Z3 = Z


def joined(*batches):
    return sum((b[0] for b in batches), []), sum((b[1] for b in batches), [])


def head(model, weight, bias):
    close(model["head.weight"], weight)
    close(model["head.bias"], bias)


def tiny(monkeypatch, *clients, dtype=DOUBLE, **changes):
    return tiny_world(monkeypatch, *(clients or [joined(B1, B2)]), dtype=dtype, **changes).at(1)


def start(network=TINY, dtype=DOUBLE) -> Params:
    return params(network, dtype)


def fit(flat, images, labels):
    return cross_entropy(
        torch.tensor(images, dtype=DOUBLE) @ flat[:4].view(2, 2).T + flat[4:], torch.tensor(labels)
    )
