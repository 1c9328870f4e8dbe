"""The small networks by hand."""

import torch
from federation import close
from model_inputs import images
from torch.nn import functional as F

from pipeline.models import build
from pipeline.schema import Model


def test_cnn2_by_hand():
    torch.manual_seed(0)
    network, x = build(Model("cnn2"), 3, 20, 4), images("cnn2", size=20)
    w1, b1, w2, b2, w3, b3, w4, b4 = network.parameters()
    out = F.max_pool2d(F.conv2d(x, w1, b1).relu(), 2)
    out = F.max_pool2d(F.conv2d(out, w2, b2).relu(), 2)
    out = F.linear(out.flatten(1), w3, b3).relu()
    close(network.features(x), out, 1e-5)
    close(network(x), F.linear(out, w4, b4), 1e-5)


def test_a_representation_may_have_another_width_and_no_activation():
    torch.manual_seed(0)
    relu = build(Model("cnn2", features=50), 3, 16, 5)
    torch.manual_seed(0)
    linear = build(Model("cnn2", features=50, activation="none"), 3, 16, 5)
    x = images("cnn2")
    assert relu.width == relu.head.in_features == 50
    assert (linear.features(x) < 0).any()
    assert torch.equal(relu.features(x), linear.features(x).relu())


def test_fedlsa_classifies_the_normalised_projection():
    torch.manual_seed(0)
    network, x = build(Model("fedlsa"), 3, 32, 4), images("fedlsa", size=32)
    z, h = network.features.encoder(x), network.features(x)
    assert z.shape == (3, 120)
    assert h.shape == (3, 84)
    assert (z >= 0).all()
    assert (h < 0).any()
    projected = network.features.projector[0](z)
    close(h, projected / projected.pow(2).sum(1, keepdim=True).sqrt(), 1e-5)
    close(h.norm(dim=1), torch.ones(3), 1e-5)
