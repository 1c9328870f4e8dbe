"""The stacked executor does what the plain loop does: same batches and masks, same numbers to rounding. And
verbs of the engine: draws, views, teachers, public batches, projectors."""

import dataclasses
import math
from functools import partial

import pytest
import torch
from federation import close, difference, executor_world, image_clients, image_world, run, same, training

from pipeline.data.tensors import Pixels
from pipeline.engine.handle import Handle
from pipeline.engine.phase import LocalOptions
from pipeline.engine.stacked.stack import Stack
from pipeline.engine.world import World, supervised
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.pfedme import PFedMe
from pipeline.schema import Data, Model, Optimiser, Public

SIZES = (20, 33, 7, 33, 0, 1, 48)


OPTIMISERS = [
    Optimiser("sgd", 0.05),
    Optimiser("sgd", 0.05, momentum=0.9, weight_decay=1e-3),
    Optimiser("adam", 0.003, weight_decay=1e-3),
    Optimiser("adamw", 0.003, weight_decay=0.1, lr_decay=0.5, clip=0.1),
]


world = partial(executor_world, sizes=SIZES)


EXECUTORS = ("sequential", "stacked")


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=["sgd", "momentum", "adam", "adamw"])
def test_two_rounds_in_float64(optimiser, monkeypatch):
    """Half of the settings drop the last incomplete batch."""
    setting = {"optimiser": optimiser, "local_epochs": 2, "drop_last": optimiser.weight_decay == 1e-3}
    ends = [run(FedAvg(), world(executor, monkeypatch, **setting), 2) for executor in EXECUTORS]
    assert difference(*ends) < 1e-9


def test_clients_that_do_a_part_of_their_epochs(monkeypatch):
    """As they would with so many epochs, also in what is logged of the last one."""

    def loss(model, batch, server_state, client_state):
        value = cross_entropy(model(batch.images), batch.labels)
        return value, {"last_epoch.size": value * 0 + len(batch.labels), "twice": 2 * value}

    ends = []
    for executor in EXECUTORS:
        w = world(executor, monkeypatch, batch_size=8, local_epochs=4, stragglers=0.5, failing=0.2).at(1)
        start = w.everyone(w.new_model())
        trained = w.local_epochs(start, loss)
        ends.append([trained.models, trained.losses, trained.logged, trained.last])
        for k in w.participants:
            options = LocalOptions(epochs=w.epochs_of(k))
            whole = dataclasses.replace(w, work=None).local_epochs(start, loss, options=options)
            close(trained.models[k], whole.models[k], 1e-9)
            close(trained.logged["last_epoch.size"][k], whole.logged["last_epoch.size"][k], 1e-9)
    assert difference(*ends) < 1e-9
    assert len({w.epochs_of(k) for k in w.participants}) > 1


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_loss_is_a_field_and_not_among_what_is_logged(executor, monkeypatch):
    def loss(model, batch, server_state, client_state):
        value = cross_entropy(model(batch.images), batch.labels)
        return value, {"twice": 2 * value, "one": torch.ones((), dtype=value.dtype)}

    def step(model, batches, server_state, client_state):
        return model.params, client_state, {"loss": model(batches[0].images).mean()}

    w = world(executor, monkeypatch, sizes=(20, 0))
    trained, stepped = w.local_epochs(w.new_models(), loss), w.local_steps(w.new_models(), step)
    assert trained.logged.keys() == trained.last.keys() == {"twice", "one"}
    assert not stepped.logged
    assert trained.logged["twice"][0] == pytest.approx(2 * trained.losses[0], rel=1e-12)
    assert trained.last["twice"][0] != trained.logged["twice"][0]  # of the last batch
    assert trained.logged["one"][0] == 1
    assert trained.logged["one"].isnan().tolist() == [False, True]
    assert math.isfinite(stepped.losses[0])
    assert math.isnan(trained.losses[1])


@pytest.mark.parametrize(
    "optimiser",
    [
        Optimiser("sgd", 0.05, weight_decay=0.1),
        Optimiser("sgd", 0.05, momentum=0.9, weight_decay=0.1),
        Optimiser("adam", 0.003, weight_decay=0.1),
    ],
)
def test_what_a_loss_does_not_use_is_left_alone(optimiser, monkeypatch):
    """As torch's optimisers leave it: no weight decay, no momentum. A gradient of zeros is use."""

    def loss(model, batch, server_state, client_state):
        return model.features(batch.images).square().mean() + 0 * model.params["head.bias"].sum()

    ends = []
    for executor in EXECUTORS:
        w = world(executor, monkeypatch, optimiser=optimiser)
        start = w.new_models()
        ends.append(w.local_epochs(start, loss).models)
        assert torch.equal(ends[-1][0]["head.weight"], start[0]["head.weight"])
        assert not torch.equal(ends[-1][0]["head.bias"], start[0]["head.bias"])
    assert difference(*ends) < 1e-9


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("made up"),
        RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
    ],
)
def test_short_memory_halves_the_stack_with_one_warning(error, monkeypatch, capsys):
    plain = run(FedAvg(), world("sequential", monkeypatch), 1)
    w = world("stacked", monkeypatch)
    real, sizes = Stack.train, []

    def short(self):
        sizes.append(len(self.members))
        if sizes[-1] > 3:
            raise error
        real(self)

    monkeypatch.setattr(Stack, "train", short)
    assert difference(run(FedAvg(), w, 1), plain) < 1e-9
    assert capsys.readouterr().err.count("stacks of 3 clients") == 1
    assert w.executor.most == 3
    assert sizes[:2] == [6, 6]
    assert max(sizes[2:]) == 3  # once more without what earlier phases have kept


def test_memory_that_earlier_phases_hold_is_given_back_before_stacks_are_halved(monkeypatch, capsys):
    w = world("stacked", monkeypatch)
    run(FedAvg(), w, 1)
    [saved], real = w.executor.cached, Stack.train

    def short(self):
        if self is saved:
            raise torch.OutOfMemoryError("made up")
        real(self)

    monkeypatch.setattr(Stack, "train", short)
    run(FedAvg(), w, 1)
    assert w.executor.most is None
    assert w.executor.cached != [saved]
    assert not capsys.readouterr().err


def test_a_stack_of_one_that_does_not_fit_and_other_errors_end_the_run(monkeypatch):
    w = world("stacked", monkeypatch)
    for error in (torch.OutOfMemoryError("made up"), RuntimeError("size mismatch")):
        monkeypatch.setattr(Stack, "train", lambda self, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(RuntimeError, match=str(error)):
            run(FedAvg(), w, 1)


def test_a_kind_of_convolution_that_cudnn_lacks_is_not_read_as_too_little_memory(monkeypatch, capsys):
    def lacking(self):
        raise RuntimeError("GET was unable to find an engine to execute this computation")

    w = world("stacked", monkeypatch)
    monkeypatch.setattr(Stack, "train", lacking)
    with pytest.raises(RuntimeError, match="find an engine"):
        run(FedAvg(), w, 1)
    assert w.executor.most is None
    assert not capsys.readouterr().err


@pytest.mark.parametrize("method, least, most", [(FedAvg(), 0, 1e-2), (PFedMe(), 1e-6, 0.05)])
def test_bf16_is_near_and_not_equal(method, least, most, monkeypatch):
    """Also in a method's steps."""
    exact = run(method, world("sequential", monkeypatch, dtype=torch.float32), 1)
    monkeypatch.setenv("FEDREPRO_PRECISION", "bf16")
    for executor in EXECUTORS:
        near = run(method, world(executor, monkeypatch, dtype=torch.float32), 1)
        assert least < difference(exact, near) < most


def test_draws_differ_by_client_and_batch_and_repeat_in_evaluation(monkeypatch):
    drawn = []

    def loss(model, batch, server_state, client_state):
        drawn.append(model.normal(batch.labels.double())[:2].clone())
        return cross_entropy(model(batch.images), batch.labels)

    w = world("sequential", monkeypatch, sizes=(32, 32))
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
    clients = image_clients((20, 20))
    clients = [dataclasses.replace(c, images=c.images.clamp(-1, 1)) for c in clients]
    plain, augmented = (
        World.create(clients, training(), 10, 0, data=Data("x", augmentation=a)) for a in (None, "crop_flip")
    )
    ends = [w.local_epochs(w.new_models(), supervised).models[0]["head.weight"] for w in (plain, augmented)]
    assert not torch.equal(*ends)


def test_a_teacher_uses_batch_statistics_in_training_and_has_no_dropout(monkeypatch):
    w = image_world((8,), model=Model("cnn3_bn"))
    model, images = w.new_model(), w.clients[0].images
    before = {name: value.clone() for name, value in model.items()}
    handle = Handle(w.network(0, model).train())
    there = handle.other(model, training=True)(images)
    network = w.network(0, model).train()
    with torch.no_grad():
        close(there, network(images), 1e-5)
    assert not same(there, handle.other(model)(images), 1e-5)
    assert all(torch.equal(before[name], model[name]) for name in model)
    assert not there.requires_grad
    w = world("sequential", monkeypatch, sizes=(8,), model=Model("cnn2", dropout=0.5))
    model, images = w.new_model(), w.clients[0].images
    handle = Handle(w.network(0, model).train())
    for in_training in (False, True):
        assert torch.equal(handle.other(model, in_training)(images), w.network(0, model)(images))
        w.network(0, model).train()


def forum(monkeypatch, **settings) -> World:
    images = torch.randn(50, 1, 16, 16, generator=torch.Generator().manual_seed(5)).double()
    public = images, Public("x", 50, **{"batch_size": 20, **settings})
    networks = [Model("cnn4"), Model("cnn2"), Model("cnn4")]
    return world("sequential", monkeypatch, sizes=(20, 0, 12), model=networks, public=public)


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
        next(world("sequential", monkeypatch).public_batches())


def test_a_projector_is_trained_with_all_and_with_no_part():
    w = image_world((12,), model=Model("cnn4", projector=16))
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
    without = image_world((4,))
    with pytest.raises(TrainingError, match="projector"):
        Handle(without.network(0, without.new_model())).project(torch.zeros(1, 128))
