"""Per-FedAvg: first order, Hessian-free, and its adaptation."""

import dataclasses

import pytest
import torch
from federation import B1, B2, close, image_world, same
from tiny import ANCHOR, B3, fit, head, joined, start, tiny

from pipeline.engine.state import Params, State
from pipeline.engine.world import World
from pipeline.losses import squared_distance
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.perfedavg import PerFedAvg
from pipeline.schema import Model, Optimiser

META = dict(alpha=0.5, beta=0.1)


def meta(monkeypatch, method, *batches, model=None, **changes):
    return method.round(
        State(model=start() if model is None else model), tiny(monkeypatch, joined(*batches), **changes)
    ).model


def test_a_first_order_step_of_the_worked_example(monkeypatch):
    model = meta(monkeypatch, PerFedAvg(**META), B1, B2)
    head(model, [[0.497284, -0.163447], [0.102716, 0.263447]], [-0.024105, 0.124105])


def test_two_first_order_steps_of_the_worked_example(monkeypatch):
    model = meta(monkeypatch, PerFedAvg(**META), B1, B2, B3, B1)
    head(model, [[0.537696, -0.129454], [0.062304, 0.229454]], [-0.021158, 0.121158])


HF = ([[0.496079, -0.171938], [0.103921, 0.271938]], [-0.018022, 0.118022])


def exact(alpha=0.5, beta=0.1):
    """w - beta (I - alpha H) d with the Hessian by automatic differentiation."""
    gradient, w = torch.func.grad(fit), torch.cat([v.flatten() for v in start().values()])
    d = gradient(w - alpha * gradient(w, *B1), *B2)
    return w - beta * (d - alpha * torch.autograd.functional.hessian(lambda at: fit(at, *B3), w) @ d)


def test_a_hessian_free_step_of_the_worked_example(monkeypatch):
    head(meta(monkeypatch, PerFedAvg(**META, variant="hf"), B1, B2, B3), *HF)
    close(exact(), [*sum(HF[0], []), *HF[1]])


def test_the_error_of_the_difference_falls_with_the_square_of_delta(monkeypatch):
    errors = []
    for delta in (0.2, 0.1):
        ends = meta(monkeypatch, PerFedAvg(**META, variant="hf", delta=delta), B1, B2, B3)
        errors.append(float((torch.cat([v.flatten() for v in ends.values()]) - exact()).norm()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("delta", [0.001, 10.0])
def test_a_hessian_free_step_on_a_parabola(delta, monkeypatch):
    """f = ||w - a||^2 / 2 has H = I: w - beta (1 - alpha) d with d = (1 - alpha) (w - a), for any delta."""
    target = start(ANCHOR)
    monkeypatch.setattr(PerFedAvg, "loss", lambda self, model, *_: squared_distance(model.params, target) / 2)
    ends = meta(monkeypatch, PerFedAvg(**META, variant="hf", delta=delta), B1, B2, B3)
    close(ends, Params({n: w - 0.1 * 0.5 * 0.5 * (w - target[n]) for n, w in start().items()}), 1e-10)


@pytest.mark.parametrize("variant, batches", [("fo", (B1, B2)), ("hf", (B1, B2, B3))])
def test_perfedavg_alpha_zero_is_sgd_on_the_second_batch(monkeypatch, variant, batches):
    ends = meta(monkeypatch, PerFedAvg(alpha=0.0, beta=0.1, variant=variant), *batches)
    close(ends, FedAvg().round(State(model=start()), tiny(monkeypatch, B2)).model, 1e-12)


ONE = ([[9.0, 9.0]], [1])


def test_a_trailing_chunk_is_cut_evenly(monkeypatch):
    """B1 and B2, then one sample of B3 each."""
    method = PerFedAvg(**META)
    full = meta(monkeypatch, method, B1, B2)
    wanted = method.round(State(model=full), tiny(monkeypatch, B3, batch_size=1)).model
    close(meta(monkeypatch, method, B1, B2, B3), wanted, 1e-12)


def test_of_three_samples_left_the_last_is_not_used(monkeypatch):
    method = PerFedAvg(**META)
    assert same(meta(monkeypatch, method, B1, B2, B3, ONE), meta(monkeypatch, method, B1, B2, B3))


def test_one_sample_left_makes_no_step(monkeypatch):
    method = PerFedAvg(**META)
    assert same(meta(monkeypatch, method, B1, B2, ONE), meta(monkeypatch, method, B1, B2))


def test_the_batch_of_the_adaptation_is_the_same_in_a_round_and_another_in_the_next():
    world, method = image_world((50,)), PerFedAvg(alpha=0.1)
    state = method.init(world)
    first = method.deployed(state, world)[0]
    assert same(first, method.deployed(state, world)[0])
    assert not same(first, method.deployed(state, world.at(1))[0])


def test_it_scores_a_copy_after_one_step_of_sgd(monkeypatch):
    world, state = tiny(monkeypatch, joined(B1, B2), B2), State(model=start())
    adapted = PerFedAvg(alpha=0.1).deployed(state, world)
    for k, batch in enumerate((B1, B2)):
        # lr 0.1: one SGD step
        close(adapted[k], FedAvg().round(state, tiny(monkeypatch, batch)).model, 1e-12)
    assert same(state.model, start())
    assert not any(v.requires_grad for v in adapted[0].values())


def test_perfedavg_adam_takes_the_meta_gradient(monkeypatch):
    """With alpha 0 it is Adam on the second batches."""
    ends = meta(monkeypatch, PerFedAvg(alpha=0.0, meta="adam", adam_lr=0.01), B1, B2, B2, B3)
    wanted = tiny(monkeypatch, joined(B2, B3), optimiser=Optimiser("adam", 0.01))
    close(ends, FedAvg().round(State(model=start()), wanted).model, 1e-9)


def test_perfedavg_differences_share_their_dropout_mask():
    """With separate masks the quotient would be of the order of 1 / delta."""
    world = image_world((48,), model=Model("cnn4", dropout=0.5))
    world = World.create(
        [dataclasses.replace(c, images=c.images.double()) for c in world.clients], world.training, 10, 0
    )
    world = world.at(1)
    seen, inner = [], PerFedAvg._hessian_times
    method = PerFedAvg(variant="hf", delta=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PerFedAvg, "_hessian_times", lambda self, *a: seen.append(inner(self, *a)) or seen[-1])
        method.round(method.init(world), world)
    assert 0 < max(float(value.abs().max()) for value in seen[0].values()) < 100


def test_it_sends_the_whole_model():
    world = image_world()
    assert PerFedAvg().traffic(world) == (world.scalars(), world.scalars())
