"""Identities and worked numbers of FedPAC, FedCRL, FedSR and FedRS."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
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
from test_server_methods import GAUSSIAN

from pipeline.engine import federation as engine
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.phase import LocalOptions
from pipeline.engine.state import Params, State, mix, tensors_of
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.methods import fedpac
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedcrl import FedCRL, interpolate
from pipeline.methods.fedgh import FedGH
from pipeline.methods.fedpac import FedPAC, combine_heads, label_statistics
from pipeline.methods.fedproto import FedProto
from pipeline.methods.fedrep import FedRep
from pipeline.methods.fedrs import FedRS, restricted_cross_entropy, restricted_scale
from pipeline.methods.fedsr import FedSR, conditional_information, gaussian_divergence
from pipeline.methods.local import Local
from pipeline.prototypes import aggregate_means, prototype_contrast
from pipeline.schema import Model, Optimiser

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


def test_head_weights_of_the_worked_example():
    h, spread = statistics()
    close(spread, [0.625, 0.25, 0.296296])
    close(h, [[[1, 0], [0, 1]], [[1.5, 0.5], [0, 0]], [[0, 0], [0.333333, 2]]])
    close(combine_heads(h, spread), WEIGHTS)


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
        assert value <= spread[i] + 1e-12 and (slope >= value - 1e-9).all()
        close(slope[weights[i] > 0], [value.item()] * int((weights[i] > 0).sum()), within=1e-9)


def test_head_weights_at_their_ends():
    assert torch.equal(combine_heads(torch.randn(6, 3, 2), torch.zeros(6)), torch.eye(6).double())
    # not unique: the client's head
    assert torch.equal(combine_heads(torch.ones(4, 3, 2), torch.zeros(4)), torch.eye(4).double())
    assert combine_heads(torch.randn(1, 3, 2), torch.tensor([2.0])).tolist() == [[1.0]]
    weights = combine_heads(torch.ones(3, 1, 1), torch.tensor([1.0, 1.0, 1e4]))
    close(weights, [[0.5, 0.5, 0]] * 3, within=1e-12)
    assert not weights[:, 2].any()
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
    assert (weights >= 0).all() and weights.isfinite().all()
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
    assert same(pac.features, rep.features) and same(pac.heads, rep.heads)


def test_fedpac_head_phase_takes_its_optimiser_where_given():
    plain = run(FedPAC(), image_world(), 1)
    equal, other = Optimiser("sgd", 0.1), Optimiser("sgd", 0.1, 0.5, 5e-4)
    assert same(plain, run(FedPAC(head_optimiser=equal), image_world(), 1))
    assert not same(plain.heads, run(FedPAC(head_optimiser=other), image_world(), 1).heads)


CRL = ([[1.0, 2], [-1, 0.5], [1, 1]], [0, 1, 0])  # batches of two, then one
GLOBAL = State(vectors=rows([1, 0.2], [0.1, 1]), known=known(1, 1))


def test_fedcrl_epoch_of_the_worked_example(monkeypatch):
    world, method = tiny_world(monkeypatch, CRL, network=mlp), FedCRL(tau=0.5)
    start = world.everyone(params(MLP))
    trained = world.local_epochs(start, method.loss, server_state=GLOBAL)
    model = trained.models[0]
    close(model["features.1.weight"], [[1.106684, 0.149662], [-0.108684, 0.875389]])
    close(model["features.1.bias"], [0.106684, 0.011382])
    close(model["head.weight"], [[0.589572, -0.094167], [0.010428, 0.194167]])
    close(model["head.bias"], [0.061348, 0.038652])
    close(trained.logged["contrast"], [0.607021])
    state = method.round(State(models=start, prototypes=GLOBAL, share=None), world)
    close(state.share, [0.615318])


def test_share_of_the_local_features():
    contrast = torch.tensor([0.368249, math.log(100), 0, math.nan, -1e-9], dtype=torch.float64)
    close(FedCRL().share(None, contrast, GLOBAL, GLOBAL, None), [0.744830, 0.025119, 1, 0, 1])


@pytest.mark.parametrize(
    "method, rounds", [(FedCRL(gamma=1e9, alpha=0.0), 3), (FedCRL(first_tau="global"), 1)]
)
def test_a_share_of_zero_is_fedper(method, rounds):
    """FedPer in four lines: received features, a local head, one epoch, average of the features."""
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
    assert not same(after.share, epoch.share, 1e-5)


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


MU, SIGMA = rows([1, 2]), rows([0.5, 1])


def reference(scale=1.0, classes=3, d=2):
    return Params(mean=torch.zeros(classes, d), rho=torch.ones(classes, d), scale=torch.tensor(scale))


def test_fedsr_worked_numbers():
    close(conditional_information(MU, SIGMA, torch.tensor([0]), reference()), 2.050130)
    close(conditional_information(MU, SIGMA, torch.tensor([0]), reference(2.0)), 6.099702, 2e-6)
    z = rows([3, 4], [0, 2])

    class Fixed:
        def features(self, images):
            return torch.cat([z, torch.zeros(2, 2)], dim=1)

        def normal(self, like):
            return torch.zeros_like(like)

        def head(self, z):
            return torch.zeros(2, 2)

    for norm, wanted in (("plain", 3.5), ("squared", 14.5)):
        value = FedSR(l2r=1.0, cmi=0, norm=norm).loss(Fixed(), Batch(z, torch.tensor([0, 1])), None, None)
        close(value, math.log(2) + wanted, 2e-6)
    rng = torch.Generator().manual_seed(0)
    mu, other = torch.randn(2, 9, 4, generator=rng, dtype=torch.float64)
    sigma, spread = torch.rand(2, 9, 4, generator=rng, dtype=torch.float64) + 0.1
    normal = torch.distributions.Normal
    wanted = torch.distributions.kl_divergence(normal(mu, sigma), normal(other, spread)).sum(1)
    actual = gaussian_divergence(mu, sigma, other, spread)
    close(actual, wanted, 1e-5)
    assert (actual > 0).all() and gaussian_divergence(mu, sigma, mu, sigma).abs().max() < 1e-12
    matching = Params(
        mean=2 * mu[:3], rho=(2 * sigma[:3]).expm1().log(), scale=torch.tensor(2.0, dtype=torch.float64)
    )
    assert conditional_information(mu[:3], sigma[:3], torch.arange(3), matching).abs() < 1e-12
    assert conditional_information(mu[:3], sigma[:3], torch.tensor([0, 2, 1]), matching) > 1e-3


def test_fedsr_without_terms_and_noise_is_fedavg_on_the_same_network(monkeypatch):
    fedavg = run(FedAvg(), image_world(model=GAUSSIAN))
    assert not same(run(FedSR(l2r=0, cmi=0), image_world(model=GAUSSIAN)).model, fedavg.model, within=1e-5)
    monkeypatch.setattr(Handle, "normal", lambda self, like: torch.zeros_like(like))
    assert same(run(FedSR(l2r=0, cmi=0), image_world(model=GAUSSIAN)).model, fedavg.model, within=1e-6)


def test_fedsr_references_start_as_released_and_learn_for_the_classes_at_home():
    world = image_world((20, 33, 0, 1), model=GAUSSIAN, one_class=True)
    start = FedSR().init(world).references
    assert not start[0]["mean"].any() and (start[0]["rho"] == 1).all() and start[0]["scale"] == 1
    state = run(FedSR(), world)
    for k in (0, 1, 3):
        moved = (state.references[k]["mean"] != 0).any(1)
        assert moved.nonzero().flatten().tolist() == [k] and state.references[k]["scale"] != 1
        assert (state.references[k]["rho"] != 1).any(1).nonzero().flatten().tolist() == [k]
    assert same(state.references[2], start[2])
    method = FedSR(share_reference=True, norm="squared")
    shared = [run(method, image_world(n, model=GAUSSIAN), 1).references for n in ((20, 33), (20, 33, 40))]
    assert same(shared[0][0], shared[0][1]) and not same(shared[0][0], shared[1][0])


def test_fedsr_predicts_by_the_mean_softmax_over_draws():
    world = image_world(model=GAUSSIAN)
    state = run(FedSR(), world, 1)
    model, images = Handle(world.network(0, state.model)), world.clients[0].images
    mu, rho = model.features(images).chunk(2, dim=1)
    fixed = Handle(world.network(0, state.model))
    noise = fixed.normal(mu.expand(20, *mu.shape))
    wanted = torch.stack([model.head(mu + F.softplus(rho) * eps).softmax(1) for eps in noise]).mean(0)
    actual = FedSR().scores(model, images, state)
    close(actual.exp(), wanted, 1e-5)
    close(actual.exp().sum(1), [1.0] * 20)
    assert torch.equal(actual, FedSR().scores(Handle(world.network(0, state.model)), images, state))
    assert float((noise[0] - noise[1]).abs().max()) > 0.5  # every draw differs
    state.model["features.projector.0.bias"][128:] = -1e4  # sigma = 0: as the classifier of the mean
    state.model["features.projector.0.weight"][128:] = 0
    model = Handle(world.network(0, state.model))
    close(FedSR().scores(model, images, state), model(images).log_softmax(1), 1e-5)


def test_networks_that_do_not_fit_are_refused():
    with pytest.raises(TrainingError, match="256 numbers for a head of 128; 'cnn4' gives 128: set the"):
        FedSR().init(image_world())
    with pytest.raises(TrainingError, match="its network can have no dropout"):
        FedRS().init(image_world(model=Model("cnn2", dropout=0.3)))


Z, ZY, W = rows([1, 2], [0.5, 0]), torch.tensor([1, 0]), rows([1, 0], [0, 1], [1, 1], [-1, 1])
COUNTS = torch.tensor([4, 1, 0, 0])


@pytest.mark.parametrize(
    "mode, scale, loss",
    [("hard", (1, 1, 0.5, 0.5), 0.918678), ("soft", (1, 0.625, 0.5, 0.5), 1.156392)],
)
def test_fedrs_worked_numbers(mode, scale, loss):
    actual = restricted_scale(COUNTS, 0.5, mode)
    assert actual.tolist() == list(scale)
    close(restricted_cross_entropy(Z, ZY, W, actual.float()), loss)
    close(restricted_cross_entropy(Z, ZY, W, torch.ones(4)), 1.291929)


def test_fedrs_scale_is_one_with_alpha_one_or_equal_counts_or_every_class():
    for mode in ("hard", "soft"):
        assert restricted_scale(COUNTS, 1.0, mode).tolist() == [1.0] * 4
        assert restricted_scale(torch.tensor([3, 3, 3]), 0.3, mode).tolist() == [1.0] * 3
        # a client without data
        assert restricted_scale(torch.zeros(3, dtype=torch.int64), 0.5, mode).tolist() == [0.5] * 3
    assert restricted_scale(torch.tensor([9, 1, 4]), 0.3, "hard").tolist() == [1.0] * 3
    assert restricted_scale(COUNTS.expand(2, 4), 0.5, "soft").tolist() == [[1, 0.625, 0.5, 0.5]] * 2


def without_bias(monkeypatch):
    real = engine.build

    def build(*given):
        network = real(*given)
        network.head.register_parameter("bias", None)
        return network

    monkeypatch.setattr(engine, "build", build)


@pytest.mark.parametrize("method", [FedRS(alpha=1.0), FedRS(alpha=1.0, mode="soft")], ids=["hard", "soft"])
def test_fedrs_without_restriction_is_fedavg_with_a_classifier_without_bias(method, monkeypatch):
    optimiser = Optimiser("sgd", 0.1, momentum=0.9, weight_decay=1e-3)
    state = run(method, image_world(optimiser=optimiser)).model
    assert not state["head.bias"].any()
    without_bias(monkeypatch)
    fedavg = run(FedAvg(), image_world(optimiser=optimiser)).model
    assert same(Params((name, state[name]) for name in fedavg), fedavg)
    assert same(run(method, image_world(optimiser=optimiser)).model, fedavg)


def test_fedrs_bias_is_an_option_and_not_scaled():
    world = image_world()
    state = run(FedRS(bias=True, alpha=1.0), world)
    assert same(state.model, run(FedAvg(), image_world()).model, within=1e-6)
    assert state.model["head.bias"].any()
    bias = torch.tensor([0.1, -0.2, 0.3, 0.4])
    wanted = F.cross_entropy((Z @ W.T) * torch.tensor([1, 1, 0.5, 0.5]) + bias, ZY)
    close(restricted_cross_entropy(Z, ZY, W, torch.tensor([1, 1, 0.5, 0.5]), bias), wanted, 1e-5)
