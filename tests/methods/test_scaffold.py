"""SCAFFOLD: control variates on a parabola per client, worked by hand."""

import pytest
from federation import B1, B2, BN, close, image_world, one_round, run, same, tiny_world
from quadratic import DOUBLE, UNIFORM, from_zero, line, y, ys

from pipeline import methods
from pipeline.engine.handle import Handle
from pipeline.errors import ParamError, TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.scaffold import Scaffold
from pipeline.schema import Model, Optimiser

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


def test_its_loss_is_the_cross_entropy_without_the_correction(monkeypatch):
    """In the second round, at the first batch, where all models are still the server's."""
    world, method = tiny_world(monkeypatch, B1, B2, dtype=DOUBLE), Scaffold()
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
    ],
)
def test_an_optimiser_or_a_network_that_does_not_fit_is_refused_before_training(method, given, message):
    with pytest.raises(TrainingError, match=message):
        method.init(image_world(**{type(given).__name__.lower(): given}))


@pytest.mark.parametrize(
    "given, plain",
    [
        (Optimiser("adam", 0.01, weight_decay=1e-3), Optimiser("sgd", 0.1)),
        (Optimiser("sgd", 0.2, 0.9, 1e-3), Optimiser("sgd", 0.1, weight_decay=1e-3)),
    ],
    ids=["adam", "momentum"],
)
def test_a_rate_of_its_makes_the_local_rule_plain_sgd(given, plain):
    wanted = run(Scaffold(), image_world(optimiser=plain)).model
    assert same(run(Scaffold(lr=0.1), image_world(optimiser=given)).model, wanted)


def test_it_sends_model_and_control():
    world = image_world()
    assert Scaffold().traffic(world) == (2 * world.scalars(),) * 2


def test_running_statistics_have_no_control():
    world = image_world(**BN)
    statistics = 2 * (16 + 32 + 64)
    assert Scaffold().traffic(world) == (2 * world.scalars() - statistics,) * 2


def test_an_unknown_option_is_refused():
    with pytest.raises(ParamError, match="methods.x.option: unknown value '2'"):
        methods.load("scaffold", {"option": 2}, "f: methods.x")
