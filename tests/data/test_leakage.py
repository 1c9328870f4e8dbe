"""What a server reconstructs from gradients and class means: the attacks work where they must, fail where
they must, and their page says what was measured."""

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from federation import close
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call, grad, vmap

from benchmarks.studies.inversion import infer_label, invert_gradients, invert_representations, matched, ssim
from benchmarks.studies.leakage import measure
from benchmarks.studies.leakage_stage import write
from pipeline import keys

SIDE = 16


def digits(*numbers: int) -> torch.Tensor:
    """Scans (n, 1, 16, 16) in [0, 1]."""
    scans = torch.tensor(load_digits().images[list(numbers)], dtype=torch.float32)[:, None] / 16
    return F.interpolate(scans, (SIDE, SIDE), mode="bilinear")


def draws(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=keys.torch_generator("start", *shape))


@pytest.fixture(scope="module")
def victim():
    """loss(parameters, images, labels) of a small smooth network, and its parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = nn.Sequential(
            nn.Conv2d(1, 8, 5),
            nn.Sigmoid(),
            nn.Flatten(1),
            nn.Linear(8 * 144, 64),
            nn.Sigmoid(),
            nn.Linear(64, 10),
        )

    def loss(parameters, images, labels):
        return F.cross_entropy(functional_call(network, dict(parameters), (images,)), labels)

    return loss, {name: value.detach() for name, value in network.named_parameters()}


def sent_by(victim, images, labels):
    return dict(vmap(grad(victim[0]), (None, 0, 0))(victim[1], images, labels))


def test_structural_similarity_by_hand():
    a, b, (x, y) = torch.full((1, 1, 12, 12), 0.5), torch.full((1, 1, 12, 12), 0.25), digits(3, 4)[:, None]
    close(ssim(a, b), [[(2 * 0.125 + 1e-4) / (0.25 + 0.0625 + 1e-4)]], 1e-5)
    assert ssim(x, x).item() == pytest.approx(1, abs=1e-5)
    assert ssim(x, 1 - x).item() < 0
    assert ssim(torch.cat([x, y]), y).shape == (2, 1)
    close(ssim(x, y), ssim(y, x))
    images = digits(3, 4, 5)
    score, of = matched(images[[2, 0, 1]], images)
    assert of == [2, 0, 1]
    assert score == pytest.approx(1, abs=1e-5)


def test_a_gradient_gives_its_image_back_and_noise_does_not(victim):
    images, labels = digits(3, 7)[:, None], torch.tensor([[3], [7]])
    sent, start = sent_by(victim, images, labels), draws(2, 1, 1, SIDE, SIDE)
    noise = {
        name: torch.randn(value.shape, generator=keys.torch_generator(name)) for name, value in sent.items()
    }
    actual, again, nothing = (
        invert_gradients(*victim, what, start, labels, 300, 0.001) for what in (sent, sent, noise)
    )
    assert torch.equal(actual, again)
    assert all(matched(one, true)[0] > 0.9 for one, true in zip(actual, images))
    assert all(matched(one, true)[0] < 0.3 for one, true in zip(nothing, images))


def test_the_label_of_one_image_stands_in_its_gradient(victim):
    labels = torch.arange(10)[:, None]
    sent = sent_by(victim, digits(*range(10))[:, None], labels)
    assert torch.equal(infer_label(sent["5.weight"]), labels[:, 0])


def test_a_representation_that_keeps_everything_gives_its_image_back():
    """Behind the mean of a linear extractor's values lies the mean image; a single number says nothing."""
    mixing = torch.linalg.qr(torch.randn(256, 256, generator=keys.torch_generator("mixing")))[0]

    def features(images):
        return images.flatten(1) @ mixing

    images, start = digits(3, 13, 23), draws(1, 1, SIDE, SIDE)
    for wanted in (images[:1], images.mean(0, keepdim=True)):
        actual = invert_representations(features, features(wanted).mean(0, keepdim=True), start, 300, 0.0)
        assert ssim(actual, wanted).item() > 0.9
    first = features(images[:1])[:, :1]
    blind = invert_representations(lambda x: features(x)[:, :1], first, start, 300, 0.001)
    assert ssim(blind, images[:1]).item() < 0.3


def test_what_the_miniature_s_methods_send_is_attacked(project):
    """Of FedProto's extractor, the server has the initial state."""
    attempts = measure((0,), 1, project, steps=2)
    actual = {(one.method, one.sent) for one in attempts}
    assert actual == {
        ("fedavg", "gradient"),
        ("fedcrl", "features' gradient"),
        ("fedcrl", "class means"),
        ("fedproto", "class means"),
        ("fedccl", "cluster means"),
    }
    means = {
        method: [one for one in attempts if one.method == method and one.sent == "class means"]
        for method in ("fedcrl", "fedproto")
    }
    assert [(one.client, one.images, one.mean) for one in means["fedcrl"]] == [
        (one.client, one.images, one.mean) for one in means["fedproto"]
    ]
    assert [one.ssim for one in means["fedcrl"]] != [one.ssim for one in means["fedproto"]]
    write(attempts, project)
    assert len(pd.read_csv(project / "reports/leakage/leakage.csv")) == len(attempts)
    assert (project / "reports/leakage/leakage.png").stat().st_size
