"""Identities and worked numbers of FedPer, LG-FedAvg, pFedMe, Per-FedAvg and FedRep."""

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
from tiny import ANCHOR, B3, fit, head, joined, start, tiny

from pipeline.engine.state import Clients, Params, State
from pipeline.engine.trained import Trained
from pipeline.engine.world import World
from pipeline.losses import squared_distance
from pipeline.methods.ditto import Ditto
from pipeline.methods.fedala import FedALA
from pipeline.methods.fedamp import FedAMP
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedper import FedPer
from pipeline.methods.fedrep import FedRep
from pipeline.methods.lgfedavg import LGFedAvg
from pipeline.methods.local import Local
from pipeline.methods.moon import Moon
from pipeline.methods.perfedavg import PerFedAvg
from pipeline.methods.pfedme import PFedMe
from pipeline.models import Network
from pipeline.schema import Model, Optimiser


def body(model, weight, bias):
    close(model["features.1.weight"], weight)
    close(model["features.1.bias"], bias)


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


def fixed_head() -> Network:
    network = mlp()
    network.head.requires_grad_(False)
    return network


def test_fedper_with_nothing_personal_is_fedavg(monkeypatch):
    """A head that nobody moves is as good as none."""
    fedper, fedavg = (
        run(method, tiny_world(monkeypatch, B1, joined(B2, B1), network=fixed_head))
        for method in (FedPer(), FedAvg())
    )
    assert same(fedper.features, fedavg.model.features)


def test_fedper_and_fedrep_send_features_and_lgfedavg_the_head():
    world = image_world()
    assert FedAvg().traffic(world) == (world.scalars(), world.scalars())
    assert FedPer().traffic(world) == FedRep().traffic(world) == (world.scalars("features"),) * 2
    assert LGFedAvg().traffic(world) == (world.scalars("head"),) * 2 == (1290, 1290)
    for method in (PFedMe(), Ditto(), PerFedAvg(), FedALA(), FedAMP(), Moon()):
        assert method.traffic(world) == (world.scalars(), world.scalars())


def test_lgfedavg_trains_jointly_and_leaves_features_at_home(monkeypatch):
    world, model = tiny(monkeypatch, B1, joined(B1, B2), network=mlp), start(MLP)
    method = LGFedAvg()
    state, trained = one_round(method, State(features=world.everyone(model.features), head=model.head), world)
    for k, ends in enumerate((ONE_STEP, TWO_STEPS)):
        body(state.features[k], *ends[0])
        head(trained.models[k], *ends[1])
    for part, one, two in zip(("weight", "bias"), ONE_STEP[1], TWO_STEPS[1]):  # of 2 and 4 images
        close(state.head[f"head.{part}"], (torch.tensor(one) + 2 * torch.tensor(two)) / 3)
    deployed = method.deployed(state, world)
    assert same(deployed[0].head, deployed[1].head) and same(deployed.features, trained.models.features)


ONCE = ([[0.559528, -0.119233], [0.040472, 0.219233]], [0.006415, 0.093585])  # a head's epochs
TWICE = ([[0.604945, -0.055362], [-0.004945, 0.155362]], [0.001201, 0.098799])


@pytest.mark.parametrize(
    "tau_h, tau_b, below, above",
    [
        (1, 1, ([[1.025725, 0.052608], [-0.028604, 0.978489]], [0.009699, 0.091744]), ONCE),
        (0, 1, ([[1.026128, 0.046547], [-0.049247, 0.959940]], [0.011991, 0.081936]), TINY.values()),
        (2, 1, ([[1.023439, 0.054779], [-0.015679, 0.989214]], [0.006486, 0.096639]), TWICE),
        (2, 0, ([[1, 0], [0, 1]], [0, 0.1]), TWICE),
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
    given = run(FedRep(head_epochs=1, feature_epochs=2), world, 1)
    assert same(run(FedRep(head_epochs=1), world, 1).features, given.features)


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
        head(state.personal[0], *theta)  # what the tables score, in separate storage


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


def test_pfedme_inner_steps(monkeypatch):
    world = tiny(monkeypatch)
    state = PFedMe(lam=0.0, inner_steps=1, inner_lr=0.1).round(begun(start()), world)
    assert same(state.model, start())
    close(state.personal[0], Local().round(State(models=Clients([start()])), world).models[0], 1e-12)
    state = PFedMe(lam=0.0, inner_steps=3, inner_lr=0.1).round(begun(start()), world)
    thrice = tiny(monkeypatch, joined(B1, B1, B1, B2, B2, B2))
    close(state.personal[0], Local().round(State(models=Clients([start()])), thrice).models[0], 1e-12)
    w = PFedMe(**{**SMALL, "inner_steps": 1}).round(begun(start()), tiny(monkeypatch, B1)).model
    sgd = tiny(monkeypatch, B1, optimiser=Optimiser(lr=0.05 * 5 * 0.1))
    close(w, FedAvg().round(State(model=start()), sgd).model, 1e-12)
    world, target, lam = tiny(monkeypatch, B1), start(ANCHOR), 5.0
    method = PFedMe(lam=lam, inner_steps=200, inner_lr=0.1, lr=0.05)
    monkeypatch.setattr(PFedMe, "loss", lambda self, model, *_: squared_distance(model.params, target) / 2)
    state = method.round(begun(start()), world)
    wanted = Params({name: (target[name] + lam * start()[name]) / (1 + lam) for name in target})
    close(state.personal[0], wanted, 1e-12)


def test_pfedme_scores_theta_after_training_and_w_before():
    world = image_world()
    assert PFedMe().after_training(PFedMe().init(world), None) is None
    state, trained = watched(PFedMe(), world, 1)
    assert all(model is state.model for model in PFedMe().deployed(state, world))
    assert PFedMe().after_training(state, trained.models) is state.personal
    assert all(not same(theta, state.model) for theta in state.personal)


META = dict(alpha=0.5, beta=0.1)
HF = ([[0.496079, -0.171938], [0.103921, 0.271938]], [-0.018022, 0.118022])


def meta(monkeypatch, method, *batches, model=None, **changes):
    return method.round(
        State(model=start() if model is None else model), tiny(monkeypatch, joined(*batches), **changes)
    ).model


def test_perfedavg_first_order(monkeypatch):
    two, four = (meta(monkeypatch, PerFedAvg(**META), *batches) for batches in ((B1, B2), (B1, B2, B3, B1)))
    head(two, [[0.497284, -0.163447], [0.102716, 0.263447]], [-0.024105, 0.124105])
    head(four, [[0.537696, -0.129454], [0.062304, 0.229454]], [-0.021158, 0.121158])


def exact(alpha=0.5, beta=0.1):
    """w - beta (I - alpha H) d with the Hessian by automatic differentiation."""
    gradient, w = torch.func.grad(fit), torch.cat([v.flatten() for v in start().values()])
    d = gradient(w - alpha * gradient(w, *B1), *B2)
    return w - beta * (d - alpha * torch.autograd.functional.hessian(lambda at: fit(at, *B3), w) @ d)


def test_perfedavg_hessian_free(monkeypatch):
    head(meta(monkeypatch, PerFedAvg(**META, variant="hf"), B1, B2, B3), *HF)
    close(exact(), [*sum(HF[0], []), *HF[1]])
    errors = []
    for delta in (0.2, 0.1):
        ends = meta(monkeypatch, PerFedAvg(**META, variant="hf", delta=delta), B1, B2, B3)
        errors.append(float((torch.cat([v.flatten() for v in ends.values()]) - exact()).norm()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    # f = ||w - a||^2 / 2 has H = I: w - beta (1 - alpha) d with d = (1 - alpha) (w - a), for any delta.
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


def test_perfedavg_scores_a_copy_after_one_step_on_one_batch_of_a_key(monkeypatch):
    world, method = image_world((50,)), PerFedAvg(alpha=0.1)
    state = method.init(world)
    a, b = method.deployed(state, world), method.deployed(state, world)
    world = world.at(1)
    assert same(a[0], b[0]) and not same(a[0], method.deployed(state, world)[0])
    world, state = tiny(monkeypatch, joined(B1, B2), B2), State(model=start())
    adapted = method.deployed(state, world)
    for k, batch in enumerate((B1, B2)):
        # lr 0.1: one SGD step
        close(adapted[k], FedAvg().round(state, tiny(monkeypatch, batch)).model, 1e-12)
    assert same(state.model, start()) and not any(v.requires_grad for v in adapted[0].values())


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


@pytest.mark.parametrize(
    "method", [PFedMe(), PerFedAvg(), PerFedAvg(variant="hf"), PerFedAvg(meta="adam")], ids=repr
)
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_rules_of_their_record_a_training_loss(method, executor, monkeypatch):
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    world = image_world(sizes=(20, 0, 33))
    losses = watched(method, world, rounds=1)[1].losses
    assert math.isnan(losses[1]) and all(1 < losses[k] < 4 for k in (0, 2))  # near log 10 after one round
