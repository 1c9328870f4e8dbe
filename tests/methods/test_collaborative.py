"""What the methods share that distil on public data: starts, averages, rates, what is sent."""

from types import SimpleNamespace

import pytest
import torch
from all_methods import name, of, small_world
from federation import close, run, same, training
from public_data import alike, home, same_parameters
from tiny import Z1, ZBAR

from pipeline.engine.state import Clients
from pipeline.losses import knowledge_distillation, weighted_distillation
from pipeline.methods.aughfl import AugHFL
from pipeline.methods.fccl import FCCL
from pipeline.methods.fcclplus import FCCLPlus, non_target_distillation
from pipeline.methods.feddf import FedDF
from pipeline.methods.fedmatch import FedMatch
from pipeline.methods.fedmd import FedMD
from pipeline.methods.ktpfl import KTpFL
from pipeline.methods.rahfl import RAHFL
from pipeline.methods.rhfl import RHFL
from pipeline.schema import Model, Optimiser

ALIKE = [FedMD(), FedMD(distance="mse"), FedDF(), FCCLPlus(fccm=False), RHFL()]
ALIKE += [FedMatch(decomposed=False, kappa=1.0)]


@pytest.mark.parametrize("method", ALIKE, ids=name)
@pytest.mark.parametrize("clients", [1, 2])
def test_a_client_alone_and_equal_clients_have_nothing_to_agree_on(method, clients, monkeypatch):
    """Only weight decay (FedDF's SGD) moves them, and BatchNorm's statistics. (Of three equal numbers the
    mean is rounded, and a new Adam would make a step of that.)"""
    world = alike(monkeypatch, sizes=(12, 7, 9)[:clients])
    state = method.init(alike(monkeypatch, sizes=(12, 7, 9)[:clients], averaging="uniform"))
    after = method.collaborate(method.before_round(state, world), world)
    assert same_parameters(after, state.models, 1e-6 if isinstance(method, FedDF) else 1e-8)
    moved = next(n for n in after[0] if n.endswith("running_mean"))
    assert not torch.equal(after[0][moved], state.models[0][moved])


AVERAGED = [*map(of, "fedmd feddf fedmatch rhfl fccl fcclplus".split())]


@pytest.mark.parametrize("method", AVERAGED, ids=name)
def test_models_are_averaged_between_the_phases(method, monkeypatch):
    world = alike(monkeypatch, averaging="uniform")
    state, after, calls, _ = home(method, monkeypatch, 2, world)
    starts = calls[-1][0]
    assert same(starts[0], starts[1])
    assert same(starts[1], starts[2])
    assert not same(after.models[0], after.models[1])  # each scores its model
    if "client_state" in calls[-1][2] and calls[-1][2]["client_state"] is not None:
        assert same(calls[-1][2]["client_state"]["previous"], state.models)  # teachers stay per client


STARTS = "fedmd feddf fedmatch rhfl fcclplus ktpfl aughfl rahfl local".split()


@pytest.mark.parametrize("method", [*map(of, STARTS), of("fedproto_hetero", space="features")], ids=name)
def test_clients_of_one_network_draw_their_where_no_model_is_shared(method, monkeypatch):
    """RAHFL, Figure 4, as its code's init_nets; FCCL+, Table 15, averages and has one start."""
    separate, averaged = (method.init(alike(monkeypatch, averaging=how)).models for how in (None, "uniform"))
    assert not any(same_parameters([separate[i]], [separate[j]]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert same(averaged[0], averaged[1])
    assert same(averaged[1], averaged[2])


@pytest.mark.parametrize("method", [FCCL(pretraining=1), FCCLPlus(local="fccl", pretraining=1)], ids=name)
def test_each_pretrains_a_separate_network(method, monkeypatch):
    def begun(how):
        seen, world = [], alike(monkeypatch, averaging=how)

        def watched_run(phase):
            seen.append(phase)
            return world.executor.run(phase)

        method.init(world.at(0, SimpleNamespace(run=watched_run)))
        return seen[0].models

    separate, common = begun(None), begun("uniform")
    assert not same_parameters([separate[0]], [separate[1]])
    assert same(common, Clients([common[0]] * 3))


SHARED = [*map(of, ("fedper", "lgfedavg", "ditto", "fedavg")), of("feddf", form="original")]


@pytest.mark.parametrize("method", SHARED, ids=name)
def test_methods_with_a_model_at_the_server_start_from_one(method, monkeypatch):
    world = alike(monkeypatch, "plain")
    models = method.deployed(method.init(world), world)
    assert same(models, Clients([models[0]] * 3))
    assert same(models[0], world.new_model())


Y = torch.tensor([0, 1, 2, 0])


ADAM = Optimiser("adam", 1e-3, weight_decay=1e-5)


def in_round(number, **changes):
    """As much of a world as an optimiser is chosen by."""
    return SimpleNamespace(training=training(optimiser=ADAM, **changes), round=number)


def rate(schedule, r):
    """The rate of public and of private steps in round r + 1 of 40."""
    world, method = in_round(r + 1, rounds=40), FedMD(schedule=schedule)
    rates = {method.batch_optimiser(world).lr, method.local_options(world).optimiser.lr}
    assert rates == {method.rate(world)}
    return method.rate(world)


def test_the_released_rate_decays_as_in_the_code_of_fcclplus():
    """lr0 = 1e-3, E = 40."""
    rates = [rate("release", r) for r in (0, 1, 2, 20, 39)]
    close(rates, [0.001, 0.001, 0.0009775, 0.0005725, 0.000145], 1e-12)


def test_a_constant_rate_is_the_scenarios():
    assert {rate("constant", r) for r in range(40)} == {0.001}


def test_public_steps_by_adam_have_no_decay_and_private_ones_the_scenarios():
    assert FCCL().batch_optimiser(in_round(1)) == Optimiser("adam", 1e-3)
    assert FCCL().local_options(in_round(1)).optimiser == ADAM


def test_public_steps_by_sgd_have_the_decay_of_the_released_code():
    assert FedDF().batch_optimiser(in_round(1)) == Optimiser("sgd", 1e-3, weight_decay=1e-5)
    assert FedDF(public_optimiser="adam").batch_optimiser(in_round(1)) == Optimiser("adam", 1e-3)


def test_teachers_get_no_gradient_and_students_do():
    teacher, z = ZBAR.clone().requires_grad_(), Z1.clone().requires_grad_()
    (
        knowledge_distillation(z, teacher)
        + non_target_distillation(z, teacher, Y)
        + non_target_distillation(z, teacher, Y, renormalise=True)
        + weighted_distillation(z, teacher[None], torch.ones(1))
    ).backward()
    assert teacher.grad is None
    assert z.grad.abs().max() > 0


@pytest.mark.parametrize("method", [KTpFL(), AugHFL(), RAHFL()], ids=lambda method: type(method).__name__)
def test_one_network_for_all_is_averaged_where_the_scenario_says_so(method):
    w = small_world((20, 12), [Model("cnn2")] * 2, averaging="uniform", local_epochs=0)
    models = run(method, w, 1).models
    assert same(models[0], models[1])


def test_where_models_are_averaged_they_are_sent():
    w = small_world((20, 12), [Model("cnn2")] * 2, averaging="uniform", local_epochs=0)
    assert KTpFL().traffic(w)[0] == 400 + w.scalars()
