"""Public phases of FedMD, FedDF, FedMatch, RHFL, FCCL and FCCL+ against loops written out by hand; costs."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from all_methods import METHODS, algorithm_of, name
from federation import close, run, same, training
from public_data import CLASSES, DOUBLE, adam, alike, federation, kl, modules, same_parameters, three

from pipeline.engine import public as public_phase
from pipeline.engine.public import PublicBatch
from pipeline.engine.state import Clients, Params
from pipeline.methods.fccl import FCCL
from pipeline.methods.fcclplus import FCCLPlus
from pipeline.methods.feddf import FedDF
from pipeline.methods.fedmatch import FedMatch
from pipeline.methods.fedmd import FedMD
from pipeline.methods.rhfl import RHFL
from pipeline.schema import Optimiser

EVERY = [m for m in METHODS if algorithm_of(m) in ("fedmd", "feddf", "fedmatch", "rhfl", "fccl", "fcclplus")]


@pytest.mark.parametrize("method", [m for m in EVERY if getattr(m, "form", "") != "original"], ids=name)
def test_public_batches_reach_every_client_once_a_pass(method, monkeypatch):
    """BatchNorm's counter: forwards in train mode, of a client that learns nothing at home."""
    world = federation(monkeypatch, (12, 7, 0), ["plain", "dropout", "bn"], passes=2)
    start = method.init(world)
    counter = next(n for n in start.models[2] if n.endswith("num_batches_tracked"))
    forwards = 2 if getattr(method, "second_forward", False) or isinstance(method, FedMatch) else 1
    # 20 images in batches of 8: 3
    assert int(method.round(start, world).models[2][counter]) == 2 * 3 * forwards


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


def fccm(z, other):
    standard = [(a - a.mean(0)) / a.std(0) for a in (z, other)]
    c = standard[0].T @ standard[1] / len(z)
    return (1 - c.diagonal()).pow(2).sum() + 0.0051 * ((1 + c).pow(2).sum() - (1 + c.diagonal()).pow(2).sum())


def similarities(h):
    rows = h / h.norm(dim=1, keepdim=True)
    s = rows @ rows.T / 0.02
    return s[~torch.eye(len(s), dtype=torch.bool)].view(len(s), -1)


def fisl(k, hs, answers):
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
        lambda k, zs, hs, answers: fccm(zs[k], zbar(answers)),
        sgd,
        1,
    ),
    (
        FCCLPlus(public_optimiser="sgd"),
        lambda k, zs, hs, answers: fccm(zs[k], zbar(answers)) + 3 * fisl(k, hs, answers),
        sgd,
        1,
    ),
    (FCCLPlus(fccm=False, omega=2.0), lambda k, zs, hs, answers: 2 * fisl(k, hs, answers), adam, 1),
]


@pytest.mark.parametrize("method, loss, optimiser, forwards", CASES, ids=[name(case[0]) for case in CASES])
def test_collaborative_phase_as_written_out(method, loss, optimiser, forwards, monkeypatch):
    """Plain modules, a new torch optimiser per client and batch; two networks with BatchNorm, one without."""
    world = federation(monkeypatch, (12, 7, 9), ["bn", "plain", "bn"], passes=2)
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
