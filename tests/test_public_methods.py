"""Public phases of FedMD, FedDF, FedMatch, RHFL, FCCL and FCCL+ against loops written out by hand; costs."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from all_methods import METHODS, algorithm_of, name
from federation import close, run, same, training
from public_data import CLASSES, DOUBLE, adam, alike, federation, kl, modules, same_parameters, three
from tiny import Z1, Z2, Z3, Z, numbers

from pipeline.engine import public as public_phase
from pipeline.engine.public import PublicBatch
from pipeline.engine.state import Clients, Params
from pipeline.losses import knowledge_distillation, weighted_distillation
from pipeline.methods.fccl import FCCL, correlation_distance, cross_correlation
from pipeline.methods.fcclplus import (
    FCCLPlus,
    elastic_penalty,
    instance_similarity,
    non_target_distillation,
)
from pipeline.methods.feddf import FedDF
from pipeline.methods.fedmatch import (
    FedMatch,
    disjoint_penalty,
    inter_client_consistency,
    majority_labels,
    pseudo_label_loss,
)
from pipeline.methods.fedmd import FedMD
from pipeline.methods.rhfl import RHFL, confidence_weights, reverse_cross_entropy, symmetric_cross_entropy
from pipeline.schema import Optimiser

EVERY = [m for m in METHODS if algorithm_of(m) in ("fedmd", "feddf", "fedmatch", "rhfl", "fccl", "fcclplus")]


@pytest.mark.parametrize("method", EVERY, ids=name)
def test_looking_twice_gives_the_same_bits(method, monkeypatch):
    """With BatchNorm, dropout, or neither: a graph made when its client steps, or kept since all looked."""
    saved = run(method, federation(monkeypatch, local_epochs=2), 2)
    graphs, whole = [], type(method).client_output
    monkeypatch.setattr(public_phase, "LARGE", 0)
    monkeypatch.setattr(
        type(method), "client_output", lambda *given: graphs.append(torch.is_grad_enabled()) or whole(*given)
    )
    twice = run(method, federation(monkeypatch, local_epochs=2), 2)
    assert same(twice.models, saved.models)
    if getattr(method, "form", "clients") == "clients":
        assert graphs == ([False] * 5 + [True] * 5) * (2 * 3)  # two rounds of three public batches


def by_hand(world, models, loss, optimiser, forwards=1, batches=None) -> Clients:
    """`loss(k, zs, hs, shown)`: logits and features of the last forward, what all showed (constants)."""
    nets = modules(world, models)
    for images, _ in batches or world.public_batches():
        for _ in range(forwards):
            hs = [net.features(images) for net in nets]
            zs = [net.head(h) for net, h in zip(nets, hs)]
        answers = [z.detach() for z in zs], [h.detach() for h in hs]
        losses = [loss(k, zs, hs, answers) for k in range(len(nets))]
        for net, value in zip(nets, losses):
            step = optimiser(net.parameters())
            value.backward()
            step.step()
            step.zero_grad()
    return Clients(Params((n, v.detach().clone()) for n, v in net.state_dict().items()) for net in nets)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, weight_decay=1e-5)


def zbar(answers):
    return sum(answers[0]) / len(answers[0])


def fccm_by_hand(z, other):
    standard = [(a - a.mean(0)) / a.std(0) for a in (z, other)]
    c = standard[0].T @ standard[1] / len(z)
    return (1 - c.diagonal()).pow(2).sum() + 0.0051 * ((1 + c).pow(2).sum() - (1 + c.diagonal()).pow(2).sum())


def similarities(h):
    rows = h / h.norm(dim=1, keepdim=True)
    s = rows @ rows.T / 0.02
    return s[~torch.eye(len(s), dtype=torch.bool)].view(len(s), -1)


def fisl_by_hand(k, hs, answers):
    return kl(sum(similarities(h) for h in answers[1]) / len(hs), similarities(hs[k]))


CASES = [
    (FedMD(), lambda k, zs, hs, answers: (zs[k] - zbar(answers)).abs().mean(), adam, 1),
    (
        FedMD(distance="mse", public_optimiser="sgd", second_forward=True),
        lambda k, zs, hs, answers: (zs[k] - zbar(answers)).pow(2).mean(),
        sgd,
        2,
    ),
    (FedDF(), lambda k, zs, hs, answers: kl(zbar(answers), zs[k]), sgd, 2),
    (
        FedDF(public_optimiser="adam", second_forward=False),
        lambda k, zs, hs, answers: kl(zbar(answers), zs[k]),
        adam,
        1,
    ),
    (
        RHFL(reweighted=False),
        lambda k, zs, hs, answers: (
            sum(kl(answers[0][i], zs[k]) for i in range(len(zs)) if i != k) / (len(zs) - 1)
        ),
        adam,
        1,
    ),
    (
        FCCL(pretraining=1, public_optimiser="sgd"),
        lambda k, zs, hs, answers: fccm_by_hand(zs[k], zbar(answers)),
        sgd,
        1,
    ),
    (
        FCCLPlus(public_optimiser="sgd"),
        lambda k, zs, hs, answers: fccm_by_hand(zs[k], zbar(answers)) + 3 * fisl_by_hand(k, hs, answers),
        sgd,
        1,
    ),
    (FCCLPlus(fccm=False, omega=2.0), lambda k, zs, hs, answers: 2 * fisl_by_hand(k, hs, answers), adam, 1),
]


@pytest.mark.parametrize("method, loss, optimiser, forwards", CASES, ids=[name(case[0]) for case in CASES])
def test_collaborative_phase_as_written_out(method, loss, optimiser, forwards, monkeypatch):
    """Plain modules, a new torch optimiser per client and batch; two networks with BatchNorm, one without,
    whose client has no images at home."""
    world = federation(monkeypatch, (12, 0, 9), ["bn", "plain", "bn"], passes=2)
    state = method.before_round(method.init(world), world)
    close(method.collaborate(state, world), by_hand(world, state.models, loss, optimiser, forwards), 1e-8)


def test_rhfl_second_round_as_written_out(monkeypatch):
    """Weights from the losses at the start of rounds 1 and 2, in train mode on the same kind of batches."""
    world, method = federation(monkeypatch, (12, 8, 0), ["plain", "plain", "dropout"]), RHFL()
    first = method.round(method.init(world), world)
    before = first.losses
    assert first.weights.tolist() == [0.5, 0.5, 0.5] and before[2].isnan() and before[:2].isfinite().all()
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


def test_the_conference_consensus_has_a_share_from_last_rounds_model(monkeypatch):
    world = federation(monkeypatch, (12, 7, 9), ["bn", "plain", "bn"])
    method = FCCL(pretraining=1, consensus="conference")
    state = method.init(world)
    batch, seen = next(world.public_batches()), []
    world.collaborate(
        state.models,
        batch,
        method.client_output,
        lambda answers: seen.extend(answers) or method.aggregate(answers, state, world),
        method.distillation_loss,
        client_state=method.client_state(state, world),
    )
    nets = [net.eval() for net in modules(world, state.models)]
    for k, received in enumerate(method.aggregate(seen, state, world)):
        others = sum(seen[j]["sent"] for j in range(3) if j != k)
        close(received, (others + nets[k](batch.images)) / 3, 1e-5)


ALIKE = [FedMD(), FedMD(distance="mse"), FedDF(), FCCLPlus(fccm=False), RHFL()]
ALIKE += [FedMatch(decomposed=False, kappa=1.0)]


@pytest.mark.parametrize("method", ALIKE, ids=name)
@pytest.mark.parametrize("clients", [1, 2])
def test_a_client_alone_and_equal_clients_have_nothing_to_agree_on(method, clients, monkeypatch):
    """Only weight decay (FedDF's SGD) moves them, and BatchNorm's statistics. (Of three equal numbers the
    mean is rounded, and a new Adam would make a step of that.)"""
    world = alike(monkeypatch, sizes=(12, 7, 9)[:clients])
    state = method.init(alike(monkeypatch, sizes=(12, 7, 9)[:clients], averaging="uniform"))
    after = method.collaborate(method.before_round(state, world), world)
    assert same_parameters(after, state.models, 1e-6 if isinstance(method, FedDF) else 1e-8)
    moved = next(n for n in after[0] if n.endswith("running_mean"))
    assert not torch.equal(after[0][moved], state.models[0][moved])


def test_hfl_is_the_first_round_of_rhfl(monkeypatch):
    worlds = [federation(monkeypatch, (12, 7, 9), ["plain", "dropout", "plain"]) for _ in range(2)]
    a, b = (run(method, world, 1).models for method, world in zip((RHFL(), RHFL(reweighted=False)), worlds))
    assert same(a, b)
    a, b = (run(method, world, 3).models for method, world in zip((RHFL(), RHFL(reweighted=False)), worlds))
    assert not same(a, b)


@pytest.mark.parametrize("options", [{}, {"consensus": "conference", "pearson": True, "off_target": 0.0}])
def test_fcclplus_without_fisl_and_fntd_is_fccl(options, monkeypatch):
    plus = FCCLPlus(omega=0.0, local="fccl", pretraining=2, **options)
    fccl = FCCL(pretraining=2, **options)
    assert same(run(plus, three(monkeypatch)).models, run(fccl, three(monkeypatch)).models)


def test_rates_and_decays():
    """As FCCL+'s code, lr0 = 1e-3, E = 40."""

    def rate(schedule, r):
        settings = training(rounds=40, optimiser=Optimiser("adam", 1e-3, weight_decay=1e-5))
        world, method = SimpleNamespace(training=settings, round=r + 1), FedMD(schedule=schedule)
        rates = {method.batch_optimiser(world).lr, method.local_options(world).optimiser.lr}
        assert rates == {method.rate(world)}
        return method.rate(world)

    rates = [rate("release", r) for r in (0, 1, 2, 20, 39)]
    close(rates, [0.001, 0.001, 0.0009775, 0.0005725, 0.000145], 1e-12)
    assert {rate("constant", r) for r in range(40)} == {0.001}
    world = SimpleNamespace(training=training(optimiser=Optimiser("adam", 1e-3, weight_decay=1e-5)), round=1)
    assert FCCL().batch_optimiser(world) == Optimiser("adam", 1e-3)
    assert FCCL().local_options(world).optimiser == world.training.optimiser
    assert FedDF().batch_optimiser(world) == Optimiser("sgd", 1e-3, weight_decay=1e-5)
    assert FedDF(public_optimiser="adam").batch_optimiser(world) == Optimiser("adam", 1e-3)


def costs(method, sizes, clients=4, averaging=None, classes=10):
    world = SimpleNamespace(
        public_batches=lambda: [PublicBatch(range(n), ()) for n in sizes],
        classes=classes,
        clients=[None] * clients,
        homogeneous=True,
        scalars=lambda: 4_977_226.0,
        training=training(averaging=averaging),
    )
    return method.traffic(world)


B512, B256, RA = [512] * 9 + [392], [256] * 19 + [136], [256] * 19


def test_worked_costs(monkeypatch):
    for method in (FedMD(), FedDF(), FCCL()):
        assert costs(method, B512) == (50_000, 50_000)
    assert costs(FCCLPlus(), B512) == (50_000 + 2_507_960,) * 2
    assert costs(FCCLPlus(), B256) == (50_000 + 1_258_680,) * 2
    assert costs(FCCLPlus(fccm=False, local="fccl"), B512) == (2_507_960,) * 2
    assert costs(FCCLPlus(omega=0.0, local="fccl"), B512) == (50_000,) * 2
    assert costs(RHFL(), RA) == (48_640 + 1, 145_920)
    assert costs(RHFL(reweighted=False), RA) == (48_640, 145_920)
    assert costs(FedMatch(), B512) == (50_000, 100_000)
    assert costs(FedMatch(), B512, clients=2) == (50_000, 50_000)
    assert FedMD().traffic(three(monkeypatch, passes=2)) == (2 * 20 * CLASSES,) * 2
    assert FCCLPlus().traffic(three(monkeypatch)) == (20 * CLASSES + 2 * 8 * 7 + 4 * 3,) * 2


TOY, ZBAR = [Z1, Z2, Z3], Z.mean(0)
Y = torch.tensor([0, 1, 2, 0])
H1 = numbers([[1, 0], [1, 1], [0, 2], [3, 1]])  # their features
H2 = numbers([[1, 0, 1], [0, 1, 1], [2, 1, 0], [1, 1, 1]])
H3 = numbers([[0.5, 0.5], [1, 2], [2, 1], [0, 1]])


def gradient(loss, at):
    leaf = at.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


def test_feddf_of_the_toy_logits():
    close([knowledge_distillation(z, ZBAR) for z in TOY], [0.043328, 0.212533, 0.140444])
    close(knowledge_distillation(Z1, ZBAR, tau=2.0), 0.017461)
    # Beyond 100 or so the logarithm of a softmax is -inf in float32; log_softmax is not.
    z = torch.tensor([[0.0, 200.0], [300.0, 0.0]]).requires_grad_()
    value = knowledge_distillation(z, torch.tensor([[200.0, 0.0], [300.0, 0.0]]))
    assert value.item() == pytest.approx(100.0) and torch.autograd.grad(value, z)[0].isfinite().all()
    teacher, z = ZBAR.clone().requires_grad_(), Z1.clone().requires_grad_()
    (
        knowledge_distillation(z, teacher)
        + non_target_distillation(z, teacher, Y)
        + non_target_distillation(z, teacher, Y, renormalise=True)
        + weighted_distillation(z, teacher[None], torch.ones(1))
    ).backward()
    assert teacher.grad is None and z.grad.abs().max() > 0


FIRST_W = [0.335424, 0.314247, 0.350329]


def weighed(previous, current, **options):
    return confidence_weights(numbers(previous), numbers(current), 0.5, **options)


def test_confidence_weights_at_their_ends():
    close(weighed([1.2, 2.4, 0.6], [1.0, 2.0, 0.5]), [1 / 3] * 3)
    close(weighed([1.0, 2.0, 0.5], [1.0, 2.0, 0.5]), [1 / 3] * 3)  # the sum of F is 0: nothing to divide by
    literal = weighed([1.0, 1.0, 1.0], [1.1, 1.5, 1.2])
    assert literal.argmax() == 1 and literal.argmin() == 0  # the client whose loss rises most weighs most
    close(weighed([1.0, 1.0, 1.0], [1.1, 1.5, 1.2], guarded=True), [1 / 3] * 3)
    # where losses fall the guard does nothing
    close(weighed([1.2, 0.9, 1.5], [1.0, 0.8, 1.2], guarded=True), FIRST_W)
    without = weighed([1.2, 1.0, 1.5], [1.0, 1.0, 1.2])
    close(weighed([1.2, math.nan, 1.5], [1.0, math.nan, 1.2]), without, 1e-5)


def test_reverse_cross_entropy_at_its_ends():
    saturated, uniform = 1000 * F.one_hot(Y, 3).to(DOUBLE), torch.zeros(4, 3, dtype=DOUBLE)
    close(reverse_cross_entropy(saturated, Y), 2 * 1e-7 * 9.210340, within=1e-12)
    close(symmetric_cross_entropy(saturated, Y, 0.1, 1.0), 0.0, within=2e-6)
    close(reverse_cross_entropy(uniform, Y), 9.210340 * 2 / 3)
    close(reverse_cross_entropy(uniform.float(), Y), 9.210340 * 2 / 3)


def fccm(z, zbar=ZBAR, off_target=-1.0, pearson=False):
    return correlation_distance(cross_correlation(z, zbar.detach(), pearson), 0.0051, off_target)


def test_fccm_of_the_toy_logits():
    close([fccm(z, pearson=True) for z in TOY], [0.028392, 0.354562, 0.095687])
    close([fccm(z) for z in TOY], [0.286649, 0.741866, 0.405491])
    close([fccm(Z1, off_target=0.0, pearson=True), fccm(Z1, off_target=0.0)], [0.024533, 0.276105])


def test_a_constant_column_correlates_with_nothing_and_a_batch_of_one_is_harmless():
    z = Z1.clone()
    z[:, 1] = 4.0
    assert cross_correlation(z, ZBAR)[1].tolist() == [0.0, 0.0, 0.0] and gradient(fccm, z).isfinite().all()
    assert fccm(Z1[:1], ZBAR[:1]).isfinite()
    assert gradient(lambda a: fccm(a, ZBAR[:1]), Z1[:1]).isfinite().all()


FEATURES = [H1, H2, H3]


def fisl(features, mu):
    together = torch.stack([instance_similarity(h, mu) for h in FEATURES]).mean(0)
    return knowledge_distillation(instance_similarity(features, mu), together)


def test_fisl_of_the_toy_features():
    close([fisl(h, 0.5) for h in FEATURES], [0.065867, 0.047036, 0.048417])
    close([fisl(h, 0.02) for h in FEATURES], [0.714222, 5.701085, 5.841970])
    # A genuine 0 stays, which the selection S != 0 of Eq. 4 would lose.
    cosines = F.normalize(H2, dim=1) @ F.normalize(H2, dim=1).T
    wanted = torch.stack([torch.cat([row[:b], row[b + 1 :]]) for b, row in enumerate(cosines)]) / 0.3
    close(instance_similarity(H2, 0.3), wanted, 1e-5)
    assert instance_similarity(H1, 0.5)[0, 1] == 0 and instance_similarity(H1, 0.5).shape == (4, 3)


@pytest.mark.parametrize(
    "student, teacher, tau, kd, plain, renormalised",
    [
        (Z1, Z2, 1.0, 0.353010, 0.460326, 0.186682),
        (Z1, Z2, 3.0, 0.437672, 0.953548, 0.201108),
        (Z2, Z1, 1.0, 0.292712, -0.031824, None),
        (Z2, Z1, 3.0, 0.422202, -0.460222, 0.199744),
    ],
)
def test_fntd_of_the_toy_logits(student, teacher, tau, kd, plain, renormalised):
    close(tau**2 * knowledge_distillation(student, teacher, tau), kd)
    close(tau**2 * non_target_distillation(student, teacher, Y, tau), plain)
    if renormalised is not None:
        close(tau**2 * non_target_distillation(student, teacher, Y, tau, renormalise=True), renormalised)


@pytest.mark.parametrize("renormalise", [False, True])
def test_fntd_of_logits_far_apart_stays_finite(renormalise):
    z, t = torch.tensor([[500.0, 0.0, -500.0]]), torch.tensor([[-500.0, 500.0, 0.0]])
    at = torch.tensor([0])
    for tau in (1.0, 0.5):
        slope = gradient(lambda a, tau=tau: non_target_distillation(a, t, at, tau, renormalise), z)
        assert slope.isfinite().all()


def test_elastic_penalty_by_hand():
    values = (1, 2, 3), (1, 1.5, 2), (0.2, 0.4, 0.1)
    at, anchor, information = (Params(w=numbers(v)) for v in values)
    close(0.7 * elastic_penalty(at, anchor, information), 0.140000)


LOCAL, HELPERS, HARD = F.softmax(3 * Z1, 1), torch.stack([F.softmax(3 * Z2, 1), F.softmax(3 * Z3, 1)]), 2 * Z2
ALL, NONE = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)


def test_fedmatch_of_the_toy_logits():
    consistency = inter_client_consistency(LOCAL, HELPERS, ALL)
    close(consistency, 0.765480)
    labels = majority_labels(LOCAL, HELPERS)
    assert labels.tolist() == [0, 1, 2, 0]
    close(0.01 * consistency + 0.01 * pseudo_label_loss(HARD, labels, ALL), 0.016348)
    sigma = Params(w=torch.tensor([1.0, 2, -1], dtype=DOUBLE))
    psi = Params(w=torch.tensor([0.2, 0.4, -0.2], dtype=DOUBLE))
    close(disjoint_penalty(sigma, psi, l1=1e-4, l2=10.0), 38.400080)


def test_without_confident_samples_or_helpers_terms_are_zero():
    assert not inter_client_consistency(LOCAL, HELPERS, NONE) and not pseudo_label_loss(HARD, Y, NONE)
    assert gradient(lambda z: pseudo_label_loss(z, Y, NONE), HARD).abs().max() == 0
    some = torch.tensor([True, False, True, False])
    alone = inter_client_consistency(LOCAL[some], HELPERS[:, some], ALL[some])
    close(inter_client_consistency(LOCAL, HELPERS, some), alone, 1e-5)
    close(pseudo_label_loss(HARD, Y, some), F.cross_entropy(HARD[some], Y[some]), 1e-5)
    close(inter_client_consistency(LOCAL, torch.stack([LOCAL, LOCAL]), ALL), 0.0)
    assert inter_client_consistency(LOCAL, HELPERS[:0], ALL).item() == 0.0
    assert majority_labels(LOCAL, HELPERS[:0]).tolist() == LOCAL.argmax(1).tolist()
    one = torch.eye(3, dtype=DOUBLE)
    assert majority_labels(one[[2]], one[[1]][None]).tolist() == [1]
    assert majority_labels(one[[2]], torch.stack([one[[1]], one[[0]]])).tolist() == [0]
    assert majority_labels(one[[0]], torch.stack([one[[2]], one[[2]]])).tolist() == [2]
