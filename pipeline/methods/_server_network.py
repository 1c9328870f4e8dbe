"""The small network that a server trains for vectors of classes (FedTGP's prototypes, FedLSA's anchors).

It has a learnable row for each class, followed by two linear layers.

A step consists of some twenty operations on tensors of a few kilobytes, and a round has hundreds of steps.
Therefore the gradients are written out, which is three times as fast as autograd's, and everything runs on
the CPU, even if clients train on a GPU.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine import Params

B = TypeVar("B")
NAMES = ("table", "hidden.weight", "hidden.bias", "output.weight", "output.bias")
SMALLEST_NORM = 1e-12


def new_network(classes: int, inputs: int, outputs: int, generator: torch.Generator, like: Tensor) -> Params:
    """Rows R (classes, inputs) from N(0, 1), Linear(inputs, inputs) and Linear(inputs, outputs) with
    PyTorch's default initialisation, in the type and on the device of `like`."""

    def uniform(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) * 2 - 1) / inputs**0.5

    table = torch.randn(classes, inputs, generator=generator)
    values = (table, uniform(inputs, inputs), uniform(inputs), uniform(outputs, inputs), uniform(outputs))
    return Params((name, value.to(like)) for name, value in zip(NAMES, values, strict=True))


def class_vectors(network: Params) -> Tensor:
    """Linear(ReLU(Linear(R))), (classes, outputs)."""
    table, weight, bias, out_weight, out_bias = (network[name] for name in NAMES)
    return F.linear(F.linear(table, weight, bias).relu(), out_weight, out_bias)


@torch.no_grad()
def descend(
    network: Params, gradient: Callable[[Tensor, B], Tensor], batches: Iterable[B], lr: float
) -> Params:
    """The network after a step of plain SGD for every batch; `gradient(vectors, batch)` is d loss / d
    vectors, both (classes, outputs), on the CPU."""
    home = network["table"].device
    values = [network[name].cpu().clone() for name in NAMES]
    table, weight, bias, out_weight, out_bias = values
    for batch in batches:
        hidden = F.linear(table, weight, bias).relu_()
        outer = gradient(F.linear(hidden, out_weight, out_bias), batch)
        inner = (outer @ out_weight) * (hidden > 0)
        torch._foreach_add_(
            values, [inner @ weight, inner.T @ table, inner.sum(0), outer.T @ hidden, outer.sum(0)], alpha=-lr
        )
    return Params((name, value.to(home)) for name, value in zip(NAMES, values, strict=True))
