"""FedAMP: attention weights, its pull, the guard against negative weights."""

import pytest
import torch
from federation import B1, close, image_world, params, run
from tiny import ANCHOR, DOUBLE, start, tiny

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Clients, mix
from pipeline.losses import squared_distance
from pipeline.methods.fedamp import FedAMP, attention_weights, distance, squared_distances, without_overshoot

THREE = Clients(params({"head.w": row}, DOUBLE) for row in ([0, 0], [1, 0], [0, 0.5]))


def attention(alpha, sigma, models=THREE):
    return attention_weights(squared_distances(models, ["head.w"]), alpha, sigma)


def messages(weights, models=THREE):
    return torch.stack([message["head.w"] for message in mix(models, weights)])


def test_weights_of_the_worked_example():
    close(
        attention(0.1, 1.0),
        [[0.885332, 0.036788, 0.077880], [0.036788, 0.934562, 0.028650], [0.077880, 0.028650, 0.893469]],
    )


def test_messages_of_the_worked_example():
    close(messages(attention(0.1, 1.0)), [[0.036788, 0.038940], [0.934562, 0.014325], [0.028650, 0.446735]])


def test_a_large_alpha_makes_a_clients_own_weight_negative():
    close(attention(1.0, 1.0).diagonal()[[0, 2]], [-0.146680, -0.065306])


def test_the_guard_sets_negative_weights_to_zero_and_scales_the_row_to_one():
    weights = attention(1.0, 1.0)
    guarded = without_overshoot(weights)
    close(guarded.sum(1), [1, 1, 1])
    assert (guarded >= 0).all()
    close(guarded[0], [0, 0.367879 / 1.146680, 0.778801 / 1.146680])


def test_the_guard_leaves_a_row_of_positive_weights_alone():
    weights = attention(1.0, 1.0)
    assert torch.equal(without_overshoot(weights)[1], weights[1])


@pytest.mark.parametrize("alpha", [0.1, 1000.0])
def test_equal_models_get_what_they_sent(alpha):
    equal = Clients([THREE[1]] * 3)
    close(messages(attention(alpha, 0.1, equal), equal), [[1, 0]] * 3, 1e-9)


def test_a_large_sigma_with_alpha_over_sigma_of_one_third_gives_the_mean():
    close(messages(attention(1e9 / 3, 1e9)), [[1 / 3, 0.5 / 3]] * 3, 1e-8)


def test_with_alpha_zero_every_client_keeps_its_model():
    assert torch.equal(attention(0.0, 1.0), torch.eye(3, dtype=DOUBLE))


def test_clients_that_are_far_apart_keep_their_models():
    far = Clients(params({"head.w": [100.0 * k]}, DOUBLE) for k in range(3))
    assert torch.equal(attention(1000.0, 0.1, far), torch.eye(3, dtype=DOUBLE))


def test_penalties_of_the_worked_example():
    w, u = params({"head.w": [0, 0]}), params({"head.w": [0.036788, 0.038940]})
    assert 1 / (2 * 0.1) * squared_distance(w, u).item() == pytest.approx(0.014348, abs=1e-6)
    assert 1 / (2 * 0.1) * distance(w, u).item() == pytest.approx(0.267847, abs=1e-5)


def test_the_distance_has_a_slope_of_length_one_and_none_where_it_is_zero():
    w, u = params({"head.w": [0, 0]}), params({"head.w": [0.036788, 0.038940]})
    w["head.w"].requires_grad_()
    close(torch.autograd.grad(distance(w, {"head.w": w["head.w"].detach()}), w["head.w"])[0], [0, 0])
    close(torch.autograd.grad(distance(w, u), w["head.w"])[0].norm(), 1.0)


@pytest.mark.parametrize("penalty, wanted", [("squared", 0.09), ("norm", 0.3)])
def test_the_loss_adds_lambda_over_two_alpha_times_the_penalty(penalty, wanted, monkeypatch):
    world, u = tiny(monkeypatch, B1), start(ANCHOR)
    handle = Handle(world.network(0, start()))
    batch = Batch(torch.tensor(B1[0], dtype=DOUBLE).reshape(-1, 2, 1, 1), torch.tensor(B1[1]))
    plain = FedAMP(lam=0.0).loss(handle, batch, None, u)
    pulled = FedAMP(alpha=4.0, lam=0.5, penalty=penalty).loss(handle, batch, None, u)
    close(pulled - plain, 0.5 / 8 * wanted)


def test_it_records_how_many_rows_the_guard_changed():
    state = run(FedAMP(), image_world(), 2)
    assert state.self_weight < 0
    assert state.rescaled > 0
    assert (state.weights >= 0).all()


def test_without_guard_the_weights_stay_negative():
    raw = run(FedAMP(raw=True, alpha=1.0, sigma=1.0), image_world(), 1)
    assert raw.self_weight == raw.weights.diagonal().min() < 0


def test_where_no_weight_is_negative_the_guard_changes_nothing():
    calm = run(FedAMP(alpha=0.1, sigma=1.0), image_world(), 2)
    assert calm.rescaled == 0
    assert 0 < calm.self_weight < 1


def test_it_sends_the_whole_model():
    world = image_world()
    assert FedAMP().traffic(world) == (world.scalars(), world.scalars())


def test_its_defaults_are_those_of_a_former_command_of_pfllib():
    method = FedAMP()
    assert (method.alpha, method.sigma, method.lam) == (1000.0, 0.1, 1.0)
