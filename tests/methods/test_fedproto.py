"""FedProto: prototypes, prediction and candidates."""

import dataclasses

import pytest
import torch
from federation import close, image_world, known, one_class_world, rows, run, tiny_world
from tiny import proto_world

from pipeline import methods
from pipeline.engine.handle import Handle
from pipeline.engine.state import State
from pipeline.engine.trained import Watch
from pipeline.errors import ParamError
from pipeline.methods.fedproto import FedProto


def test_prototypes_of_the_worked_example(monkeypatch):
    """The features are the input, whatever was trained."""
    world = proto_world(monkeypatch)
    state = run(FedProto(), world, 1)
    close(world.class_means(state.models).means, [[[2, 0], [0, 2], [0, 0]], [[0, 0], [0, 4], [2, 2]]])
    close(state.prototypes.vectors, [[2, 0], [0, 3], [2, 2]])


def test_owners_may_be_weighted_by_their_samples(monkeypatch):
    world = proto_world(monkeypatch)
    seen = world.class_means(world.new_models())
    counted = dataclasses.replace(seen, counts=torch.tensor([[2, 1, 0], [0, 3, 1]]))
    close(FedProto(weighted=True).aggregate(counted, None).vectors, [[2, 0], [0, 3.5], [2, 2]])
    close(FedProto().aggregate(counted, None).vectors, [[2, 0], [0, 3], [2, 2]])


def test_it_predicts_the_nearest_prototype(monkeypatch):
    world = proto_world(monkeypatch)
    state, queries = run(FedProto(), world, 1), rows([1.5, 0.5], [0.5, 2.6], [1.2, 1.9])
    network = Handle(world.network(0, state.models[0]))
    assert FedProto().scores(network, queries.reshape(3, 2, 1, 1), state).argmax(1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "method, rounds",
    [(FedProto(), 0), (FedProto(prediction="classifier"), 1), (FedProto(averaging=True), 1)],
    ids=["before the first round", "asked for", "averaged"],
)
def test_it_predicts_with_the_classifier(method, rounds, monkeypatch):
    world = proto_world(monkeypatch)
    state = run(FedProto(), world, 1)
    network, images = Handle(world.network(0, state.models[0])), world.clients[0].images
    at = state if rounds else FedProto().init(world)
    assert torch.equal(method.scores(network, images, at), network(images))


def test_an_averaged_model_may_predict_by_prototypes(monkeypatch):
    world = proto_world(monkeypatch)
    state = run(FedProto(), world, 1)
    network, images = Handle(world.network(0, state.models[0])), world.clients[0].images
    method = FedProto(averaging=True, prediction="prototype")
    assert not torch.equal(method.scores(network, images, state), network(images))


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


def test_own_candidates_need_a_model_for_each_client():
    with pytest.raises(ParamError, match="x: 'candidates: .*' needs a model"):
        methods.load("fedproto", {"averaging": True, "candidates": "own"}, "f: methods.x")


def test_it_sends_the_means_of_classes_at_home_and_receives_those_of_all():
    """One class per client, four in all."""
    world = one_class_world()
    assert FedProto().traffic(world) == (128.0, 4 * 128.0)
    assert FedProto(averaging=True).traffic(world) == (world.scalars() + 128, world.scalars() + 4 * 128)


@pytest.mark.parametrize("method", [FedProto(), FedProto(averaging=True)], ids=["own", "averaged"])
def test_counting_what_is_sent_trains_nothing(method):
    """Where clients are trained alone first, fresh models are trained ones."""
    world = image_world(pretraining=1)
    watch = Watch(world.executor)
    method.traffic(world.at(1, watch), run(method, world, 1))
    assert watch.trained is None


def test_an_averaged_model_is_scored_before_local_training_and_others_after():
    assert FedProto(averaging=True).headline == "pre"
    assert FedProto(averaging=False).headline == "post"
