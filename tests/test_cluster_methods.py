"""Identities and worked numbers of FedProc and FedPCL."""

import math

import pytest
import torch
from by_hand import LOCAL_FORM, by_hand, hand_world, info_nce, labels
from federation import close, image_world, known, rows, run, same, watched
from test_prototype_methods import one_class_world
from torch.nn.functional import cross_entropy, normalize

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import State
from pipeline.methods.fedpcl import FedPCL, batch_contrast, prototype_sets_contrast
from pipeline.methods.fedproc import FedProc
from pipeline.prototypes import aggregate_means


def unit_means(seen, weighted):
    """{class: mean of unit representations} over samples, or over clients' means."""
    actual = {}
    for c in range(4):
        mine = [normalize(z, dim=1)[y == c] for z, y in seen if (y == c).any()]
        if mine:
            actual[c] = (
                torch.cat(mine).mean(0) if weighted else torch.stack([part.mean(0) for part in mine]).mean(0)
            )
    return actual


@pytest.mark.parametrize(
    "method", [FedProc(), FedProc(alpha=0.3, tau=0.5, weighted=False)], ids=["schedule", "constant"]
)
def test_fedproc_by_hand(method, monkeypatch):
    def objective(z, logits, y, memory, t, k):
        fit = cross_entropy(logits, y)
        if memory is None:
            return fit
        share = t / 3 if method.alpha is None else method.alpha
        return share * fit + (1 - share) * info_nce(z, y, list(memory.values()), list(memory), method.tau)

    world = hand_world(monkeypatch)
    wanted = by_hand(world, 3, objective, lambda seen, memory: unit_means(seen, method.weighted))
    assert same(run(method, world).model, wanted, within=1e-12)


def test_fedpcl_by_hand(monkeypatch):
    def dot(z, p):
        return normalize(z, dim=0) @ p

    def objective(z, logits, y, memory, t, k):
        if memory is None:
            return cross_entropy(logits, y)
        average, sets = memory
        padded = [{**average, **mine} for mine in sets]
        each = [info_nce(z, y, list(p.values()), list(p), 0.5, dot) for p in padded]
        return (
            cross_entropy(logits, y)
            + info_nce(z, y, list(average.values()), list(average), 0.5, dot)
            + sum(each) / 3
        )

    world = hand_world(monkeypatch)
    wanted = by_hand(
        world,
        3,
        objective,
        lambda seen, memory: (unit_means(seen, False), [unit_means([one], True) for one in seen]),
    )
    assert same(run(FedPCL(tau=0.5), world).model, wanted, within=1e-12)


def test_a_class_that_nobody_holds_keeps_its_prototype_in_fedproc():
    method, world = FedProc(), one_class_world()
    state = run(method, world, 1)
    assert state.prototypes.known.tolist() == [True] * 4 + [False] * 6
    added = State(vectors=state.prototypes.vectors.clone(), known=state.prototypes.known.clone())
    added.vectors[7], added.known[7] = 1.0, True
    after = method.round(State(model=state.model, prototypes=added), world.at(2))
    assert after.prototypes.known.tolist() == [True] * 4 + [False] * 3 + [True] + [False] * 2
    assert after.prototypes.vectors[7].eq(1).all()
    assert not torch.equal(after.prototypes.vectors[0], added.vectors[0])


Z, Y = rows([0.6, 0.8], [1, 0]), labels(0, 1)
SETS = torch.tensor([[[0.5, 0.7], [0.9, 0.1]], [[0.7, 0.7], [0, 0]]])
HELD = torch.tensor([[True, True], [True, False]])


def fedpcl_message():
    """The worked example's sets through the server and the message."""
    state = State(prototypes=aggregate_means(SETS, HELD), means=SETS, present=HELD)
    return FedPCL().message(state, State(sizes=[2, 2]))


@pytest.mark.parametrize("exclude, near, each", [(False, 0.437488, 0.440596), (True, -0.6, -0.6)])
def test_fedpcls_terms_of_the_worked_example(exclude, near, each):
    before = SETS.clone()
    message = fedpcl_message()
    close(message.prototypes.vectors, [[0.6, 0.7], [0.9, 0.1]])
    close(message.sets[1], [[0.7, 0.7], [0.9, 0.1]])
    assert torch.equal(SETS, before)  # the server's sets are not padded
    for sets, wanted in ((message.prototypes.vectors[None], near), (message.sets, each)):
        close(prototype_sets_contrast(Z, Y, sets, 0.5, exclude_positive=exclude), wanted)


def test_fedpcls_terms_skip_what_has_no_vector_or_no_rival():
    z, y = rows([0.6, 0.8], [1, 0]).requires_grad_(), labels(0, 1)
    both = prototype_sets_contrast(z, y, SETS[:1], 0.5, known(1, 0))
    assert both.item() == 0 and not torch.autograd.grad(both, z)[0].any()  # class 0 alone, class 1 unknown
    alone = prototype_sets_contrast(z, y, SETS[:1], 0.5, known(1, 0), exclude_positive=True)
    assert alone.item() == 0 and not torch.autograd.grad(alone, z)[0].any()
    vectors = SETS.clone().requires_grad_()
    prototype_sets_contrast(z, y, vectors, 0.5).backward()
    assert vectors.grad is None and z.grad.abs().sum() > 0
    halved = prototype_sets_contrast(Z, Y, torch.cat([SETS[:1], rows([5, 5])[None]], 1), 0.5, known(1, 0, 1))
    only = prototype_sets_contrast(
        Z[:1], Y[:1], torch.cat([SETS[:1], rows([5, 5])[None]], 1), 0.5, known(1, 0, 1)
    )
    close(halved, only.item() / 2)  # the missing class counts in the mean


def test_fedpcls_local_form_keeps_models_and_heads_at_home():
    world = image_world((20, 33, 7))
    start = world.new_models()
    (first, trained) = watched(LOCAL_FORM, world, 1)
    third = run(LOCAL_FORM, world, 3)
    # the first round only collects
    assert all(same(a, b) for a, b in zip(start, first.models)) and trained is None
    assert all(same(a.head, b.head) and not same(a.features, b.features) for a, b in zip(start, third.models))
    assert not same(third.models[0].features, third.models[1].features)


@pytest.mark.parametrize(
    "method", [LOCAL_FORM, FedPCL(inference="local_prototype")], ids=["local form", "averaged"]
)
def test_fedpcls_prediction_by_the_nearest_local_prototype(method):
    world = image_world((20, 33, 0))
    state = run(method, world, 2)
    images = world.clients[1].images
    for k, model in enumerate(method.deployed(state, world)):
        handle = Handle(world.network(k, model), client=k)
        z = normalize(handle.features(images))
        vectors = state.means[k] if world.sizes[k] else state.prototypes.vectors
        present = state.present[k] if world.sizes[k] else state.prototypes.known
        distance = torch.full((33, 10), 100.0)
        for c in present.nonzero()[:, 0].tolist():
            distance[:, c] = (z - vectors[c]).pow(2).mean(1)
        assert torch.equal(method.scores(handle, images, state).argmax(1), distance.argmin(1))
    begin = method.init(world)  # before there are prototypes the classifier predicts
    handle = Handle(world.network(0, method.deployed(begin, world)[0]), client=0)
    z = handle.features(images)
    close(
        method.scores(handle, images, begin), handle.head(normalize(z) if method.normalise_head else z), 1e-5
    )


def test_fedpcls_released_loss():
    generator = torch.Generator().manual_seed(0)
    z = normalize(torch.randn(6, 4, generator=generator))
    y = labels(0, 1, 0, 0, 1, 0)
    prototypes = torch.randn(2, 4, generator=generator)
    values = []
    for i in range(6):
        s = [(prototypes[y[i]] @ z[a] / 0.5).item() for a in range(6)]
        total = math.log(sum(math.exp(s[a]) for a in range(6) if a != i))
        positive = [s[p] - total for p in range(6) if p != i and y[p] == y[i]]
        values.append(-sum(positive) / len(positive))
    close(batch_contrast(z, y, prototypes, 0.5), sum(values) / 6)
    lone = batch_contrast(z[:3], labels(0, 1, 1), prototypes, 0.5)  # the first has no other of its class
    assert lone.isfinite() and batch_contrast(z[:1], y[:1], prototypes, 0.5).item() == 0
    world, method = image_world((8, 9)), FedPCL(contrast="official", ce=False, tau=0.5)
    state = run(method, world, 1)
    handle = Handle(world.network(0, state.model))
    (images, y) = (world.clients[0].images, world.clients[0].labels)
    message = method.message(state, world)
    for views in ((), (images.flip(3),)):
        z = normalize(handle.features(torch.cat([images, *(views or (images,))])))
        wanted = sum(batch_contrast(z, y.repeat(2), prototypes, 0.5) for prototypes in message.sets)
        close(method.loss(handle, Batch(images, y, views), message, None), wanted, 1e-5)
