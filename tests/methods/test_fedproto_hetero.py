"""FedProto between different networks: prototypes in a projected space."""

import dataclasses

import pytest
import torch
from all_methods import small_world
from federation import close, difference, run, same, tiny_world
from tiny import numbers
from torch import nn

from pipeline.engine.state import Params
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.methods.fedproto_hetero import FedProtoHetero
from pipeline.methods.local import Local
from pipeline.models import Network
from pipeline.prototypes import prototype_distance
from pipeline.schema import Model

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


def test_class_means_of_clients(monkeypatch):
    world = vectors_world(monkeypatch, A, B)
    seen = world.class_means(world.new_models())
    close(seen.means[0], [[2, 0.5], [0.5, 1.5], [0, 0]])
    close(seen.means[1], [[0.75, 1.25], [0, 0], [1, 1]])
    assert seen.counts.tolist() == [[2, 2, 0], [2, 0, 2]]


@pytest.mark.parametrize("means", ["eval", "running", "last_epoch"])
def test_prototypes_of_the_worked_example(means, monkeypatch):
    world = vectors_world(monkeypatch, A, B)
    actual = run(FedProtoHetero(space="features", means=means), world, 1).prototypes
    close(actual.vectors, [[1.375, 0.875], [0.5, 1.5], [1, 1]])
    distances = [prototype_distance(numbers(x), torch.tensor(y), **actual) for x, y in (A, B)]
    close(distances, [0.570312, 0.539062])


@pytest.mark.parametrize("means", ["eval", "running"])
def test_owners_may_be_weighted_by_their_samples(means, monkeypatch):
    world = vectors_world(monkeypatch, ([[1, 0], [3, 0], [2, 3]], [0, 0, 1]), ([[8, 3], [0, 1]], [0, 1]))
    actual = run(FedProtoHetero(space="features", weighted=True, means=means), world, 1).prototypes
    close(actual.vectors, [[4, 1], [1, 2], [0, 0]])


def test_without_its_term_it_is_local():
    w = small_world()
    ours, alone = (run(method, w).models for method in (FedProtoHetero(lam=0.0), Local()))
    for mine, theirs in zip(ours, alone, strict=True):
        saved = [name for name in mine if not name.startswith("projector.")]
        assert same(Params((n, mine[n]) for n in saved), Params((n, theirs[n]) for n in saved))


def test_with_its_term_it_is_not_local():
    w = small_world()
    assert difference(run(FedProtoHetero(lam=0.0), w).models[0], run(FedProtoHetero(), w).models[0]) > 1e-4


def test_its_first_round_is_cross_entropy_only():
    w = small_world()
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


def predictions(monkeypatch, method):
    """Scores of the first client, its model's logits and the predicted classes for three images."""
    world = vectors_world(monkeypatch, A, B)
    fitting = FedProtoHetero(space="features", prediction="prototype")
    state, images = run(fitting, world, 1), numbers([[2, 0.5], [0.5, 1.6], [1, 1]]).view(3, 2, 1, 1)
    scores = world.each(state.models, lambda model, *_: method.scores(model, images, state))[0]
    return scores, world.each(state.models, lambda model, *_: model(images))[0]


def test_it_may_predict_by_prototypes(monkeypatch):
    method = FedProtoHetero(space="features", prediction="prototype")
    assert predictions(monkeypatch, method)[0].argmax(1).tolist() == [0, 1, 2]


def test_by_default_it_predicts_by_the_classifier(monkeypatch):
    scores, logits = predictions(monkeypatch, FedProtoHetero())
    assert torch.equal(scores, logits)


def test_a_network_without_projector_is_refused():
    with pytest.raises(TrainingError, match="needs a projector"):
        run(FedProtoHetero(), small_world((20, 12), [Model("cnn2")] * 2), 1)


def test_it_sends_the_means_of_classes_at_home_and_receives_those_of_all():
    w = small_world((6, 4))
    clients = [
        dataclasses.replace(c, labels=torch.tensor(y))
        for c, y in zip(w.clients, ([0, 0, 1, 1, 2, 2], [0, 0, 3, 3]))
    ]
    w = World.create(clients, w.training, w.classes, 0)
    assert FedProtoHetero().traffic(w) == (2.5 * 8, 4 * 8)
    assert FedProtoHetero(weighted=True).traffic(w) == (2.5 * 8 + 2.5, 4 * 8)


def test_a_projector_is_needed_where_prototypes_are_projected():
    assert FedProtoHetero(space="projector").requires == {"projector"}
    assert FedProtoHetero(space="features").requires == frozenset()
