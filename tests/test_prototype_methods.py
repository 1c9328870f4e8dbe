"""Identities and worked numbers of prototypes, FedProto and FedGH."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from federation import (
    close,
    image_clients,
    image_world,
    known,
    one_round,
    params,
    rows,
    run,
    same,
    tiny_world,
    training,
)
from torch import nn

from pipeline.engine.handle import Handle
from pipeline.engine.state import Clients, State
from pipeline.engine.trained import Watch
from pipeline.engine.world import World
from pipeline.methods.fedcrl import FedCRL, interpolate
from pipeline.methods.fedgh import FedGH
from pipeline.methods.fedpac import FedPAC
from pipeline.methods.fedproto import FedProto
from pipeline.models import Network
from pipeline.prototypes import (
    aggregate_means,
    class_sums,
    cosine,
    logged_means,
    prototype_contrast,
    prototype_distance,
    prototype_scores,
    vectors_sent,
)
from pipeline.schema import Optimiser


def one_class_world(**changes):
    """Client k holds class k alone; the last one a single image."""
    clients = [
        dataclasses.replace(c, labels=torch.full_like(c.labels, k))
        for k, c in enumerate(image_clients((20, 33, 7, 1)))
    ]
    return World.create(clients, training(**changes), 10, 0)


def test_distance_of_the_worked_example_and_of_unknown_classes():
    z = rows([1, 2], [0, 1], [5, 5]).requires_grad_()
    loss = prototype_distance(z, torch.tensor([0, 1, 2]), rows([0, 0], [1, 1], [9, 9]), known(1, 1, 0))
    close(loss, 1.0)
    close(torch.autograd.grad(loss, z)[0], [[0.333333, 0.666667], [-0.333333, 0], [0, 0]])
    z = rows([1, 2], [3, 4]).requires_grad_()
    loss = prototype_distance(z, torch.tensor([0, 1]), torch.zeros(2, 2), known(0, 0))
    assert loss.item() == 0 and not torch.autograd.grad(loss, z)[0].any()
    assert prototype_distance(z, torch.tensor([1, 0]), z.flip(0)).item() == 0
    vectors = rows([1, 1], [2, 2]).requires_grad_()
    z = rows([1, 2]).requires_grad_()
    (
        prototype_distance(z, torch.tensor([0]), vectors)
        + prototype_contrast(z, torch.tensor([0]), vectors, 0.5)
    ).backward()
    assert vectors.grad is None and z.grad is not None


H, Y = [[1, 0], [1, 1], [0, 1]], torch.tensor([0, 0, 1])
OMEGA = rows([1, 0], [0, 1], [-1, 0])


@pytest.mark.parametrize(
    "tau, seen, mean", [(0.5, (1, 1, 1), 0.368249), (0.1, (1, 1, 1), 0.231095), (0.5, (1, 1, 0), 0.315668)]
)
def test_contrast_of_the_worked_examples(tau, seen, mean):
    close(prototype_contrast(rows(*H), Y, OMEGA, tau, known=known(*seen)), mean)


def test_contrast_where_classes_are_unknown_or_a_representation_is_dead():
    for seen in (known(1, 0, 0), known(0, 0, 0), known(0, 0, 1)):
        h = rows(*H).requires_grad_()
        loss = prototype_contrast(h, torch.tensor([0, 0, 0]), OMEGA, 0.1, known=seen)
        assert loss.item() == 0 and not torch.autograd.grad(loss, h)[0].any()
    h = rows(*H)
    part = prototype_contrast(h[:2], Y[:2], OMEGA, 0.5, known=known(1, 0, 1))
    close(prototype_contrast(h, Y, OMEGA, 0.5, known=known(1, 0, 1)), 2 / 3 * part.item())
    z = torch.zeros(1, 2).requires_grad_()
    assert not cosine(z, OMEGA).any()
    loss = prototype_contrast(torch.relu(z), torch.tensor([0]), OMEGA, 0.1)
    assert loss.item() == pytest.approx(math.log(3)) and not torch.autograd.grad(loss, z)[0].any()


def test_aggregates_of_the_worked_examples():
    """FedCRL Eq. 6; what nobody holds stays as it was."""
    actual = aggregate_means(
        torch.tensor([[[1.0, 0], [0, 2], [0, 0]], [[0, 0], [1, 1], [0, 0]]]),
        torch.tensor([[4, 1, 0], [0, 3, 0]]),
    )
    close(actual.vectors, [[1, 0], [0.75, 1.25], [0, 0]])
    assert actual.known.tolist() == [True, True, False]
    before = State(vectors=rows([1, 1], [2, 2], [0, 0]), known=known(1, 1, 0))
    actual = aggregate_means(torch.tensor([[[5.0, 5], [0, 0], [0, 0]]]), torch.tensor([[3, 0, 0]]), before)
    close(actual.vectors, [[5, 5], [2, 2], [0, 0]])
    assert actual.known.tolist() == [True, True, False]
    counts = torch.tensor([[2, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]])
    assert vectors_sent(SimpleNamespace(class_counts=counts), 10) == (10.0, 20.0)


def test_interpolation_of_the_worked_example():
    actual = interpolate(
        Clients([params({"features.w": [1, 2]})]), params({"features.w": [0, 4]}), torch.tensor([0.25])
    )
    close(actual[0]["features.w"], [0.25, 3.5])


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


def test_fedproto_predicts_the_nearest_prototype_or_with_the_classifier(monkeypatch):
    world = proto_world(monkeypatch)
    state, queries = run(FedProto(), world, 1), rows([1.5, 0.5], [0.5, 2.6], [1.2, 1.9])
    network = Handle(world.network(0, state.models[0]))
    images = queries.reshape(3, 2, 1, 1)
    assert FedProto().scores(network, images, state).argmax(1).tolist() == [0, 1, 2]
    restricted = prototype_scores(queries, rows([2, 0], [0, 3], [2, 2]), known(1, 1, 0))
    assert restricted.argmax(1).tolist() == [0, 1, 1]
    close(-restricted[2, :2], [2.125, 1.325])
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


def test_what_is_sent():
    world = one_class_world()  # one class per client, four in all
    assert FedProto().traffic(world) == (128.0, 4 * 128.0)
    assert FedProto(averaging=True).traffic(world) == (world.scalars() + 128, world.scalars() + 4 * 128)
    assert FedGH().traffic(world) == (128.0, 10 * 128 + 10)
    down = world.scalars() + 4 * 128
    assert FedPAC().traffic(world) == (world.scalars() + 2 * 128 + 1 + 1, down)  # the count of its one class
    assert FedPAC(weighted=False).traffic(world) == (world.scalars() + 2 * 128 + 1, down)
    assert FedCRL().traffic(world) == (
        world.scalars("features") + 128 + 1,
        world.scalars("features") + 4 * 128,
    )


GH = params({"head.weight": [[0.1, 0], [0, 0.1], [0.1, 0.1]], "head.bias": [0, 0, 0]})


def test_fedgh_trains_the_server_head_on_all_clients_means(monkeypatch):
    """Two clients whose means are the worked example's pairs, in the order of clients and classes."""
    world, method = proto_world(monkeypatch), FedGH(server_lr=0.5, server_batch=2)
    state, trained = one_round(method, State(features=world.new_models().features, head=GH), world)
    close(state.head["head.weight"], [[0.207368, -0.445962], [-0.360478, 0.378790], [0.353110, 0.267171]])
    close(state.head["head.bias"], [-0.040302, 0.023924, 0.016378])
    # the trained head is dropped
    assert same(trained.models[0].joined(state.head), FedGH().deployed(state, world)[0])


@pytest.mark.parametrize("method", [FedProto(), FedProto(averaging=True), FedGH()])
def test_counting_what_is_sent_trains_nothing(method):
    """Where clients are trained alone first, fresh models are trained ones."""
    world = image_world(pretraining=1)
    watch = Watch(world.executor)
    method.traffic(world.at(1, watch), run(method, world, 1))
    assert watch.trained is None


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

        def loss(model, batch, server_state, client_state, over=over):
            z = model.features(batch.images)
            return z.sum(1).mean(), class_sums(z, batch.labels, model.classes, over)

        trained = world.local_epochs(start, loss)
        close(logged_means(trained, world.class_counts).means[0], [[0, 0], wanted])
        assert logged_means(trained, world.class_counts).counts.tolist() == [[0, 1]]
        assert trained.losses == pytest.approx([0])


def test_candidates_may_be_the_classes_that_a_client_trains_on(monkeypatch):
    """By hand: [1.2, 1.9] is class 2 among all, class 1 among {0, 1}."""
    world = tiny_world(monkeypatch, ([[1.0, 0.0], [0.0, 1.0]], [0, 1]), ([[1.0, 1.0]], [2]), classes=3)
    prototypes = State(vectors=rows([2, 0], [0, 3], [2, 2]), known=known(1, 1, 1))
    state = State(FedProto().init(world), prototypes=prototypes)
    queries = torch.tensor([1.2, 1.9]).view(1, 2, 1, 1)

    def predicted(method, client):
        handle = Handle(world.network(client, state.models[client]), client=client)
        return int(method.scores(handle, queries, state).argmax())

    assert [predicted(FedProto(), k) for k in (0, 1)] == [2, 2]
    assert [predicted(FedProto(candidates="own"), k) for k in (0, 1)] == [1, 2]
