"""FedDyn: a pull that is corrected by what was left of it, on a parabola per client."""

import math

import pytest
from federation import B1, B2, close, image_world, one_round, run, same, tiny_world, watched
from quadratic import DOUBLE, UNIFORM, from_zero, line, y, ys

from pipeline import methods
from pipeline.engine.handle import Handle
from pipeline.engine.state import Params
from pipeline.errors import ParamError
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.feddyn import FedDyn
from pipeline.methods.fedprox import FedProx

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


def test_its_loss_is_the_cross_entropy_without_the_pull(monkeypatch):
    """In the second round, at the first batch, where all models are still the server's."""
    world, method = tiny_world(monkeypatch, B1, B2, dtype=DOUBLE), FedDyn(alpha=0.5)
    state = run(method, world, 1)
    trained = one_round(method, state, world.at(2))[1]
    model = Handle(world.network(0, state.model))
    wanted = [cross_entropy(model(client.images), client.labels).item() for client in world.clients]
    close(trained.losses, wanted, 1e-12)


def first_round():
    """(state, what it trained) of FedDyn and FedProx after one round on clients of equal size."""
    world, other = (image_world((16, 16, 16), local_epochs=2) for _ in range(2))
    return watched(FedDyn(alpha=0.3), world, 1), watched(FedProx(mu=0.3), other, 1)


def test_the_first_round_trains_as_fedprox():
    (state, mine), (prox, theirs) = first_round()
    assert all(map(same, mine.models, theirs.models))
    assert same(state.mean, prox.model)


def test_the_first_round_goes_twice_as_far_as_fedprox():
    """x = mean y + mean v, and v = y - x_0 at first."""
    (state, _), (prox, _) = first_round()
    start = image_world().new_model()
    close(state.model, Params((key, 2 * prox.model[key] - start[key]) for key in start))


def test_the_recorded_shift_is_the_distance_of_the_model_from_the_mean():
    (state, _), (prox, _) = first_round()
    start = image_world().new_model()
    far = sum(float((prox.model[key] - start[key]).square().sum()) for key in start)
    close(FedDyn().diagnostics(state)["shift"], math.sqrt(far), 1e-5)


def test_the_pull_of_a_client_is_weaker_the_more_samples_it_has():
    assert FedDyn(alpha=0.1).alphas([30, 10, 0]) == pytest.approx([0.1 * 20 / 30, 0.2, 0])
    assert FedDyn().alphas([1, 1]) == [0.01, 0.01]


def test_averaging_weighs_by_the_pull_alone(capsys):
    one, other = (run(FedDyn(), image_world((16, 16), averaging=means)) for means in (None, "uniform"))
    assert same(one.model, other.model)
    assert not capsys.readouterr().err


def test_a_pull_above_one_over_the_rate_is_warned_of(capsys):
    FedDyn(alpha=6.0).init(image_world((30, 10)))
    assert "alpha_k is 1.2" in capsys.readouterr().err


def test_it_scores_what_is_sent_or_the_mean():
    world = image_world()
    state = run(FedDyn(), world)
    assert FedDyn().deployed(state, world)[0] is state.model
    assert FedDyn(scored="mean").deployed(state, world)[0] is state.mean
    assert not same(state.model, state.mean)


def test_it_sends_what_fedavg_sends():
    world = image_world()
    assert FedDyn().traffic(world) == FedAvg().traffic(world)


def test_an_alpha_of_zero_is_refused():
    with pytest.raises(ParamError, match="methods.x.alpha: must be above 0"):
        methods.load("feddyn", {"alpha": 0}, "f: methods.x")


def test_of_a_client_alone_the_pull_is_alpha():
    assert FedDyn(alpha=0.5).alphas([4]) == [0.5]
