"""The small network that a server trains: a learnable row per class behind two linear layers (FedTGP's generator of
prototypes, FedLSA's anchors).

A step is some twenty operations on tensors of a few kilobytes, and a round has hundreds of steps. So gradients are written
out, which is three times as fast as autograd's, and everything happens on the CPU, whatever trains the clients.
"""
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine.state import Params

B = TypeVar("B")
NAMES = ("table", "hidden.weight", "hidden.bias", "output.weight", "output.bias")
SMALLEST_NORM = 1e-12
SMALLEST_DISTANCE = 1e-6                                      # nearer points have no direction to their vector


def new_network(classes: int, inputs: int, outputs: int, generator: torch.Generator, like: Tensor) -> Params:
    """Rows R (classes, inputs) from N(0, 1), Linear(inputs, inputs) and Linear(inputs, outputs) with PyTorch's default
    initialisation, in the type and on the device of `like`."""
    def uniform(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) * 2 - 1) / inputs ** 0.5
    table = torch.randn(classes, inputs, generator=generator)
    values = (table, uniform(inputs, inputs), uniform(inputs), uniform(outputs, inputs), uniform(outputs))
    return Params((name, value.to(like)) for name, value in zip(NAMES, values, strict=True))


def class_vectors(network: Params) -> Tensor:
    """Linear(ReLU(Linear(R))), (classes, outputs)."""
    table, weight, bias, out_weight, out_bias = (network[name] for name in NAMES)
    return F.linear(F.linear(table, weight, bias).relu(), out_weight, out_bias)


@torch.no_grad()
def descend(network: Params, gradient: Callable[[Tensor, B], Tensor], batches: Iterable[B], lr: float) -> Params:
    """The network after a step of plain SGD for every batch; `gradient(vectors, batch)` is d loss / d vectors, both
    (classes, outputs), on the CPU."""
    home = network["table"].device
    values = [network[name].cpu().clone() for name in NAMES]
    table, weight, bias, out_weight, out_bias = values
    for batch in batches:
        hidden = F.linear(table, weight, bias).relu_()
        outer = gradient(F.linear(hidden, out_weight, out_bias), batch)
        inner = (outer @ out_weight) * (hidden > 0)
        torch._foreach_add_(values, [inner @ weight, inner.T @ table, inner.sum(0), outer.T @ hidden, outer.sum(0)], alpha=-lr)
    return Params((name, value.to(home)) for name, value in zip(NAMES, values, strict=True))


def margin_gradient(points: Tensor, labels: Tensor, vectors: Tensor, margin: float) -> Tensor:
    """(C, d): d / d vectors of the mean over points of the cross-entropy of -D, D_j = ||p - v_j|| + margin [j = label] (FedTGP, Zhang
    et al. 2024). points (P, d), labels (P,), vectors (C, d). A point on top of a vector does not move it."""
    distances = torch.cdist(points, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    wanted = F.one_hot(labels, len(vectors))
    pull = (wanted - F.softmax(-distances - margin * wanted, dim=1)) / distances.clamp(min=SMALLEST_DISTANCE) / len(points)
    pull = pull.masked_fill_(distances <= SMALLEST_DISTANCE, 0.0)
    return pull.sum(0)[:, None] * vectors - pull.T @ points


def anchor_gradient(raw: Tensor, weight: Tensor, bias: Tensor, alpha: float, tau: float, unit: bool) -> Tensor:
    """(C, d): d / d raw of mean_i CE(W a_i + b, i) + alpha mean_i log( 1 / (C - 1) sum_{j != i} e^{a_i . a_j / tau} ), where a = nor(raw)
    if `unit`, else raw. The head, weight (C, d) and bias (C,), is constant. (FedLSA, Fu et al. 2025, Eq. 3 to 5.)"""
    classes = len(raw)
    length = torch.linalg.vector_norm(raw, dim=1, keepdim=True).clamp(min=SMALLEST_NORM)
    anchors = raw / length if unit else raw
    error = F.softmax(F.linear(anchors, weight, bias), dim=1)
    error.diagonal().sub_(1)
    slope = error @ weight / classes
    if alpha:
        likeness = anchors @ anchors.T / tau
        likeness.fill_diagonal_(-torch.inf)
        nearness = F.softmax(likeness, dim=1)
        slope += (alpha / (classes * tau)) * ((nearness + nearness.T) @ anchors)
    return (slope - (slope * anchors).sum(1, keepdim=True) * anchors) / length if unit else slope
