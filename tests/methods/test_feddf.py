"""FedDF: distillation from the mean of all logits, at the clients or at the server."""

import math

import pytest
import torch
from all_methods import name
from federation import close, run, same
from public_data import B512, adam, alike, collaborates_as, costs, federation, kl, modules, sgd, zbar
from tiny import TOY, Z1, ZBAR

from pipeline.engine.state import Clients, Params
from pipeline.losses import knowledge_distillation
from pipeline.methods import feddf
from pipeline.methods.feddf import FedDF
from pipeline.methods.local import Local

CASES = [
    (FedDF(), lambda k, zs, hs, answers: kl(zbar(answers), zs[k]), sgd, 2),
    (
        FedDF(public_optimiser="adam", second_forward=False),
        lambda k, zs, hs, answers: kl(zbar(answers), zs[k]),
        adam,
        1,
    ),
]


@pytest.mark.parametrize("method, loss, optimiser, forwards", CASES, ids=[name(case[0]) for case in CASES])
def test_public_phase_as_written_out(method, loss, optimiser, forwards, monkeypatch):
    collaborates_as(method, loss, optimiser, forwards, monkeypatch)


def test_distillation_of_the_toy_logits():
    close([knowledge_distillation(z, ZBAR) for z in TOY], [0.043328, 0.212533, 0.140444])
    close(knowledge_distillation(Z1, ZBAR, tau=2.0), 0.017461)


def test_logits_far_apart_have_a_finite_distillation():
    """Beyond 100 or so the logarithm of a softmax is -inf in float32; log_softmax is not."""
    z = torch.tensor([[0.0, 200.0], [300.0, 0.0]]).requires_grad_()
    value = knowledge_distillation(z, torch.tensor([[200.0, 0.0], [300.0, 0.0]]))
    assert value.item() == pytest.approx(100.0)
    assert torch.autograd.grad(value, z)[0].isfinite().all()


def test_the_server_form_gives_one_model_per_architecture(monkeypatch):
    world = federation(monkeypatch, (12, 7, 9, 5), ["bn", "plain", "bn", "plain"])
    method = FedDF(form="original", server_steps=5)
    state = run(method, world, 1)
    assert same(state.models[0], state.models[2])
    assert same(state.models[1], state.models[3])
    assert same(method.deployed(state, world), state.models)


def test_the_server_form_is_scored_before_local_training():
    assert FedDF(form="original").headline == "pre"


@pytest.mark.parametrize("weighted, weights", [(True, (12, 4)), (False, (1, 1))])
def test_the_server_form_comes_nearer_to_the_ensemble_than_the_average(weighted, weights, monkeypatch):
    world = federation(monkeypatch, (12, 4), ["plain", "plain"], local_epochs=30)
    method = FedDF(form="original", server_steps=60, weighted=weighted)
    models = world.local_epochs(world.new_models(), Local().loss).models
    nets = [net.eval() for net in modules(world, models)]
    average = averaged(world, models, weights)
    student = modules(world, method.fuse(models, models, world))[0]
    with torch.no_grad():
        ensemble = sum(net(world.public_images) for net in nets) / 2
        assert kl(ensemble, student(world.public_images)) < 0.9 * kl(ensemble, average(world.public_images))


@pytest.mark.parametrize("weighted, weights", [(True, (12, 4)), (False, (1, 1))])
def test_the_server_form_begins_with_the_average(weighted, weights, monkeypatch):
    """After one step of Adam at 1e-3."""
    world = federation(monkeypatch, (12, 4), ["plain", "plain"], local_epochs=30)
    models = world.local_epochs(world.new_models(), Local().loss).models
    one_step = FedDF(form="original", server_steps=1, weighted=weighted).fuse(models, models, world)[0]
    for n, p in averaged(world, models, weights).named_parameters():
        assert (one_step[n] - p).abs().max() <= 1e-3 * 1.001


def averaged(world, models, weights):
    """The module of the two clients' average."""
    mean = {n: (weights[0] * v + weights[1] * models[1][n]) / sum(weights) for n, v in models[0].items()}
    return modules(world, [mean] * 2)[0]


def distilled(world, models, start, steps):
    """The server form written out: the student of the first architecture after some steps of Adam, whose
    rate falls along half a cosine, on gradients that are cut to length 5."""
    teachers, student = [net.eval() for net in modules(world, models)], modules(world, [start])[0]
    adam, done = torch.optim.Adam(student.parameters()), 0
    while done < steps:
        for images, _ in world.public_batches():
            if done == steps:
                break
            with torch.no_grad():
                ensemble = sum(net(images) for net in teachers) / len(teachers)
            adam.zero_grad()
            kl(ensemble, student(images)).backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 5.0)
            adam.param_groups[0]["lr"] = 1e-3 * (1 + math.cos(math.pi * done / steps)) / 2
            adam.step()
            done += 1
    return Params((n, v.detach()) for n, v in student.state_dict().items())


def test_the_server_form_as_written_out(monkeypatch):
    """Two networks, of which the first has BatchNorm: the student in train, the teachers in eval mode."""
    world = federation(monkeypatch, (12, 7, 9), ["bn", "plain", "bn"])
    models = world.new_models(individual=True)
    start = {n: (12 * v + 9 * models[2][n]) / 21 for n, v in models[0].items() if v.is_floating_point()}
    start |= {n: v for n, v in models[0].items() if not v.is_floating_point()}
    fused = FedDF(form="original", server_steps=7).fuse(models, models, world)
    close(fused[0], distilled(world, models, start, 7), 1e-8)


def test_the_server_cuts_long_gradients(monkeypatch):
    """Large weights, whose gradients are 5 to 15 long. Adam does not see the length of all, but that of one
    among others."""
    world = federation(monkeypatch, (12, 9), ["plain", "plain"])
    models = world.new_models(individual=True)
    loud = Clients(Params((n, (100 if n in m.head else 20) * v) for n, v in m.items()) for m in models)
    start = {n: (12 * v + 9 * loud[1][n]) / 21 for n, v in loud[0].items()}
    wanted = distilled(world, loud, start, 6)
    close(FedDF(form="original", server_steps=6).fuse(loud, loud, world)[0], wanted, 1e-8)
    monkeypatch.setattr(feddf, "LONGEST_GRADIENT", 1e9)
    assert not same(FedDF(form="original", server_steps=6).fuse(loud, loud, world)[0], wanted, 1e-6)


def test_it_sends_the_logits_of_all_public_images():
    assert costs(FedDF(), B512) == (50_000, 50_000)


def test_the_server_form_sends_models(monkeypatch):
    world = alike(monkeypatch)
    assert FedDF(form="original").traffic(world) == (world.scalars(), world.scalars())
