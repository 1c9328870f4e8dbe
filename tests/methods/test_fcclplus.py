"""FCCL+: logits and similarities on public data, the last model as the teacher at home."""

import math

import pytest
import torch
import torch.nn.functional as F
from all_methods import name
from federation import close, run, same, training
from public_data import (
    B256,
    B512,
    CLASSES,
    adam,
    collaborates_as,
    costs,
    fccm_by_hand,
    federation,
    home,
    kl,
    modules,
    sgd,
    three,
    zbar,
)
from tiny import Z1, Z2, gradient, numbers

from pipeline.engine.phase import Client
from pipeline.engine.state import Params
from pipeline.engine.world import World
from pipeline.errors import ParamError
from pipeline.losses import knowledge_distillation
from pipeline.methods import load
from pipeline.methods.fccl import FCCL
from pipeline.methods.fcclplus import (
    FCCLPlus,
    elastic_penalty,
    fisher,
    instance_similarity,
    non_target_distillation,
)
from pipeline.schema import Model, Optimiser


def similarities(h):
    rows = h / h.norm(dim=1, keepdim=True)
    s = rows @ rows.T / 0.02
    return s[~torch.eye(len(s), dtype=torch.bool)].view(len(s), -1)


def fisl_by_hand(k, hs, answers):
    return kl(sum(similarities(h) for h in answers[1]) / len(hs), similarities(hs[k]))


CASES = [
    (
        FCCLPlus(public_optimiser="sgd"),
        lambda k, zs, hs, answers: fccm_by_hand(zs[k], zbar(answers)) + 3 * fisl_by_hand(k, hs, answers),
        sgd,
        1,
    ),
    (FCCLPlus(fccm=False, omega=2.0), lambda k, zs, hs, answers: 2 * fisl_by_hand(k, hs, answers), adam, 1),
]


@pytest.mark.parametrize("method, loss, optimiser, forwards", CASES, ids=[name(case[0]) for case in CASES])
def test_public_phase_as_written_out(method, loss, optimiser, forwards, monkeypatch):
    collaborates_as(method, loss, optimiser, forwards, monkeypatch)


@pytest.mark.parametrize("options", [{}, {"consensus": "conference", "pearson": True, "off_target": 0.0}])
def test_fcclplus_without_fisl_and_fntd_is_fccl(options, monkeypatch):
    plus = FCCLPlus(omega=0.0, local="fccl", pretraining=2, **options)
    fccl = FCCL(pretraining=2, **options)
    assert same(run(plus, three(monkeypatch)).models, run(fccl, three(monkeypatch)).models)


H1 = numbers([[1, 0], [1, 1], [0, 2], [3, 1]])  # their features


H2 = numbers([[1, 0, 1], [0, 1, 1], [2, 1, 0], [1, 1, 1]])


H3 = numbers([[0.5, 0.5], [1, 2], [2, 1], [0, 1]])


FEATURES = [H1, H2, H3]


def fisl(features, mu):
    together = torch.stack([instance_similarity(h, mu) for h in FEATURES]).mean(0)
    return knowledge_distillation(instance_similarity(features, mu), together)


@pytest.mark.parametrize(
    "mu, wanted", [(0.5, [0.065867, 0.047036, 0.048417]), (0.02, [0.714222, 5.701085, 5.841970])]
)
def test_fisl_of_the_toy_features(mu, wanted):
    close([fisl(h, mu) for h in FEATURES], wanted)


def test_similarities_are_the_cosines_with_all_others_over_mu():
    cosines = F.normalize(H2, dim=1) @ F.normalize(H2, dim=1).T
    wanted = torch.stack([torch.cat([row[:b], row[b + 1 :]]) for b, row in enumerate(cosines)]) / 0.3
    close(instance_similarity(H2, 0.3), wanted, 1e-5)


def test_a_similarity_of_zero_stays():
    """The selection S != 0 of Eq. 4 would lose it."""
    assert instance_similarity(H1, 0.5)[0, 1] == 0
    assert instance_similarity(H1, 0.5).shape == (4, 3)


Y = torch.tensor([0, 1, 2, 0])


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


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_teacher_is_the_model_of_the_last_rounds_end(rounds, monkeypatch):
    state, _, calls, _ = home(FCCLPlus(), monkeypatch, rounds)
    assert same(calls[-1][2]["client_state"]["previous"], state.models)
    assert not same(calls[-1][0], state.models)


def test_in_the_first_round_the_teacher_is_the_clients_first_model(monkeypatch):
    assert same(home(FCCLPlus(), monkeypatch)[0].models, three(monkeypatch).new_models())


@pytest.mark.parametrize(
    "local, options, tau, scale",
    [
        ("fntd", {}, 3.0, 1.0),
        ("fntd", {"tau": 1.0}, 1.0, 1.0),
        ("fntd", {"tau_squared": True}, 3.0, 9.0),
        ("kd", {}, 3.0, 9.0),
        ("kd", {"tau": 1.0}, 1.0, 1.0),
    ],
)
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
    assert [c[2]["options"].epochs for c in calls] == wanted
    assert [c[1] for c in calls] == [method.all_classes, method.loss]
    assert all(map(math.isfinite, trained.losses))  # also where one part has no epoch


def test_fisher_information_sample_by_sample(monkeypatch):
    world = federation(monkeypatch, (11, 3, 0), ["bn", "plain", "dropout"])
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


@pytest.mark.parametrize("kind", ["resnet10", "efficientnet", "mobilenetv2", "googlenet"])
def test_fisher_information_of_the_papers_networks(kind):
    """Every network of FCCL+ has a rule for gradients of single samples."""
    rng = torch.Generator().manual_seed(0)
    images, labels = torch.randn(3, 3, 16, 16, generator=rng), torch.tensor([0, 1, 1])
    world = World.create([Client("c", "only", Model(kind), images, labels)], training(), 2, 0)
    models = world.new_models()
    p = F.softmax(world.network(0, models[0])(images), 1).detach()
    close(fisher(models, world)[0]["head.bias"], (p - F.one_hot(labels, 2)).pow(2).mean(0), 1e-7)


def trained(monkeypatch, **options):
    """Models of FCCL+ after a round of five local epochs."""
    world = three(monkeypatch, optimiser=Optimiser("sgd", 0.05), local_epochs=5)
    return run(FCCLPlus(**options), world, 1).models


def test_ewc_without_weight_is_cross_entropy(monkeypatch):
    close(trained(monkeypatch, local="ce"), trained(monkeypatch, local="ewc", ewc=0.0), 1e-12)


def test_ewc_keeps_a_client_nearer_to_the_last_rounds_model(monkeypatch):
    world = three(monkeypatch)
    state = FCCLPlus(local="ewc").init(world)
    information = fisher(state.models, world)

    def penalty(models):
        return [
            float(elastic_penalty({n: m[n] for n in information[k]}, state.models[k], information[k]))
            for k, m in enumerate(models)
        ]

    strong = penalty(trained(monkeypatch, local="ewc", ewc=10.0))
    assert all(a < b for a, b in zip(strong, penalty(trained(monkeypatch, local="ce"))))


@pytest.mark.parametrize(
    "options, sizes, wanted",
    [
        ({}, B512, 50_000 + 2_507_960),
        ({}, B256, 50_000 + 1_258_680),
        ({"fccm": False, "local": "fccl"}, B512, 2_507_960),
        ({"omega": 0.0, "local": "fccl"}, B512, 50_000),
    ],
    ids=["both", "smaller batches", "similarities", "logits"],
)
def test_it_sends_logits_and_similarities(options, sizes, wanted):
    assert costs(FCCLPlus(**options), sizes) == (wanted,) * 2


def test_what_it_sends_counts_the_last_incomplete_batch(monkeypatch):
    assert FCCLPlus().traffic(three(monkeypatch)) == (20 * CLASSES + 2 * 8 * 7 + 4 * 3,) * 2


@pytest.mark.parametrize(
    "hyper, message",
    [
        ({"kd_share": 0.3, "local": "ce"}, "x: 'kd_share' goes with local: fntd"),
        ({"fccm": False, "omega": 0.0}, "x: .*leaves nothing to agree on"),
    ],
)
def test_values_that_make_no_sense_are_refused(hyper, message):
    with pytest.raises(ParamError, match=message):
        load("fcclplus", hyper, "f: methods.x")
