"""The small network that FedTGP and FedLSA train at the server: vectors of classes, written gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from federation import same

from pipeline import keys
from pipeline.engine.state import Params
from pipeline.losses import cross_entropy
from pipeline.methods._server_network import class_vectors, descend, new_network
from pipeline.methods.fedlsa import anchor_gradient
from pipeline.methods.fedtgp import margin_gradient


@pytest.fixture(scope="module")
def network():
    return new_network(10, 120, 84, keys.torch_generator("test"), torch.zeros(()))


def test_it_has_the_papers_sizes(network):
    assert sum(v.numel() for name, v in network.items() if name != "table") == 24_684
    assert network["table"].numel() == 1200
    assert class_vectors(network).shape == (10, 84)


def test_its_layers_begin_as_pytorchs(network):
    bound = 120**-0.5
    for name in ("hidden.weight", "hidden.bias", "output.weight", "output.bias"):
        assert 0.9 * bound < network[name].abs().max() <= bound
        assert abs(float(network[name].mean())) < 0.1 * bound


def test_its_inputs_begin_as_standard_normal_numbers(network):
    assert abs(float(network["table"].mean())) < 0.1
    assert abs(float(network["table"].std()) - 1) < 0.1


def anchor_separation(anchors, tau):
    """Mean over i of log( 1 / (C - 1) sum_{j != i} e^{a_i . a_j / tau} ) (FedLSA Eq. 4)."""
    likeness = (anchors @ anchors.T / tau).masked_fill(torch.eye(len(anchors), dtype=torch.bool), -torch.inf)
    return likeness.logsumexp(1).mean() - math.log(len(anchors) - 1)


def margin_contrast(points, labels, vectors, margin):
    """Mean over points of the cross-entropy of -D, D_j = ||p - v_j|| + margin [j = label] (FedTGP)."""
    distances = torch.cdist(points, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    return cross_entropy(-distances - margin * F.one_hot(labels, len(vectors)), labels)


def a_network(dtype=torch.float64, classes=5, inputs=7, outputs=4) -> Params:
    return new_network(classes, inputs, outputs, keys.torch_generator("test"), torch.zeros((), dtype=dtype))


def by_autograd(network, loss, batches, lr):
    values = {name: value.clone().requires_grad_() for name, value in network.items()}
    for batch in batches:
        slopes = torch.autograd.grad(loss(class_vectors(values), batch), list(values.values()))
        values = {
            name: (value - lr * slope).detach().requires_grad_()
            for (name, value), slope in zip(values.items(), slopes)
        }
    return Params((name, value.detach()) for name, value in values.items())


def test_steps_on_the_margin_contrast_are_those_of_autograd():
    rng = torch.Generator().manual_seed(0)
    points = torch.randn(12, 4, generator=rng, dtype=torch.float64)
    labels = torch.randint(0, 5, (12,), generator=rng)
    batches = [torch.randperm(12, generator=rng)[:n] for n in (12, 5, 1, 12)]
    actual = descend(
        a_network(), lambda v, chosen: margin_gradient(points[chosen], labels[chosen], v, 1.5), batches, 0.3
    )
    wanted = by_autograd(
        a_network(), lambda v, chosen: margin_contrast(points[chosen], labels[chosen], v, 1.5), batches, 0.3
    )
    assert same(actual, wanted, within=1e-12)
    assert not same(actual, a_network(), within=1e-3)


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_steps_on_the_anchors_loss_are_those_of_autograd(unit, alpha):
    rng = torch.Generator().manual_seed(1)
    weight = torch.randn(5, 4, generator=rng, dtype=torch.float64)
    bias = torch.randn(5, generator=rng, dtype=torch.float64)

    def loss(raw, _):
        anchors = F.normalize(raw, dim=1) if unit else raw
        fit = cross_entropy(F.linear(anchors, weight, bias), torch.arange(5))
        return fit + alpha * anchor_separation(anchors, 0.2)

    actual = descend(
        a_network(), lambda v, _: anchor_gradient(v, weight, bias, alpha, 0.2, unit), range(30), 0.1
    )
    assert same(actual, by_autograd(a_network(), loss, range(30), 0.1), within=1e-11)
