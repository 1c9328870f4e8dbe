"""The stacked executor does what the plain loop does: same batches and masks, same numbers to rounding."""

import dataclasses
import math
from functools import partial

import pytest
import torch
from federation import close, difference, executor_world, image_world, run

from pipeline.engine.phase import LocalOptions
from pipeline.engine.stack import Stack
from pipeline.errors import ParamError
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.pfedme import PFedMe
from pipeline.schema import Optimiser

SIZES = (20, 33, 7, 33, 0, 1, 48)
OPTIMISERS = [
    Optimiser("sgd", 0.05),
    Optimiser("sgd", 0.05, momentum=0.9, weight_decay=1e-3),
    Optimiser("adam", 0.003, weight_decay=1e-3),
    Optimiser("adamw", 0.003, weight_decay=0.1, lr_decay=0.5, clip=0.1),
]


world = partial(executor_world, sizes=SIZES)


def agree(method, monkeypatch, within, **setting):
    states = [run(method, world(executor, monkeypatch, **setting)) for executor in ("sequential", "stacked")]
    assert difference(*states) < within


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=["sgd", "momentum", "adam", "adamw"])
def test_three_rounds_in_float64(optimiser, monkeypatch):
    agree(FedAvg(), monkeypatch, 1e-9, optimiser=optimiser, local_epochs=2)


def test_clients_that_do_a_part_of_their_epochs(monkeypatch):
    """As they would with so many epochs, also in what is logged of the last one."""

    def loss(model, batch, server_state, client_state):
        value = cross_entropy(model(batch.images), batch.labels)
        return value, {"last_epoch.size": value * 0 + len(batch.labels), "twice": 2 * value}

    ends = []
    for executor in ("sequential", "stacked"):
        w = world(executor, monkeypatch, batch_size=8, local_epochs=4, stragglers=0.5, failing=0.2).at(1)
        start = w.everyone(w.new_model())
        trained = w.local_epochs(start, loss)
        ends.append([trained.models, trained.losses, trained.logged, trained.last])
        for k in w.participants:
            options = LocalOptions(epochs=w.epochs_of(k))
            whole = dataclasses.replace(w, work=None).local_epochs(start, loss, options=options)
            close(trained.models[k], whole.models[k], 1e-9)
            close(trained.logged["last_epoch.size"][k], whole.logged["last_epoch.size"][k], 1e-9)
    assert difference(*ends) < 1e-9 and len({w.epochs_of(k) for k in w.participants}) > 1


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_the_loss_is_a_field_and_not_among_what_is_logged(executor, monkeypatch):
    def loss(model, batch, server_state, client_state):
        value = cross_entropy(model(batch.images), batch.labels)
        return value, {"twice": 2 * value}

    def step(model, batches, server_state, client_state):
        return model.params, client_state, {"loss": model(batches[0].images).mean()}

    w = world(executor, monkeypatch, sizes=(20, 0))
    trained, stepped = w.local_epochs(w.new_models(), loss), w.local_steps(w.new_models(), step)
    assert trained.logged.keys() == trained.last.keys() == {"twice"} and not stepped.logged
    assert trained.logged["twice"][0] == pytest.approx(2 * trained.losses[0], rel=1e-12)
    assert math.isfinite(stepped.losses[0]) and math.isnan(trained.losses[1])


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
    for executor in ("sequential", "stacked"):
        w = world(executor, monkeypatch, optimiser=optimiser)
        start = w.new_models()
        ends.append(w.local_epochs(start, loss).models)
        assert torch.equal(ends[-1][0]["head.weight"], start[0]["head.weight"])
        assert not torch.equal(ends[-1][0]["head.bias"], start[0]["head.bias"])
    assert difference(*ends) < 1e-9


@pytest.mark.parametrize("drop_last", [True, False])
def test_drop_last(drop_last, monkeypatch):
    agree(FedAvg(), monkeypatch, 1e-9, drop_last=drop_last, sizes=(20, 33, 7))


def test_what_a_loss_logs_is_averaged_per_client(monkeypatch):
    def loss(model, batch, server_state, client_state):
        value = cross_entropy(model(batch.images), batch.labels)
        return value, {"double": 2 * value, "one": torch.ones((), dtype=value.dtype)}

    logged, seconds = [], []
    for executor in ("sequential", "stacked"):
        w = world(executor, monkeypatch)
        trained = w.local_epochs(w.new_models(), loss)
        logged.append(trained.logged["double"])
        seconds.append(trained.last["double"])
        assert all(
            twice == pytest.approx(2 * one, nan_ok=True)
            for twice, one in zip(logged[-1].tolist(), trained.losses)
        )
        assert trained.logged["one"].isnan().tolist() == [n == 0 for n in SIZES]
    close(*logged, within=1e-5)
    close(*seconds, within=1e-5)
    one_batch = [k for k, n in enumerate(SIZES) if 0 < n <= 16]  # there the last batch is the mean
    close(seconds[0][one_batch], logged[0][one_batch], 1e-5)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("made up"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
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
    assert capsys.readouterr().err.count("stacks of 3 clients") == 1 and w.executor.most == 3
    assert sizes[:2] == [6, 6] and max(sizes[2:]) == 3  # once more without what earlier phases have kept


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
    assert w.executor.most is None and w.executor.cached != [saved] and not capsys.readouterr().err


def test_a_stack_of_one_that_does_not_fit_and_other_errors_end_the_run(monkeypatch):
    w = world("stacked", monkeypatch)
    for error in (torch.OutOfMemoryError("made up"), RuntimeError("size mismatch")):
        monkeypatch.setattr(Stack, "train", lambda self, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(RuntimeError, match=str(error)):
            run(FedAvg(), w, 1)


def test_an_unknown_executor_or_precision_is_named(monkeypatch):
    monkeypatch.setenv("FEDREPRO_EXECUTOR", "stackd")
    with pytest.raises(ParamError, match="FEDREPRO_EXECUTOR: unknown executor 'stackd' .nearest: 'stacked'"):
        image_world()
    monkeypatch.setenv("FEDREPRO_EXECUTOR", "")
    monkeypatch.setenv("FEDREPRO_PRECISION", "bf61")
    with pytest.raises(ParamError, match="FEDREPRO_PRECISION: unknown precision 'bf61'"):
        image_world()


@pytest.mark.parametrize("method, least, most", [(FedAvg(), 0, 1e-2), (PFedMe(), 1e-6, 0.05)])
def test_bf16_is_near_and_not_equal(method, least, most, monkeypatch):
    """Also in a method's steps."""
    exact = run(method, world("sequential", monkeypatch, dtype=torch.float32), 1)
    monkeypatch.setenv("FEDREPRO_PRECISION", "bf16")
    for executor in ("sequential", "stacked"):
        near = run(method, world(executor, monkeypatch, dtype=torch.float32), 1)
        assert least < difference(exact, near) < most
