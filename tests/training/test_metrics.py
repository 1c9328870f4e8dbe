"""A paper's own metrics: what they are given, and which values they may have."""

from types import SimpleNamespace

import pytest
import torch

from pipeline.errors import TrainingError
from pipeline.training import metrics
from pipeline.training.metrics import Predictions

SCORES = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
LABELS = torch.tensor([1, 0, 0, 0])


def test_an_image_is_right_where_its_label_is_scored_highest():
    assert Predictions("a", "d", SCORES, LABELS).right.tolist() == [True, True, False, True]


def test_the_accuracy_is_in_percent():
    assert Predictions("a", "d", SCORES, LABELS).accuracy == 75.0


@pytest.fixture
def value_of(tmp_path, monkeypatch):
    """The recorded value of a metric that always gives the same one."""

    def measured(value):
        monkeypatch.setattr(metrics, "load", lambda experiment: {"mine": lambda clients: value})
        monkeypatch.setattr(metrics, "_predictions", lambda *arguments: iter(["a client"]))
        experiment = SimpleNamespace(root=tmp_path, cell=SimpleNamespace(paper="alpha"))
        return metrics.measured(experiment, None, None, [], None)

    return measured


@pytest.mark.parametrize("value", [0.0, 100.0])
def test_a_share_of_none_and_of_all_is_a_percentage(value_of, value):
    assert value_of(value) == {"metric.mine": value}


@pytest.mark.parametrize("value", [-0.1, 100.1])
def test_a_value_beyond_is_refused_with_its_file(value_of, value):
    with pytest.raises(TrainingError, match="papers/alpha/metrics.py: mine"):
        value_of(value)


def test_a_metric_gets_each_client_with_its_own_model(monkeypatch):
    monkeypatch.setattr(metrics, "client_tests", lambda world, tests: [0, 0])
    clients = [SimpleNamespace(name=name, domain="digits") for name in ("a", "b")]
    world = SimpleNamespace(clients=clients, network=lambda k, model: model)
    test = SimpleNamespace(images=torch.zeros(4, 1), labels=LABELS)
    each = list(metrics._predictions([1.0, -1.0], world, [test], lambda model, images, k: model * SCORES))
    assert [(one.client, one.accuracy) for one in each] == [("a", 75.0), ("b", 25.0)]


def test_a_metric_gets_only_the_clients_that_are_scored(monkeypatch):
    experiment = SimpleNamespace(root=None, cell=SimpleNamespace(paper="alpha"))
    monkeypatch.setattr(metrics, "load", lambda experiment: {"mine": lambda clients: clients[0].accuracy})
    monkeypatch.setattr(metrics, "_file", lambda experiment: "metrics.py")
    monkeypatch.setattr(metrics, "shorten", str)
    clients = [SimpleNamespace(name=name, domain="digits") for name in ("a", "b")]
    world = SimpleNamespace(clients=clients, network=lambda k, model: model)
    tests = [SimpleNamespace(name=name, images=torch.zeros(4, 1), labels=LABELS) for name in ("a", "b")]

    def scores(model, images, k):
        return model * SCORES

    of = experiment, [1.0, -1.0], world, tests, scores
    assert metrics.measured(*of) == {"metric.mine": 75.0}
    assert metrics.measured(*of, (1,)) == {"metric.mine": 25.0}
