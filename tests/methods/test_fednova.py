"""FedNova: steps of unequal number, normalised."""

import pytest
from federation import TINY, close, difference, image_world, params, run, same, tiny_world
from quadratic import DOUBLE, instead_of_training

from pipeline.engine.state import Clients, State, zeros
from pipeline.errors import TrainingError
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fednova import FedNova, normaliser
from pipeline.methods.fedprox import FedProx
from pipeline.schema import Optimiser


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


@pytest.mark.parametrize(
    "method, optimiser, message",
    [
        (FedNova(), Optimiser("adam", 0.01), "fednova: it needs sgd.* optimiser is adam: give"),
        (FedNova(mu=30.0), Optimiser("sgd", 0.1), "fednova: mu 30 at rate 0.1 makes local steps diverge"),
    ],
)
def test_an_optimiser_that_does_not_fit_is_refused_before_training(method, optimiser, message):
    with pytest.raises(TrainingError, match=message):
        method.init(image_world(optimiser=optimiser))


@pytest.mark.parametrize(
    "given, plain",
    [
        (Optimiser("adam", 0.01, weight_decay=1e-3), Optimiser("sgd", 0.1)),
        (Optimiser("sgd", 0.2, 0.9, 1e-3), Optimiser("sgd", 0.1, weight_decay=1e-3)),
    ],
    ids=["adam", "momentum"],
)
def test_a_rate_of_its_makes_the_local_rule_plain_sgd(given, plain):
    wanted = run(FedNova(), image_world(optimiser=plain)).model
    assert same(run(FedNova(lr=0.1), image_world(optimiser=given)).model, wanted)


def test_it_sends_what_fedavg_sends():
    world = image_world()
    assert FedNova().traffic(world) == FedAvg().traffic(world)
