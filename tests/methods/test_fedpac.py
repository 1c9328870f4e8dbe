"""FedPAC: heads combined by the statistics of the features."""

import math

import pytest
import torch
from federation import MLP, close, image_world, mlp, one_class_world, one_round, params, run, same, tiny_world

from pipeline.engine.phase import LocalOptions
from pipeline.engine.state import State, mix
from pipeline.errors import TrainingError
from pipeline.methods import fedpac
from pipeline.methods.fedpac import FedPAC, combine_heads, label_statistics
from pipeline.methods.fedrep import FedRep
from pipeline.methods.local import Local
from pipeline.prototypes import aggregate_means
from pipeline.schema import Optimiser

PAC = [
    ([[1.0, 0], [3, 0], [0, 2], [0, 2]], [0, 0, 1, 1]),
    ([[2.0, 0], [1, 1]], [0, 0]),
    ([[0.0, 1], [0, 3], [1, 2]], [1, 1, 1]),
]


WEIGHTS = [[0.304981, 0.379428, 0.315591], [0.105263, 0.894737, 0], [0.097710, 0, 0.902290]]


def statistics():
    actual = [label_statistics(torch.tensor(x), torch.tensor(y), 2) for x, y in PAC]
    return torch.stack([h for h, _ in actual]), torch.stack([v for _, v in actual])


def test_head_weights_of_the_worked_example():
    h, spread = statistics()
    close(spread, [0.625, 0.25, 0.296296])
    close(h, [[[1, 0], [0, 1]], [[1.5, 0.5], [0, 0]], [[0, 0], [0.333333, 2]]])
    close(combine_heads(h, spread), WEIGHTS)


def program(h, spread, i):
    """P_i of FedPAC's program."""
    gap = (h[i] - h).flatten(1)
    return torch.diag(spread) + gap @ gap.T


def exact(monkeypatch):
    """Weights before the threshold."""
    monkeypatch.setattr("pipeline.methods.fedpac.LEAST_SHARE", 0.0)


@pytest.mark.parametrize(
    "clients, classes, width, scale",
    [(1, 3, 2, 1), (2, 3, 4, 1e-3), (15, 4, 8, 1), (20, 10, 16, 1e4), (20, 1, 2, 1)],
)
def test_head_weights_meet_the_conditions_of_optimality(clients, classes, width, scale, monkeypatch):
    """(P a)_j >= a'Pa, with equality where a_j > 0."""
    exact(monkeypatch)
    rng = torch.Generator().manual_seed(clients)
    h = torch.randn(clients, classes, width, generator=rng).abs().double() / classes
    spread = torch.rand(clients, generator=rng).double()
    weights = combine_heads(scale * h, scale**2 * spread)
    for i in range(clients):
        p = program(h, spread, i)
        slope, value = p @ weights[i], weights[i] @ p @ weights[i]
        assert value <= spread[i] + 1e-12
        assert (slope >= value - 1e-9).all()
        close(slope[weights[i] > 0], [value.item()] * int((weights[i] > 0).sum()), within=1e-9)


def test_without_variance_every_client_keeps_its_head():
    assert torch.equal(combine_heads(torch.randn(6, 3, 2), torch.zeros(6)), torch.eye(6).double())


def test_where_weights_are_not_unique_a_client_keeps_its_head():
    assert torch.equal(combine_heads(torch.ones(4, 3, 2), torch.zeros(4)), torch.eye(4).double())


def test_a_client_alone_keeps_its_head():
    assert combine_heads(torch.randn(1, 3, 2), torch.tensor([2.0])).tolist() == [[1.0]]


def test_a_share_below_the_threshold_is_none():
    weights = combine_heads(torch.ones(3, 1, 1), torch.tensor([1.0, 1.0, 1e4]))
    close(weights, [[0.5, 0.5, 0]] * 3, within=1e-12)
    assert not weights[:, 2].any()


def test_a_client_without_statistics_keeps_its_head_and_gives_it_to_nobody():
    h, spread = statistics()
    weights = combine_heads(*(torch.cat([part[:1], part[:1] * math.nan, part[1:]]) for part in (h, spread)))
    assert weights[1].tolist() == [0, 1, 0, 0]
    close(weights[[0, 2, 3]][:, [0, 2, 3]], WEIGHTS)
    assert not weights[[0, 2, 3], 1].any()


def test_extreme_skew_is_feasible(monkeypatch):
    """One class per client, some of one image (variance 0), some of equal statistics: despite rounding."""
    exact(monkeypatch)
    rng = torch.Generator().manual_seed(0)
    h = torch.zeros(20, 10, 64).double()
    for k in range(20):
        h[k, k % 10] = torch.rand(64, generator=rng).double()
    h[10], h[11] = h[0], h[1]
    spread = 1e-7 * torch.rand(20, generator=rng).double()
    spread[[0, 5, 10]] = 0
    weights = combine_heads(h, spread)
    close(weights.sum(1), [1.0] * 20)
    assert (weights >= 0).all()
    assert weights.isfinite().all()
    for i in range(20):
        assert weights[i] @ program(h, spread, i) @ weights[i] <= spread[i] * (1 + 1e-9) + 1e-18


def test_heads_whose_weights_do_not_settle_are_an_error(monkeypatch):
    def endless(*_):
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", endless)
    with pytest.raises(TrainingError, match="weights of 3 heads did not settle: Maximum number"):
        combine_heads(*statistics())


def test_fedpac_weighs_trained_heads_by_the_statistics_of_the_received_features(monkeypatch):
    """Features that begin as the identity on what is not negative, so that the weights are the worked
    example's."""
    world, method, start = tiny_world(monkeypatch, *PAC, network=mlp), FedPAC(), params(MLP)
    start["features.1.bias"] = torch.zeros(2)
    before = State(features=start.features, heads=world.everyone(start.head), prototypes=None)
    after, trained = one_round(method, before, world)
    heads, seen = trained.models.heads, world.class_means(trained.models)
    options = LocalOptions("head", stream="head")
    assert same(heads, world.local_epochs(world.everyone(start), Local().loss, options=options).models.heads)
    assert same(after.heads, mix(heads, torch.tensor(WEIGHTS, dtype=torch.float64)), within=1e-5)
    assert same(after.prototypes, aggregate_means(seen.means, seen.counts))


def test_fedpac_without_pull_and_with_unmixed_heads_is_fedrep(monkeypatch):
    monkeypatch.setattr(fedpac, "combine_heads", lambda h, spread: torch.eye(len(h), dtype=torch.float64))
    pac, rep = run(FedPAC(lam=0.0), image_world()), run(FedRep(head_epochs=1), image_world())
    assert same(pac.features, rep.features)
    assert same(pac.heads, rep.heads)


def test_fedpac_head_phase_takes_its_optimiser_where_given():
    plain = run(FedPAC(), image_world(), 1)
    equal, other = Optimiser("sgd", 0.1), Optimiser("sgd", 0.1, 0.5, 5e-4)
    assert same(plain, run(FedPAC(head_optimiser=equal), image_world(), 1))
    assert not same(plain.heads, run(FedPAC(head_optimiser=other), image_world(), 1).heads)


def test_it_sends_model_means_and_statistics():
    """One class per client, four in all; up go its count and variance too."""
    world = one_class_world()
    down = world.scalars() + 4 * 128
    assert FedPAC().traffic(world) == (world.scalars() + 2 * 128 + 1 + 1, down)
    assert FedPAC(weighted=False).traffic(world) == (world.scalars() + 2 * 128 + 1, down)
