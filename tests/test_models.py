"""The networks: counts and shapes, the split into features and head, dropout, independent forms."""

import copy
from functools import cache

import pytest
import torch
from federation import close
from torch import nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock, ResNet

from pipeline.engine.handle import Handle
from pipeline.errors import ParamError
from pipeline.models import NAMES, Dropout, build, layers, set_generator
from pipeline.models.layers import Network, Recomputed, conv_bn, pooled
from pipeline.models.mobile import Shuffle, SqueezeExcitation
from pipeline.models.resnet import BLOCKS
from pipeline.models.small import STACKS
from pipeline.schema import Model

DEEP = [name for name in NAMES if name not in STACKS]


def count(tensors):
    return sum(t.numel() for t in tensors)


@cache
def outline(name, channels=3, size=32, classes=10):
    """A network without storage, for counts and shapes."""
    if name in DEEP and size != 32:  # its layers do not depend on the size
        return outline(name, channels, 32, classes)
    with torch.device("meta"):
        return build(Model(name), channels, size, classes)


def images(name, batch=3, size=16, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((batch, 192) if name == "vit_head" else (batch, 3, size, size), generator=generator)


@cache
def trained(name):
    """A network in eval mode whose BatchNorm statistics are not the initial ones; not to be changed."""
    torch.manual_seed(7)
    network = build(Model(name), 3, 16, 5)
    with torch.no_grad():
        network(images(name, batch=8, seed=2))
    return network.eval()


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
    assert len(again) == 2 * 3 and all(torch.equal(a, b) for a, b in zip(*actual, strict=True))
    assert all(tensors[f"features.{part}.1.num_batches_tracked"] == 2 for part in ("0", "1.0"))


@pytest.mark.parametrize(
    "name, width, parameters, buffers, sides",
    [  # parameters for 10, 31 and 65 classes; sides of the last map at 32 and 16 pixels
        ("resnet10", 512, (4_903_242, 4_914_015, 4_931_457), 5_772, (4, 2)),
        ("resnet12", 512, (4_977_226, 4_987_999, 5_005_441), 6_030, (4, 2)),
        ("resnet18", 512, (11_173_962, 11_184_735, 11_202_177), 9_620, (4, 2)),
        ("resnet34", 512, (21_282_122, 21_292_895, 21_310_337), 17_060, (4, 2)),
        ("efficientnet", 320, (3_599_686, 3_606_427, 3_617_341), 39_569, (2, 1)),
        ("mobilenetv2", 1280, (2_296_922, 2_323_823, 2_367_377), 35_145, (4, 2)),
        ("googlenet", 1024, (6_166_250, 6_187_775, 6_222_625), 15_872, (8, 4)),
        ("shufflenet", 800, (887_582,), 19_825, (4, 2)),
        ("cnn3_bn", 64, (24_346,), 227, (8, 4)),
    ],
)
def test_counts_and_last_map_of_deep_networks(name, width, parameters, buffers, sides):
    for classes, expected in zip((10, 31, 65), parameters):
        network = outline(name, classes=classes)
        assert (count(network.parameters()), count(network.buffers())) == (expected, buffers)
        assert network.width == width
    for size, side in zip((32, 16), sides):
        last = network.features[:-2](torch.empty(2, 3, size, size, device="meta"))
        assert last.shape[1:] == (width, side, side)


@pytest.mark.parametrize(
    "name, channels, size, classes, expected",
    [
        ("cnn4", 1, 28, 10, 47_658),
        ("cnn5", 3, 32, 10, 67_770),
        ("vit_head", 3, 224, 10, 25_994),
        ("lenet", 3, 32, 10, 62_006),
        # FedSR's mean and deviation: the layer before the classifier has 168 outputs, the head stays
        ("lenet_gaussian", 3, 32, 10, 62_006 + 84 * 120 + 84),
        ("fedlsa", 3, 32, 10, 62_006),
        ("fedlsa", 3, 224, 7, 5_407_031),
        ("fedlsa", 3, 225, 7, 5_407_031),
        ("simple_cnn", 3, 32, 10, 92_626),
        ("fedavg_cnn", 1, 28, 10, 582_026),
    ],
)
def test_counts_of_small_networks(name, channels, size, classes, expected):
    network = outline(name, channels, size, classes)
    assert (count(network.parameters()), count(network.buffers())) == (expected, 0)


SIZES = [(name, 1, 28) for name in NAMES] + [
    (name, channels, size) for name in STACKS for channels, size in ((1, 16), (3, 64), (3, 225))
]


@pytest.mark.parametrize("name, channels, size", [case for case in SIZES if case[0] != "vit_head"])
def test_grey_and_other_sizes(name, channels, size):
    network = outline(name, channels, size, 7)
    features = network.features(torch.empty(2, channels, size, size, device="meta"))
    assert features.shape == (2, network.width * (2 if name.endswith("_gaussian") else 1))
    assert network.head(features[:, : network.width]).shape == (2, 7)


@pytest.mark.parametrize("name", NAMES)
def test_network_is_head_of_features(name):
    network, x = trained(name), images(name)
    with torch.no_grad():
        logits = network(x)
        # of a Gaussian, its mean
        assert torch.equal(logits, network.head(network.features(x)[:, : network.width]))
        assert torch.equal(logits, network(x))
    assert logits.shape == (3, 5) and network.head.in_features == network.width
    assert {key.split(".")[0] for key in network.state_dict()} == {"features", "head"}


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_in_use_gets_a_gradient(name):
    network = copy.deepcopy(trained(name)).train()
    F.cross_entropy(network(images(name)), torch.tensor([0, 1, 4])).backward()
    idle = [p for p in network.parameters() if p.grad is None]
    assert not any(p.requires_grad for p in idle)
    # the first block's expansion, which the code never calls
    assert count(idle) == (1088 if name == "efficientnet" else 0)


@pytest.mark.parametrize(
    "name, parameters",
    [("resnet10", 2_625_536), ("resnet12", 2_625_536), ("shufflenet", 2_920_448), ("mobilenetv2", 3_411_968)],
)
def test_projectors_of_rahfl_have_the_published_counts(name, parameters):
    with torch.device("meta"):
        projector = build(Model(name, projector=1024), 3, 32, 10).projector
    assert (count(projector.parameters()), count(projector.buffers())) == (parameters, 6147)


@pytest.mark.parametrize(
    "model, size, text",
    [
        (Model("resnet-34"), 32, "unknown model 'resnet-34' (nearest: 'resnet34')"),
        (Model("cnn2"), 15, "model 'cnn2': images of 15 x 15 pixels are too small, the side must be at"),
        (Model("lenet"), 3, "model 'lenet': images of 3 x 3 pixels are too small, the side must be at least"),
        (Model("resnet10", features=64), 32, "model 'resnet10': its representation is fixed, leave out"),
        (Model("googlenet", activation="none"), 32, "model 'googlenet': its representation is fixed, leave"),
    ],
)
def test_errors_are_one_line(model, size, text):
    with pytest.raises(ParamError) as error:
        build(model, 3, size, 10)
    assert str(error.value).startswith(text) and "\n" not in str(error.value)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def test_dropout_mask_depends_on_its_generator_alone():
    layer, x = Dropout(0.3), torch.ones(40, 50)
    outputs = []
    for global_seed, seed in ((0, 5), (1, 5), (1, 6)):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        layer.generator = generator(seed)
        outputs.append(layer(x))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert not torch.equal(layer(x), outputs[2]), "a generator goes on, it does not repeat one mask"
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


def test_cnn2_by_hand_and_its_representation():
    torch.manual_seed(0)
    network, x = build(Model("cnn2"), 3, 20, 4), images("cnn2", size=20)
    w1, b1, w2, b2, w3, b3, w4, b4 = network.parameters()
    out = F.max_pool2d(F.conv2d(x, w1, b1).relu(), 2)
    out = F.max_pool2d(F.conv2d(out, w2, b2).relu(), 2)
    out = F.linear(out.flatten(1), w3, b3).relu()
    close(network.features(x), out, 1e-5)
    close(network(x), F.linear(out, w4, b4), 1e-5)
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
    z = network.features.encoder(x)
    h = network.features(x)
    assert z.shape == (3, 120) and h.shape == (3, 84)
    assert (z >= 0).all() and (h < 0).any()
    projected = network.features.projector[0](z)
    close(h, projected / projected.pow(2).sum(1, keepdim=True).sqrt(), 1e-5)
    close(h.norm(dim=1), torch.ones(3), 1e-5)


@pytest.mark.parametrize("name", list(BLOCKS))
def test_resnets_agree_with_torchvision(name):
    """torchvision's ResNet with a 3 x 3 stem and no max-pooling creates the same layers in the same order."""
    network, x = trained(name), images(name)
    other = ResNet(BasicBlock, list(BLOCKS[name]), num_classes=5)
    other.conv1, other.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    other.load_state_dict(dict(zip(other.state_dict(), network.state_dict().values(), strict=True)))
    with torch.no_grad():
        close(network(x), other.eval()(x), 1e-5)


def test_layers_by_hand():
    channels = torch.arange(6.0).view(1, 6, 1, 1)
    assert Shuffle(2)(channels).flatten().tolist() == [0, 3, 1, 4, 2, 5]
    assert torch.equal(Shuffle(1)(channels), channels)
    layer = SqueezeExcitation(2, hidden=1)
    for p, values in zip(layer.parameters(), ([1.0, 1.0], [0.0], [1.0, 0.0], [0.0, 0.0]), strict=True):
        p.data = torch.tensor(values).view_as(p)
    # channel means 2 and 1, so the hidden unit is 3 sigmoid(3)
    x = torch.tensor([[1.0, 3.0], [-2.0, 4.0]]).view(1, 2, 1, 2)
    gate = torch.sigmoid(3 * torch.sigmoid(torch.tensor(3.0)))
    expected = torch.stack([x[0, 0] * gate, x[0, 1] * 0.5]).unsqueeze(0)
    close(layer(x), expected, 1e-5)
    maps = torch.randn(2, 6, 4, 4)
    close(pooled([])(maps), F.avg_pool2d(maps, 4).flatten(1), 1e-5)
