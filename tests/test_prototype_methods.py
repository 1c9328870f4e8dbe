"""Identities and worked numbers of fedproto.md, fedgh.md, fedpac.md and fedcrl.md."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from federation import (
    MLP,
    close,
    image_clients,
    image_world,
    known,
    mlp,
    one_round,
    params,
    rows,
    run,
    same,
    tiny_world,
    training,
    watched,
)
from scipy.optimize import nnls as scipy_nnls
from torch import nn

from pipeline.engine.alike import tensors_of
from pipeline.engine.handle import Handle
from pipeline.engine.phase import LocalOptions
from pipeline.engine.state import Clients, State, mix
from pipeline.engine.trained import Watch
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.methods import fedpac
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedcrl import FedCRL, interpolate
from pipeline.methods.fedgh import FedGH, fit_head
from pipeline.methods.fedpac import FedPAC, combine_heads, label_statistics
from pipeline.methods.fedproto import FedProto
from pipeline.methods.fedrep import FedRep
from pipeline.methods.fedtgp import FedTGP
from pipeline.methods.fpl import FPL
from pipeline.methods.local import Local
from pipeline.models import Network
from pipeline.prototypes import (
    aggregate_means,
    class_sums,
    cosine,
    prototype_contrast,
    prototype_distance,
    prototype_scores,
    vectors_sent,
)
from pipeline.schema import Model, Optimiser


def one_class_world(**changes):
    """Client k holds class k alone; the last one a single image."""
    clients = [
        dataclasses.replace(c, labels=torch.full_like(c.labels, k))
        for k, c in enumerate(image_clients((20, 33, 7, 1)))
    ]
    return World.create(clients, training(**changes), 10, 0)


# -- the family: executors, small clients, checkpoints -------------------------------------------------------


# -- shared terms --------------------------------------------------------------------------------------------


def test_distance_and_gradient_of_the_worked_example():
    z = rows([1, 2], [0, 1], [5, 5]).requires_grad_()
    loss = prototype_distance(z, torch.tensor([0, 1, 2]), rows([0, 0], [1, 1], [9, 9]), known(1, 1, 0))
    close(loss, 1.0)
    close(torch.autograd.grad(loss, z)[0], [[0.333333, 0.666667], [-0.333333, 0], [0, 0]])


def test_distance_without_known_classes_or_gap_is_zero():
    z = rows([1, 2], [3, 4]).requires_grad_()
    loss = prototype_distance(z, torch.tensor([0, 1]), torch.zeros(2, 2), known(0, 0))
    assert loss.item() == 0 and not torch.autograd.grad(loss, z)[0].any()
    assert prototype_distance(z, torch.tensor([1, 0]), z.flip(0)).item() == 0


def test_distance_has_no_gradient_through_the_vectors():
    vectors = rows([1, 1], [2, 2]).requires_grad_()
    z = rows([1, 2]).requires_grad_()
    (
        prototype_distance(z, torch.tensor([0]), vectors)
        + prototype_contrast(z, torch.tensor([0]), vectors, 0.5)
    ).backward()
    assert vectors.grad is None and z.grad is not None


H, Y = [[1, 0], [1, 1], [0, 1]], torch.tensor([0, 0, 1])
OMEGA = rows([1, 0], [0, 1], [-1, 0])


def per_sample(h, tau, seen):
    return [
        prototype_contrast(h[i : i + 1], Y[i : i + 1], OMEGA, tau, known=seen).item() for i in range(len(h))
    ]


@pytest.mark.parametrize(
    "tau, seen, samples, mean, gradient",
    [
        (
            0.5,
            (1, 1, 1),
            [0.142932, 0.722272, 0.239545],
            0.368249,
            [[0, 0.078207], [-0.242468, 0.242468], [0, 0]],
        ),
        (
            0.1,
            (1, 1, 1),
            [0.000045, 0.693148, 0.000091],
            0.231095,
            [[0, 0.000151], [-1.178512, 1.178512], [0, 0]],
        ),
        (0.5, (1, 1, 0), [0.126928, 0.693147, 0.126928], 0.315668, None),
    ],
)
def test_contrast_of_the_worked_examples(tau, seen, samples, mean, gradient):
    h = rows(*H).requires_grad_()
    assert per_sample(h, tau, known(*seen)) == pytest.approx(samples, abs=1e-6)
    loss = prototype_contrast(h, Y, OMEGA, tau, known=known(*seen))
    close(loss, mean)
    if gradient:
        close(torch.autograd.grad(loss, h)[0], gradient)


def test_contrast_is_a_cross_entropy_of_cosines():
    h, vectors = torch.randn(6, 4), torch.randn(3, 4)
    labels = torch.tensor([0, 1, 2, 2, 0, 1])
    wanted = torch.nn.functional.cross_entropy(
        torch.cosine_similarity(h[:, None], vectors, dim=2) / 0.07, labels
    )
    close(prototype_contrast(h, labels, vectors, 0.07), wanted, 1e-5)


def test_contrast_ignores_positive_scales_and_its_gradient_is_tangential():
    h = torch.randn(3, 2).requires_grad_()
    loss = prototype_contrast(h, Y, OMEGA, 0.3)
    (gradient,) = torch.autograd.grad(loss, h)
    close(prototype_contrast(h, Y, OMEGA * rows([3], [0.2], [7]), 0.3), loss, 1e-5)
    close(prototype_contrast(5 * h, Y, OMEGA, 0.3), loss, 1e-5)
    close((gradient * h).sum(1), [0, 0, 0])
    far = (5 * h).detach().requires_grad_()
    close(torch.autograd.grad(prototype_contrast(far, Y, OMEGA, 0.3), far)[0], gradient / 5, 1e-5)


def test_contrast_with_equal_vectors_or_a_hot_temperature_is_log_c():
    h = torch.randn(3, 2, dtype=torch.float64).requires_grad_()  # a short row has a large rounding error
    loss = prototype_contrast(h, Y, rows([1, 2], [1, 2], [1, 2]).double(), 0.1)
    close(loss, math.log(3))
    close(torch.autograd.grad(loss, h)[0], [[0, 0]] * 3)
    close(prototype_contrast(h, Y, OMEGA.double(), 1e7), math.log(3))


def test_contrast_bounds():
    # the positive at cosine -1, nine negatives at 1
    opposite = torch.cat([-rows([1, 0]), rows(*[[1, 0]] * 9)])
    z, label = rows([1, 0]), torch.tensor([0])
    close(prototype_contrast(z, label, opposite, 0.1), 22.197225, 1e-5)
    orthogonal = torch.cat([rows([0, 1]), rows(*[[1, 0]] * 9)])
    close(prototype_contrast(z, label, orthogonal, 0.1), 12.197230, 1e-5)
    best = prototype_contrast(z.double(), label, -opposite.double(), 0.1).item()
    assert best == pytest.approx(1.86e-8, rel=0.01)


def test_contrast_with_one_or_no_known_class_is_zero_with_a_finite_gradient():
    for seen in (known(1, 0, 0), known(0, 0, 0), known(0, 0, 1)):
        h = rows(*H).requires_grad_()
        loss = prototype_contrast(h, torch.tensor([0, 0, 0]), OMEGA, 0.1, known=seen)
        assert loss.item() == 0 and not torch.autograd.grad(loss, h)[0].any()


def test_contrast_of_an_uncovered_sample_adds_zero_and_counts():
    h = rows(*H)
    part = prototype_contrast(h[:2], Y[:2], OMEGA, 0.5, known=known(1, 0, 1))
    close(prototype_contrast(h, Y, OMEGA, 0.5, known=known(1, 0, 1)), 2 / 3 * part.item())


def test_a_dead_representation_has_cosine_zero():
    z = torch.zeros(1, 2).requires_grad_()
    assert not cosine(z, OMEGA).any()
    loss = prototype_contrast(torch.relu(z), torch.tensor([0]), OMEGA, 0.1)
    assert loss.item() == pytest.approx(math.log(3)) and not torch.autograd.grad(loss, z)[0].any()


# -- class means at the server -------------------------------------------------------------------------------


def test_aggregates_of_the_worked_examples():
    """Plain means of {0: (1,3)} and {0: (3,1), 1: (2,2)}; FedCRL Eq. 6; FedProc's sample-weighted means."""
    actual = aggregate_means(
        torch.tensor([[[1.0, 3], [0, 0]], [[3, 1], [2, 2]]]), torch.tensor([[1, 0], [1, 1]])
    )
    close(actual.vectors, [[2, 2], [2, 2]])
    actual = aggregate_means(
        torch.tensor([[[1.0, 0], [0, 2], [0, 0]], [[0, 0], [1, 1], [0, 0]]]),
        torch.tensor([[4, 1, 0], [0, 3, 0]]),
    )
    close(actual.vectors, [[1, 0], [0.75, 1.25], [0, 0]])
    assert actual.known.tolist() == [True, True, False]
    actual = aggregate_means(
        torch.tensor([[[1.0, 0], [0, 1]], [[0, 1], [0, 0]]]), torch.tensor([[3, 2], [1, 0]])
    )
    close(actual.vectors, [[0.75, 0.25], [0, 1]])


def test_an_unowned_class_keeps_what_was_known():
    before = State(vectors=rows([1, 1], [2, 2], [0, 0]), known=known(1, 1, 0))
    actual = aggregate_means(torch.tensor([[[5.0, 5], [0, 0], [0, 0]]]), torch.tensor([[3, 0, 0]]), before)
    close(actual.vectors, [[5, 5], [2, 2], [0, 0]])
    assert actual.known.tolist() == [True, True, False]


def test_vectors_are_counted_by_the_classes_held():
    labels = [torch.tensor([0, 0, 3]), torch.tensor([3]), torch.tensor([], dtype=torch.int64)]
    assert vectors_sent(labels, 10) == (10.0, 20.0)


def test_interpolation_of_the_worked_example():
    actual = interpolate(
        Clients([params({"features.w": [1, 2]})]), params({"features.w": [0, 4]}), torch.tensor([0.25])
    )
    close(actual[0]["features.w"], [0.25, 3.5])


# -- FedProto ------------------------------------------------------------------------------------------------

PROTO1, PROTO2 = ([[1.0, 0], [3, 0], [0, 2]], [0, 0, 1]), ([[0.0, 4], [2, 2]], [1, 2])


def three_classes():
    return Network(nn.Flatten(1), nn.Linear(2, 3))


def proto_world(monkeypatch):
    return tiny_world(monkeypatch, PROTO1, PROTO2, network=three_classes, classes=3)


def test_fedproto_prototypes_of_the_worked_example(monkeypatch):
    world = proto_world(monkeypatch)
    state = run(FedProto(), world, 1)  # the features are the input, whatever was trained
    seen = world.class_means(state.models)
    close(seen.means, [[[2, 0], [0, 2], [0, 0]], [[0, 0], [0, 4], [2, 2]]])
    close(state.prototypes.vectors, [[2, 0], [0, 3], [2, 2]])
    counted = dataclasses.replace(seen, counts=torch.tensor([[2, 1, 0], [0, 3, 1]]))
    close(FedProto(weighted=True).aggregate(counted, None).vectors, [[2, 0], [0, 3.5], [2, 2]])
    close(FedProto().aggregate(counted, None).vectors, [[2, 0], [0, 3], [2, 2]])


def test_fedproto_predicts_the_nearest_prototype(monkeypatch):
    world = proto_world(monkeypatch)
    state, queries = run(FedProto(), world, 1), rows([1.5, 0.5], [0.5, 2.6], [1.2, 1.9])
    network = Handle(world.network(0, state.models[0]))
    images = queries.reshape(3, 2, 1, 1)
    assert FedProto().scores(network, images, state).argmax(1).tolist() == [0, 1, 2]
    restricted = prototype_scores(queries, rows([2, 0], [0, 3], [2, 2]), known(1, 1, 0))
    assert restricted.argmax(1).tolist() == [0, 1, 1]
    close(-restricted[2, :2], [2.125, 1.325])


def test_fedproto_predicts_with_the_classifier_where_asked_or_without_prototypes(monkeypatch):
    world = proto_world(monkeypatch)
    start, state = FedProto().init(world), run(FedProto(), world, 1)
    network, images = Handle(world.network(0, state.models[0])), world.clients[0].images
    for method, at in (
        (FedProto(), start),
        (FedProto(prediction="classifier"), state),
        (FedProto(averaging=True), state),
    ):
        assert torch.equal(method.scores(network, images, at), network(images))
    assert not torch.equal(
        FedProto(averaging=True, prediction="prototype").scores(network, images, state), network(images)
    )


def test_fedproto_without_a_pull_is_local_or_fedavg_bit_for_bit():
    assert same(run(FedProto(lam=0.0), image_world()).models, run(Local(), image_world()).models)
    assert same(
        run(FedProto(lam=0.0, averaging=True), image_world()).model, run(FedAvg(), image_world()).model
    )


def test_fedproto_begins_with_a_plain_round_and_pulls_from_the_second_on():
    assert same(run(FedProto(lam=9.0), image_world(), 1).models, run(Local(), image_world(), 1).models)
    assert not same(run(FedProto(lam=9.0), image_world(), 2).models, run(Local(), image_world(), 2).models)


def test_fedproto_counts_vectors_and_with_averaging_the_model():
    world = one_class_world()  # one class per client, four in all
    assert FedProto().traffic(world) == (128.0, 4 * 128.0)
    assert FedProto(averaging=True).traffic(world) == (world.scalars() + 128, world.scalars() + 4 * 128)


# -- FedGH ---------------------------------------------------------------------------------------------------

GH = params({"head.weight": [[0.1, 0], [0, 0.1], [0.1, 0.1]], "head.bias": [0, 0, 0]})
PAIRS = rows([2, 0], [0, 2], [0, 4], [2, 2]), torch.tensor([0, 1, 1, 2])


@pytest.mark.parametrize(
    "batch, lr, weight, bias",
    [
        (
            2,
            0.5,
            [[0.207368, -0.445962], [-0.360478, 0.378790], [0.353110, 0.267171]],
            [-0.040302, 0.023924, 0.016378],
        ),
        (
            1,
            0.01,
            [[0.106705, -0.021860], [-0.012503, 0.130451], [0.105798, 0.091409]],
            [-0.002025, 0.006265, -0.004240],
        ),
    ],
)
def test_server_head_of_the_worked_examples(batch, lr, weight, bias):
    head = fit_head(GH, *PAIRS, lr, batch, torch.arange(4))
    close(head["head.weight"], weight)
    close(head["head.bias"], bias)


def test_fedgh_trains_the_server_head_on_all_clients_means(monkeypatch):
    """Two clients whose means are the worked example's pairs, in the order of clients and classes."""
    world = tiny_world(
        monkeypatch,
        ([[1.0, 0], [3, 0], [0, 2]], [0, 0, 1]),
        ([[0.0, 4], [2, 2]], [1, 2]),
        network=three_classes,
        classes=3,
    )
    state, trained = one_round(
        FedGH(server_lr=0.5, server_batch=2), State(features=world.new_models().features, head=GH), world
    )
    close(state.head["head.weight"], [[0.207368, -0.445962], [-0.360478, 0.378790], [0.353110, 0.267171]])
    close(state.head["head.bias"], [-0.040302, 0.023924, 0.016378])
    # the trained head is dropped
    assert same(trained.models[0].joined(state.head), FedGH().deployed(state, world)[0])


def test_a_server_that_does_not_learn_restarts_clients_from_one_head():
    method, world = FedGH(server_lr=0.0), image_world()
    start = method.init(world)
    state = run(method, world, 2)
    assert same(state.head, start.head)
    models = world.everyone(world.new_model())
    for number in (1, 2):
        models = world.at(number).local_epochs(models.joined(world.everyone(start.head)), method.loss).models
    assert same(state.features, models.features)
    assert not same(state.features, run(Local(), image_world(), 2).models.features)


def test_fedgh_sends_means_up_and_a_head_down():
    world = one_class_world()
    assert FedGH().traffic(world) == (128.0, 10 * 128 + 10)


@pytest.mark.parametrize("method", [FedProto(), FedProto(averaging=True), FedGH()])
def test_counting_what_is_sent_trains_nothing(method):
    """Where clients are trained alone first, fresh models are trained ones."""
    world = image_world(pretraining=1)
    watch = Watch(world.executor)
    method.traffic(world.at(1, watch), run(method, world, 1))
    assert watch.trained is None


# -- FedPAC --------------------------------------------------------------------------------------------------

PAC = [
    ([[1.0, 0], [3, 0], [0, 2], [0, 2]], [0, 0, 1, 1]),
    ([[2.0, 0], [1, 1]], [0, 0]),
    ([[0.0, 1], [0, 3], [1, 2]], [1, 1, 1]),
]
WEIGHTS = [[0.304981, 0.379428, 0.315591], [0.105263, 0.894737, 0], [0.097710, 0, 0.902290]]


def statistics():
    actual = [label_statistics(torch.tensor(x), torch.tensor(y), 2) for x, y in PAC]
    return torch.stack([h for h, _ in actual]), torch.stack([v for _, v in actual])


def program(h, spread, i):
    """P_i of FedPAC's program."""
    gap = (h[i] - h).flatten(1)
    return torch.diag(spread) + gap @ gap.T


def test_label_statistics_of_the_worked_example():
    h, spread = statistics()
    close(spread, [0.625, 0.25, 0.296296])
    close(h, [[[1, 0], [0, 1]], [[1.5, 0.5], [0, 0]], [[0, 0], [0.333333, 2]]])
    close(program(h, spread, 0), [[0.625, 0, 0], [0, 1.75, -1.5], [0, -1.5, 2.407407]])
    close(program(h, spread, 1), [[2.125, 0, 3], [0, 0.25, 0], [3, 0, 6.907407]])


def test_head_weights_of_the_worked_example():
    h, spread = statistics()
    weights = combine_heads(h, spread)
    close(weights, WEIGHTS)
    for i, objective in enumerate((0.190613, 0.223684, 0.267345)):
        value = (weights[i] @ program(h, spread, i) @ weights[i]).item()
        assert value == pytest.approx(objective, abs=1e-6) and value <= spread[i]


def exact(monkeypatch):
    """Weights before the threshold."""
    monkeypatch.setattr("pipeline.methods.fedpac.LEAST_SHARE", 0.0)


@pytest.mark.parametrize(
    "clients, classes, width, scale",
    [(1, 3, 2, 1), (2, 3, 4, 1e-3), (15, 4, 8, 1), (20, 10, 16, 1e4), (20, 1, 2, 1)],
)
def test_head_weights_meet_the_conditions_of_optimality(clients, classes, width, scale, monkeypatch):
    """(P a)_j >= a'Pa, with equality where a_j > 0; and scipy finds the same weights from a Cholesky factor
    of P."""
    exact(monkeypatch)
    rng = torch.Generator().manual_seed(clients)
    h = torch.randn(clients, classes, width, generator=rng).abs().double() / classes
    spread = torch.rand(clients, generator=rng).double()
    weights = combine_heads(scale * h, scale**2 * spread)
    for i in range(clients):
        p = program(h, spread, i)
        slope, value = p @ weights[i], weights[i] @ p @ weights[i]
        assert value <= spread[i] + 1e-12 and (slope >= value - 1e-9).all()
        close(slope[weights[i] > 0], [value.item()] * int((weights[i] > 0).sum()), within=1e-9)
        x, _ = scipy_nnls(
            np.vstack([np.linalg.cholesky(p.numpy()).T, np.ones(clients)]), np.append(np.zeros(clients), 1.0)
        )
        close(weights[i], (x / x.sum()).tolist(), within=1e-8)


def test_equal_statistics_weigh_heads_by_the_inverse_variance():
    spread = torch.tensor([1.0, 0.5, 0.25]).double()
    close(combine_heads(torch.ones(3, 2, 2), spread), [[1 / 7, 2 / 7, 4 / 7]] * 3)


def test_without_variance_the_own_head_is_best():
    assert torch.equal(combine_heads(torch.randn(6, 3, 2), torch.zeros(6)), torch.eye(6).double())
    # not unique: own head
    assert torch.equal(combine_heads(torch.ones(4, 3, 2), torch.zeros(4)), torch.eye(4).double())
    assert combine_heads(torch.randn(1, 3, 2), torch.tensor([2.0])).tolist() == [[1.0]]


def test_the_threshold_drops_small_weights_and_scales_the_rest():
    weights = combine_heads(torch.ones(3, 1, 1), torch.tensor([1.0, 1.0, 1e4]))
    close(weights, [[0.5, 0.5, 0]] * 3, within=1e-12)
    assert not weights[:, 2].any()


def test_extreme_skew_is_feasible(monkeypatch):
    """One class per client, some of one image (variance 0), some with the same statistics; rounding must not
    break it."""
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
    assert (weights >= 0).all() and weights.isfinite().all()
    for i in range(20):
        assert weights[i] @ program(h, spread, i) @ weights[i] <= spread[i] * (1 + 1e-9) + 1e-18


def test_statistics_that_are_not_finite_keep_the_own_head():
    h, spread = statistics()
    h, spread = (
        torch.cat([h[:1], h[:1] * math.nan, h[1:]]),
        torch.cat([spread[:1], spread[:1] * math.nan, spread[1:]]),
    )
    weights = combine_heads(h, spread)
    assert weights[1].tolist() == [0, 1, 0, 0]
    close(weights[[0, 2, 3]][:, [0, 2, 3]], WEIGHTS)
    assert not weights[[0, 2, 3], 1].any()


def test_heads_whose_weights_do_not_settle_are_an_error(monkeypatch):
    def endless(*_):
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", endless)
    with pytest.raises(TrainingError, match="weights of 3 heads did not settle: Maximum number"):
        combine_heads(*statistics())


def test_fedpac_weighs_trained_heads_by_the_statistics_of_the_received_features(monkeypatch):
    """Features that begin as the identity, so that the weights are the worked example's."""

    def network():
        return Network(nn.Sequential(nn.Flatten(1), nn.Linear(2, 2)), nn.Linear(2, 2))

    world, method, start = tiny_world(monkeypatch, *PAC, network=network), FedPAC(), params(MLP)
    start["features.1.bias"] = torch.zeros(2)
    before = State(features=start.features, heads=world.everyone(start.head), prototypes=None)
    after, trained = one_round(method, before, world)
    heads, seen = trained.models.heads, world.class_means(trained.models)
    assert same(
        heads,
        world.local_epochs(
            world.everyone(start), Local().loss, options=LocalOptions("head", stream="head")
        ).models.heads,
    )
    assert same(after.heads, mix(heads, torch.tensor(WEIGHTS, dtype=torch.float64)), within=1e-5)
    assert same(after.prototypes, aggregate_means(seen.means, seen.counts))


def test_fedpac_without_pull_and_with_own_heads_is_fedrep(monkeypatch):
    monkeypatch.setattr(fedpac, "combine_heads", lambda h, spread: torch.eye(len(h), dtype=torch.float64))
    pac, rep = run(FedPAC(lam=0.0), image_world()), run(FedRep(head_epochs=1), image_world())
    assert same(pac.features, rep.features) and same(pac.heads, rep.heads)


def test_heads_mixed_by_sample_counts_are_fedavgs_heads(monkeypatch):
    world = image_world()
    shares = torch.tensor(world.sizes, dtype=torch.float64) / sum(world.sizes)
    monkeypatch.setattr(fedpac, "combine_heads", lambda h, spread: shares.expand(len(h), -1))
    state, trained = watched(FedPAC(head_epochs=0), world, 1)
    assert same(state.heads, world.everyone(world.average(trained.models.heads)), within=1e-7)


def test_fedpac_pulls_from_the_second_round_on():
    assert same(
        run(FedPAC(lam=5.0), image_world(), 1).features, run(FedPAC(lam=0.0), image_world(), 1).features
    )
    assert not same(
        run(FedPAC(lam=5.0), image_world(), 2).features, run(FedPAC(lam=0.0), image_world(), 2).features
    )


def test_fedpac_head_phase_takes_its_own_optimiser_where_given():
    plain = run(FedPAC(), image_world(), 1)
    assert same(plain, run(FedPAC(head_optimiser=Optimiser("sgd", 0.1)), image_world(), 1))
    assert not same(
        plain.heads, run(FedPAC(head_optimiser=Optimiser("sgd", 0.1, 0.5, 5e-4)), image_world(), 1).heads
    )


def test_fedpac_counts_statistics_and_prototypes():
    world = one_class_world()
    down = world.scalars() + 4 * 128
    assert FedPAC().traffic(world) == (world.scalars() + 2 * 128 + 1 + 1, down)  # the count of its one class
    assert FedPAC(weighted=False).traffic(world) == (world.scalars() + 2 * 128 + 1, down)


# -- FedCRL --------------------------------------------------------------------------------------------------

CRL = ([[1.0, 2], [-1, 0.5], [1, 1]], [0, 1, 0])  # batches of two, then one
GLOBAL = State(vectors=rows([1, 0.2], [0.1, 1]), known=known(1, 1))


@pytest.mark.parametrize(
    "alpha, weight1, bias1, weight2, bias2, epoch, last, taus",
    [
        (
            1.0,
            [[1.106684, 0.149662], [-0.108684, 0.875389]],
            [0.106684, 0.011382],
            [[0.589572, -0.094167], [0.010428, 0.194167]],
            [0.061348, 0.038652],
            0.607021,
            0.543599,
            (0.615318, 0.647343),
        ),
        (
            0.0,
            [[1.036681, 0.050264], [-0.045841, 0.952228]],
            [0.036681, 0.074224],
            [[0.586003, -0.089532], [0.013997, 0.189532]],
            [0.063255, 0.036745],
            0.635011,
            0.627569,
            (0.601692, 0.605286),
        ),
    ],
)
def test_fedcrl_epoch_of_the_worked_example(
    alpha, weight1, bias1, weight2, bias2, epoch, last, taus, monkeypatch
):
    world, method, values = tiny_world(monkeypatch, CRL, network=mlp), FedCRL(alpha=alpha, tau=0.5), []

    def noted(*args):
        loss, logged = method.loss(*args)
        values.append(logged["contrast"].item())
        return loss, logged

    trained = world.local_epochs(world.everyone(params(MLP)), noted, server_state=GLOBAL)
    models = trained.models
    close(models[0]["features.1.weight"], weight1)
    close(models[0]["features.1.bias"], bias1)
    close(models[0]["head.weight"], weight2)
    close(models[0]["head.bias"], bias2)
    close(trained.logged["contrast"], [epoch])
    assert values[-1] == pytest.approx(last, abs=1e-6)
    close(torch.exp(-0.8 * torch.tensor([epoch, last])), taus)
    state = method.round(State(models=world.everyone(params(MLP)), prototypes=GLOBAL, share=None), world)
    close(state.share, [taus[0]])


@pytest.mark.parametrize(
    "contrast, share",
    [
        (0.368249, 0.744830),
        (0.231095, 0.831208),
        (math.log(10), 0.158489),
        (math.log(47), 0.045954),
        (math.log(100), 0.025119),
        (0, 1),
        (math.nan, 0),
        (-1e-9, 1),
    ],
)
def test_share_of_the_own_features(contrast, share):
    actual = FedCRL().share(None, torch.tensor([contrast], dtype=torch.float64), GLOBAL, GLOBAL, None)
    close(actual, [share])


def test_gamma_and_alpha_zero_are_local_bit_for_bit():
    state = run(FedCRL(gamma=0.0, alpha=0.0), image_world())
    assert same(state.models, run(Local(), image_world()).models) and state.share.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "method, rounds", [(FedCRL(gamma=1e9, alpha=0.0), 3), (FedCRL(first_tau="global"), 1)]
)
def test_a_share_of_zero_is_fedper(method, rounds):
    """FedPer in four lines: received features, own head, one joint epoch, average of the features."""
    world = image_world()
    models = world.new_models()
    for number in range(1, rounds + 1):
        models = world.at(number).local_epochs(models, Local().loss).models
        models = models.joined(world.everyone(world.average(models.features)))
    assert same(run(method, image_world(), rounds).models, models)


def test_the_first_round_has_no_contrast_and_ends_with_the_chosen_mix():
    for choice, share in (("own", 1.0), ("global", 0.0)):
        world = image_world()
        state, trained = watched(FedCRL(alpha=100.0, first_tau=choice), world, 1)
        assert state.share.tolist() == [share] * 3
        assert same(trained.models, run(Local(), image_world(), 1).models)
    evaluated, trained = watched(FedCRL(), world, 1)
    contrast = [
        prototype_contrast(
            world.representations(k, m), world.clients[k].labels, tau=0.1, **evaluated.prototypes
        )
        for k, m in enumerate(trained.models)
    ]
    close(evaluated.share, [math.exp(-0.8 * c.item()) for c in contrast])
    assert all(0 < s < 1 for s in evaluated.share.tolist())


def test_later_shares_come_from_the_epochs_mean_or_from_one_more_pass():
    world = image_world()
    state = run(FedCRL(), world, 1)
    epoch, trained = one_round(FedCRL(), state, world.at(2))
    close(epoch.share, torch.exp(-0.8 * trained.logged["contrast"]).tolist())
    after, trained = one_round(FedCRL(contrast="post_eval"), state, world.at(2))
    contrast = FedCRL().evaluate(trained.models, state.prototypes, world)  # what it was trained against
    close(after.share, torch.exp(-0.8 * contrast).tolist())
    assert not torch.allclose(after.share, epoch.share)


def test_post_is_the_trained_model_and_pre_the_mixed_one():
    world = image_world()
    state, trained = watched(FedCRL(), world, 2)
    assert same(state.models.heads, trained.models.heads)
    mixed = interpolate(trained.models.features, world.average(trained.models.features), state.share)
    assert same(FedCRL().deployed(state, world).features, mixed)


def test_clipping_to_the_letter_reaches_the_evaluated_model_and_the_shared_features():
    state, trained = watched(FedCRL(clip_params=True), image_world(), 2)
    assert math.isfinite(trained.losses[0])  # of the training before it
    for leaf in tensors_of(trained.models) + tensors_of(state.models):
        assert leaf.min() >= 0 and leaf.max() <= 1
    assert any(leaf.min() < 0 for leaf in tensors_of(run(FedCRL(), image_world(), 2).models))


def test_fedcrl_sends_features_and_representations():
    clients = [
        dataclasses.replace(c, labels=torch.arange(len(c.labels)) % 10) for c in image_clients((20, 30))
    ]
    world = World.create(clients, training(), 10, 0)
    up, down = FedCRL().traffic(world)
    assert up + down == 2 * (world.scalars() - 10) + 10  # the count of every class
    one = one_class_world()
    assert FedCRL().traffic(one) == (one.scalars("features") + 128 + 1, one.scalars("features") + 4 * 128)


@pytest.mark.parametrize(
    "channels, side, classes, fedavg, proto, gh, crl",
    [
        (3, 32, 10, 519828, 2560, 2570, 519808),
        (3, 32, 100, 543048, 25600, 25700, 542848),
        (1, 28, 47, 378718, 12032, 12079, 378624),
    ],
)
def test_traffic_of_the_papers_networks(channels, side, classes, fedavg, proto, gh, crl):
    """Sec. V-B5 of FedCRL, with every class at every client, and the counts that its Eq. 6 weights by."""
    client = dataclasses.replace(
        image_clients((1,), Model("cnn2"))[0],
        images=torch.zeros(classes, channels, side, side),
        labels=torch.arange(classes),
    )
    world = World.create([client], training(), classes, 0)
    assert [sum(m.traffic(world)) for m in (FedAvg(), FedProto(), FedGH(), FedCRL())] == [
        fedavg,
        proto,
        gh,
        crl + classes,
    ]


# -- readings of released codes ------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_the_last_epochs_means_are_those_that_its_steps_saw(executor, monkeypatch):
    """A batch per epoch: the last epoch's means are those of the model that the epochs before it leave, and
    the running ones lie midway between those of both epochs."""
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)

    def world(epochs):
        return image_world((12, 9, 0, 1), batch_size=16, local_epochs=epochs)

    one, two = run(FedProto(lam=0.0), world(1), 1).models, world(2)
    first, second = two.class_means(two.new_models()).means, two.class_means(one).means
    for means, wanted in (("last_epoch", second), ("running", (first + second) / 2)):
        trained = two.local_epochs(two.new_models(), FedProto(means=means).loss)
        actual = trained.class_means(two.class_counts)
        close(actual.means, wanted, 1e-5)
        assert torch.equal(actual.counts, two.class_means(one).counts)
        assert math.isfinite(trained.mean_loss(two.sizes))


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_class_means_by_hand(executor, monkeypatch):
    """One image x = (2, 0), features W x from W = 1, a loss of z_0 + z_1 at rate 1/4: W loses (x, x) / 4, so
    that z is (2, 0) in the first epoch, (1, -1) in the second, (0, -2) in the third."""
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)

    def network():
        return Network(nn.Sequential(nn.Flatten(1), nn.Linear(2, 2, bias=False)), nn.Linear(2, 2))

    world = tiny_world(
        monkeypatch, ([[2.0, 0.0]], [1]), network=network, optimiser=Optimiser(lr=0.25), local_epochs=3
    )
    start = Clients([world.new_model().joined({"features.1.weight": torch.eye(2)})])
    for over, wanted in (("running", [1, -1]), ("last_epoch", [0, -2])):

        def loss(model, batch, shared, own, over=over):
            z = model.features(batch.images)
            return z.sum(1).mean(), class_sums(z, batch.labels, model.classes, over)

        trained = world.local_epochs(start, loss)
        close(trained.class_means(world.class_counts).means[0], [[0, 0], wanted])
        assert trained.class_means(world.class_counts).counts.tolist() == [[0, 1]]
        assert trained.losses == pytest.approx([0])


def test_with_one_epoch_the_last_is_all():
    for make in (FedProto, FPL, FedTGP):
        running, last = (run(make(means=means), image_world()) for means in ("running", "last_epoch"))
        assert torch.equal(running.prototypes.vectors, last.prototypes.vectors)


def test_candidates_may_be_the_classes_that_a_client_trains_on(monkeypatch):
    """By hand: [1.2, 1.9] is class 2 among all, class 1 among {0, 1}."""
    world = tiny_world(monkeypatch, ([[1.0, 0.0], [0.0, 1.0]], [0, 1]), ([[1.0, 1.0]], [2]), classes=3)
    prototypes = State(
        vectors=torch.tensor([[2.0, 0], [0, 3], [2, 2]]), known=torch.ones(3, dtype=torch.bool)
    )
    state = State(FedProto().init(world), prototypes=prototypes)
    queries = torch.tensor([1.2, 1.9]).view(1, 2, 1, 1)

    def predicted(method, client):
        return int(
            method.scores(
                Handle(world.network(client, state.models[client]), client=client), queries, state
            ).argmax()
        )

    assert [predicted(FedProto(), k) for k in (0, 1)] == [2, 2]
    assert [predicted(FedProto(candidates="own"), k) for k in (0, 1)] == [1, 2]
