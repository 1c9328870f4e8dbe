"""Worked numbers of FedBN, FedAvgM and FedAdam, and what all baselines with a server step refuse."""

import math

import pytest
import torch
from federation import B1, B2, TINY, close, image_world, params, run, same, tiny_world, watched
from test_baselines import DOUBLE, double, instead_of_training
from torch import nn

from pipeline import methods
from pipeline.engine.state import Clients, Params, State
from pipeline.errors import ParamError, TrainingError
from pipeline.methods._server_steps import part, steps_taken
from pipeline.methods.fedadam import FedAdam
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedavgm import FedAvgM
from pipeline.methods.fedbn import FedBN
from pipeline.methods.feddyn import FedDyn
from pipeline.methods.fednova import FedNova
from pipeline.methods.scaffold import Scaffold
from pipeline.models import Network
from pipeline.schema import Model

BN = {"model": Model("cnn3_bn"), "batch_size": 8}
SIZED = (20, 33, 9)
METHODS = [Scaffold(), Scaffold(option="I"), FedNova(), FedDyn(alpha=0.1), FedBN(), FedAvgM(), FedAdam()]
AVERAGED = [Scaffold(server_lr=0.5), FedNova(), FedDyn(alpha=0.1), FedAvgM(), FedAdam()]


def name(method) -> str:
    return type(method).__name__ + getattr(method, "option", "")


def setting(method) -> dict:
    """FedBN is about BatchNorm, with which option I cannot be had."""
    return BN if isinstance(method, FedBN) else {}


def kinds(model: Params) -> set[str]:
    return {key.rpartition(".")[2] for key in model}


def test_fedbn_leaves_statistics_and_affine_terms_at_home():
    world, method = image_world(SIZED, **BN), FedBN()
    (state, trained), average = watched(method, world, 1), run(FedAvg(), image_world(SIZED, **BN), 1).model
    assert kinds(state.norms[0]) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    assert {**state.shared, **state.norms[0]}.keys() == average.keys() and len(state.norms[0]) == 15
    assert same(state.shared, part(average, state.shared))  # what is shared is FedAvg's, in round one
    for model, mine, norms in zip(method.deployed(state, world), trained.models, state.norms):
        assert same(norms, part(mine, norms)) and same(norms, part(model, norms))
    assert not same(state.norms[0], state.norms[1])
    two, average = (run(kind, image_world(SIZED, **BN), 2) for kind in (method, FedAvg()))
    assert not same(two.shared, part(average.model, two.shared))
    state = run(FedBN(local="statistics"), image_world(SIZED, **BN), 1)
    assert kinds(state.norms[0]) == {"running_mean", "running_var", "num_batches_tracked"}
    assert same(state.shared, part(run(FedAvg(), image_world(SIZED, **BN), 1).model, state.shared))
    with pytest.raises(TrainingError, match="fedbn: cnn4 has no BatchNorm.*`model` that has, or `allow_"):
        FedBN().init(image_world())
    assert same(run(FedBN(allow_plain=True), image_world()).shared, run(FedAvg(), image_world()).model)


def batchnorm() -> Network:
    return Network(nn.Sequential(nn.Flatten(1), nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 2))


def test_fedbns_server_step_of_the_worked_example(monkeypatch):
    """A shared weight of 2 and 5 at clients of two images and four; their BatchNorm weights 1.5 and .5."""
    world = tiny_world(monkeypatch, B1, (B1[0] + B2[0], B1[1] + B2[1]), network=batchnorm)
    state, ends = FedBN().init(world), []
    for server_state, gamma in ((2.0, 1.5), (5.0, 0.5)):
        moved = {"head.bias": torch.full((2,), server_state), "features.2.weight": torch.full((2,), gamma)}
        ends.append(FedBN().deployed(state, world)[0].joined(moved))
    instead_of_training(monkeypatch, Clients(ends))
    models = FedBN().deployed(FedBN().round(state, world), world)
    close([model["head.bias"][0] for model in models], [4, 4])
    close([model["features.2.weight"][0] for model in models], [1.5, 0.5])


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


STEPS = dict(server_lr=0.1, tau=0.01)


@pytest.mark.parametrize(
    "method, first, second, v",
    [
        (FedAvgM(), [1.2, -0.1], [1.28, -0.19], None),
        (FedAvgM(nesterov=True), [1.38, -0.19], [1.352, -0.271], None),
        (FedAdam(**STEPS, second="adagrad", beta1=0.0), [1.095125, -0.090499], [1.052359, -0.090499], None),
        (FedAdam(**STEPS), [1.061846, -0.041482], [1.085121, -0.078926], [5.9401e-4, 1.9701e-4]),
        (FedAdam(**STEPS, second="yogi"), [1.061803, -0.041421], [1.084995, -0.078701], [6e-4, 2e-4]),
        (FedAdam(**STEPS, v0=0.0), [1.066667, -0.05], [1.091457, -0.095113], None),
    ],
)
def test_two_server_steps(monkeypatch, method, first, second, v):
    """x = (1, 0), and changes of (.2, -.1) and (-.1, 0)."""
    world = tiny_world(monkeypatch, B1, B2, dtype=DOUBLE)
    state = State({**method.init(world), "model": params({**TINY, "head.bias": [1.0, 0.0]}, DOUBLE)})
    for change, wanted in (([0.2, -0.1], first), ([-0.1, 0.0], second)):
        moved = state.model.joined({"head.bias": state.model["head.bias"] + double(change)})
        instead_of_training(monkeypatch, world.everyone(moved))
        state = method.round(state, world)
        close(state.model["head.bias"], wanted)
        close(state.model["head.weight"], TINY["head.weight"])  # a change of zero moves nothing
    if v:
        close(state.v["head.bias"], v, 1e-12)


def test_bias_correction_counts_the_server_steps():
    """Of the first step: sqrt(1 - .99) / (1 - .9) = 1; of the second .742460."""
    world = image_world().at(1)
    start = FedAdam().init(world)
    for t, scale in ((1, 1.0), (2, 0.742460)):
        before = State({**start, "steps": t - 1})
        plain, corrected = (FedAdam(bias_correction=option).round(before, world) for option in (False, True))
        for key, value in start.model.items():
            close(corrected.model[key] - value, scale * (plain.model[key] - value))
        assert corrected.steps == t


@pytest.mark.parametrize(
    "algorithm, hyper, message",
    [
        ("fedadam", {"second": "adagrad", "bias_correction": True}, "x: 'bias_correction' is for adam and"),
        ("fedadam", {"beta2": 1.0}, "methods.x.beta2: must be at most 0.9999"),
        ("fedavgm", {"beta": 1}, "methods.x.beta: must be at most 0.9999"),
        ("feddyn", {"alpha": 0}, "methods.x.alpha: must be above 0"),
        ("fedproto", {"averaging": True, "candidates": "own"}, "x: 'candidates: .*' needs a model"),
        ("fedtgp", {"averaging": True, "candidates": "own"}, "x: 'candidates: .*' needs a model"),
        ("rahfl", {"augmix": False}, "x: contrast: dcl compares AugMix views"),
        ("fcclplus", {"kd_share": 0.3, "local": "ce"}, "x: 'kd_share' goes with local: fntd"),
        ("fcclplus", {"fccm": False, "omega": 0.0}, "x: .*leaves nothing to agree on"),
        ("scaffold", {"option": 2}, "methods.x.option: unknown value '2'"),
    ],
)
def test_values_that_make_no_sense_are_refused(algorithm, hyper, message):
    with pytest.raises(ParamError, match=message):
        methods.load(algorithm, hyper, "f: methods.x")


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


def test_scaffold_sends_twice_fedbn_less_and_the_others_as_fedavg():
    world, normed = image_world(), image_world(**BN)
    whole, affine = normed.scalars(), 2 * (16 + 32 + 64)  # as many running statistics
    assert Scaffold().traffic(world) == (2 * world.scalars(),) * 2
    assert Scaffold().traffic(normed) == (2 * whole - affine,) * 2
    assert FedBN().traffic(normed) == (whole - 2 * affine,) * 2
    assert FedBN(local="statistics").traffic(normed) == (whole - affine,) * 2
    for method in (FedNova(), FedDyn(), FedAvgM(), FedAdam()):
        assert method.traffic(world) == FedAvg().traffic(world)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_round_without_any_step_is_refused(method):
    world = image_world((5, 3), drop_last=True, **setting(method))
    with pytest.raises(TrainingError, match="round 0: no client has enough images"):
        method.round(method.init(world), world)
