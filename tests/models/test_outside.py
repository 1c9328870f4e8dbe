"""Networks that were not written for the engine: how a module becomes features and a head."""

import pytest
import torch
from federation import same
from torch import nn

from pipeline.errors import ParamError
from pipeline.models import build
from pipeline.models.layers import Dropout
from pipeline.models.outside import Given, described, network_of, of_arguments

ROWS = torch.linspace(-1, 1, 5 * 13).view(5, 13)
SIGNALS = torch.linspace(-1, 1, 5 * 3 * 16).view(5, 3, 16)
TOKENS = torch.arange(35).view(5, 7) % 10


class Whole(nn.Module):
    """Ends in a linear layer that is not called head."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(13, 6)
        self.fc = nn.Linear(6, 2)

    def forward(self, x):
        return self.fc(self.hidden(x).relu())


class Parts(nn.Module):
    """With a head of two layers, and what joins the parts in `forward`."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv1d(3, 4, 3)
        self.head = nn.Sequential(nn.Linear(56, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


@pytest.mark.parametrize(
    "module, like, head, width",
    [
        (Whole(), ROWS, ["head.weight", "head.bias"], 6),
        (nn.Sequential(nn.Linear(13, 4), nn.ReLU(), nn.Linear(4, 2)), ROWS, ["head.weight", "head.bias"], 4),
        (nn.Linear(13, 2), ROWS, ["head.weight", "head.bias"], 13),
        (nn.Sequential(nn.Embedding(10, 3), nn.Flatten(), nn.Linear(21, 2)), TOKENS, None, 21),
        (Parts(), SIGNALS, [f"head.{at}.{part}" for at in (0, 2) for part in ("weight", "bias")], 56),
    ],
    ids=["fc", "sequence", "linear", "tokens", "parts"],
)
def test_a_classifier_is_split_and_stays_the_same_function(module, like, head, width):
    network = network_of(module, like, 2)
    assert torch.allclose(network(like), module(like))
    assert torch.allclose(network.head(network.features(like)), module(like))
    named = [name for name in network.state_dict() if name.startswith("head.")]
    assert named == (head or ["head.weight", "head.bias"])
    assert (network.width, network.classes) == (width, 2)
    assert {name.split(".")[0] for name in network.state_dict()} <= {"features", "head"}
    # The user's module is not the one that trains.
    with torch.no_grad():
        next(network.parameters()).add_(1)
    assert not torch.allclose(network(like), module(like))


def test_a_module_that_ends_otherwise_gives_the_features():
    network = network_of(nn.Conv1d(3, 8, 3), SIGNALS, 4)
    assert network.features(SIGNALS).shape == (5, 8 * 14)
    assert network(SIGNALS).shape == (5, 4)


def test_a_class_is_drawn_anew_and_a_module_is_not():
    torch.manual_seed(0)
    one, two = (network_of(Whole, ROWS, 2).state_dict() for _ in range(2))
    assert not same(one, two)
    module = Whole()
    assert same(*(network_of(module, ROWS, 2).state_dict() for _ in range(2)))


def test_dropout_draws_from_the_clients_key():
    network = network_of(nn.Sequential(nn.Linear(13, 4), nn.Dropout(0.3), nn.Linear(4, 2)), ROWS, 2)
    assert [layer.p for layer in network.modules() if isinstance(layer, Dropout)] == [0.3, 0.0]
    assert not any(type(layer) is nn.Dropout for layer in network.modules())


@pytest.mark.parametrize(
    "given, like, message",
    [
        (nn.Sequential(nn.Linear(13, 2), nn.Softmax(1)), ROWS, "Sequential: is not head.features.x"),
        (nn.Linear(12, 2), ROWS, r"Linear: fails for samples of shape \(13,\): RuntimeError"),
        (nn.LSTM(16, 4), SIGNALS, "LSTM: fails for .*gives tuple, expected a tensor"),
        (lambda: 7, ROWS, "<lambda>: makes int, expected a module"),
    ],
    ids=["softmax", "shape", "tuple", "number"],
)
def test_what_cannot_be_split_is_one_line(given, like, message):
    with pytest.raises(ParamError, match=message) as refused:
        network_of(given, like, 2)
    assert "\n" not in str(refused.value)


def test_a_head_for_other_classes_is_refused():
    module = nn.Module()
    module.features, module.head = nn.Flatten(), nn.Linear(13, 3)
    module.forward = lambda x: module.head(x)
    with pytest.raises(ParamError, match=r"its head gives \(3,\) for a sample, expected \(2,\)"):
        network_of(module, ROWS, 2)


def test_what_stands_for_a_network():
    given = described(Whole)
    assert given == Given("Whole", network=Whole)
    assert given.projector is None
    assert described(given) is given
    with pytest.raises(ParamError, match="7 is no network"):
        described(7)


def test_arguments_go_by_their_names():
    values = {"channels": 3, "size": 16, "shape": (3, 16), "classes": 2}
    assert of_arguments(lambda classes, shape, width=5: (classes, shape, width), "f", values) == (
        2,
        (3, 16),
        5,
    )
    with pytest.raises(ParamError, match="f: has the argument 'side', expected some of channels, size"):
        of_arguments(lambda side: side, "f", values)


def test_the_networks_of_a_paper(tmp_path, monkeypatch):
    (folder := tmp_path / "papers/theirs").mkdir(parents=True)
    (folder / "models.py").write_text(
        "from torch import nn\n"
        "def wide(channels, size):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size, 6)), 3\n"
        "def pair(shape, classes):\n    return nn.Flatten(), nn.Sequential(nn.Linear(48, classes))\n"
        "def whole(classes):\n"
        "    return nn.Sequential(nn.Conv1d(3, 2, 3), nn.Flatten(), nn.Linear(28, classes))\n"
        "def wrong(shape):\n    return 7\n"
    )
    monkeypatch.setattr("pipeline.models.ROOT", tmp_path)
    from pipeline.schema import Model

    def made(name, **more):
        return build(Model(name, paper="theirs", **more), 3, 16, 4, SIGNALS)

    # features of a distribution (FedSR) are wider than the head
    assert made("wide").head.in_features == 3
    assert made("wide").features(SIGNALS).shape == (5, 6)
    assert list(made("pair").state_dict()) == ["head.0.weight", "head.0.bias"]
    network = made("whole", dropout=0.5, projector=8)
    assert (network.dropout.p, network.width, network(SIGNALS).shape) == (0.5, 28, (5, 4))
    assert network.projector(network.features(SIGNALS)).shape == (5, 8)
    with pytest.raises(ParamError, match="papers/theirs/models.py: wrong: returns int, expected a module"):
        made("wrong")
