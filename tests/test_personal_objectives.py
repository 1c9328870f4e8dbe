"""Identities and worked numbers of FedAMP, FedALA, Ditto and MOON."""

import pytest
import torch
from federation import B1, B2, MLP, close, image_world, mlp, one_round, params, run, same, watched
from tiny import ANCHOR, B3, DOUBLE, head, joined, start, tiny

from pipeline import keys
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Clients, Params, State, mix
from pipeline.losses import cross_entropy, squared_distance
from pipeline.methods import fedala
from pipeline.methods.ditto import Ditto
from pipeline.methods.fedala import FedALA, adaptive_mix
from pipeline.methods.fedamp import FedAMP, attention_weights, distance, squared_distances, without_overshoot
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedper import FedPer
from pipeline.methods.local import Local
from pipeline.methods.moon import Moon, model_contrast
from pipeline.schema import Model, Optimiser

THREE = Clients(params({"head.w": row}, DOUBLE) for row in ([0, 0], [1, 0], [0, 0.5]))


def attention(alpha, sigma, models=THREE):
    return attention_weights(squared_distances(models, ["head.w"]), alpha, sigma)


def messages(weights, models=THREE):
    return torch.stack([message["head.w"] for message in mix(models, weights)])


def test_fedamp_weights_and_messages():
    xi = attention(0.1, 1.0)
    close(
        xi, [[0.885332, 0.036788, 0.077880], [0.036788, 0.934562, 0.028650], [0.077880, 0.028650, 0.893469]]
    )
    close(messages(xi), [[0.036788, 0.038940], [0.934562, 0.014325], [0.028650, 0.446735]])
    xi = attention(1.0, 1.0)
    close(xi.diagonal()[[0, 2]], [-0.146680, -0.065306])
    saved = without_overshoot(xi)
    close(saved.sum(1), [1, 1, 1])
    assert (saved >= 0).all() and torch.equal(saved[1], xi[1])
    close(saved[0], [0, 0.367879 / 1.146680, 0.778801 / 1.146680])
    same = Clients([THREE[1]] * 3)
    for alpha in (0.1, 1000.0):
        close(messages(attention(alpha, 0.1, same), same), [[1, 0]] * 3, 1e-9)
    # sigma to infinity, alpha / sigma = 1 / N
    close(messages(attention(1e9 / 3, 1e9)), [[1 / 3, 0.5 / 3]] * 3, 1e-8)
    assert torch.equal(attention(0.0, 1.0), torch.eye(3, dtype=DOUBLE))
    far = Clients(params({"head.w": [100.0 * k]}, DOUBLE) for k in range(3))
    assert torch.equal(attention(1000.0, 0.1, far), torch.eye(3, dtype=DOUBLE))


def test_fedamp_penalties_and_pull(monkeypatch):
    w, u = params({"head.w": [0, 0]}), params({"head.w": [0.036788, 0.038940]})
    assert 1 / (2 * 0.1) * squared_distance(w, u).item() == pytest.approx(0.014348, abs=1e-6)
    assert 1 / (2 * 0.1) * distance(w, u).item() == pytest.approx(0.267847, abs=1e-5)
    w["head.w"].requires_grad_()
    close(torch.autograd.grad(distance(w, {"head.w": w["head.w"].detach()}), w["head.w"])[0], [0, 0])
    close(torch.autograd.grad(distance(w, u), w["head.w"])[0].norm(), 1.0)
    world, u = tiny(monkeypatch, B1), start(ANCHOR)
    handle = Handle(world.network(0, start()))
    batch = Batch(torch.tensor(B1[0], dtype=DOUBLE).reshape(-1, 2, 1, 1), torch.tensor(B1[1]))
    plain = FedAMP(lam=0.0).loss(handle, batch, None, u)
    for penalty, wanted in (("squared", 0.09), ("norm", 0.3)):
        pulled = FedAMP(alpha=4.0, lam=0.5, penalty=penalty).loss(handle, batch, None, u)
        close(pulled - plain, 0.5 / 8 * wanted)


def test_fedamp_counts_what_the_guard_met():
    world = image_world()
    state = run(FedAMP(), world, 2)
    assert state.self_weight < 0 and state.rescaled > 0 and (state.weights >= 0).all()
    raw = run(FedAMP(raw=True, alpha=1.0, sigma=1.0), world, 1)
    assert raw.self_weight == raw.weights.diagonal().min() < 0
    calm = run(FedAMP(alpha=0.1, sigma=1.0), world, 2)
    assert calm.rescaled == 0 and 0 < calm.self_weight < 1


def mixing(monkeypatch, method, starting=True, **changes):
    """Weights, epochs and losses of a client with the tiny head that has received the anchor."""
    world, losses = tiny(monkeypatch, joined(B1, B2), **changes), []
    monkeypatch.setattr(
        FedALA, "_settled", lambda self, seen, old=FedALA._settled: losses.append(seen[:]) or old(self, seen)
    )
    ones = Params((name, torch.ones_like(value)) for name, value in start().items())
    weights, epochs = method._learn(world, 0, start(), start(ANCHOR), ones, starting)
    return weights, epochs, losses[-1], adaptive_mix(start(), start(ANCHOR), weights)


def test_fedala_one_epoch(monkeypatch):
    actual, epochs, _, mixed = mixing(monkeypatch, FedALA(share=1.0), starting=False)
    head(actual, [[0.931674, 1], [1, 0.899903]], [0.985327, 0.985327])
    head(mixed, [[0.406833, 0], [0, 0.389990]], [0.098533, 0.001467])
    assert epochs == 1


def test_fedala_start_phase_ends_or_is_capped(monkeypatch, capsys):
    weights, epochs, losses, mixed = mixing(monkeypatch, FedALA(eta=10.0, share=1.0))
    assert epochs == len(losses) == 11
    assert losses[:3] == pytest.approx([0.754734, 0.717708, 0.714669], abs=1e-6)
    assert losses[-1] == pytest.approx(0.699651, abs=1e-6)
    head(weights, [[0, 1], [1, 0]], [0.197216, 0.197216])
    head(mixed, [[0.5, 0], [0, 0.3]], [0.019722, 0.080278])
    monkeypatch.setattr(fedala, "MOST_EPOCHS", 15)
    _, epochs, _, _ = mixing(monkeypatch, FedALA(threshold=1e-12))
    assert epochs == 15
    assert "client c0: the mixing weights" in capsys.readouterr().err


def test_fedala_features_once_is_the_same_as_the_whole_network(monkeypatch):
    """With the head's tensors alone, features are computed once; a third tensor with weight 0 checks it."""
    world = tiny(monkeypatch, B1, joined(B2, B3), network=mlp)
    local = start(MLP)
    received = params({**MLP, "features.1.bias": [0.2, 0.2], "head.weight": [[0.4, 0], [0, 0.4]]}, DOUBLE)
    received["features.1.bias"] = local["features.1.bias"].clone()
    ones = Params(
        (name, torch.ones_like(local[name])) for name in ("features.1.bias", "head.weight", "head.bias")
    )
    short, _ = FedALA(share=1.0)._learn(world, 1, local, received, ones.head, False)
    long, _ = FedALA(share=1.0, tensors=3)._learn(world, 1, local, received, ones, False)
    close(short, long.head, 1e-12)
    assert not same(short, ones.head)


def test_fedala_rounds(monkeypatch):
    """Round 1 starts from the common model, then the start phase; later rounds make one pass; 0 <= w <= 1."""
    method, world = FedALA(eta=20.0), image_world((20, 33, 7), optimiser=Optimiser("adam", 0.003))
    state = method.init(world)
    assert same(method.deployed(state, world), world.new_models())
    assert state.starting.tolist() == [1, 1, 1]
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
    assert all(order[first : first + 40] == chosen for first, chosen in zip(firsts, slices))
    assert len(set(firsts)) > 1
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
    assert same(ends[True, "without"], ends[False, "without"])
    assert not same(ends[True, "with"], ends[False, "with"])


@pytest.mark.parametrize(
    "lam, v",
    [
        (1.0, ([[0.545388, -0.059122], [0.016612, 0.216122]], [0.020562, 0.079438])),
        (10.0, ([[0.413422, 0.048007], [-0.013422, 0.351993]], [0.081933, 0.018067])),
    ],
)
def test_ditto_two_batches_of_the_tiny_head(monkeypatch, lam, v):
    state = Ditto(lam=lam).round(State(model=start(ANCHOR), personal=Clients([start()])), tiny(monkeypatch))
    head(state.personal[0], *v)


def test_dittos_global_model_is_fedavgs_bit_for_bit():
    setting = dict(model=Model("cnn4", dropout=0.3), optimiser=Optimiser("adam", 0.003))
    average = run(FedAvg(), image_world(**setting)).model
    for lam in (0.0, 1.0, 10.0):
        assert same(run(Ditto(lam=lam), image_world(**setting)).model, average)


Z = torch.tensor([[1.0, 0], [1, 1]])
GLOBAL = torch.tensor([[1.0, 1], [0, 2]])
LAST = torch.tensor([[0.0, 1], [1, 0]])


def test_moon_contrast():
    close(model_contrast(Z, GLOBAL, [LAST], 0.5), 0.455384)
    close(model_contrast(Z, GLOBAL, [LAST], 0.1), 0.346998)
    close(model_contrast(Z, GLOBAL, [LAST, -GLOBAL], 0.5), 0.493172)


def test_moon_keeps_each_clients_last_models():
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
    handle = Handle(world.network(0, start(MLP)))
    batch = Batch(torch.tensor(B1[0], dtype=DOUBLE).reshape(-1, 2, 1, 1), torch.tensor(B1[1]))
    others = [Params((n, v * scale + 0.1) for n, v in start(MLP).items()) for scale in (0.5, -0.5, 2.0)]
    method = Moon(mu=2.0)
    actual = method.loss(handle, batch, others[0], {"0": others[1], "1": others[2]})
    near_, *far = (handle.other(model).features(batch.images) for model in others)
    fit = cross_entropy(handle(batch.images), batch.labels)
    close(actual, fit + 2 * model_contrast(handle.features(batch.images), near_, far, 0.5))
