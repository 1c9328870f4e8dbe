"""Helpers of methods whose server makes a step: clients' step counts, what a step moves."""

import math

import pytest
import torch
from federation import B1, B2, BN, close, image_world, tiny_world
from quadratic import instead_of_training
from torch import nn

from pipeline.errors import TrainingError
from pipeline.methods._server_steps import plain_sgd, shares, steps_taken
from pipeline.methods.fedadam import FedAdam
from pipeline.methods.fedavgm import FedAvgM
from pipeline.methods.fedbn import FedBN
from pipeline.methods.feddyn import FedDyn
from pipeline.methods.fednova import FedNova
from pipeline.methods.scaffold import Scaffold
from pipeline.models import Network
from pipeline.schema import Optimiser

AVERAGED = [Scaffold(server_lr=0.5), FedNova(), FedDyn(alpha=0.1), FedAvgM(), FedAdam()]


def name(method) -> str:
    return type(method).__name__ + getattr(method, "option", "")


def batchnorm() -> Network:
    return Network(nn.Sequential(nn.Flatten(1), nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 2))


@pytest.mark.parametrize("method", AVERAGED, ids=name)
def test_running_statistics_are_averaged_and_not_stepped(monkeypatch, method):
    """A variance that fell from 1 to .2 at both clients is .2, also where FedNova's weights sum to more than
    one: two steps and one. BatchNorm's weight, from 1 to 2, is learned: it moves as the server does."""
    world = tiny_world(monkeypatch, (B1[0] + B2[0], B1[1] + B2[1]), B1, network=batchnorm)
    state = method.init(world)
    moved = {"features.2.running_var": torch.full((2,), 0.2), "features.2.weight": torch.full((2,), 2.0)}
    instead_of_training(monkeypatch, world.everyone(state.model.joined(moved)))
    model = method.round(state, world).model
    close(model["features.2.running_var"], [0.2, 0.2])
    wanted = {
        Scaffold: 1.5,
        FedNova: 1 + (2 / 3 * 2 + 1 / 3) * (2 / 3 / 2 + 1 / 3),
        FedDyn: 3.0,
        FedAvgM: 2.0,
        FedAdam: 1 + 0.01 * 0.1 / (math.sqrt(0.99e-6 + 0.01) + 0.001),
    }[type(method)]
    close(model["features.2.weight"], [wanted] * 2)


@pytest.mark.parametrize(
    "sizes, changes, steps",
    [
        ((20, 33, 7, 0), {}, [4, 6, 2, 0]),
        ((20, 33, 7), {"drop_last": True}, [2, 4, 0]),
        ((17, 1, 18), BN, [4, 0, 6]),
    ],
)
def test_steps_are_counted_as_they_are_taken(sizes, changes, steps):
    """Two epochs of batches of 16; of 8 with BatchNorm, which leaves out one of a single image."""
    world = image_world(sizes, local_epochs=2, **changes)
    assert steps_taken(world, world.new_model()) == steps


METHODS = [Scaffold(), Scaffold(option="I"), FedNova(), FedDyn(alpha=0.1), FedBN(), FedAvgM(), FedAdam()]


def setting(method) -> dict:
    """FedBN is about BatchNorm, with which option I cannot be had."""
    return BN if isinstance(method, FedBN) else {}


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_round_without_any_step_is_refused(method):
    world = image_world((5, 3), drop_last=True, **setting(method))
    with pytest.raises(TrainingError, match="round 0: no client has enough images"):
        method.round(method.init(world), world)


@pytest.mark.parametrize(
    "given, wanted",
    [
        (Optimiser("adam", 0.01, weight_decay=1e-3), Optimiser("sgd", 0.2)),
        (Optimiser("sgd", 0.01, 0.9, 1e-3), Optimiser("sgd", 0.2, weight_decay=1e-3)),
        (Optimiser("sgd", 0.01, clip=0.5), Optimiser("sgd", 0.2, clip=0.5)),
    ],
    ids=["adam", "momentum", "clip"],
)
def test_a_rate_of_a_methods_own_is_of_plain_sgd(given, wanted):
    """With the scenario's decay of weights only where that is of SGD."""
    assert plain_sgd(image_world(optimiser=given).at(1), 0.2, "why") == wanted


def test_a_rate_of_a_methods_own_decays_as_the_scenarios():
    world = image_world(optimiser=Optimiser("adam", 0.01, lr_decay=0.5))
    assert plain_sgd(world.at(1), 0.2, "why").lr == 0.2
    assert plain_sgd(world.at(3), 0.2, "why").lr == 0.05


def test_without_a_rate_the_scenarios_optimiser_is_kept():
    given = Optimiser("sgd", 0.01, weight_decay=1e-3)
    assert plain_sgd(image_world(optimiser=given).at(1), None, "why") is given


def test_momentum_may_be_allowed():
    given = Optimiser("sgd", 0.01, 0.9)
    assert plain_sgd(image_world(optimiser=given).at(1), None, "why", momentum=True) is given


@pytest.mark.parametrize(
    "given, message",
    [
        (Optimiser("adam", 0.01), "^x, but the scenario's optimiser is adam: give the method's row an `lr`"),
        (Optimiser("sgd", 0.01, 0.9), "^x, but the scenario's optimiser is sgd with momentum 0.9: give"),
    ],
    ids=["adam", "momentum"],
)
def test_another_optimiser_is_refused_with_what_to_do(given, message):
    with pytest.raises(TrainingError, match=message):
        plain_sgd(image_world(optimiser=given).at(1), None, "x")


def test_shares_sum_to_one():
    assert shares([1, 3]) == [0.25, 0.75]
