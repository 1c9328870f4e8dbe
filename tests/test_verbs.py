"""Verbs beyond local epochs, on both executors: draws, views, values beside the model, public batches."""

from functools import partial

import pytest
import torch
from federation import close, executor_world, image_clients, same, training

from pipeline.data.tensors import Pixels
from pipeline.engine.handle import Handle
from pipeline.engine.phase import Client, LocalOptions
from pipeline.engine.state import Clients, Params
from pipeline.engine.world import World, supervised
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.schema import Data, Model, Optimiser, Public

SIZES = (20, 33, 0, 1)


world = partial(executor_world, "sequential", sizes=SIZES)


def both(monkeypatch, act, **setting):
    """The same act on either executor; its tensors within 1e-9."""
    first, second = (
        act(executor_world(executor, monkeypatch, **{"sizes": SIZES, **setting}))
        for executor in ("sequential", "stacked")
    )
    for a, b in zip(first, second, strict=True):
        for name in a:
            close(a[name], b[name], 1e-9)
    return first


def test_draws_differ_by_client_and_batch_and_repeat_in_evaluation(monkeypatch):
    drawn = []

    def loss(model, batch, server_state, client_state):
        drawn.append(model.normal(batch.labels.double())[:2].clone())
        return cross_entropy(model(batch.images), batch.labels)

    w = world(monkeypatch, sizes=(32, 32))
    w.local_epochs(w.new_models(), loss, options=LocalOptions(epochs=1))
    assert len({tuple(values.tolist()) for values in drawn}) == len(drawn) == 4
    handle = Handle(w.network(0, w.new_model()))
    again = Handle(w.network(0, w.new_model()))
    assert torch.equal(handle.normal(torch.zeros(3)), again.normal(torch.zeros(3)))


def test_views_see_the_pixels_and_a_scenarios_augmentation_acts(monkeypatch):
    images = torch.rand(4, 3, 8, 8)
    for normalise in ("half", "imagenet", "cifar10", "none"):
        pixels = Pixels(normalise)
        stored = (images * 255).to(torch.uint8)
        assert torch.equal(pixels.bytes(pixels.inputs(stored, images)), stored)
    clients = image_clients((20, 20), Model("simple_cnn"), side=32)
    clients = [
        Client(c.name, c.domain, c.model, c.images.expand(-1, 3, -1, -1).clamp(-1, 1).contiguous(), c.labels)
        for c in clients
    ]
    plain, augmented = (
        World.create(clients, training(), 10, 0, data=Data("x", augmentation=a)) for a in (None, "crop_flip")
    )
    ends = [w.local_epochs(w.new_models(), supervised).models[0]["head.weight"] for w in (plain, augmented)]
    assert not torch.equal(*ends)


@pytest.mark.parametrize(
    "optimiser", [Optimiser("sgd", 0.05, momentum=0.9), Optimiser("adam", 0.01)], ids=["momentum", "adam"]
)
def test_extra_values_are_trained_with_the_model(monkeypatch, optimiser):
    def loss(model, batch, server_state, client_state):
        return cross_entropy(
            model(batch.images) * client_state["scale"] + client_state["shift"], batch.labels
        )

    def act(w):
        extra = Clients(
            Params(scale=torch.ones((), dtype=torch.float64), shift=torch.zeros(10, dtype=torch.float64))
            for _ in w.clients
        )
        trained = w.local_epochs(
            w.new_models(), loss, client_state=extra, options=LocalOptions(epochs=2, trains_state=True)
        )
        return [*trained.models, *trained.client_state]

    ends = both(monkeypatch, act, optimiser=optimiser)
    shifts = [end["shift"] for end in ends[len(SIZES) :]]
    assert shifts[0].abs().max() > 0 and shifts[2].abs().max() == 0  # client 2 has no data
    assert not torch.equal(shifts[0], shifts[1])


def test_a_teacher_uses_batch_statistics_in_training_and_has_no_dropout(monkeypatch):
    clients = image_clients((8,), Model("resnet10"), side=32)
    clients = [
        Client(c.name, c.domain, c.model, c.images.expand(-1, 3, -1, -1).contiguous(), c.labels)
        for c in clients
    ]
    w = World.create(clients, training(), 10, 0)
    model, images = w.new_model(), clients[0].images
    before = {name: value.clone() for name, value in model.items()}
    handle = Handle(w.network(0, model).train())
    there = handle.other(model, training=True)(images)
    network = w.network(0, model).train()
    with torch.no_grad():
        close(there, network(images), 1e-5)
    assert not same(there, handle.other(model)(images), 1e-5)
    assert all(torch.equal(before[name], model[name]) for name in model)
    assert not there.requires_grad
    w = world(monkeypatch, sizes=(8,), model=Model("cnn2", dropout=0.5))
    model, images = w.new_model(), w.clients[0].images
    handle = Handle(w.network(0, model).train())
    for in_training in (False, True):
        assert torch.equal(handle.other(model, in_training)(images), w.network(0, model)(images))
        w.network(0, model).train()


def forum(monkeypatch, **settings) -> World:
    images = torch.randn(50, 1, 16, 16, generator=torch.Generator().manual_seed(5)).double()
    public = images, Public("x", 50, **{"batch_size": 20, **settings})
    networks = [Model("cnn4"), Model("cnn2"), Model("cnn4")]
    return world(monkeypatch, sizes=(20, 0, 12), model=networks, public=public)


def test_public_batches_pass_every_image_once_and_differ_by_round(monkeypatch):
    w = forum(monkeypatch).at(1)
    first = [batch.images for batch in w.public_batches()]
    assert [len(b) for b in first] == [20, 20, 10]
    assert torch.equal(
        torch.cat(first).flatten(1).sum(1).sort().values, w.public_images.flatten(1).sum(1).sort().values
    )
    assert all(torch.equal(a, b.images) for a, b in zip(first, w.public_batches(), strict=True))
    assert not torch.equal(first[0], next(w.at(2).public_batches()).images)
    assert len(list(forum(monkeypatch, drop_last=True).public_batches())) == 2
    assert len(list(forum(monkeypatch, epochs=2).public_batches())) == 6
    with pytest.raises(TrainingError, match="public"):
        next(world(monkeypatch).public_batches())


def test_a_projector_is_trained_with_all_and_with_no_part():
    clients = [
        Client(
            "c", "only", Model("simple_cnn", projector=16), torch.randn(12, 3, 32, 32), torch.arange(12) % 10
        )
    ]
    w = World.create(clients, training(), 10, 0)
    models = w.new_models()

    def loss(model, batch, server_state, client_state):
        z = model.features(batch.images)
        return cross_entropy(model.head(z), batch.labels) + model.project(z).pow(2).mean()

    def moved(part):
        after = w.local_epochs(models, loss, options=LocalOptions(part)).models
        return {
            name.split(".")[0]
            for name, value in after[0].items()
            if value.is_floating_point() and "running" not in name and not torch.equal(value, models[0][name])
        }

    assert moved("all") == {"features", "head", "projector"}
    assert moved("head") == {"head"}
    assert moved("features") == {"features"}
    without = World.create(image_clients((4,)), training(), 10, 0)
    with pytest.raises(TrainingError, match="projector"):
        Handle(without.network(0, without.new_model())).project(torch.zeros(1, 128))
