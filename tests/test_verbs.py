"""Verbs beyond the plain local epochs, on both executors: draws, views, values trained beside the model,
public batches."""

import math

import pytest
import torch
import torch.nn.functional as F
from federation import CNN4, close, image_clients, training

from pipeline.data.tensors import Pixels
from pipeline.engine.handle import Handle
from pipeline.engine.optimisers import Steps
from pipeline.engine.phase import Client, LocalOptions
from pipeline.engine.state import Clients, Params
from pipeline.engine.trained import Watch
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods._collaborative import synchronised
from pipeline.schema import Data, Model, Optimiser, Public

SIZES = (20, 33, 0, 1)


def world(
    monkeypatch, executor="sequential", sizes=SIZES, model=CNN4, dtype=torch.float64, public=None, **changes
) -> World:
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    clients = [
        Client(c.name, c.domain, c.model, c.images.to(dtype), c.labels) for c in image_clients(sizes, model)
    ]
    return World.create(clients, training(**changes), 10, 0, public=public)


def supervised(model, batch, shared, own):
    return cross_entropy(model(batch.images), batch.labels)


def both(monkeypatch, act, **setting):
    """The same act on either executor; its tensors within 1e-9."""
    first, second = (act(world(monkeypatch, executor, **setting)) for executor in ("sequential", "stacked"))
    for a, b in zip(first, second, strict=True):
        for name in a:
            close(a[name], b[name], 1e-9)
    return first


# -- draws ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", ["normal", "uniform"])
def test_a_loss_draws_the_clients_own_numbers(monkeypatch, draw):
    def noisy(model, batch, shared, own):
        z = model.features(batch.images)
        return cross_entropy(model.head(z + 0.3 * getattr(model, draw)(z)), batch.labels)

    calm = both(
        monkeypatch,
        lambda w: w.local_epochs(w.new_models(), supervised, options=LocalOptions(epochs=2)).models,
    )
    moved = both(
        monkeypatch, lambda w: w.local_epochs(w.new_models(), noisy, options=LocalOptions(epochs=2)).models
    )
    assert not torch.equal(moved[0]["head.weight"], calm[0]["head.weight"])


def test_draws_differ_by_client_and_batch_and_repeat_in_evaluation(monkeypatch):
    drawn = []

    def loss(model, batch, shared, own):
        drawn.append(model.normal(batch.labels.double())[:2].clone())
        return cross_entropy(model(batch.images), batch.labels)

    w = world(monkeypatch, sizes=(32, 32))
    w.local_epochs(w.new_models(), loss, options=LocalOptions(epochs=1))
    assert len({tuple(values.tolist()) for values in drawn}) == len(drawn) == 4
    handle = Handle(w.network(0, w.new_model()))
    again = Handle(w.network(0, w.new_model()))
    assert torch.equal(handle.normal(torch.zeros(3)), again.normal(torch.zeros(3)))


# -- gradients of inputs -------------------------------------------------------------------------------------


def test_input_gradient_is_the_same_everywhere_and_leaves_parameters_alone(monkeypatch):
    def attacked(model, batch, shared, own):
        slope = model.input_gradient(lambda x: cross_entropy(model(x), batch.labels), batch.images)
        return cross_entropy(model(batch.images + 0.1 * slope.sign()), batch.labels)

    both(monkeypatch, lambda w: w.local_epochs(w.new_models(), attacked).models)
    w = world(monkeypatch)
    network = w.network(0, w.new_model())
    images, labels = w.clients[0].images, w.clients[0].labels
    slope = Handle(network).input_gradient(lambda x: cross_entropy(network(x), labels), images)
    leaf = images.clone().requires_grad_()
    cross_entropy(network(leaf), labels).backward()
    close(slope, leaf.grad, 1e-5)
    assert not slope.requires_grad


# -- views ---------------------------------------------------------------------------------------------------


def flips(pixels, generator):
    flip = torch.rand(len(pixels), generator=generator) < 0.5
    return torch.where(flip[:, None, None, None], pixels.flip(3), pixels), pixels.flip(2)


def test_views_reach_the_loss_alike(monkeypatch):
    def loss(model, batch, shared, own):
        (upside_down,) = batch.views
        return cross_entropy(model(batch.images), batch.labels) + 0.5 * cross_entropy(
            model(upside_down), batch.labels
        )

    both(
        monkeypatch,
        lambda w: w.local_epochs(w.new_models(), loss, options=LocalOptions(epochs=2), views=flips).models,
    )


def test_views_see_the_pixels():
    images = torch.rand(4, 3, 8, 8)
    for normalise in ("half", "imagenet", "cifar10", "none"):
        pixels = Pixels(normalise)
        stored = (images * 255).to(torch.uint8)
        assert torch.equal(pixels.bytes(pixels.inputs(stored, images)), stored)


def test_a_scenarios_augmentation_acts_in_every_local_phase(monkeypatch):
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


# -- values beside the model ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimiser", [Optimiser("sgd", 0.05, momentum=0.9), Optimiser("adam", 0.01)], ids=["momentum", "adam"]
)
def test_extra_values_are_trained_with_the_model(monkeypatch, optimiser):
    def loss(model, batch, shared, own):
        return cross_entropy(model(batch.images) * own["scale"] + own["shift"], batch.labels)

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


# -- teachers ------------------------------------------------------------------------------------------------


def test_a_teacher_in_training_mode_uses_batch_statistics_and_keeps_its_own():
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
    assert not torch.allclose(there, handle.other(model)(images))
    assert all(torch.equal(before[name], model[name]) for name in model)
    assert not there.requires_grad


def test_a_teacher_has_no_dropout(monkeypatch):
    w = world(monkeypatch, sizes=(8,), model=Model("cnn2", dropout=0.5))
    model, images = w.new_model(), w.clients[0].images
    handle = Handle(w.network(0, model).train())
    for in_training in (False, True):
        assert torch.equal(handle.other(model, in_training)(images), w.network(0, model)(images))
        w.network(0, model).train()


# -- public batches ------------------------------------------------------------------------------------------


def forum(
    monkeypatch,
    sizes=(20, 0, 12),
    models=None,
    dtype=torch.float64,
    n=50,
    pretraining=None,
    executor="sequential",
    **settings,
):
    images = torch.randn(n, 1, 16, 16, generator=torch.Generator().manual_seed(5)).to(dtype)
    settings = Public("x", n, **{"batch_size": 20, **settings})
    return world(
        monkeypatch,
        executor,
        sizes,
        models or [Model("cnn4"), Model("cnn2"), Model("cnn4")],
        dtype,
        (images, settings),
        pretraining=pretraining,
    )


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


def test_no_public_data_is_said(monkeypatch):
    with pytest.raises(TrainingError, match="public"):
        next(world(monkeypatch).public_batches())


@pytest.mark.parametrize("optimiser", [None, Optimiser("sgd", 0.1)], ids=["adam", "sgd"])
def test_collaborate_is_one_step_of_a_new_optimiser_towards_what_the_server_sent(monkeypatch, optimiser):
    """Against plain PyTorch: all logits first, then every client one step on the KL to their mean."""
    w = forum(monkeypatch).at(1)
    models = w.new_models()
    batch = next(w.public_batches())
    images = batch.images

    def divergence(shown, received, own):
        return F.kl_div(shown.log_softmax(1), received.softmax(1), reduction="batchmean")

    moved = w.collaborate(
        models,
        batch,
        lambda model, x, own: model(x),
        lambda shown: [torch.stack(shown).mean(0)] * 2 + [None],
        divergence,
        optimiser=optimiser,
    )
    logits = [w.network(k, model)(images).detach() for k, model in enumerate(models)]
    target = torch.stack(logits).mean(0)
    for k in range(2):
        network = w.network(k, models[k]).train()
        parameters = list(network.parameters())
        gradients = torch.autograd.grad(divergence(network(images), target, None), parameters)
        Steps(optimiser or Optimiser("adam", 0.1), parameters).step(gradients)
        for name, value in network.state_dict().items():
            close(moved[k][name], value, 1e-12)
    assert all(torch.equal(moved[2][name], models[2][name]) for name in models[2])
    assert all(not value.requires_grad for model in moved for value in model.values())


def test_collaborate_moves_batchnorm_once(monkeypatch):
    public = torch.randn(8, 3, 32, 32)
    clients = [
        Client(
            f"c{k}", "only", Model("resnet10"), torch.randn(4, 3, 32, 32), torch.zeros(4, dtype=torch.int64)
        )
        for k in range(2)
    ]
    w = World.create(clients, training(), 10, 0, public=(public, Public("x", 8, batch_size=8)))
    models = w.new_models()
    batch = next(iter(w.public_batches()))
    moved = w.collaborate(models, batch, lambda m, x, own: m(x), lambda shown: [None, None], lambda *_: None)
    name = next(name for name in models[0] if name.endswith("num_batches_tracked"))
    assert int(moved[0][name]) == int(models[0][name]) + 1
    assert torch.equal(moved[0]["head.weight"], models[0]["head.weight"])


def test_pretraining_is_plain_training_before_the_first_round(monkeypatch):
    w, alone = forum(monkeypatch, pretraining=2), forum(monkeypatch)
    trained = alone.local_epochs(
        alone.new_models(), supervised, options=LocalOptions(epochs=2, stream="pretraining")
    )
    watch = Watch(w.executor)
    for mine, theirs in zip(w.at(0, watch).new_models(), trained.models, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert watch.trained.losses[0] == trained.losses[0] and math.isfinite(trained.losses[0])


def test_synchronised_averages_one_architecture_only(monkeypatch):
    same = world(monkeypatch, sizes=(20, 5), averaging="uniform")
    models = same.local_epochs(same.new_models(), supervised).models
    first, second = synchronised(models, same)
    close(first["head.weight"], (models[0]["head.weight"] + models[1]["head.weight"]) / 2, 1e-5)
    assert torch.equal(first["head.weight"], second["head.weight"])
    for other in (world(monkeypatch, sizes=(20, 5)), forum(monkeypatch)):
        saved = other.new_models()
        assert synchronised(saved, other) is saved


# -- projectors ----------------------------------------------------------------------------------------------


def test_a_projector_is_trained_with_all_and_with_no_part():
    clients = [
        Client(
            "c", "only", Model("simple_cnn", projector=16), torch.randn(12, 3, 32, 32), torch.arange(12) % 10
        )
    ]
    w = World.create(clients, training(), 10, 0)
    models = w.new_models()

    def loss(model, batch, shared, own):
        z = model.features(batch.images)
        return cross_entropy(model.head(z), batch.labels) + model.project(z).pow(2).mean()

    def moved(part):
        after = w.local_epochs(models, loss, options=LocalOptions(part)).models
        return {
            name.split(".")[0]
            for name, value in after[0].items()
            if value.is_floating_point() and "running" not in name and not torch.equal(value, models[0][name])
        }

    assert (
        moved("all") == {"features", "head", "projector"}
        and moved("head") == {"head"}
        and moved("features") == {"features"}
    )
    without = World.create(image_clients((4,)), training(), 10, 0)
    with pytest.raises(TrainingError, match="projector"):
        Handle(without.network(0, without.new_model())).project(torch.zeros(1, 128))
