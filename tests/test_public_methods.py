"""Rounds of the methods that agree on public data, against loops written out by hand; identities and costs of
FedMD, FedDF, FedMatch, RHFL, FCCL and FCCL+, also with one network for all."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from federation import close, one_round, run, same, training
from torch import nn

from pipeline import keys, methods
from pipeline.data import augmentations
from pipeline.engine import federation as engine
from pipeline.engine import public as public_phase
from pipeline.engine.phase import Client, LocalOptions
from pipeline.engine.public import PublicBatch
from pipeline.engine.state import Clients, Params
from pipeline.engine.world import World
from pipeline.errors import ParamError
from pipeline.methods.aughfl import AugHFL
from pipeline.methods.ditto import Ditto
from pipeline.methods.fccl import FCCL
from pipeline.methods.fcclplus import FCCLPlus, elastic_penalty, fisher
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.feddf import FedDF, clipped
from pipeline.methods.fedmatch import FedMatch, nearest
from pipeline.methods.fedmd import FedMD
from pipeline.methods.fedper import FedPer
from pipeline.methods.fedproto_hetero import FedProtoHetero
from pipeline.methods.ktpfl import KTpFL
from pipeline.methods.lgfedavg import LGFedAvg
from pipeline.methods.local import Local
from pipeline.methods.rahfl import RAHFL
from pipeline.methods.rhfl import RHFL
from pipeline.models import Network
from pipeline.models.layers import conv_bn, pooled
from pipeline.schema import Model, Optimiser, load_paper
from pipeline.schema import Public as PublicSettings

SIDE, CLASSES, DOUBLE = 8, 4, torch.float64
NETWORKS = ["bn", "plain", "dropout", "bn", "plain"]
SIZES = (12, 7, 9, 0, 1)


def network(model, channels, size, classes) -> Network:
    """Three small networks of different widths: with BatchNorm, without anything random, with dropout."""
    if model.name == "bn":
        return Network(pooled([conv_bn(channels, 6, 3, 2)]), nn.Linear(6, classes))
    width = {"plain": 5, "dropout": 8}[model.name]
    features = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(1), nn.Linear(4 * channels, width), nn.Tanh())
    return Network(features, nn.Linear(width, classes), 0.3 if model.name == "dropout" else 0.0)


def federation(
    monkeypatch, sizes=SIZES, names=NETWORKS, executor="sequential", public=20, batch=8, passes=1, **changes
) -> World:
    """Clients with three-channel images and `public` public ones."""
    monkeypatch.setattr(engine, "build", network)
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    rng = torch.Generator().manual_seed(1)

    def images(n):
        return torch.rand(n, 3, SIDE, SIDE, generator=rng, dtype=DOUBLE) * 2 - 1

    clients = [
        Client(f"c{k}", "only", Model(name), images(n), torch.randint(0, CLASSES, (n,), generator=rng))
        for k, (n, name) in enumerate(zip(sizes, names))
    ]
    settings = training(**{"batch_size": 4, "optimiser": Optimiser("adam", 1e-2), **changes})
    return World.create(
        clients,
        settings,
        CLASSES,
        seed=0,
        public=(images(public), PublicSettings("made up", batch_size=batch, epochs=passes)),
    ).at(1)


def three(monkeypatch, **changes) -> World:
    return federation(monkeypatch, SIZES[:3], NETWORKS[:3], **changes)


def alike(monkeypatch, name="bn", sizes=(12, 7, 9), **changes) -> World:
    """One architecture for all."""
    return federation(monkeypatch, sizes, [name] * len(sizes), **changes)


def parameters(models: Clients) -> list[dict]:
    """Without the statistics of BatchNorm."""
    return [
        {name: value for name, value in model.items() if "running" not in name and "num_batches" not in name}
        for model in models
    ]


def same_parameters(a: Clients, b: Clients, within=0.0) -> bool:
    return all(
        (x[name] - y[name]).abs().max() <= within
        for x, y in zip(parameters(a), parameters(b), strict=True)
        for name in x
    )


EVERY = [
    FedMD(),
    FedMD(distance="mse", second_forward=True, public_optimiser="sgd"),
    FedDF(),
    FedDF(form="original", server_steps=5),
    FedMatch(kappa=0.3),
    FedMatch(kappa=0.3, decomposed=False),
    RHFL(),
    RHFL(guarded=True, schedule="release"),
    FCCL(pretraining=2),
    FCCL(pretraining=2, consensus="conference", teacher_mode="eval"),
    FCCLPlus(),
    FCCLPlus(local="fccl", pretraining=2, fccm=False),
    FCCLPlus(local="ewc"),
    FCCLPlus(kd_share=0.5, teacher="collaborated"),
    FCCLPlus(local="kd", second_forward=True, renormalise=True),
]


def name(method) -> str:
    changed = [
        f"{f.name}={getattr(method, f.name)}"
        for f in dataclasses.fields(method)
        if getattr(method, f.name) != f.default
    ]
    return f"{type(method).__name__}({', '.join(changed)})"


# -- what every method keeps to ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", EVERY[:3] + EVERY[4:], ids=name)
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
    """With BatchNorm, with dropout, with neither: a graph made when its client steps, or kept since all
    looked."""
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


def test_paper_rows_are_known():
    mine = {"fedmd", "feddf", "fedmatch", "rhfl", "fccl", "fcclplus"}
    for paper, least in (("fcclplus", 18), ("rahfl", 4)):
        rows = {key: dict(values or {}) for key, values in load_paper(paper).methods.items()}
        used = {key: values for key, values in rows.items() if values.get("algorithm", key) in mine}
        assert len(used) >= least
        for key, values in used.items():
            hyper = {k: v for k, v in values.items() if k not in ("algorithm", "label", "scenarios", "model")}
            methods.load(values.get("algorithm", key), hyper, key)
    with pytest.raises(ParamError, match="'kd_share' goes with local: fntd"):
        methods.load("fcclplus", {"kd_share": 0.3, "local": "ce"}, "row")
    with pytest.raises(ParamError, match="leaves nothing to agree on"):
        methods.load("fcclplus", {"fccm": False, "omega": 0.0}, "row")


# -- the collaborative phase, written out --------------------------------------------------------------------


def modules(world, models):
    """Ordinary modules holding the clients' models, in train mode."""
    made = []
    for client, model in zip(world.clients, models):
        made.append(network(client.model, 3, SIDE, CLASSES).to(DOUBLE))
        made[-1].load_state_dict(model)
    return [m.train() for m in made]


def by_hand(world, models, loss, optimiser, forwards=1, batches=None) -> Clients:
    """`loss(k, zs, hs, shown)`: logits and features of the last forward, what was shown by all
    (constants)."""
    nets = modules(world, models)
    for images, _ in batches or world.public_batches():
        for _ in range(forwards):
            hs = [net.features(images) for net in nets]
            zs = [net.head(h) for net, h in zip(nets, hs)]
        shown = [z.detach() for z in zs], [h.detach() for h in hs]
        losses = [loss(k, zs, hs, shown) for k in range(len(nets))]
        for net, value in zip(nets, losses):
            step = optimiser(net.parameters())
            value.backward()
            step.step()
            step.zero_grad()
    return Clients(Params((n, v.detach().clone()) for n, v in net.state_dict().items()) for net in nets)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, weight_decay=1e-5)


def zbar(shown):
    return sum(shown[0]) / len(shown[0])


def kl(teacher, student):
    p = F.softmax(teacher, 1)
    return (p * (p.log() - F.log_softmax(student, 1))).sum(1).mean()


def fccm(z, other):
    standard = [(a - a.mean(0)) / a.std(0) for a in (z, other)]
    c = standard[0].T @ standard[1] / len(z)
    return (1 - c.diagonal()).pow(2).sum() + 0.0051 * ((1 + c).pow(2).sum() - (1 + c.diagonal()).pow(2).sum())


def similarities(h):
    rows = h / h.norm(dim=1, keepdim=True)
    s = rows @ rows.T / 0.02
    return s[~torch.eye(len(s), dtype=torch.bool)].view(len(s), -1)


def fisl(k, hs, shown):
    return kl(sum(similarities(h) for h in shown[1]) / len(hs), similarities(hs[k]))


CASES = [
    (FedMD(), lambda k, zs, hs, shown: (zs[k] - zbar(shown)).abs().mean(), adam, 1),
    (
        FedMD(distance="mse", public_optimiser="sgd", second_forward=True),
        lambda k, zs, hs, shown: (zs[k] - zbar(shown)).pow(2).mean(),
        sgd,
        2,
    ),
    (FedDF(), lambda k, zs, hs, shown: kl(zbar(shown), zs[k]), sgd, 2),
    (
        FedDF(public_optimiser="adam", second_forward=False),
        lambda k, zs, hs, shown: kl(zbar(shown), zs[k]),
        adam,
        1,
    ),
    (
        RHFL(reweighted=False),
        lambda k, zs, hs, shown: (
            sum(kl(shown[0][i], zs[k]) for i in range(len(zs)) if i != k) / (len(zs) - 1)
        ),
        adam,
        1,
    ),
    (FCCL(pretraining=1, public_optimiser="sgd"), lambda k, zs, hs, shown: fccm(zs[k], zbar(shown)), sgd, 1),
    (
        FCCLPlus(public_optimiser="sgd"),
        lambda k, zs, hs, shown: fccm(zs[k], zbar(shown)) + 3 * fisl(k, hs, shown),
        sgd,
        1,
    ),
    (FCCLPlus(fccm=False, omega=2.0), lambda k, zs, hs, shown: 2 * fisl(k, hs, shown), adam, 1),
]


@pytest.mark.parametrize("method, loss, optimiser, forwards", CASES, ids=[name(case[0]) for case in CASES])
def test_collaborative_phase_as_written_out(method, loss, optimiser, forwards, monkeypatch):
    """Plain modules, torch's own optimisers, a new one per client and batch; two networks with BatchNorm, one
    without."""
    world = federation(monkeypatch, (12, 7, 9), ["bn", "plain", "bn"], passes=2)
    state = method.before_round(method.init(world), world)
    close(method.collaborate(state, world), by_hand(world, state.models, loss, optimiser, forwards), 1e-8)


def test_rhfl_second_round_as_written_out(monkeypatch):
    """Weights from the losses at the start of rounds 1 and 2, measured in train mode on the same kind of
    batches."""
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


def test_the_conference_consensus_has_the_own_share_from_last_rounds_model(monkeypatch):
    world, method = (
        federation(monkeypatch, (12, 7, 9), ["bn", "plain", "bn"]),
        FCCL(pretraining=1, consensus="conference"),
    )
    state = method.init(world)
    batch, seen = next(world.public_batches()), []
    world.collaborate(
        state.models,
        batch,
        method.client_output,
        lambda shown: seen.extend(shown) or method.aggregate(shown, state, world),
        method.distillation_loss,
        client_state=method.client_state(state, world),
    )
    nets = [net.eval() for net in modules(world, state.models)]
    for k, received in enumerate(method.aggregate(seen, state, world)):
        others = sum(seen[j]["sent"] for j in range(3) if j != k)
        close(received, (others + nets[k](batch.images)) / 3, 1e-5)


# -- identities of the collaborative phase -------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        FedMD(),
        FedMD(distance="mse"),
        FedDF(),
        FCCLPlus(fccm=False),
        RHFL(),
        FedMatch(decomposed=False, kappa=1.0),
    ],
    ids=name,
)
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
    assert not same(
        *(run(method, world, 3).models for method, world in zip((RHFL(), RHFL(reweighted=False)), worlds))
    )


@pytest.mark.parametrize("options", [{}, {"consensus": "conference", "pearson": True, "off_target": 0.0}])
def test_fcclplus_without_fisl_and_fntd_is_fccl(options, monkeypatch):
    plus = FCCLPlus(omega=0.0, local="fccl", pretraining=2, **options)
    fccl = FCCL(pretraining=2, **options)
    assert same(run(plus, three(monkeypatch)).models, run(fccl, three(monkeypatch)).models)


# -- teachers and what is remembered at home -----------------------------------------------------------------


def home(method, monkeypatch, rounds=1, world=None, **changes):
    """The calls of World.local_epochs in the last of some rounds: (models, keyword arguments), between the
    states around it, and what that round's training left."""
    world = world or three(monkeypatch, **changes)
    state, calls = run(method, world, rounds - 1) if rounds > 1 else method.init(world), []
    world, real = world.at(rounds), World.local_epochs
    monkeypatch.setattr(
        World,
        "local_epochs",
        lambda self, models, loss, **k: calls.append((models, loss, k)) or real(self, models, loss, **k),
    )
    after, trained = one_round(method, state, world)
    return state, after, calls, trained


def test_the_teacher_is_the_model_of_the_last_rounds_end(monkeypatch):
    for rounds in (1, 3):  # in the first round the client's first model
        state, _, calls, _ = home(FCCLPlus(), monkeypatch, rounds)
        assert same(calls[-1][2]["client_state"]["previous"], state.models) and not same(
            calls[-1][0], state.models
        )
    assert same(home(FCCLPlus(), monkeypatch)[0].models, three(monkeypatch).new_models())


def test_fccl_starts_from_theta_star_and_keeps_it(monkeypatch):
    world = three(monkeypatch).at(0)
    alone = world.local_epochs(
        world.new_models(), Local().loss, options=LocalOptions(epochs=3, stream="pretraining")
    ).models
    assert same(FCCL(pretraining=3).init(world).models, alone)
    state = run(FCCL(pretraining=3), world, 3)
    assert same(state.pretrained, alone)
    assert not same(state.models, alone)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_local_phase_of_fccl_as_written_out(mode, monkeypatch):
    """One client with BatchNorm, one batch: CE and two teachers, their statistics of the batch or running
    ones."""
    world = federation(monkeypatch, (4, 4), ["bn", "plain"])
    method = FCCL(pretraining=1, teacher_mode=mode)
    state, after, calls, _ = home(method, monkeypatch, 2, world)
    x, y = world.clients[0].images, world.clients[0].labels
    student, before, alone = (
        modules(world, models)[0] for models in (calls[-1][0], state.models, state.pretrained)
    )
    for teacher in (before, alone):
        teacher.train(mode == "train")
    z = student(x)
    with torch.no_grad():
        taught = before(x), alone(x)
    (F.cross_entropy(z, y) + kl(taught[0], z) + kl(taught[1], z)).backward()
    adam(student.parameters()).step()
    close(after.models[0], Params((n, v.detach()) for n, v in student.state_dict().items()), 1e-8)


@pytest.mark.parametrize(
    "options, tau, scale", [({}, 3.0, 9.0), ({"tau": 1.0}, 1.0, 1.0), ({"tau_squared": False}, 3.0, 1.0)]
)
@pytest.mark.parametrize("local", ["fntd", "kd"])
def test_local_phase_of_fcclplus_as_written_out(local, options, tau, scale, monkeypatch):
    world = federation(monkeypatch, (4, 4), ["bn", "plain"])
    state, after, calls, _ = home(FCCLPlus(local=local, **options), monkeypatch, 2, world)
    x, y = world.clients[0].images, world.clients[0].labels
    student, teacher = (modules(world, models)[0] for models in (calls[-1][0], state.models))
    z = student(x)
    s, t = F.log_softmax(z / tau, 1), F.log_softmax(teacher(x).detach() / tau, 1)
    terms = t.exp() * (t - s)
    saved = terms if local == "kd" else terms * (1 - F.one_hot(y, CLASSES))
    (F.cross_entropy(z, y) + scale * saved.sum(1).mean()).backward()
    adam(student.parameters()).step()
    close(after.models[0], Params((n, v.detach()) for n, v in student.state_dict().items()), 1e-8)


@pytest.mark.parametrize("share, wanted", [(0.3, [6, 14]), (0.1, [2, 18]), (0.0, [0, 20]), (1.0, [20, 0])])
def test_kd_takes_the_first_part_of_the_local_epochs(share, wanted, monkeypatch):
    method = FCCLPlus(kd_share=share)
    _, _, calls, trained = home(method, monkeypatch, local_epochs=20)
    assert [c[2]["options"].epochs for c in calls] == wanted and [c[1] for c in calls] == [
        method.all_classes,
        method.loss,
    ]
    assert all(map(math.isfinite, trained.losses))  # also where one part has no epoch


@pytest.mark.parametrize("names", [["bn", "plain", "dropout"]])
def test_fisher_information_sample_by_sample(names, monkeypatch):
    world = federation(monkeypatch, (11, 3, 0), names)
    models = world.new_models()
    actual = fisher(models, world)
    for k in range(2):
        net, total = modules(world, models)[k].eval(), {}
        for x, y in zip(world.clients[k].images, world.clients[k].labels):
            net.zero_grad()
            F.log_softmax(net(x[None]), 1)[0, y].backward()
            total = {n: total.get(n, 0) + p.grad.pow(2) / world.sizes[k] for n, p in net.named_parameters()}
        close(actual[k], Params(total), 1e-12)
    assert actual[2].keys() == {n for n, _ in modules(world, models)[2].named_parameters()}
    assert all(value.abs().max() == 0 for value in actual[2].values())


def test_fisher_information_of_the_papers_networks():
    """Every network of FCCL+ has a rule for gradients of single samples."""
    rng = torch.Generator().manual_seed(0)
    for kind in ("resnet10", "efficientnet", "mobilenetv2", "googlenet"):
        client = Client(
            "c", "only", Model(kind), torch.randn(3, 3, 32, 32, generator=rng), torch.tensor([0, 1, 1])
        )
        world = World.create([client], training(), 2, 0)
        models = world.new_models()
        head = fisher(models, world)[0]["head.bias"]
        p = F.softmax(world.network(0, models[0])(client.images), 1).detach()
        close(head, (p - F.one_hot(client.labels, 2)).pow(2).mean(0), 1e-7)


def test_ewc_anchors_the_last_rounds_model(monkeypatch):
    """Without weight it is cross-entropy; with a large one the client stays nearer to the anchor."""
    start = three(monkeypatch)
    plain, none, strong = (
        run(FCCLPlus(**o), three(monkeypatch, optimiser=Optimiser("sgd", 0.05), local_epochs=5), 1).models
        for o in ({"local": "ce"}, {"local": "ewc", "ewc": 0.0}, {"local": "ewc", "ewc": 10.0})
    )
    close(plain, none, 1e-12)
    method, world = FCCLPlus(local="ewc"), start
    state = method.init(world)
    information = fisher(state.models, world)

    def penalty(models):
        return [
            float(elastic_penalty({n: m[n] for n in information[k]}, state.models[k], information[k]))
            for k, m in enumerate(models)
        ]

    assert all(a < b for a, b in zip(penalty(strong), penalty(plain)))
    _, _, calls, _ = home(method, monkeypatch, 2)
    assert set(calls[-1][2]["client_state"]) == {"previous", "fisher"}


# -- one network for all (FCCL+ Table 15) --------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [FedMD(), FedDF(), FedMatch(), RHFL(), FCCL(pretraining=1), FCCLPlus()], ids=name
)
def test_models_are_averaged_between_the_phases(method, monkeypatch):
    world = alike(monkeypatch, averaging="uniform")
    state, after, calls, _ = home(method, monkeypatch, 2, world)
    starts = calls[-1][0]
    assert same(starts[0], starts[1]) and same(starts[1], starts[2])
    assert not same(after.models[0], after.models[1])  # each scores its own model
    if "client_state" in calls[-1][2] and calls[-1][2]["client_state"] is not None:
        assert same(calls[-1][2]["client_state"]["previous"], state.models)  # teachers stay per client


STARTS = [
    FedMD(),
    FedDF(),
    FedMatch(),
    RHFL(),
    FCCLPlus(),
    KTpFL(),
    AugHFL(),
    RAHFL(),
    FedProtoHetero(space="features"),
    Local(),
]


@pytest.mark.parametrize("method", STARTS, ids=name)
def test_clients_of_one_network_draw_their_own_where_no_model_is_shared(method, monkeypatch):
    """RAHFL, Figure 4, as its code's init_nets; FCCL+, Table 15, averages and has one start."""
    own, averaged = (method.init(alike(monkeypatch, averaging=how)).models for how in (None, "uniform"))
    assert not any(same_parameters([own[i]], [own[j]]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert same(averaged[0], averaged[1]) and same(averaged[1], averaged[2])


@pytest.mark.parametrize("method", [FCCL(pretraining=1), FCCLPlus(local="fccl", pretraining=1)], ids=name)
def test_each_pretrains_a_network_of_its_own(method, monkeypatch):
    def begun(how):
        seen, world = [], alike(monkeypatch, averaging=how)

        def watched_run(phase):
            seen.append(phase)
            return world.executor.run(phase)

        method.init(world.at(0, SimpleNamespace(run=watched_run)))
        return seen[0].models

    own, shared = begun(None), begun("uniform")
    assert not same_parameters([own[0]], [own[1]]) and same(shared, Clients([shared[0]] * 3))


SHARED = [FedPer(), LGFedAvg(), Ditto(), FedAvg(), FedDF(form="original")]


@pytest.mark.parametrize("method", SHARED, ids=name)
def test_methods_with_a_model_at_the_server_start_from_one(method, monkeypatch):
    world = alike(monkeypatch, "plain")
    models = method.deployed(method.init(world), world)
    assert same(models, Clients([models[0]] * 3)) and same(models[0], world.new_model())


# -- learning rates ------------------------------------------------------------------------------------------


def test_the_schedule_of_the_released_code():
    """As FCCL+'s code, lr0 = 1e-3, E = 40."""

    def rate(schedule, r):
        world = SimpleNamespace(
            training=training(rounds=40, optimiser=Optimiser("adam", 1e-3, weight_decay=1e-5)), round=r + 1
        )
        method = FedMD(schedule=schedule)
        assert (
            method.batch_optimiser(world).lr == method.local_options(world).optimiser.lr == method.rate(world)
        )
        return method.rate(world)

    assert [rate("release", r) for r in (0, 1, 2, 20, 39)] == pytest.approx(
        [0.001, 0.001, 0.0009775, 0.0005725, 0.000145], abs=1e-12
    )
    assert {rate("constant", r) for r in range(40)} == {0.001}


def test_public_steps_have_no_decay_and_private_ones_the_scenarios():
    world = SimpleNamespace(training=training(optimiser=Optimiser("adam", 1e-3, weight_decay=1e-5)), round=1)
    assert (
        FCCL().batch_optimiser(world) == Optimiser("adam", 1e-3)
        and FCCL().local_options(world).optimiser == world.training.optimiser
    )
    assert FedDF().batch_optimiser(world) == Optimiser("sgd", 1e-3, weight_decay=1e-5)
    assert FedDF(public_optimiser="adam").batch_optimiser(world) == Optimiser("adam", 1e-3)


# -- communication -------------------------------------------------------------------------------------------


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


def test_worked_costs():
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


def test_every_pass_over_the_public_data_counts(monkeypatch):
    assert FedMD().traffic(three(monkeypatch, passes=2)) == (2 * 20 * CLASSES,) * 2
    assert FCCLPlus().traffic(three(monkeypatch)) == (20 * CLASSES + 2 * 8 * 7 + 4 * 3,) * 2


# -- FedMatch ------------------------------------------------------------------------------------------------


def test_helpers_are_the_nearest_others_and_of_equals_the_first():
    answers = torch.tensor([[0.0, 1.0], [0.125, 0.875], [0.875, 0.125], [0.25, 0.75], [0.875, 0.125]])
    assert nearest(answers, 2) == [[1, 3], [0, 3], [4, 3], [1, 0], [2, 3]]
    assert (
        nearest(answers[:2], 2) == [[1], [0]]
        and nearest(answers[:1], 2) == [[]]
        and nearest(answers[:2], 0) == [[], []]
    )


def parts(state) -> tuple[list[dict], list[dict]]:
    """(sigma, psi) of every client."""
    return [{n: state.models[k][n] - v for n, v in part.items()} for k, part in enumerate(state.psi)], [
        dict(part) for part in state.psi
    ]


def test_public_batches_move_psi_and_private_ones_sigma(monkeypatch):
    state, after, calls, _ = home(FedMatch(kappa=0.0), monkeypatch, 2)
    agreed = calls[-1][0]  # theta between the phases
    (sigma0, psi0), (sigma1, psi1) = parts(state), parts(after)
    for k in range(3):
        for n in psi0[k]:
            close(agreed[k][n], sigma0[k][n] + psi1[k][n], 1e-5)  # sigma stood still so far
            assert (psi1[k][n] - psi0[k][n]).abs().max() > 1e-4
        assert max(float((sigma1[k][n] - sigma0[k][n]).abs().max()) for n in psi0[k]) > 1e-4


def test_the_penalties_act_on_every_batch_confident_or_not(monkeypatch):
    """With Adam's first step of lr each, psi goes towards sigma (lam_l2 dominates), here 3 steps of 1e-2 from
    0.2 to 1 sigma."""
    world = three(monkeypatch)
    method = FedMatch(kappa=1.0)
    state = method.before_round(method.init(world), world)
    (sigma, psi), agreed = parts(state), method.collaborate(state, world)
    for k in range(3):
        for n, s in sigma[k].items():
            far = s.abs() > 0.1  # farther than the steps reach
            close((agreed[k][n] - s - psi[k][n])[far], 0.03 * s.sign()[far], 1e-4)


def test_one_part_without_public_terms_is_supervised_training(monkeypatch):
    method = FedMatch(decomposed=False, kappa=1.0)
    worlds = [federation(monkeypatch, (12, 7), ["plain", "dropout"]) for _ in range(2)]
    assert same(run(method, worlds[0]).models, run(Local(), worlds[1]).models)


def test_the_strong_view_is_of_the_public_image_and_not_of_its_crop(monkeypatch):
    world = federation(monkeypatch, (12, 7, 9), ["bn", "plain", "bn"]).at(1)
    forum = dataclasses.replace(
        world.public_data, settings=dataclasses.replace(world.public_data.settings, augmentation="weak")
    )
    vars(world)["public_data"] = forum
    stored = [images for _, images in forum.batches(world.seed, 1, 1)]
    cropped = [batch.images for batch in world.public_batches()]
    bare = [batch for batch in FedMatch().public_batches(None, world)]
    assert len(stored) == len(cropped) == len(bare) > 1
    for original, weak, (seen, key) in zip(stored, cropped, bare):
        assert not torch.equal(original, weak)
        for client, (first, second) in zip(world.clients, seen, strict=True):
            of_image, of_crop = (
                forum.pixels.inputs(
                    augmentations.strong(
                        forum.pixels.bytes(images),
                        keys.torch_generator("public own views", *key, client.name),
                    ),
                    images,
                )
                for images in (original, weak)
            )
            assert torch.equal(first, weak) and torch.equal(second, of_image)
            assert not torch.equal(second, of_crop)


def test_fedmatch_collaborates_as_written_out(monkeypatch):
    """One part; consistency with the helpers and the cross-entropy of the strong view with the vote."""
    world, method = (
        federation(monkeypatch, (12, 7, 9), ["bn", "plain", "bn"]),
        FedMatch(decomposed=False, kappa=0.33, lam_i=1.0, lam_a=0.5),
    )
    state = method.before_round(method.init(world), world)
    nets, seen = modules(world, state.models), []
    for views in method.public_batches(state, world):
        logits = [(net(weak), net(strong)) for net, (weak, strong) in zip(nets, views.images)]
        p = [F.softmax(z, 1) for z, _ in logits]
        for k, net in enumerate(nets):
            sure = p[k].max(1).values.detach() >= 0.33
            seen.append(int(sure.sum()))
            value = 0 * logits[k][0].sum()
            if sure.any():
                helpers = [p[h].detach()[sure] for h in state.helpers[k]]
                votes = sum(F.one_hot(q.argmax(1), CLASSES) for q in [p[k].detach()[sure], *helpers])
                value = sum((q * (q.log() - p[k][sure].log())).sum(1).mean() for q in helpers) / 2
                value = value + 0.5 * F.cross_entropy(logits[k][1][sure], votes.argmax(1))
            step = adam(net.parameters())
            step.zero_grad()
            value.backward()
            step.step()
    assert 0 < sum(seen) < 3 * 20  # the gate parts the samples
    wanted = Clients(Params((n, v.detach()) for n, v in net.state_dict().items()) for net in nets)
    close(method.collaborate(state, world), wanted, 1e-8)


# -- FedDF at the server -------------------------------------------------------------------------------------


def test_original_feddf_gives_one_model_per_architecture(monkeypatch):
    world = federation(monkeypatch, (12, 7, 9, 5), ["bn", "plain", "bn", "plain"])
    method = FedDF(form="original", server_steps=5)
    state = run(method, world, 1)
    assert (
        same(state.models[0], state.models[2])
        and same(state.models[1], state.models[3])
        and method.headline == "pre"
    )
    assert same(method.deployed(state, world), state.models)


@pytest.mark.parametrize("weighted, weights", [(True, (12, 4)), (False, (1, 1))])
def test_original_feddf_begins_with_the_average_and_comes_nearer_to_the_ensemble(
    weighted, weights, monkeypatch
):
    world = federation(monkeypatch, (12, 4), ["plain", "plain"], local_epochs=30)
    method = FedDF(form="original", server_steps=60, weighted=weighted)
    models = world.local_epochs(world.new_models(), Local().loss).models
    nets = [net.eval() for net in modules(world, models)]
    average = modules(
        world,
        [{n: (weights[0] * v + weights[1] * models[1][n]) / sum(weights) for n, v in models[0].items()}] * 2,
    )[0]
    student = modules(world, method.fuse(models, models, world))[0]
    with torch.no_grad():
        ensemble = sum(net(world.public_images) for net in nets) / 2
        assert kl(ensemble, student(world.public_images)) < 0.9 * kl(ensemble, average(world.public_images))
    one_step = dataclasses.replace(method, server_steps=1).fuse(models, models, world)[0]
    for n, p in average.named_parameters():
        assert (one_step[n] - p).abs().max() <= 1e-3 * 1.001  # Adam's first step at lr 1e-3


def test_gradients_are_cut_to_length_five():
    long, short = (torch.tensor([30.0, 40.0]), None), (torch.tensor([0.3, 0.4]), None)
    close(clipped(long)[0], torch.tensor([3.0, 4.0]), 1e-5)
    close(clipped(short)[0], short[0], 1e-5)
    assert clipped(long)[1] is None
