"""FedPCL: contrasts with all clients' prototypes."""

import pytest
import torch
from federation import close, image_world, known, rows, run, same, watched
from torch.nn.functional import cross_entropy, normalize
from written_out import by_hand, hand_world, info_nce, labels, unit_means

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import State
from pipeline.losses import supervised_contrast
from pipeline.methods.fedpcl import FedPCL, prototype_sets_contrast
from pipeline.prototypes import aggregate_means


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


Z, Y = rows([0.6, 0.8], [1, 0]), labels(0, 1)


SETS = torch.tensor([[[0.5, 0.7], [0.9, 0.1]], [[0.7, 0.7], [0, 0]]])


HELD = torch.tensor([[True, True], [True, False]])


def message():
    state = State(prototypes=aggregate_means(SETS, HELD), means=SETS.clone(), present=HELD)
    return state, FedPCL().message(state, State(sizes=[2, 2]))


def test_the_message_of_the_worked_example_fills_what_a_client_lacks():
    state, sent = message()
    close(sent.prototypes.vectors, [[0.6, 0.7], [0.9, 0.1]])
    close(sent.sets[1], [[0.7, 0.7], [0.9, 0.1]])
    assert torch.equal(state.means, SETS)  # the server's sets are not padded


@pytest.mark.parametrize("exclude, wanted", [(False, 0.440596), (True, -0.6)])
def test_the_contrast_of_the_worked_example(exclude, wanted):
    close(prototype_sets_contrast(Z, Y, message()[1].sets, 0.5, exclude_positive=exclude), wanted)


@pytest.mark.parametrize("exclude", [False, True])
def test_a_class_without_rival_or_without_vector_has_no_contrast(exclude):
    """Class 0 alone, class 1 unknown."""
    z, y = rows([0.6, 0.8], [1, 0]).requires_grad_(), labels(0, 1)
    value = prototype_sets_contrast(z, y, SETS[:1], 0.5, known(1, 0), exclude_positive=exclude)
    assert value.item() == 0
    assert not torch.autograd.grad(value, z)[0].any()


def test_prototypes_are_constants():
    z, y, vectors = rows([0.6, 0.8], [1, 0]).requires_grad_(), labels(0, 1), SETS.clone().requires_grad_()
    prototype_sets_contrast(z, y, vectors, 0.5).backward()
    assert vectors.grad is None
    assert z.grad.abs().sum() > 0


def test_a_sample_of_a_missing_class_counts_in_the_mean():
    three = torch.cat([SETS[:1], rows([5, 5])[None]], 1)
    halved, only = (prototype_sets_contrast(Z[:n], Y[:n], three, 0.5, known(1, 0, 1)).item() for n in (2, 1))
    close(halved, only / 2)


LOCAL_FORM = FedPCL(averaging=False, ce=False, inference="local_prototype", normalise_head=True)


def test_the_first_round_of_the_local_form_only_collects():
    world = image_world((20, 33, 7))
    first, trained = watched(LOCAL_FORM, world, 1)
    assert all(same(a, b) for a, b in zip(world.new_models(), first.models))
    assert trained is None


def test_the_local_form_keeps_models_at_home_and_heads_as_they_were():
    world = image_world((20, 33, 7))
    start, third = world.new_models(), run(LOCAL_FORM, world, 3)
    for a, b in zip(start, third.models):
        assert same(a.head, b.head)
        assert not same(a.features, b.features)
    assert not same(third.models[0].features, third.models[1].features)


PREDICTING = pytest.mark.parametrize(
    "method", [LOCAL_FORM, FedPCL(inference="local_prototype")], ids=["local form", "averaged"]
)


@PREDICTING
def test_it_predicts_by_the_nearest_local_prototype(method):
    """A client without data by the nearest global one."""
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


@PREDICTING
def test_before_there_are_prototypes_the_classifier_predicts(method):
    world = image_world((20, 33, 0))
    begin, images = method.init(world), world.clients[1].images
    handle = Handle(world.network(0, method.deployed(begin, world)[0]), client=0)
    z = handle.features(images)
    wanted = handle.head(normalize(z) if method.normalise_head else z)
    close(method.scores(handle, images, begin), wanted, 1e-5)


@pytest.mark.parametrize("flipped", [False, True])
def test_the_released_loss_sums_the_contrasts_with_every_clients_set(flipped):
    """Two views of an image: the flipped one, or the image again."""
    world, method = image_world((8, 9)), FedPCL(contrast="official", ce=False, tau=0.5)
    state = run(method, world, 1)
    handle = Handle(world.network(0, state.model))
    images, y = world.clients[0].images, world.clients[0].labels
    sent, views = method.message(state, world), (images.flip(3),) if flipped else ()
    z = normalize(handle.features(torch.cat([images, *(views or (images,))])))
    wanted = sum(supervised_contrast(z, y.repeat(2), 0.5, mine[y.repeat(2)]) for mine in sent.sets)
    close(method.loss(handle, Batch(images, y, views), sent, None), wanted, 1e-5)


def test_it_sends_means_of_classes_at_home_and_receives_all_sets():
    world = image_world((40, 33, 0, 20))
    p, d, n = world.scalars(), world.width, 4
    held = sum(len(client.labels.unique()) for client in world.clients)
    assert FedPCL().traffic(world) == pytest.approx((p + held * d / n, p + 10 * d + held * d))
    assert LOCAL_FORM.traffic(world) == pytest.approx((held * d / n, 10 * d + held * d))


def test_the_message_has_the_sets_of_clients_with_images():
    state = message()[0]
    assert [len(FedPCL().message(state, State(sizes=sizes)).sets) for sizes in ([2, 1], [2, 0])] == [2, 1]
