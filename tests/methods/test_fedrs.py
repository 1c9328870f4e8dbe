"""FedRS: the softmax restricted to the classes at home."""

import pytest
import torch
import torch.nn.functional as F
from federation import close, image_world, rows, run, same

from pipeline.engine import federation as engine
from pipeline.engine.state import Params
from pipeline.errors import TrainingError
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedrs import FedRS, restricted_cross_entropy, restricted_scale
from pipeline.schema import Model, Optimiser

Z, ZY, W = rows([1, 2], [0.5, 0]), torch.tensor([1, 0]), rows([1, 0], [0, 1], [1, 1], [-1, 1])


COUNTS = torch.tensor([4, 1, 0, 0])


@pytest.mark.parametrize(
    "mode, scale, loss",
    [("hard", (1, 1, 0.5, 0.5), 0.918678), ("soft", (1, 0.625, 0.5, 0.5), 1.156392)],
)
def test_fedrs_worked_numbers(mode, scale, loss):
    actual = restricted_scale(COUNTS, 0.5, mode)
    assert actual.tolist() == list(scale)
    close(restricted_cross_entropy(Z, ZY, W, actual.float()), loss)
    close(restricted_cross_entropy(Z, ZY, W, torch.ones(4)), 1.291929)


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_the_scale_is_one_with_alpha_one_or_equal_counts(mode):
    assert restricted_scale(COUNTS, 1.0, mode).tolist() == [1.0] * 4
    assert restricted_scale(torch.tensor([3, 3, 3]), 0.3, mode).tolist() == [1.0] * 3


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_a_client_without_data_has_alpha_for_every_class(mode):
    assert restricted_scale(torch.zeros(3, dtype=torch.int64), 0.5, mode).tolist() == [0.5] * 3


def test_a_hard_scale_is_one_for_every_class_at_home():
    assert restricted_scale(torch.tensor([9, 1, 4]), 0.3, "hard").tolist() == [1.0] * 3


def test_several_clients_get_their_scales_at_once():
    assert restricted_scale(COUNTS.expand(2, 4), 0.5, "soft").tolist() == [[1, 0.625, 0.5, 0.5]] * 2


def without_bias(monkeypatch):
    real = engine.build

    def build(*given):
        network = real(*given)
        network.head.register_parameter("bias", None)
        return network

    monkeypatch.setattr(engine, "build", build)


@pytest.mark.parametrize("method", [FedRS(alpha=1.0), FedRS(alpha=1.0, mode="soft")], ids=["hard", "soft"])
def test_fedrs_without_restriction_is_fedavg_with_a_classifier_without_bias(method, monkeypatch):
    optimiser = Optimiser("sgd", 0.1, momentum=0.9, weight_decay=1e-3)
    state = run(method, image_world(optimiser=optimiser)).model
    assert not state["head.bias"].any()
    without_bias(monkeypatch)
    fedavg = run(FedAvg(), image_world(optimiser=optimiser)).model
    assert same(Params((name, state[name]) for name in fedavg), fedavg)
    assert same(run(method, image_world(optimiser=optimiser)).model, fedavg)


def test_with_a_bias_and_no_restriction_it_is_fedavg():
    state = run(FedRS(bias=True, alpha=1.0), image_world())
    assert same(state.model, run(FedAvg(), image_world()).model, within=1e-6)
    assert state.model["head.bias"].any()


def test_a_bias_is_not_scaled():
    bias, scale = torch.tensor([0.1, -0.2, 0.3, 0.4]), torch.tensor([1, 1, 0.5, 0.5])
    wanted = F.cross_entropy((Z @ W.T) * scale + bias, ZY)
    close(restricted_cross_entropy(Z, ZY, W, scale, bias), wanted, 1e-5)


def test_a_network_with_dropout_is_refused():
    with pytest.raises(TrainingError, match="its network can have no dropout"):
        FedRS().init(image_world(model=Model("cnn2", dropout=0.3)))


def test_it_sends_the_model_without_bias():
    world = image_world()
    assert FedRS().traffic(world) == (world.scalars() - 10,) * 2
    assert FedRS(bias=True).traffic(world) == (world.scalars(),) * 2
