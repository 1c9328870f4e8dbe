"""What holds of every network: counts and shapes, the split into features and head, errors."""

import copy
from functools import cache

import pytest
import torch
from model_inputs import count, images, trained
from torch.nn import functional as F

from pipeline.errors import ParamError
from pipeline.models import NAMES, build
from pipeline.models.small import STACKS
from pipeline.schema import Model

DEEP = [name for name in NAMES if name not in STACKS]


@cache
def outline(name, channels=3, size=32, classes=10):
    """A network without storage, for counts and shapes."""
    if name in DEEP and size != 32:  # its layers do not depend on the size
        return outline(name, channels, 32, classes)
    with torch.device("meta"):
        return build(Model(name), channels, size, classes)


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
    assert logits.shape == (3, 5)
    assert network.head.in_features == network.width
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
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)
