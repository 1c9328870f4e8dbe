"""Identities and worked numbers of SCAFFOLD, FedNova, FedDyn, FedBN, FedAvgM and FedAdam."""

import math

import pytest
import torch
from federation import (
    B1,
    B2,
    TINY,
    close,
    difference,
    image_world,
    one_round,
    params,
    run,
    same,
    tiny_world,
    watched,
)
from torch import nn

from pipeline import methods
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Clients, Params, State, zeros
from pipeline.engine.trained import Trained
from pipeline.engine.world import World
from pipeline.errors import ParamError, TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods._server_steps import part, steps_taken
from pipeline.methods.base import Method
from pipeline.methods.fedadam import FedAdam
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedavgm import FedAvgM
from pipeline.methods.fedbn import FedBN
from pipeline.methods.feddyn import FedDyn
from pipeline.methods.fednova import FedNova, normaliser
from pipeline.methods.fedprox import FedProx
from pipeline.methods.scaffold import Scaffold
from pipeline.models import Network
from pipeline.schema import Model, Optimiser

DOUBLE = torch.float64


def double(values) -> torch.Tensor:
    return torch.as_tensor(values, dtype=DOUBLE)


def instead_of_training(monkeypatch, models: Clients) -> None:
    """What every local phase from now on comes to."""
    monkeypatch.setattr(World, "local_epochs", lambda *_, **__: Trained(models, []))


# F_k(y) = a_k / 2 (y - t_k)^2 with a = (1, 4), t = (2, -1); y is the first bias. Three images and one, in
# batches of two: two steps and one.


def quadratic(self, model: Handle, batch: Batch, server_state, client_state):
    a, t = batch.images[:, 0, 0, 0].mean(), batch.images[:, 1, 0, 0].mean()
    return a / 2 * (model.params["head.bias"][0] - t) ** 2


def line(monkeypatch, **changes):
    monkeypatch.setattr(Method, "loss", quadratic)
    return tiny_world(monkeypatch, ([[1.0, 2.0]] * 3, [0] * 3), ([[4.0, -1.0]], [0]), dtype=DOUBLE, **changes)


def from_zero(method, world, rounds: int) -> State:
    """The state after so many rounds from y = 0."""
    state = method.init(world)
    state = State({**state, "model": zeros(state.model)})
    for number in range(1, rounds + 1):
        state = method.round(state, world.at(number))
    return state


def y(model: Params) -> float:
    return float(model["head.bias"][0])


def ys(models: Clients) -> list[float]:
    return [y(model) for model in models]


UNIFORM = {"averaging": "uniform"}
SCAFFOLD = {  # of two rounds: y_k, c_k, (x, c); then the minimum of sum_k p_k F_k
    "by samples": (
        {},
        [
            ([0.38, -0.4], [-1.9, 4.0], [0.185, -0.425]),
            ([0.2496, 0.1535], [-1.798, 4.74], [0.225575, -0.1635]),
        ],
        2 / 7,
    ),
    "uniform": (
        UNIFORM,
        [([0.38, -0.4], [-1.9, 4.0], [-0.01, 1.05]), ([-0.1886, -0.111], [-2.057, 3.96], [-0.1498, 0.9515])],
        -0.4,
    ),
}


@pytest.mark.parametrize("weighing", SCAFFOLD)
def test_scaffold_two_rounds_and_the_limit(monkeypatch, weighing):
    changes, rounds, limit = SCAFFOLD[weighing]
    world, method = line(monkeypatch, **changes), Scaffold()
    state = from_zero(method, world, 0)
    for number, (local, controls, server) in enumerate(rounds, 1):
        state, trained = one_round(method, state, world.at(number))
        close(ys(trained.models), local)
        close(ys(state.controls), controls)
        close([y(state.model), y(state.control)], server)
    close(y(from_zero(method, world, 200).model), limit)


def test_scaffold_option_one_takes_the_gradient_at_the_global_model(monkeypatch):
    method = Scaffold(option="I")
    close(ys(from_zero(method, line(monkeypatch), 1).controls), [-2, 4])
    decayed = line(monkeypatch, optimiser=Optimiser(lr=0.1, weight_decay=0.5))
    x = y(from_zero(method, decayed, 1).model)
    close(ys(from_zero(method, decayed, 2).controls), [x - 2 + 0.5 * x, 4 * (x + 1) + 0.5 * x])


def test_scaffold_with_one_full_step_is_fedavg_and_both_options_agree(monkeypatch):
    """Corrections cancel in the mean; the gradient of the step is that of all data."""
    two, one, plain = (
        from_zero(method, line(monkeypatch, batch_size=3), 3)
        for method in (Scaffold(), Scaffold(option="I"), FedAvg())
    )
    close(y(two.model), y(plain.model), 1e-12)
    close(two.control, one.control, 1e-12)


FEDDYN = {  # of two rounds: y_k, x; v_k after them; the minimum
    "uniform": (UNIFORM, [([1.0, -0.8], 0.2), ([0.6, -0.6], -0.1)], [1.4, -1.6], -0.4),
    "by samples": ({}, [([1.2, -0.666667], 0.533333), ([0.933333, -0.266667], 0.4)], [1.6, -1.466667], 2 / 7),
}


@pytest.mark.parametrize("weighing", FEDDYN)
def test_feddyn_two_rounds_and_the_stationary_point(monkeypatch, weighing):
    """Local losses are minimised: 60 epochs."""
    changes, rounds, drifts, limit = FEDDYN[weighing]
    world, method = line(monkeypatch, local_epochs=60, **changes), FedDyn(alpha=1.0)
    state = from_zero(method, world, 0)
    for number, (local, x) in enumerate(rounds, 1):
        state, trained = one_round(method, state, world.at(number))
        close(ys(trained.models), local)
        close(y(state.model), x)
    close(ys(state.drifts), drifts)
    alphas = method.alphas([1, 1] if changes else [3, 1])
    gradients = [a * (local - t) for a, t, local in zip((1, 4), (2, -1), ys(trained.models))]
    close(gradients, [-alpha * drift for alpha, drift in zip(alphas, drifts)])  # the first-order condition
    state, trained = one_round(method, from_zero(method, world, 34), world.at(35))
    close(y(state.model), limit)
    close(ys(trained.models), [limit] * 2)  # where all agree


def test_the_loss_that_scaffold_and_feddyn_tell_is_the_cross_entropy(monkeypatch):
    """In the second round, at the first batch, where all models are still the server's."""
    for method in (Scaffold(), FedDyn(alpha=0.5)):
        world = tiny_world(monkeypatch, B1, B2, dtype=DOUBLE)
        state = run(method, world, 1)
        trained = one_round(method, state, world.at(2))[1]
        model = Handle(world.network(0, state.model))
        wanted = [cross_entropy(model(client.images), client.labels).item() for client in world.clients]
        close(trained.losses, wanted, 1e-12)


@pytest.mark.parametrize("averaging, p", [(None, [20 / 60, 33 / 60, 7 / 60]), ("uniform", [1 / 3] * 3)])
def test_scaffolds_control_is_the_mean_of_the_clients(averaging, p):
    """The fourth client takes no step: it counts in neither mean, and its control stays zero."""
    state = run(Scaffold(), image_world((20, 33, 7, 0), averaging=averaging))
    for key, value in state.control.items():
        close(value, sum(share * control[key].double() for share, control in zip(p, state.controls)))
        assert not state.controls[3][key].any()


@pytest.mark.parametrize(
    "method, given, message",
    [
        (Scaffold(), Optimiser("adam", 0.01), "scaffold: .* optimiser is adam: give the method's row an"),
        (Scaffold(), Optimiser("sgd", 0.01, 0.9), "scaffold: .* optimiser is sgd with momentum 0.9: give"),
        (Scaffold(option="I"), Model("cnn3_bn"), "option I .* BatchNorm and dropout"),
        (Scaffold(option="I"), Model("cnn2", dropout=0.3), "option I .* BatchNorm and dropout"),
        (FedNova(), Optimiser("adam", 0.01), "fednova: it needs sgd.* optimiser is adam: give"),
        (FedNova(mu=30.0), Optimiser("sgd", 0.1), "fednova: mu 30 at rate 0.1 throws clients back"),
    ],
)
def test_a_local_rule_that_does_not_fit_is_refused_before_training(method, given, message):
    with pytest.raises(TrainingError, match=message):
        method.init(image_world(**{type(given).__name__.lower(): given}))


@pytest.mark.parametrize("kind", [Scaffold, FedNova])
@pytest.mark.parametrize(
    "given, plain",
    [
        (Optimiser("adam", 0.01, weight_decay=1e-3), Optimiser("sgd", 0.1)),
        (Optimiser("sgd", 0.2, 0.9, 1e-3), Optimiser("sgd", 0.1, weight_decay=1e-3)),
    ],
    ids=["adam", "momentum"],
)
def test_a_rate_of_its_makes_the_local_rule_plain_sgd(kind, given, plain):
    wanted = run(kind(), image_world(optimiser=plain)).model
    assert same(run(kind(lr=0.1), image_world(optimiser=given)).model, wanted)


@pytest.mark.parametrize(
    "steps, momentum, pull, wanted",
    [
        (2, 0.9, 0, 2.9),
        (20, 0.9, 0, 120.941899),
        (7, 0, 0, 7),
        (0, 0.9, 0.1, 0),
        (5, 0, 0.1, 4.0951),
        (3, 0.9, 0.1, 5.14),
    ],
)
def test_fednovas_normaliser(steps, momentum, pull, wanted):
    close(normaliser(steps, momentum, pull), wanted)


@pytest.mark.parametrize(
    "sizes, lengths, x", [((2, 6), None, [2.875, 2.25]), ((4, 4), [2.0, 8.0], [1.0, 3.5])]
)
def test_fednovas_server_step(monkeypatch, sizes, lengths, x):
    """(2, 6) images in batches of two: one step and three."""
    world = tiny_world(monkeypatch, *(([[0.0, 0.0]] * n, [0] * n) for n in sizes), dtype=DOUBLE)
    if lengths:
        monkeypatch.setattr(FedNova, "lengths", lambda *_: lengths)
    first, second, start = (
        params({**TINY, "head.bias": b}, DOUBLE) for b in ([0.0, 3.0], [5.0, 1.0], [1.0, 1.0])
    )
    instead_of_training(monkeypatch, Clients([first, second]))
    close(FedNova().round(State(model=start, change=zeros(start)), world).model["head.bias"], x)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_fednova_with_equal_steps_is_fedavg_or_fedprox(momentum, mu):
    """Two batches each, of unequal length."""

    def both(sizes):
        worlds = [image_world(sizes, optimiser=Optimiser("sgd", 0.1, momentum)) for _ in range(2)]
        return run(FedNova(mu=mu), worlds[0]).model, run(FedProx(mu=mu), worlds[1]).model

    close(*both((20, 32, 27)))
    assert difference(*both((20, 40, 7))) > 1e-3


def test_fednova_with_steps_as_tau_eff_shrinks_a_round_with_momentum():
    """By tau / |a| for clients of five steps each: 5 / 13.1441."""

    def change(tau_eff):
        world = image_world((80, 70), optimiser=Optimiser("sgd", 0.01, 0.9))
        return run(FedNova(tau_eff=tau_eff), world, 1).change

    for key, value in change("normaliser").items():
        close(change("steps")[key], value * (5 / 13.1441))


def test_feddyns_first_round_trains_fedprox_and_goes_twice_as_far():
    """x = mean y + mean v, and v = y - x_0 at first."""
    world, other = (image_world((16, 16, 16), local_epochs=2) for _ in range(2))
    (state, mine), (prox, theirs) = watched(FedDyn(alpha=0.3), world, 1), watched(FedProx(mu=0.3), other, 1)
    assert all(map(same, mine.models, theirs.models)) and same(state.mean, prox.model)
    start = image_world().new_model()
    close(state.model, Params((key, 2 * prox.model[key] - start[key]) for key in start))
    far = sum(float((prox.model[key] - start[key]).square().sum()) for key in start)
    close(FedDyn().diagnostics(state)["shift"], math.sqrt(far), 1e-5)


def test_feddyn_weighs_by_the_pull_alone_and_scores_what_is_sent_or_the_mean(capsys):
    assert FedDyn(alpha=0.1).alphas([30, 10, 0]) == pytest.approx([0.1 * 20 / 30, 0.2, 0])
    assert FedDyn().alphas([1, 1]) == [0.01, 0.01]
    one, other = (run(FedDyn(), image_world((16, 16), averaging=means)) for means in (None, "uniform"))
    assert same(one.model, other.model) and not capsys.readouterr().err
    FedDyn(alpha=6.0).init(image_world((30, 10)))
    assert "alpha_k is 1.2" in capsys.readouterr().err
    world = image_world()
    state = run(FedDyn(), world)
    assert FedDyn().deployed(state, world)[0] is state.model
    assert FedDyn(scored="mean").deployed(state, world)[0] is state.mean
    assert not same(state.model, state.mean)


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
