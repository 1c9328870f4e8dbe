"""Worked numbers of the terms of FedMD, FedDF, FedMatch, RHFL, FCCL and FCCL+."""

import math

import pytest
import torch
import torch.nn.functional as F
from different import Z1, Z2, Z3, Z, numbers
from federation import close

from pipeline.engine.state import Params
from pipeline.losses import knowledge_distillation, weighted_distillation
from pipeline.methods.fccl import correlation_distance, cross_correlation
from pipeline.methods.fcclplus import (
    elastic_penalty,
    instance_similarity,
    non_target_distillation,
    similarity_distillation,
)
from pipeline.methods.fedmatch import (
    disjoint_penalty,
    inter_client_consistency,
    majority_labels,
    pseudo_label_loss,
)
from pipeline.methods.rhfl import confidence_weights, reverse_cross_entropy, symmetric_cross_entropy

DOUBLE = torch.float64
TOY, ZBAR = [Z1, Z2, Z3], Z.mean(0)
Y = torch.tensor([0, 1, 2, 0])
H1 = numbers([[1, 0], [1, 1], [0, 2], [3, 1]])  # their features
H2 = numbers([[1, 0, 1], [0, 1, 1], [2, 1, 0], [1, 1, 1]])
H3 = numbers([[0.5, 0.5], [1, 2], [2, 1], [0, 1]])


def gradient(loss, at):
    leaf = at.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


def test_feddf_of_the_toy_logits():
    close([knowledge_distillation(z, ZBAR) for z in TOY], [0.043328, 0.212533, 0.140444])
    close(knowledge_distillation(Z1, ZBAR, tau=2.0), 0.017461)
    close(gradient(lambda z: knowledge_distillation(z, ZBAR), Z1)[0], [0.002031, 0.004615, -0.006646])
    # Beyond 100 or so the logarithm of a softmax is -inf in float32; log_softmax is not.
    z = torch.tensor([[0.0, 200.0], [300.0, 0.0]]).requires_grad_()
    value = knowledge_distillation(z, torch.tensor([[200.0, 0.0], [300.0, 0.0]]))
    assert value.item() == pytest.approx(100.0) and torch.autograd.grad(value, z)[0].isfinite().all()
    teacher, z = ZBAR.clone().requires_grad_(), Z1.clone().requires_grad_()
    (
        knowledge_distillation(z, teacher)
        + non_target_distillation(z, teacher, Y)
        + non_target_distillation(z, teacher, Y, renormalise=True)
        + weighted_distillation(z, teacher[None], torch.ones(1))
    ).backward()
    assert teacher.grad is None and z.grad.abs().max() > 0


FIRST_W = [0.335424, 0.314247, 0.350329]


def col(k, weights, z=None):
    """L_col of client k in the toy federation."""
    weights = torch.tensor([0.0 if i == k else w for i, w in enumerate(weights)], dtype=DOUBLE)
    return weighted_distillation(TOY[k] if z is None else z, torch.stack(TOY), weights)


def test_hfl_and_rhfl_of_the_toy_logits():
    close([col(k, [0.5] * 3) for k in range(3)], [0.257000, 0.426732, 0.442064])
    close([col(k, FIRST_W) for k in range(3)], [0.167331, 0.294631, 0.282351])
    close(gradient(lambda z: col(0, [0.5] * 3, z), Z1)[0], [0.025600, -0.015032, -0.010568])


@pytest.mark.parametrize(
    "previous, current, weights",
    [
        ((1.2, 0.9, 1.5), (1.0, 0.8, 1.2), (0.335424, 0.314247, 0.350329)),
        ((1.0, 0.9, 1.5), (1.1, 0.8, 1.2), (0.233405, 0.341304, 0.425291)),
    ],
)
def test_confidence_weights_by_hand(previous, current, weights):
    close(weighed(previous, current), weights)


def weighed(previous, current, **options):
    return confidence_weights(numbers(previous), numbers(current), 0.5, **options)


def test_confidence_weights_at_their_ends():
    close(weighed([1.2, 2.4, 0.6], [1.0, 2.0, 0.5]), [1 / 3] * 3)
    close(weighed([1.0, 2.0, 0.5], [1.0, 2.0, 0.5]), [1 / 3] * 3)  # the sum of F is 0: nothing to divide by
    literal = weighed([1.0, 1.0, 1.0], [1.1, 1.5, 1.2])
    assert literal.argmax() == 1 and literal.argmin() == 0  # the client whose loss rises most weighs most
    close(weighed([1.0, 1.0, 1.0], [1.1, 1.5, 1.2], guarded=True), [1 / 3] * 3)
    # where losses fall the guard does nothing
    close(weighed([1.2, 0.9, 1.5], [1.0, 0.8, 1.2], guarded=True), FIRST_W)
    without = weighed([1.2, 1.0, 1.5], [1.0, 1.0, 1.2])
    close(weighed([1.2, math.nan, 1.5], [1.0, math.nan, 1.2]), without, 1e-5)


@pytest.mark.parametrize(
    "z, ce, rce, total", [(Z1, 0.339754, 2.555367, 2.589343), (Z2, 0.810026, 4.392743, 4.473746)]
)
def test_symmetric_cross_entropy_of_the_toy_logits(z, ce, rce, total):
    close(F.cross_entropy(z, Y), ce)
    close(reverse_cross_entropy(z, Y), rce)
    close(symmetric_cross_entropy(z, Y, alpha=0.1, beta=1.0), total)


def test_reverse_cross_entropy_at_its_ends():
    saturated, uniform = 1000 * F.one_hot(Y, 3).to(DOUBLE), torch.zeros(4, 3, dtype=DOUBLE)
    close(reverse_cross_entropy(saturated, Y), 2 * 1e-7 * 9.210340, within=1e-12)
    close(symmetric_cross_entropy(saturated, Y, 0.1, 1.0), 0.0, within=2e-6)
    close(reverse_cross_entropy(uniform, Y), 9.210340 * 2 / 3)
    close(reverse_cross_entropy(uniform.float(), Y), 9.210340 * 2 / 3)
    wanted = gradient(lambda z: 9.210340371976182 * (1 - F.softmax(z, 1)[range(4), Y]).mean(), Z2)
    close(gradient(lambda z: reverse_cross_entropy(z, Y), Z2), wanted, 1e-5)


LAM = 0.0051


def fccm(z, zbar=ZBAR, lam=LAM, off_target=-1.0, pearson=False):
    return correlation_distance(cross_correlation(z, zbar.detach(), pearson), lam, off_target)


def test_fccm_of_the_toy_logits():
    exact = cross_correlation(Z1, ZBAR, pearson=True)
    close(exact[0], [0.973729, -0.157872, -0.806675])
    close(exact[1], [-0.236164, 0.907294, -0.403608])
    close(exact[2], [-0.900699, -0.116688, 0.919496])
    close(cross_correlation(Z1, ZBAR), 0.75 * exact, 1e-5)
    close([fccm(z, pearson=True) for z in TOY], [0.028392, 0.354562, 0.095687])
    close([fccm(z) for z in TOY], [0.286649, 0.741866, 0.405491])
    close([fccm(Z1, off_target=0.0, pearson=True), fccm(Z1, off_target=0.0)], [0.024533, 0.276105])
    close(gradient(fccm, Z1)[0], [-0.022825, 0.072081, -0.047886])
    undetached = gradient(lambda z: correlation_distance(cross_correlation(z, (z + Z2 + Z3) / 3), LAM), Z1)
    close(undetached[0], [-0.015559, 0.046073, -0.020785])


def test_a_constant_column_correlates_with_nothing_and_a_batch_of_one_is_harmless():
    z = Z1.clone()
    z[:, 1] = 4.0
    assert cross_correlation(z, ZBAR)[1].tolist() == [0.0, 0.0, 0.0] and gradient(fccm, z).isfinite().all()
    assert fccm(Z1[:1], ZBAR[:1]).isfinite()
    assert gradient(lambda a: fccm(a, ZBAR[:1]), Z1[:1]).isfinite().all()


FEATURES = [H1, H2, H3]


def fisl(features, mu):
    together = torch.stack([instance_similarity(h, mu) for h in FEATURES]).mean(0)
    return similarity_distillation(instance_similarity(features, mu), together)


def test_fisl_of_the_toy_features():
    close(instance_similarity(H1, 0.5)[0], [1.414214, 0, 1.897367])
    together = torch.stack([instance_similarity(h, 0.5) for h in FEATURES]).mean(0)
    close(together[0], [1.437193, 1.054093, 1.648191])
    close([fisl(h, 0.5) for h in FEATURES], [0.065867, 0.047036, 0.048417])
    close([fisl(h, 0.02) for h in FEATURES], [0.714222, 5.701085, 5.841970])
    got = gradient(lambda h: similarity_distillation(instance_similarity(h, 0.5), together), H1)
    close(got[0], [0, -0.134539])
    close(got[1], [-0.049227, 0.049227])
    # A genuine 0 stays, which the selection S != 0 of Eq. 4 would lose.
    cosines = F.normalize(H2, dim=1) @ F.normalize(H2, dim=1).T
    wanted = torch.stack([torch.cat([row[:b], row[b + 1 :]]) for b, row in enumerate(cosines)]) / 0.3
    close(instance_similarity(H2, 0.3), wanted, 1e-5)
    assert instance_similarity(H1, 0.5)[0, 1] == 0 and instance_similarity(H1, 0.5).shape == (4, 3)


@pytest.mark.parametrize(
    "student, teacher, tau, kd, plain, renormalised",
    [
        (Z1, Z2, 1.0, 0.353010, 0.460326, 0.186682),
        (Z1, Z2, 3.0, 0.437672, 0.953548, 0.201108),
        (Z2, Z1, 1.0, 0.292712, -0.031824, None),
        (Z2, Z1, 3.0, 0.422202, -0.460222, 0.199744),
    ],
)
def test_fntd_of_the_toy_logits(student, teacher, tau, kd, plain, renormalised):
    close(tau**2 * knowledge_distillation(student, teacher, tau), kd)
    close(tau**2 * non_target_distillation(student, teacher, Y, tau), plain)
    if renormalised is not None:
        close(tau**2 * non_target_distillation(student, teacher, Y, tau, renormalise=True), renormalised)


def test_fntd_pushes_the_target_down_and_the_rest_as_derived():
    tau, b = 3.0, 4
    s, t = F.softmax(Z1 / tau, 1), F.softmax(Z2 / tau, 1)
    target, at = F.one_hot(Y, 3).bool(), t[range(4), Y][:, None]
    wanted = torch.where(target, s * (1 - at), s * (1 - at) - t) * tau / b
    got = gradient(lambda z: tau**2 * non_target_distillation(z, Z2, Y, tau), Z1)
    close(got, wanted, 1e-5)
    assert (got[target] > 0).all()
    assert gradient(lambda z: non_target_distillation(z, Z2, Y, tau, True), Z1)[target].abs().max() == 0


@pytest.mark.parametrize("renormalise", [False, True])
def test_fntd_of_logits_far_apart_stays_finite(renormalise):
    z, t = torch.tensor([[500.0, 0.0, -500.0]]), torch.tensor([[-500.0, 500.0, 0.0]])
    at = torch.tensor([0])
    for tau in (1.0, 0.5):
        slope = gradient(lambda a, tau=tau: non_target_distillation(a, t, at, tau, renormalise), z)
        assert slope.isfinite().all()


def test_elastic_penalty_by_hand():
    values = (1, 2, 3), (1, 1.5, 2), (0.2, 0.4, 0.1)
    at, anchor, information = (Params(w=numbers(v)) for v in values)
    close(0.7 * elastic_penalty(at, anchor, information), 0.140000)


def test_losses_of_the_local_phase_run_under_vmap():
    """The stacked executor's; a batch of clients gives what each gives alone."""
    z, t = torch.stack([Z1, Z2]), torch.stack([Z2, Z1])

    def all_terms(z, t):
        return (
            knowledge_distillation(z, t, 3.0)
            + non_target_distillation(z, t, Y, 3.0)
            + non_target_distillation(z, t, Y, 3.0, True)
            + symmetric_cross_entropy(z, Y, 0.1, 1.0)
        )

    together = torch.func.vmap(torch.func.grad(all_terms))(z, t)
    for k in range(2):
        close(together[k], gradient(lambda a, k=k: all_terms(a, t[k]), z[k]), 1e-5)


LOCAL, HELPERS, HARD = F.softmax(3 * Z1, 1), torch.stack([F.softmax(3 * Z2, 1), F.softmax(3 * Z3, 1)]), 2 * Z2
ALL, NONE = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)


def test_fedmatch_of_the_toy_logits():
    close(LOCAL.amax(1), [0.997405, 0.942599, 0.997405, 0.815921])
    assert (LOCAL.amax(1) >= 0.75).all()
    consistency = inter_client_consistency(LOCAL, HELPERS, ALL)
    close(consistency, 0.765480)
    labels = majority_labels(LOCAL, HELPERS)
    assert labels.tolist() == [0, 1, 2, 0]
    close(0.01 * consistency + 0.01 * pseudo_label_loss(HARD, labels, ALL), 0.016348)
    sigma = Params(w=torch.tensor([1.0, 2, -1], dtype=DOUBLE))
    psi = Params(w=torch.tensor([0.2, 0.4, -0.2], dtype=DOUBLE))
    close(disjoint_penalty(sigma, psi, l1=1e-4, l2=10.0), 38.400080)


def test_without_confident_samples_or_helpers_terms_are_zero():
    assert not inter_client_consistency(LOCAL, HELPERS, NONE) and not pseudo_label_loss(HARD, Y, NONE)
    assert gradient(lambda z: pseudo_label_loss(z, Y, NONE), HARD).abs().max() == 0
    some = torch.tensor([True, False, True, False])
    alone = inter_client_consistency(LOCAL[some], HELPERS[:, some], ALL[some])
    close(inter_client_consistency(LOCAL, HELPERS, some), alone, 1e-5)
    close(pseudo_label_loss(HARD, Y, some), F.cross_entropy(HARD[some], Y[some]), 1e-5)
    close(inter_client_consistency(LOCAL, torch.stack([LOCAL, LOCAL]), ALL), 0.0)
    assert inter_client_consistency(LOCAL, HELPERS[:0], ALL).item() == 0.0
    assert majority_labels(LOCAL, HELPERS[:0]).tolist() == LOCAL.argmax(1).tolist()
    one = torch.eye(3, dtype=DOUBLE)
    assert majority_labels(one[[2]], one[[1]][None]).tolist() == [1]
    assert majority_labels(one[[2]], torch.stack([one[[1]], one[[0]]])).tolist() == [0]
    assert majority_labels(one[[0]], torch.stack([one[[2]], one[[2]]])).tolist() == [2]
