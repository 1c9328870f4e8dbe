"""Layers: dropout by generator, branches that are computed once more, pooling."""

import copy

import pytest
import torch
from federation import close
from model_inputs import images
from torch import nn
from torch.nn import functional as F

from pipeline.engine.handle import Handle
from pipeline.models import Dropout, build, layers, set_generator
from pipeline.models.layers import Network, Recomputed, conv_bn, pooled
from pipeline.schema import Model


def inception() -> Network:
    branches = [
        conv_bn(6, 4, 1),
        nn.Sequential(conv_bn(6, 3, 1), conv_bn(3, 5, 3)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(6, 2, 1)),
    ]
    return Network(pooled([conv_bn(3, 6, 3), Recomputed(branches)]), nn.Linear(11, 5))


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_branches_computed_once_more_give_the_same_bits(precision, outside, monkeypatch):
    """Two forwards, gradients and BatchNorm's statistics of a network, or of tensors put in its place."""
    torch.manual_seed(3)
    start, other, x = inception(), inception().state_dict(), torch.randn(4, 3, 16, 16)
    actual, again, whole = [], [], layers._recomputed
    monkeypatch.setattr(layers, "_recomputed", lambda *branch: again.append(1) or whole(*branch))
    for large in (1 << 40, 0):
        monkeypatch.setattr(layers, "LARGE", large)
        network = copy.deepcopy(start)
        tensors = copy.deepcopy(other) if outside else network.state_dict(keep_vars=True)
        parameters = [tensors[name].requires_grad_() for name, _ in network.named_parameters()]
        model = Handle(network, tensors if outside else None)
        with torch.autocast("cpu", precision, enabled=precision is not None):
            logits = model(x) + model(x.flip(0))
        gradients = torch.autograd.grad(logits.square().sum(), parameters)
        actual.append([logits, *gradients, *tensors.values()])
    assert len(again) == 2 * 3
    assert all(torch.equal(a, b) for a, b in zip(*actual, strict=True))
    assert all(tensors[f"features.{part}.1.num_batches_tracked"] == 2 for part in ("0", "1.0"))


def generator(seed):
    return torch.Generator().manual_seed(seed)


def masked(layer, seed, ones):
    """What the layer leaves of ones with a new generator."""
    layer.generator = generator(seed)
    return layer(ones)


def test_a_dropout_mask_depends_on_its_generator_alone():
    layer, ones = Dropout(0.3), torch.ones(40, 50)
    torch.manual_seed(0)
    first = masked(layer, 5, ones)
    torch.manual_seed(1)
    assert torch.equal(masked(layer, 5, ones), first)
    assert not torch.equal(masked(layer, 6, ones), first)


def test_dropout_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    masked(Dropout(0.3), 5, torch.ones(40, 50))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_goes_on_and_does_not_repeat_one_mask():
    layer, ones = Dropout(0.3), torch.ones(40, 50)
    first = masked(layer, 5, ones)
    assert not torch.equal(layer(ones), first)


def test_dropout_of_evaluation_or_of_nothing_gives_its_input():
    x = torch.randn(4, 5)
    assert Dropout(0.9).eval()(x) is x
    assert Dropout(0.0).train()(x) is x


@pytest.mark.parametrize("model", [Model("cnn2", dropout=0.3), Model("efficientnet")])
def test_dropout_acts_between_features_and_head(model):
    network, x = build(model, 3, 16, 5).train(), images(model.name)
    assert network.dropout.p == (0.3 if model.name == "cnn2" else 0.2)
    with torch.no_grad():
        features = network.features(x)
        assert torch.equal(features, network.features(x))
        set_generator(network, generator(1))
        logits = network(x)
        assert not torch.equal(network(x), logits)
        set_generator(network, generator(1))
        assert torch.equal(network(x), logits)
        network.dropout.generator = generator(1)
        close(logits, network.head(network.dropout(features)), 1e-5)
    set_generator(network, None)
    assert network.dropout.generator is None


def test_pooling_is_the_mean_of_a_map():
    maps = torch.randn(2, 6, 4, 4)
    close(pooled([])(maps), F.avg_pool2d(maps, 4).flatten(1), 1e-5)
