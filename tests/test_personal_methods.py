"""Identities and worked numbers of the personalised baselines: FedPer, LG-FedAvg, pFedMe, Per-FedAvg, FedAMP,
FedALA, Ditto, FedRep and MOON."""

import dataclasses
import math

import pytest
import torch
from federation import (
    B1,
    B2,
    MLP,
    TINY,
    close,
    image_world,
    mlp,
    one_round,
    params,
    run,
    same,
    tiny_world,
    watched,
)

from pipeline import keys
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Clients, Params, State, mix, weighted_mean
from pipeline.engine.trained import Trained
from pipeline.engine.world import World
from pipeline.losses import cross_entropy, squared_distance
from pipeline.methods import fedala
from pipeline.methods.ditto import Ditto
from pipeline.methods.fedala import FedALA, adaptive_mix
from pipeline.methods.fedamp import FedAMP, attention_weights, distance, squared_distances, without_overshoot
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedper import FedPer
from pipeline.methods.fedrep import FedRep
from pipeline.methods.lgfedavg import LGFedAvg
from pipeline.methods.local import Local
from pipeline.methods.moon import Moon, model_contrast
from pipeline.methods.perfedavg import PerFedAvg
from pipeline.methods.pfedme import PFedMe
from pipeline.models import Network
from pipeline.schema import Model, Optimiser

B3 = ([[0.0, -1.0], [1.0, 1.0]], [0, 0])  # the third batch of Per-FedAvg's worked example
ANCHOR = {"head.weight": [[0.4, 0], [0, 0.4]], "head.bias": [0.1, 0]}
DOUBLE = torch.float64


def joined(*batches):
    return sum((b[0] for b in batches), []), sum((b[1] for b in batches), [])


def head(model, weight, bias):
    close(model["head.weight"], weight)
    close(model["head.bias"], bias)


def body(model, weight, bias):
    close(model["features.1.weight"], weight)
    close(model["features.1.bias"], bias)


def tiny(monkeypatch, *clients, dtype=DOUBLE, **changes):
    return tiny_world(monkeypatch, *(clients or [joined(B1, B2)]), dtype=dtype, **changes).at(1)


def start(network=TINY, dtype=DOUBLE) -> Params:
    return params(network, dtype)


# -- FedPer --------------------------------------------------------------------------------------------------

ONE_STEP = (
    ([[1.013584, 0.027167], [-0.027012, 0.971057]], [0.013584, 0.093053]),
    ([[0.533959, -0.140726], [0.066041, 0.240726]], [0.013893, 0.086107]),
)
TWO_STEPS = (
    ([[1.024827, 0.048568], [-0.041323, 0.963902]], [0.009738, 0.085898]),
    ([[0.559444, -0.121778], [0.040556, 0.221778]], [0.005674, 0.094326]),
)


@pytest.mark.parametrize("batches, ends", [((B1,), ONE_STEP), ((B1, B2), TWO_STEPS)])
def test_fedper_steps_of_the_mlp(monkeypatch, batches, ends):
    world, model = tiny(monkeypatch, joined(*batches), network=mlp), start(MLP)
    state = FedPer().round(State(features=model.features, heads=Clients([model.head])), world)
    body(state.features, *ends[0])
    head(state.heads[0], *ends[1])


def test_fedper_averages_features_by_samples_and_keeps_heads(monkeypatch):
    world, model = tiny(monkeypatch, B1, joined(B1, B2, B2), network=mlp), start(MLP)
    state, trained = one_round(
        FedPer(), State(features=model.features, heads=world.everyone(model.head)), world
    )
    close(state.features, weighted_mean(trained.models.features, [2, 6]))
    assert same(state.heads, trained.models.heads) and not same(*state.heads)
    assert same(FedPer().deployed(state, world), world.everyone(state.features).joined(state.heads))


def fixed_head() -> Network:
    network = mlp()
    network.head.requires_grad_(False)
    return network


def test_fedper_with_nothing_personal_is_fedavg(monkeypatch):
    """A head that nobody moves is as good as none."""
    a = run(FedPer(), tiny_world(monkeypatch, B1, joined(B2, B1), network=fixed_head))
    assert same(
        a.features,
        run(FedAvg(), tiny_world(monkeypatch, B1, joined(B2, B1), network=fixed_head)).model.features,
    )


def test_fedper_and_fedrep_send_features_and_lgfedavg_the_head():
    world = image_world()
    assert FedPer().traffic(world) == FedRep().traffic(world) == (world.scalars("features"),) * 2
    assert LGFedAvg().traffic(world) == (world.scalars("head"),) * 2 == (1290, 1290)
    for method in (PFedMe(), Ditto(), PerFedAvg(), FedALA(), FedAMP(), Moon()):
        assert method.traffic(world) == (world.scalars(), world.scalars())


@pytest.mark.parametrize("method", [FedPer(), LGFedAvg(), FedALA()], ids=lambda m: type(m).__name__)
def test_one_client_alone_is_local(method):
    """Also FedALA: the global model equals the client's, so that there is nothing to learn. (FedRep: trained
    in turns.)"""
    world = image_world((20,))
    state = run(method, world)
    assert same(method.deployed(state, world)[0], run(Local(), image_world((20,))).models[0])


# -- LG-FedAvg -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uniform, weight",
    [
        (False, [[0.553073, -0.126515], [0.046927, 0.226515]]),
        (True, [[0.5467015, -0.131252], [0.0532985, 0.231252]]),
    ],
)
def test_lgfedavg_heads_of_the_worked_example(monkeypatch, uniform, weight):
    """One client has made one step of FedPer's example, the other two; their sizes are in the ratio 1 to
    3."""
    world = tiny(monkeypatch, B1, joined(B1, B2, B2), network=mlp)
    ends = Clients(params({"head.weight": w}, DOUBLE) for w in (ONE_STEP[1][0], TWO_STEPS[1][0]))
    monkeypatch.setattr(World, "local_epochs", lambda *_: Trained(ends, []))
    state = LGFedAvg(uniform=uniform).round(
        State(features=Clients([Params(), Params()]), head=Params()), world
    )
    close(state.head["head.weight"], weight)


def test_lgfedavg_trains_jointly_and_leaves_features_at_home(monkeypatch):
    world, model = tiny(monkeypatch, B1, joined(B1, B2), network=mlp), start(MLP)
    method = LGFedAvg()
    state, trained = one_round(method, State(features=world.everyone(model.features), head=model.head), world)
    for k, ends in enumerate((ONE_STEP, TWO_STEPS)):
        body(state.features[k], *ends[0])
        head(trained.models[k], *ends[1])
    deployed = method.deployed(state, world)
    assert same(deployed[0].head, deployed[1].head) and same(deployed.features, trained.models.features)


def test_lgfedavg_sharing_all_is_fedavg_and_sharing_nothing_is_local(monkeypatch):
    clients = B1, joined(B2, B1)
    assert same(
        run(LGFedAvg(), tiny_world(monkeypatch, *clients)).head,
        run(FedAvg(), tiny_world(monkeypatch, *clients)).model,
    )
    alone = run(Local(), tiny_world(monkeypatch, *clients, network=fixed_head)).models
    assert same(
        run(LGFedAvg(), tiny_world(monkeypatch, *clients, network=fixed_head)).features, alone.features
    )


# -- FedRep --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tau_h, tau_b, below, above",
    [
        (
            1,
            1,
            ([[1.025725, 0.052608], [-0.028604, 0.978489]], [0.009699, 0.091744]),
            ([[0.559528, -0.119233], [0.040472, 0.219233]], [0.006415, 0.093585]),
        ),
        (
            0,
            1,
            ([[1.026128, 0.046547], [-0.049247, 0.959940]], [0.011991, 0.081936]),
            (TINY["head.weight"], TINY["head.bias"]),
        ),
        (
            2,
            1,
            ([[1.023439, 0.054779], [-0.015679, 0.989214]], [0.006486, 0.096639]),
            ([[0.604945, -0.055362], [-0.004945, 0.155362]], [0.001201, 0.098799]),
        ),
        (
            2,
            0,
            ([[1, 0], [0, 1]], [0, 0.1]),
            ([[0.604945, -0.055362], [-0.004945, 0.155362]], [0.001201, 0.098799]),
        ),
    ],
)
def test_fedrep_phases_of_the_mlp(monkeypatch, tau_h, tau_b, below, above):
    world, model = tiny(monkeypatch, network=mlp), start(MLP)
    method = FedRep(head_epochs=tau_h, feature_epochs=tau_b)
    state = method.round(State(features=model.features, heads=Clients([model.head])), world)
    body(state.features, *below)
    head(state.heads[0], *above)


def test_fedrep_takes_the_scenarios_epochs_for_the_features():
    world = image_world(local_epochs=2)
    assert same(
        run(FedRep(head_epochs=1), world, 1).features,
        run(FedRep(head_epochs=1, feature_epochs=2), world, 1).features,
    )


@pytest.mark.parametrize(
    "method",
    [PFedMe(inner_steps=2), PerFedAvg(), FedRep(head_epochs=1), LGFedAvg()],
    ids=lambda m: type(m).__name__,
)
def test_uniform_mean_matters_for_unequal_sizes_only(method):
    uniform = dataclasses.replace(method, uniform=True)
    for sizes, alike in (((6, 6), True), ((4, 16), False)):
        deployed = [m.deployed(run(m, image_world(sizes), 1), image_world(sizes)) for m in (method, uniform)]
        assert same(*deployed) is alike


# -- pFedMe --------------------------------------------------------------------------------------------------

SMALL = dict(lam=5.0, inner_steps=2, inner_lr=0.1, lr=0.05)


def begun(model: Params) -> State:
    """pFedMe's state before the first round."""
    return State(model=model, personal=None)


@pytest.mark.parametrize(
    "options, w, theta",
    [
        (
            {},
            ([[0.527739, -0.158311], [0.072261, 0.258311]], [0.001251, 0.098749]),
            ([[0.558597, -0.092951], [0.041403, 0.192951]], [-0.011348, 0.111348]),
        ),
        (
            {"start": "reset"},
            ([[0.526219, -0.161016], [0.073781, 0.261016]], [0.001015, 0.098985]),
            ([[0.552517, -0.103773], [0.047483, 0.203773]], [-0.012292, 0.112292]),
        ),
        ({"decay": 0.001}, ([[0.527695, -0.158300], [0.072256, 0.258292]], [0.001251, 0.098741]), None),
    ],
)
def test_pfedme_two_batches_of_the_tiny_head(monkeypatch, options, w, theta):
    world = tiny(monkeypatch)
    state = PFedMe(**SMALL, **options).round(begun(start()), world)
    head(state.model, *w)
    if theta:
        head(state.personal[0], *theta)  # what the tables score, in storage of its own


@pytest.mark.parametrize(
    "options, sizes, wanted",
    [
        ({"beta": 2.0, "uniform": True}, (3, 1), [-0.5, 3]),
        ({"beta": 2.0}, (3, 1), [-0.75, 2.5]),
        ({"beta": 0.5, "uniform": True}, (3, 1), [0.625, 0.75]),
    ],
)
def test_pfedme_server_of_the_worked_example(monkeypatch, options, sizes, wanted):
    world = image_world(sizes)
    ends = Clients([params({"head.w": [0, 1]}), params({"head.w": [0.5, 2]})])
    monkeypatch.setattr(World, "local_steps", lambda *_, **__: Trained(ends, [], client_state=ends))
    close(PFedMe(**options).round(begun(params({"head.w": [1, 0]})), world).model["head.w"], wanted)


def test_pfedme_lambda_zero_never_moves_w_and_theta_is_sgd(monkeypatch):
    world = tiny(monkeypatch)
    state = PFedMe(lam=0.0, inner_steps=1, inner_lr=0.1).round(begun(start()), world)
    assert same(state.model, start())
    close(state.personal[0], Local().round(State(models=Clients([start()])), world).models[0], 1e-12)
    state = PFedMe(lam=0.0, inner_steps=3, inner_lr=0.1).round(begun(start()), world)
    thrice = tiny(monkeypatch, joined(B1, B1, B1, B2, B2, B2))
    close(state.personal[0], Local().round(State(models=Clients([start()])), thrice).models[0], 1e-12)


def test_pfedme_one_inner_step_is_a_scaled_sgd_step(monkeypatch):
    w = PFedMe(**{**SMALL, "inner_steps": 1}).round(begun(start()), tiny(monkeypatch, B1)).model
    sgd = tiny(monkeypatch, B1, optimiser=Optimiser(lr=0.05 * 5 * 0.1))
    close(w, FedAvg().round(State(model=start()), sgd).model, 1e-12)


def test_pfedme_inner_steps_converge_on_a_quadratic(monkeypatch):
    world, target, lam = tiny(monkeypatch, B1), start(ANCHOR), 5.0
    method = PFedMe(lam=lam, inner_steps=200, inner_lr=0.1, lr=0.05)
    monkeypatch.setattr(PFedMe, "loss", lambda self, model, *_: squared_distance(model.params, target) / 2)
    state = method.round(begun(start()), world)
    close(
        state.personal[0],
        Params({name: (target[name] + lam * start()[name]) / (1 + lam) for name in target}),
        1e-12,
    )


def test_pfedme_scores_theta_after_training_and_w_before():
    world = image_world()
    assert PFedMe().after_training(PFedMe().init(world), None) is None
    state, trained = watched(PFedMe(), world, 1)
    assert all(model is state.model for model in PFedMe().deployed(state, world))
    assert PFedMe().after_training(state, trained.models) is state.personal and all(
        not same(theta, state.model) for theta in state.personal
    )


# -- Per-FedAvg ----------------------------------------------------------------------------------------------

META = dict(alpha=0.5, beta=0.1)
HF = ([[0.496079, -0.171938], [0.103921, 0.271938]], [-0.018022, 0.118022])


def meta(monkeypatch, method, *batches, model=None, **changes):
    return method.round(
        State(model=start() if model is None else model), tiny(monkeypatch, joined(*batches), **changes)
    ).model


def test_perfedavg_first_order(monkeypatch):
    head(
        meta(monkeypatch, PerFedAvg(**META), B1, B2),
        [[0.497284, -0.163447], [0.102716, 0.263447]],
        [-0.024105, 0.124105],
    )
    head(
        meta(monkeypatch, PerFedAvg(**META), B1, B2, B3, B1),
        [[0.537696, -0.129454], [0.062304, 0.229454]],
        [-0.021158, 0.121158],
    )


def fit(flat, images, labels):
    return cross_entropy(
        torch.tensor(images, dtype=DOUBLE) @ flat[:4].view(2, 2).T + flat[4:], torch.tensor(labels)
    )


def exact(alpha=0.5, beta=0.1):
    """w - beta (I - alpha H) d with the Hessian by automatic differentiation."""
    gradient, w = torch.func.grad(fit), torch.cat([v.flatten() for v in start().values()])
    d = gradient(w - alpha * gradient(w, *B1), *B2)
    return w - beta * (d - alpha * torch.autograd.functional.hessian(lambda at: fit(at, *B3), w) @ d)


def test_perfedavg_hessian_free(monkeypatch):
    head(meta(monkeypatch, PerFedAvg(**META, variant="hf"), B1, B2, B3), *HF)
    close(exact(), [*sum(HF[0], []), *HF[1]])


def test_perfedavg_hessian_free_error_is_quadratic_in_delta(monkeypatch):
    errors = []
    for delta in (0.2, 0.1):
        ends = meta(monkeypatch, PerFedAvg(**META, variant="hf", delta=delta), B1, B2, B3)
        errors.append(float((torch.cat([v.flatten() for v in ends.values()]) - exact()).norm()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)


def test_perfedavg_hessian_free_is_exact_on_a_quadratic(monkeypatch):
    """f = ||w - a||^2 / 2 has H = I: w - beta (1 - alpha) d with d = (1 - alpha) (w - a), for any delta."""
    target = start(ANCHOR)
    monkeypatch.setattr(PerFedAvg, "loss", lambda self, model, *_: squared_distance(model.params, target) / 2)
    for delta in (0.001, 10.0):
        ends = meta(monkeypatch, PerFedAvg(**META, variant="hf", delta=delta), B1, B2, B3)
        close(ends, Params({n: w - 0.1 * 0.5 * 0.5 * (w - target[n]) for n, w in start().items()}), 1e-10)


@pytest.mark.parametrize("variant, batches", [("fo", (B1, B2)), ("hf", (B1, B2, B3))])
def test_perfedavg_alpha_zero_is_sgd_on_the_second_batch(monkeypatch, variant, batches):
    ends = meta(monkeypatch, PerFedAvg(alpha=0.0, beta=0.1, variant=variant), *batches)
    close(ends, FedAvg().round(State(model=start()), tiny(monkeypatch, B2)).model, 1e-12)


def test_perfedavg_trailing_chunk_is_cut_evenly_or_left_out(monkeypatch):
    method, one = PerFedAvg(**META), ([[9.0, 9.0]], [1])
    two_left = meta(monkeypatch, method, B1, B2, B3)  # B1 and B2, then one sample of B3 each
    full = meta(monkeypatch, method, B1, B2)
    close(two_left, method.round(State(model=full), tiny(monkeypatch, B3, batch_size=1)).model, 1e-12)
    assert same(meta(monkeypatch, method, B1, B2, B3, one), two_left)  # of three left the last is not used
    assert same(meta(monkeypatch, method, B1, B2, one), full)  # one left: no step


def test_perfedavg_scores_a_copy_after_one_step_on_one_batch(monkeypatch):
    world, method = tiny(monkeypatch, joined(B1, B2), B2), PerFedAvg(alpha=0.1)
    state = State(model=start())
    adapted = method.deployed(state, world)
    for k, batch in enumerate((B1, B2)):
        close(
            adapted[k], FedAvg().round(state, tiny(monkeypatch, batch)).model, 1e-12
        )  # lr 0.1: one SGD step
    assert same(state.model, start()) and not any(v.requires_grad for v in adapted[0].values())


def test_perfedavg_adaptation_batch_comes_from_a_key():
    world, method = image_world((50,)), PerFedAvg(alpha=0.1)
    state = method.init(world)
    a, b = method.deployed(state, world), method.deployed(state, world)
    world = world.at(1)
    assert same(a[0], b[0]) and not same(a[0], method.deployed(state, world)[0])


def test_perfedavg_adam_takes_the_meta_gradient(monkeypatch):
    """With alpha 0 it is Adam on the second batches."""
    ends = meta(monkeypatch, PerFedAvg(alpha=0.0, meta="adam", adam_lr=0.01), B1, B2, B2, B3)
    wanted = tiny(monkeypatch, joined(B2, B3), optimiser=Optimiser("adam", 0.01))
    close(ends, FedAvg().round(State(model=start()), wanted).model, 1e-9)


def test_perfedavg_differences_share_their_dropout_mask():
    """With masks of their own the quotient would be of the order of 1 / delta."""
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


# -- FedAMP --------------------------------------------------------------------------------------------------

THREE = Clients(params({"head.w": row}, DOUBLE) for row in ([0, 0], [1, 0], [0, 0.5]))


def attention(alpha, sigma, models=THREE):
    return attention_weights(squared_distances(models, ["head.w"]), alpha, sigma)


def messages(weights, models=THREE):
    return weights @ torch.stack([m["head.w"] for m in models])


def test_fedamp_weights_and_messages():
    xi = attention(0.1, 1.0)
    close(
        xi, [[0.885332, 0.036788, 0.077880], [0.036788, 0.934562, 0.028650], [0.077880, 0.028650, 0.893469]]
    )
    close(messages(xi), [[0.036788, 0.038940], [0.934562, 0.014325], [0.028650, 0.446735]])
    mixed = mix(THREE, xi)
    close(
        torch.stack([m["head.w"] for m in mixed]),
        [[0.036788, 0.038940], [0.934562, 0.014325], [0.028650, 0.446735]],
    )


def test_fedamp_overshoot_and_its_guard():
    xi = attention(1.0, 1.0)
    close(xi.diagonal()[[0, 2]], [-0.146680, -0.065306])
    close(messages(xi), [[0.367879, 0.389400], [0.345616, 0.143252], [0.286505, -0.032653]])
    saved = without_overshoot(xi)
    close(saved.sum(1), [1, 1, 1])
    assert (saved >= 0).all() and torch.equal(saved[1], xi[1])
    close(saved[0], [0, 0.367879 / 1.146680, 0.778801 / 1.146680])


def test_fedamp_limits():
    same = Clients([THREE[1]] * 3)
    for alpha in (0.1, 1000.0):
        close(messages(attention(alpha, 0.1, same), same), [[1, 0]] * 3, 1e-9)
    # sigma to infinity, alpha / sigma = 1 / N
    close(messages(attention(1e9 / 3, 1e9)), [[1 / 3, 0.5 / 3]] * 3, 1e-8)
    assert torch.equal(attention(0.0, 1.0), torch.eye(3, dtype=DOUBLE))
    far = Clients(params({"head.w": [100.0 * k]}, DOUBLE) for k in range(3))
    assert torch.equal(attention(1000.0, 0.1, far), torch.eye(3, dtype=DOUBLE))


def test_fedamp_penalties():
    w, u = params({"head.w": [0, 0]}), params({"head.w": [0.036788, 0.038940]})
    assert 1 / (2 * 0.1) * squared_distance(w, u).item() == pytest.approx(0.014348, abs=1e-6)
    assert 1 / (2 * 0.1) * distance(w, u).item() == pytest.approx(0.267847, abs=1e-5)
    w["head.w"].requires_grad_()
    close(torch.autograd.grad(distance(w, {"head.w": w["head.w"].detach()}), w["head.w"])[0], [0, 0])
    close(torch.autograd.grad(distance(w, u), w["head.w"])[0].norm(), 1.0)


def test_fedamp_pull_has_the_paper_weight(monkeypatch):
    world, u = tiny(monkeypatch, B1), start(ANCHOR)
    handle = Handle(world.network(0, start()))
    batch = Batch(torch.tensor(B1[0], dtype=DOUBLE).reshape(-1, 2, 1, 1), torch.tensor(B1[1]))
    plain = FedAMP(lam=0.0).loss(handle, batch, None, u).item()
    assert FedAMP(alpha=4.0, lam=0.5).loss(handle, batch, None, u).item() - plain == pytest.approx(
        0.5 / 8 * 0.09
    )
    assert FedAMP(alpha=4.0, lam=0.5, penalty="norm").loss(
        handle, batch, None, u
    ).item() - plain == pytest.approx(0.5 / 8 * 0.3)


def test_fedamp_lambda_zero_is_local_bit_for_bit():
    assert same(run(FedAMP(lam=0.0), image_world()).models, run(Local(), image_world()).models)


def test_fedamp_counts_what_the_guard_met():
    world = image_world()
    state = run(FedAMP(), world, 2)
    assert state.self_weight < 0 and state.rescaled > 0 and (state.weights >= 0).all()
    raw = run(FedAMP(raw=True, alpha=1.0, sigma=1.0), world, 1)
    assert raw.self_weight == raw.weights.diagonal().min() < 0
    calm = run(FedAMP(alpha=0.1, sigma=1.0), world, 2)
    assert calm.rescaled == 0 and 0 < calm.self_weight < 1


# -- FedALA --------------------------------------------------------------------------------------------------


def mixing(monkeypatch, method, starting=True, **changes):
    """Weights, epochs and losses of a client with the tiny head that has received the anchor."""
    world, losses = tiny(monkeypatch, joined(B1, B2), **changes), []
    monkeypatch.setattr(
        FedALA, "_settled", lambda self, seen, old=FedALA._settled: losses.append(seen[:]) or old(self, seen)
    )
    ones = Params((name, torch.ones_like(value)) for name, value in start().items())
    weights, epochs = method._learn(world, 0, start(), start(ANCHOR), ones, starting)
    return weights, epochs, losses[-1], adaptive_mix(start(), start(ANCHOR), weights)


@pytest.mark.parametrize(
    "eta, weights, ends, loss",
    [
        (
            1.0,
            ([[0.931674, 1], [1, 0.899903]], [0.985327, 0.985327]),
            ([[0.406833, 0], [0, 0.389990]], [0.098533, 0.001467]),
            0.785132,
        ),
        (
            10.0,
            ([[0.345186, 1], [1, 0.016282]], [0.840862, 0.840862]),
            ([[0.465481, 0], [0, 0.301628]], [0.084086, 0.015914]),
            0.754734,
        ),
    ],
)
def test_fedala_one_epoch(monkeypatch, eta, weights, ends, loss):
    method = FedALA(eta=eta, share=1.0)
    actual, epochs, _, mixed = mixing(monkeypatch, method, starting=False)
    head(actual, *weights)
    head(mixed, *ends)
    assert epochs == 1
    assert mixing(monkeypatch, dataclasses.replace(method, losses=1, threshold=100.0))[2][0] == pytest.approx(
        loss, abs=1e-6
    )


def test_fedala_start_phase(monkeypatch):
    weights, epochs, losses, mixed = mixing(monkeypatch, FedALA(eta=10.0, share=1.0))
    assert epochs == len(losses) == 11
    assert losses[:3] == pytest.approx([0.754734, 0.717708, 0.714669], abs=1e-6) and losses[
        -1
    ] == pytest.approx(0.699651, abs=1e-6)
    head(weights, [[0, 1], [1, 0]], [0.197216, 0.197216])
    head(mixed, [[0.5, 0], [0, 0.3]], [0.019722, 0.080278])


def test_fedala_start_phase_is_capped_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(fedala, "MOST_EPOCHS", 15)
    _, epochs, _, _ = mixing(monkeypatch, FedALA(threshold=1e-12))
    assert (
        epochs == 15
        and "client c0: the mixing weights did not settle in 15 epochs" in capsys.readouterr().err
    )


def test_fedala_features_once_is_the_same_as_the_whole_network(monkeypatch):
    """With the head's tensors alone, the features are computed once; a third tensor with weight 0 checks the
    long way."""
    world = tiny(monkeypatch, B1, joined(B2, B3), network=mlp)
    local, received = (
        start(MLP),
        params({**MLP, "features.1.bias": [0.2, 0.2], "head.weight": [[0.4, 0], [0, 0.4]]}, DOUBLE),
    )
    received["features.1.bias"] = local["features.1.bias"].clone()
    ones = Params(
        (name, torch.ones_like(local[name])) for name in ("features.1.bias", "head.weight", "head.bias")
    )
    short, _ = FedALA(share=1.0)._learn(world, 1, local, received, ones.head, False)
    long, _ = FedALA(share=1.0, tensors=3)._learn(world, 1, local, received, ones, False)
    close(short, long.head, 1e-12)
    assert not same(short, ones.head)


def test_fedala_rounds(monkeypatch):
    """Round 1 starts from the common model; the start phase follows it, later rounds make one pass; weights
    stay in [0, 1]."""
    method, world = FedALA(eta=20.0), image_world((20, 33, 7), optimiser=Optimiser("adam", 0.003))
    state = method.init(world)
    assert same(method.deployed(state, world), world.new_models()) and state.starting.tolist() == [
        1,
        1,
        1,
    ]
    state, trained = one_round(method, state, world.at(1))
    assert min(state.epochs) >= 11 and state.starting.tolist() == [0, 0, 0]
    local, received, before = trained.models, world.average(trained.models), state
    for mine, w, a in zip(state.models, local, state.weights, strict=True):
        assert same(mine.features, received.features)
        for name, value in mine.head.items():
            low, high = torch.minimum(w[name], received[name]), torch.maximum(w[name], received[name])
            assert (value >= low - 1e-7).all() and (value <= high + 1e-7).all()
            assert (a[name] >= 0).all() and (a[name] <= 1).all() and (a[name] < 1).any()
    state = method.round(state, world.at(2))
    assert state.epochs.tolist() == [1, 1, 1] and not same(state.weights[0], before.weights[0])


def test_fedala_eta_zero_is_fedavg():
    world = image_world()
    state = run(FedALA(eta=0.0), world)
    average = run(FedAvg(), image_world()).model
    assert all(same(model, average) for model in state.models)


@pytest.mark.parametrize("tensors, other", [(0, Local()), (2, FedPer())])
def test_fedala_with_weights_zero(tensors, other):
    """All tensors: nothing is taken, Local. The head's: it stays home, FedPer."""
    method, world = FedALA(eta=0.0, tensors=tensors), image_world()
    state = method.init(world)
    state = State(
        state, weights=Clients(Params((n, torch.zeros_like(a)) for n, a in w.items()) for w in state.weights)
    )
    for number in range(1, 4):
        state = method.round(state, world.at(number))
    wanted = image_world()
    assert same(state.models, other.deployed(run(other, wanted), wanted))


def test_fedala_slices_and_draws():
    world, slices, draws = image_world((50, 1)), [], []
    for number in range(1, 7):
        slices.append(FedALA()._subset(world.at(number), 0).tolist())
        draws.append(FedALA(subset="random")._subset(world.at(number), 0).tolist())
        assert FedALA()._subset(world, 1).tolist() == [0]
    order = torch.randperm(50, generator=keys.torch_generator("mixing order", 0, "c0")).tolist()
    firsts = [order.index(chosen[0]) for chosen in slices]
    assert (
        all(order[first : first + 40] == chosen for first, chosen in zip(firsts, slices))
        and len(set(firsts)) > 1
    )
    assert all(len(set(chosen)) == 40 for chosen in draws) and draws[0] != draws[1]


def test_fedala_dropout_is_off_while_weights_are_learnt_unless_asked_for():
    ends = {}
    for dropout in (False, True):
        for name, model in (("without", Model("cnn4")), ("with", Model("cnn4", dropout=0.5))):
            world = image_world((20, 33), model=model).at(1)
            local = world.new_model()
            received = Params((n, v + 0.1) for n, v in local.items())
            ones = Params((n, torch.ones_like(v)) for n, v in local.head.items())
            ends[dropout, name] = FedALA(dropout=dropout)._learn(world, 0, local, received, ones, False)[0]
    assert same(ends[False, "without"], ends[False, "with"])
    assert same(ends[True, "without"], ends[False, "without"]) and not same(
        ends[True, "with"], ends[False, "with"]
    )


# -- Ditto ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lam, v",
    [
        (0.0, ([[0.570084, -0.091011], [0.029916, 0.191011]], [0.003761, 0.096239])),
        (1.0, ([[0.545388, -0.059122], [0.016612, 0.216122]], [0.020562, 0.079438])),
        (10.0, ([[0.413422, 0.048007], [-0.013422, 0.351993]], [0.081933, 0.018067])),
    ],
)
def test_ditto_two_batches_of_the_tiny_head(monkeypatch, lam, v):
    state = Ditto(lam=lam).round(State(model=start(ANCHOR), personal=Clients([start()])), tiny(monkeypatch))
    head(state.personal[0], *v)


def test_ditto_lambda_zero_is_local_and_its_global_model_is_fedavg_bit_for_bit():
    setting = dict(model=Model("cnn4", dropout=0.3), optimiser=Optimiser("adam", 0.003))
    assert same(
        run(Ditto(lam=0.0), image_world(**setting)).personal, run(Local(), image_world(**setting)).models
    )
    average = run(FedAvg(), image_world(**setting)).model
    for lam in (0.0, 1.0, 10.0):
        assert same(run(Ditto(lam=lam), image_world(**setting)).model, average)


def test_ditto_lambda_one_over_the_rate_forgets_in_one_step(monkeypatch):
    """v <- w - lr grad F(v), wherever v was: with lambda = 1 / lr."""
    world = tiny(monkeypatch, B1)
    v = Ditto(lam=10.0).round(State(model=start(ANCHOR), personal=Clients([start()])), world).personal[0]
    step = Local().round(State(models=Clients([start()])), world).models[0]
    close(v, Params({n: start(ANCHOR)[n] + step[n] - start()[n] for n in v}), 1e-12)


# -- MOON ----------------------------------------------------------------------------------------------------

Z, GLOBAL, LAST = (
    torch.tensor([[1.0, 0], [1, 1]]),
    torch.tensor([[1.0, 1], [0, 2]]),
    torch.tensor([[0.0, 1], [1, 0]]),
)


@pytest.mark.parametrize(
    "tau, wanted, gradient",
    [
        (0.5, 0.455384, [[0, 0.057281], [0.353553, -0.353553]]),
        (0.1, 0.346998, [[0, 0.001243], [1.767767, -1.767767]]),
    ],
)
def test_moon_contrast(tau, wanted, gradient):
    z = Z.clone().requires_grad_()
    value = model_contrast(z, GLOBAL, [LAST], tau)
    close(value, wanted)
    close(torch.autograd.grad(value, z)[0], gradient, 2e-6)


def test_moon_contrast_with_two_last_models():
    close(model_contrast(Z, GLOBAL, [LAST, -GLOBAL], 0.5), 0.493172)


@pytest.mark.parametrize("tau", [0.01, 0.5, 1.0])
def test_moon_contrast_of_equal_models_is_log_two_without_gradient(tau):
    z = Z.clone().requires_grad_()
    value = model_contrast(z, GLOBAL, [GLOBAL], tau)
    close(value, 0.693147)
    close(torch.autograd.grad(value, z)[0], [[0, 0], [0, 0]])


def test_moon_contrast_ignores_lengths_and_grows_with_the_last_models_cosine():
    value = model_contrast(Z, GLOBAL, [LAST], 0.5)
    close(model_contrast(3 * Z, 0.1 * GLOBAL, [7 * LAST], 0.5), value, 1e-5)
    assert model_contrast(Z, GLOBAL, [LAST + Z], 0.5) > value
    assert model_contrast(Z, GLOBAL, [], 0.5).item() == 0


def test_moon_mu_zero_is_fedavg_and_so_is_the_first_round():
    setting = dict(model=Model("cnn4", dropout=0.3))
    assert same(run(Moon(mu=0.0), image_world(**setting)).model, run(FedAvg(), image_world(**setting)).model)
    assert same(
        run(Moon(mu=5.0), image_world(**setting), 1).model, run(FedAvg(), image_world(**setting), 1).model
    )
    assert not same(
        run(Moon(mu=5.0), image_world(**setting), 2).model, run(FedAvg(), image_world(**setting), 2).model
    )


def test_moon_keeps_each_clients_own_last_models():
    world, method = image_world(), Moon(buffer=2)
    state, ends = method.init(world), []
    for number in range(1, 4):
        state, trained = one_round(method, state, world.at(number))
        ends.append(trained.models)
    assert [id(models) for models in state.previous.values()] == [id(ends[2]), id(ends[1])]
    state, trained = watched(Moon(), world, 2)
    assert [id(models) for models in state.previous.values()] == [id(trained.models)]


def test_moon_loss_takes_every_buffered_model(monkeypatch):
    world = tiny(monkeypatch, B1, network=mlp)
    handle, batch = (
        Handle(world.network(0, start(MLP))),
        Batch(torch.tensor(B1[0], dtype=DOUBLE).reshape(-1, 2, 1, 1), torch.tensor(B1[1])),
    )
    others = [Params((n, v * scale + 0.1) for n, v in start(MLP).items()) for scale in (0.5, -0.5, 2.0)]
    method = Moon(mu=2.0)
    actual = method.loss(handle, batch, others[0], {"0": others[1], "1": others[2]}).item()
    near_, *far = (handle.other(model).features(batch.images) for model in others)
    fit = cross_entropy(handle(batch.images), batch.labels)
    assert actual == pytest.approx(
        (fit + 2 * model_contrast(handle.features(batch.images), near_, far, 0.5)).item()
    )


# -- all of them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [PFedMe(), PerFedAvg(), PerFedAvg(variant="hf"), PerFedAvg(meta="adam")], ids=repr
)
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_rules_of_their_own_record_a_training_loss(method, executor, monkeypatch):
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    world = image_world(sizes=(20, 0, 33))
    losses = watched(method, world, rounds=1)[1].losses
    assert math.isnan(losses[1]) and all(1 < losses[k] < 4 for k in (0, 2))  # near log 10 after one round
