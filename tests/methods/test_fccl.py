"""FCCL: cross-correlation on public data, two teachers at home."""

import pytest
import torch
import torch.nn.functional as F
from all_methods import name
from federation import close, run, same
from public_data import (
    B512,
    adam,
    collaborates_as,
    costs,
    fccm_by_hand,
    federation,
    home,
    kl,
    modules,
    sgd,
    three,
    zbar,
)
from tiny import TOY, Z1, ZBAR, gradient

from pipeline.engine.phase import LocalOptions
from pipeline.engine.state import Params
from pipeline.methods.fccl import FCCL, correlation_distance, cross_correlation
from pipeline.methods.local import Local

CASES = [
    (
        FCCL(pretraining=1, public_optimiser="sgd"),
        lambda k, zs, hs, answers: fccm_by_hand(zs[k], zbar(answers)),
        sgd,
        1,
    ),
]


@pytest.mark.parametrize("method, loss, optimiser, forwards", CASES, ids=[name(case[0]) for case in CASES])
def test_public_phase_as_written_out(method, loss, optimiser, forwards, monkeypatch):
    collaborates_as(method, loss, optimiser, forwards, monkeypatch)


def test_the_conference_consensus_has_a_share_from_last_rounds_model(monkeypatch):
    world = federation(monkeypatch, (12, 7, 9), ["bn", "plain", "bn"])
    method = FCCL(pretraining=1, consensus="conference")
    state = method.init(world)
    batch, seen = next(world.public_batches()), []
    world.collaborate(
        state.models,
        batch,
        method.client_output,
        lambda answers: seen.extend(answers) or method.aggregate(answers, state, world),
        method.distillation_loss,
        client_state=method.client_state(state, world),
    )
    nets = [net.eval() for net in modules(world, state.models)]
    for k, received in enumerate(method.aggregate(seen, state, world)):
        others = sum(seen[j]["sent"] for j in range(3) if j != k)
        close(received, (others + nets[k](batch.images)) / 3, 1e-5)


def fccm(z, zbar=ZBAR, off_target=-1.0, pearson=False):
    return correlation_distance(cross_correlation(z, zbar.detach(), pearson), 0.0051, off_target)


def test_fccm_of_the_toy_logits():
    close([fccm(z) for z in TOY], [0.286649, 0.741866, 0.405491])


def test_fccm_of_pearsons_correlation():
    close([fccm(z, pearson=True) for z in TOY], [0.028392, 0.354562, 0.095687])


def test_fccm_towards_zero_off_the_diagonal():
    close([fccm(Z1, off_target=0.0, pearson=True), fccm(Z1, off_target=0.0)], [0.024533, 0.276105])


def test_a_constant_column_correlates_with_nothing():
    z = Z1.clone()
    z[:, 1] = 4.0
    assert cross_correlation(z, ZBAR)[1].tolist() == [0.0, 0.0, 0.0]
    assert gradient(fccm, z).isfinite().all()


def test_a_batch_of_one_is_harmless():
    assert fccm(Z1[:1], ZBAR[:1]).isfinite()
    assert gradient(lambda a: fccm(a, ZBAR[:1]), Z1[:1]).isfinite().all()


def test_fccl_starts_from_theta_star_and_keeps_it(monkeypatch):
    world = three(monkeypatch).at(0)
    options = LocalOptions(epochs=3, stream="pretraining")
    alone = world.local_epochs(world.new_models(), Local().loss, options=options).models
    assert same(FCCL(pretraining=3).init(world).models, alone)
    state = run(FCCL(pretraining=3), world, 3)
    assert same(state.pretrained, alone)
    assert not same(state.models, alone)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_local_phase_of_fccl_as_written_out(mode, monkeypatch):
    """One client with BatchNorm, one batch: CE and two teachers, with statistics of the batch or running."""
    world = federation(monkeypatch, (4, 4), ["bn", "plain"])
    method = FCCL(pretraining=1, teacher_mode=mode)
    state, after, calls, _ = home(method, monkeypatch, 2, world)
    x, y = world.clients[0].images, world.clients[0].labels
    student, before, alone = (
        modules(world, models)[0] for models in (calls[-1][0], state.models, state.pretrained)
    )
    for teacher in (before, alone):
        teacher.train(mode == "train")
    z = student(x)
    with torch.no_grad():
        taught = before(x), alone(x)
    (F.cross_entropy(z, y) + kl(taught[0], z) + kl(taught[1], z)).backward()
    adam(student.parameters()).step()
    close(after.models[0], Params((n, v.detach()) for n, v in student.state_dict().items()), 1e-8)


def test_it_sends_the_logits_of_all_public_images():
    assert costs(FCCL(), B512) == (50_000, 50_000)
