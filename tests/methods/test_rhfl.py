"""RHFL and HFL: what others know, weighed by their confidence."""

import math

import pytest
import torch
import torch.nn.functional as F
from all_methods import name
from federation import close, run, same
from public_data import (
    CLASSES,
    DOUBLE,
    RA,
    adam,
    collaborates_as,
    costs,
    federation,
    kl,
    modules,
    same_parameters,
)
from tiny import numbers

from pipeline.engine.state import State
from pipeline.methods.rhfl import RHFL, confidence_weights, reverse_cross_entropy, symmetric_cross_entropy

CASES = [
    (
        RHFL(reweighted=False),
        lambda k, zs, hs, answers: (
            sum(kl(answers[0][i], zs[k]) for i in range(len(zs)) if i != k) / (len(zs) - 1)
        ),
        adam,
        1,
    ),
]


@pytest.mark.parametrize("method, loss, optimiser, forwards", CASES, ids=[name(case[0]) for case in CASES])
def test_public_phase_as_written_out(method, loss, optimiser, forwards, monkeypatch):
    collaborates_as(method, loss, optimiser, forwards, monkeypatch)


def test_rhfl_second_round_as_written_out(monkeypatch):
    """Weights from the losses at the start of rounds 1 and 2, in train mode on the same kind of batches."""
    world, method = federation(monkeypatch, (12, 8, 0), ["plain", "plain", "dropout"]), RHFL()
    first = method.round(method.init(world), world)
    before = first.losses
    assert first.weights.tolist() == [0.5, 0.5, 0.5]
    assert before[2].isnan()
    assert before[:2].isfinite().all()
    world = world.at(2)
    state = method.before_round(first, world)
    assert same_parameters(state.models, first.models)  # measuring moves no parameter

    def sl(k):
        x, y = world.clients[k].images, world.clients[k].labels
        z = modules(world, first.models)[k](x)
        return (
            0.1 * F.cross_entropy(z, y) + 9.210340371976182 * (1 - F.softmax(z, 1)[range(len(y)), y]).mean()
        ).item()

    now = torch.tensor([sl(0), sl(1)], dtype=DOUBLE)  # equal batches of 4, no dropout: the mean over all
    close(state.losses[:2], now, 1e-5)
    gain = torch.cat([(before[:2] - now) / now, torch.zeros(1, dtype=DOUBLE)])
    wanted = F.softmax(0.5 + 0.5 * gain / gain.sum(), 0)
    close(state.weights, wanted, 1e-5)
    received = method.aggregate([torch.zeros(1, CLASSES, dtype=DOUBLE)] * 3, state, world)
    close(received[1]["weights"], wanted * torch.tensor([1.0, 0.0, 1.0], dtype=DOUBLE), 1e-5)


def both(monkeypatch, rounds):
    """Models of RHFL and of HFL after some rounds."""
    worlds = [federation(monkeypatch, (12, 7, 9), ["plain", "dropout", "plain"]) for _ in range(2)]
    return [run(method, w, rounds).models for method, w in zip((RHFL(), RHFL(reweighted=False)), worlds)]


def test_hfl_is_the_first_round_of_rhfl(monkeypatch):
    assert same(*both(monkeypatch, 1))


def test_hfl_is_not_the_third_round_of_rhfl(monkeypatch):
    assert not same(*both(monkeypatch, 3))


FIRST_W = [0.335424, 0.314247, 0.350329]


def weighed(previous, current, **options):
    return confidence_weights(numbers(previous), numbers(current), 0.5, **options)


def test_losses_that_fall_by_the_same_share_give_equal_weights():
    close(weighed([1.2, 2.4, 0.6], [1.0, 2.0, 0.5]), [1 / 3] * 3)


def test_losses_that_stay_give_equal_weights():
    """The sum of F is 0: nothing to divide by."""
    close(weighed([1.0, 2.0, 0.5], [1.0, 2.0, 0.5]), [1 / 3] * 3)


def test_where_losses_rise_in_total_the_client_whose_loss_rises_most_weighs_most():
    literal = weighed([1.0, 1.0, 1.0], [1.1, 1.5, 1.2])
    assert literal.argmax() == 1
    assert literal.argmin() == 0


def test_the_guard_makes_weights_equal_where_losses_rise_in_total():
    close(weighed([1.0, 1.0, 1.0], [1.1, 1.5, 1.2], guarded=True), [1 / 3] * 3)


def test_the_guard_does_nothing_where_losses_fall():
    close(weighed([1.2, 0.9, 1.5], [1.0, 0.8, 1.2], guarded=True), FIRST_W)


def test_a_client_without_data_counts_as_one_whose_loss_stays():
    without = weighed([1.2, 1.0, 1.5], [1.0, 1.0, 1.2])
    close(weighed([1.2, math.nan, 1.5], [1.0, math.nan, 1.2]), without, 1e-5)


Y = torch.tensor([0, 1, 2, 0])


def test_reverse_cross_entropy_of_sure_answers_is_nearly_zero():
    saturated = 1000 * F.one_hot(Y, 3).to(DOUBLE)
    close(reverse_cross_entropy(saturated, Y), 2 * 1e-7 * 9.210340, within=1e-12)
    close(symmetric_cross_entropy(saturated, Y, 0.1, 1.0), 0.0, within=2e-6)


def test_reverse_cross_entropy_of_a_uniform_answer():
    uniform = torch.zeros(4, 3, dtype=DOUBLE)
    close(reverse_cross_entropy(uniform, Y), 9.210340 * 2 / 3)
    close(reverse_cross_entropy(uniform.float(), Y), 9.210340 * 2 / 3)


def test_a_client_receives_the_answers_of_all_others():
    assert costs(RHFL(), RA) == (48_640 + 1, 145_920)
    assert costs(RHFL(reweighted=False), RA) == (48_640, 145_920)


@pytest.mark.parametrize("clients, weight", [(1, 1.0), (2, 1.0), (3, 0.5)])
def test_without_confidence_all_others_weigh_alike(clients, weight):
    world = State(clients=["a client"] * clients)
    state = RHFL(reweighted=False).before_round(State(), world)
    assert state.weights.tolist() == [weight] * clients
