"""Identities and worked numbers of KT-pFL and of FedProto between different networks."""

import torch
import torch.nn.functional as F
from different import Z1, Z2, Z, numbers, small_world
from federation import close, difference, run, same, tiny_world
from torch import nn

from pipeline.engine.state import Params, State
from pipeline.engine.world import World
from pipeline.methods.fedproto_hetero import FedProtoHetero
from pipeline.methods.ktpfl import (
    KTpFL,
    gradient,
    objective,
    onto_rows,
    released_coefficients,
    stepped_coefficients,
)
from pipeline.methods.local import Local
from pipeline.models import Network
from pipeline.prototypes import prototype_distance
from pipeline.schema import Model

P, UNIFORM = F.softmax(Z, dim=2), torch.full((3, 3), 1 / 3, dtype=torch.float64)


def sent(c) -> list[torch.Tensor]:
    return KTpFL().aggregate([{"sent": p, "logits": z} for p, z in zip(P, Z)], State(coefficients=c), None)


def test_coefficients_of_the_paper_and_of_the_code():
    close(sent(UNIFORM)[0][0], [0.775528, 0.154281, 0.070191])
    close(objective(UNIFORM, P), 0.416792)
    close(
        gradient(UNIFORM, P),
        [[0.953349, 1.195110, 1.031801], [1.246061, 0.842100, 1.431565], [1.166643, 1.512934, 0.870812]],
    )
    stepped = stepped_coefficients(UNIFORM, P, 0.1, 1.0, 0.7)
    close(
        stepped,
        [[0.237998, 0.213822, 0.230153], [0.208727, 0.249123, 0.190177], [0.216669, 0.182040, 0.246252]],
    )
    close(stepped[0].sum(), 0.68, 5e-3)  # so targets would not be distributions
    close(onto_rows(stepped).sum(1), [1, 1, 1], 1e-12)
    c = F.softmax(
        torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), dim=1
    ).requires_grad_()
    close(gradient(c.detach(), P), torch.autograd.grad(objective(c, P), c)[0], 1e-12)
    actual = released_coefficients(UNIFORM, P, 0.7)
    close(
        actual,
        [[0.355698, 0.307856, 0.336446], [0.327751, 0.356835, 0.315414], [0.329370, 0.248771, 0.421859]],
    )
    close(actual.sum(1), [1, 1, 1], 1e-12)
    assert (actual > 0).all()
    close(onto_rows(numbers([[-1, -2, 0], [3, -1, 0], [1, 3, 0]])), [[1 / 3] * 3, [1, 0, 0], [0.25, 0.75, 0]])


def test_targets_are_mixtures_of_probabilities():
    identical = sent(torch.eye(3, dtype=torch.float64))
    z = Z2.clone().requires_grad_()
    value = KTpFL().distillation_loss({"logits": z}, identical[1], None)
    close(value.detach(), 0.0, 1e-12)
    close(torch.autograd.grad(value, z)[0], torch.zeros(4, 3), 1e-12)
    close(
        torch.stack(sent(UNIFORM)), P.mean(0).expand(3, -1, -1), 1e-12
    )  # not the softmax of the mean logits
    assert (P.mean(0) - F.softmax(Z.mean(0), dim=1)).abs().max() > 1e-3
    target = sent(UNIFORM)[0]
    close(KTpFL().distillation_loss({"logits": Z1}, target, None), 0.060087)
    close(KTpFL(reduction="mean").distillation_loss({"logits": Z1}, target, None), 0.020029)
    soft = F.softmax(Z1 / 10, dim=1)
    # the student at the same temperature
    close(KTpFL(tau=10.0).distillation_loss({"logits": Z1}, soft, None), 0.0, 1e-12)


A = ([[1, 0], [1, 1], [0, 2], [3, 1]], [0, 1, 1, 0])
B = ([[0.5, 0.5], [1, 2], [2, 1], [0, 1]], [0, 0, 2, 2])


def vectors_world(monkeypatch, *clients) -> World:
    """Clients of 2-vectors that are their representations, three classes."""
    return tiny_world(
        monkeypatch,
        *clients,
        network=lambda: Network(nn.Flatten(1), nn.Linear(2, 3)),
        dtype=torch.float64,
        classes=3,
    )


def test_prototypes_of_clients(monkeypatch):
    world = vectors_world(monkeypatch, A, B)
    seen = FedProtoHetero(space="features").class_means(world.new_models(), world)
    close(seen.means[0], [[2, 0.5], [0.5, 1.5], [0, 0]])
    close(seen.means[1], [[0.75, 1.25], [0, 0], [1, 1]])
    assert seen.counts.tolist() == [[2, 2, 0], [2, 0, 2]]
    for means in ("eval", "running", "last_epoch"):
        actual = run(FedProtoHetero(space="features", means=means), world, 1).prototypes
        close(actual.vectors, [[1.375, 0.875], [0.5, 1.5], [1, 1]])
    close(
        [prototype_distance(numbers(x), torch.tensor(y), **actual) for x, y in (A, B)], [0.570312, 0.539062]
    )
    world = vectors_world(monkeypatch, ([[1, 0], [3, 0], [2, 3]], [0, 0, 1]), ([[8, 3], [0, 1]], [0, 1]))
    for means in ("eval", "running"):
        actual = run(FedProtoHetero(space="features", weighted=True, means=means), world, 1).prototypes
        close(actual.vectors, [[4, 1], [1, 2], [0, 0]])


def test_without_its_term_fedproto_is_local():
    w = small_world(projector=8)
    ours, alone = (run(method, w).models for method in (FedProtoHetero(lam=0.0), Local()))
    for mine, theirs in zip(ours, alone, strict=True):
        saved = [name for name in mine if not name.startswith("projector.")]
        assert same(Params((n, mine[n]) for n in saved), Params((n, theirs[n]) for n in saved))
    drawn = run(FedProtoHetero(), w).models
    assert difference(ours[0], drawn[0]) > 1e-4
    # CE only
    assert difference(run(FedProtoHetero(), w, 1).models.features, run(Local(), w, 1).models.features) == 0


def test_running_means_are_of_the_embeddings_before_each_step():
    # one batch, one step
    w = small_world(sizes=(12,), models=[Model("cnn4", projector=8)], dtype=torch.float64)
    actual = run(FedProtoHetero(), w, 1).prototypes
    start = w.network(0, w.new_models(individual=True)[0]).train()
    with torch.no_grad():
        h = start.projector(start.features(w.clients[0].images))
    for c in w.clients[0].labels.unique():
        close(actual.vectors[c], h[w.clients[0].labels == c].mean(0), 1e-9)
    assert actual.known.sum() == len(w.clients[0].labels.unique())
    later = run(FedProtoHetero(means="eval"), w, 1).prototypes
    assert difference(actual.vectors, later.vectors) > 1e-2


def test_fedproto_predicts_by_the_classifier_or_by_prototypes(monkeypatch):
    world = vectors_world(monkeypatch, A, B)
    method = FedProtoHetero(space="features", prediction="prototype")
    state, images = run(method, world, 1), numbers([[2, 0.5], [0.5, 1.6], [1, 1]]).view(3, 2, 1, 1)
    scores = world.each(state.models, lambda model, *_: method.scores(model, images, state))[0]
    assert scores.argmax(1).tolist() == [0, 1, 2]
    plain = world.each(
        state.models, lambda model, *_: FedProtoHetero().scores(model, images, state) - model(images)
    )[0]
    assert not plain.any()


def test_the_teachers_of_ktpfl_stay_as_they_were(monkeypatch):
    """Its targets in the last batch: coefficients times predictions of the models of the round's begin."""
    w, method, received = small_world(sizes=(20, 33), public=48).at(1), KTpFL(), []
    state = method.before_round(method.init(w), w)
    *_, (last, _) = w.public_batches()
    real = KTpFL.aggregate
    monkeypatch.setattr(KTpFL, "aggregate", lambda *given: received.append(real(*given)) or received[-1])
    moved = method.collaborate(state, w)
    with torch.no_grad():
        P = torch.stack([F.softmax(w.network(k, model)(last), dim=1) for k, model in enumerate(state.models)])
    close(torch.stack(received[-1]), torch.einsum("km,mbc->kbc", state.coefficients.float(), P), 1e-5)
    assert difference(moved, state.models) > 1e-4 and len(received) == 3
