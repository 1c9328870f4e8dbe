"""Worked examples: a linear softmax of two classes, a ReLU layer below it, logits of three classes."""

import torch
from federation import B1, B2, TINY, close, params, tiny_world
from torch import nn

from pipeline.engine.state import Params
from pipeline.losses import cross_entropy
from pipeline.models import Network

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


TOY, ZBAR = [Z1, Z2, Z3], Z.mean(0)


def gradient(loss, at):
    leaf = at.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


def body(model, weight, bias):
    close(model["features.1.weight"], weight)
    close(model["features.1.bias"], bias)


ONE_STEP = (
    ([[1.013584, 0.027167], [-0.027012, 0.971057]], [0.013584, 0.093053]),
    ([[0.533959, -0.140726], [0.066041, 0.240726]], [0.013893, 0.086107]),
)


TWO_STEPS = (
    ([[1.024827, 0.048568], [-0.041323, 0.963902]], [0.009738, 0.085898]),
    ([[0.559444, -0.121778], [0.040556, 0.221778]], [0.005674, 0.094326]),
)


PROTO1, PROTO2 = ([[1.0, 0], [3, 0], [0, 2]], [0, 0, 1]), ([[0.0, 4], [2, 2]], [1, 2])


def three_classes():
    return Network(nn.Flatten(1), nn.Linear(2, 3))


def proto_world(monkeypatch):
    return tiny_world(monkeypatch, PROTO1, PROTO2, network=three_classes, classes=3)
