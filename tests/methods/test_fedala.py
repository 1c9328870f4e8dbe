"""FedALA: how much of the received model each client learns to take."""

import pytest
import torch
from federation import B1, B2, MLP, close, image_world, mlp, one_round, params, run, same
from tiny import ANCHOR, B3, DOUBLE, head, joined, start, tiny

from pipeline import keys
from pipeline.engine.state import Clients, Params, State
from pipeline.methods import fedala
from pipeline.methods.fedala import FedALA, adaptive_mix
from pipeline.methods.fedper import FedPer
from pipeline.methods.local import Local
from pipeline.schema import Model, Optimiser


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


def test_the_start_phase_ends_when_the_last_losses_are_nearly_equal(monkeypatch):
    weights, epochs, losses, mixed = mixing(monkeypatch, FedALA(eta=10.0, share=1.0))
    assert epochs == len(losses) == 11
    assert losses[:3] == pytest.approx([0.754734, 0.717708, 0.714669], abs=1e-6)
    assert losses[-1] == pytest.approx(0.699651, abs=1e-6)
    head(weights, [[0, 1], [1, 0]], [0.197216, 0.197216])
    head(mixed, [[0.5, 0], [0, 0.3]], [0.019722, 0.080278])


def test_a_start_phase_that_does_not_settle_is_capped_with_a_warning(monkeypatch, capsys):
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


def begun():
    """FedALA, its world and its state before the first round."""
    method, world = FedALA(eta=20.0), image_world((20, 33, 7), optimiser=Optimiser("adam", 0.003))
    return method, world, method.init(world)


def test_it_starts_from_the_common_model_before_its_start_phase():
    method, world, state = begun()
    assert same(method.deployed(state, world), world.new_models())
    assert state.starting.tolist() == [1, 1, 1]


def test_a_client_takes_the_received_features_and_a_mixture_of_the_heads():
    """Round 1 has the start phase; weights are between 0 and 1."""
    method, world, state = begun()
    state, trained = one_round(method, state, world.at(1))
    assert min(state.epochs) >= 11
    assert state.starting.tolist() == [0, 0, 0]
    received = world.average(trained.models)
    for mine, w, a in zip(state.models, trained.models, state.weights, strict=True):
        assert same(mine.features, received.features)
        for name, value in mine.head.items():
            low, high = torch.minimum(w[name], received[name]), torch.maximum(w[name], received[name])
            assert (value >= low - 1e-7).all()
            assert (value <= high + 1e-7).all()
            assert (a[name] >= 0).all()
            assert (a[name] <= 1).all()
            assert (a[name] < 1).any()


def test_after_the_first_round_weights_are_learnt_in_one_pass():
    method, world, state = begun()
    first = method.round(state, world.at(1))
    second = method.round(first, world.at(2))
    assert second.epochs.tolist() == [1, 1, 1]
    assert not same(second.weights[0], first.weights[0])


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


def test_a_slice_is_part_of_one_order_and_begins_elsewhere_every_round():
    world = image_world((50, 1))
    slices = [FedALA()._subset(world.at(number), 0).tolist() for number in range(1, 7)]
    order = torch.randperm(50, generator=keys.torch_generator("mixing order", 0, "c0")).tolist()
    firsts = [order.index(chosen[0]) for chosen in slices]
    assert all(order[first : first + 40] == chosen for first, chosen in zip(firsts, slices))
    assert len(set(firsts)) > 1


def test_a_random_subset_differs_by_round():
    world = image_world((50, 1))
    draws = [FedALA(subset="random")._subset(world.at(number), 0).tolist() for number in range(1, 7)]
    assert all(len(set(chosen)) == 40 for chosen in draws)
    assert draws[0] != draws[1]


def test_a_client_with_one_image_learns_from_it():
    assert FedALA()._subset(image_world((50, 1)), 1).tolist() == [0]


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


def test_it_sends_the_whole_model():
    world = image_world()
    assert FedALA().traffic(world) == (world.scalars(), world.scalars())


@pytest.mark.parametrize("threshold, settled", [(1.0, False), (1.1, True)])
def test_losses_have_settled_when_their_deviation_is_below_the_threshold(threshold, settled):
    """The last two deviate by 1."""
    assert FedALA(losses=2, threshold=threshold)._settled([5.0, 0.0, 2.0]) is settled


def test_losses_have_not_settled_before_there_are_enough():
    assert not FedALA(losses=2, threshold=1.1)._settled([0.0, 2.0])
