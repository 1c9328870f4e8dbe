"""KT-pFL, FedProto with different networks, AugHFL and RAHFL: worked numbers and identities, and small
federations."""

import dataclasses
import io
import math

import pytest
import torch
import torch.nn.functional as F
from federation import equal, image_clients, tiny_world, training
from torch import nn

from pipeline.engine.handle import Batch
from pipeline.engine.state import Clients, Params, State, pack, unpack
from pipeline.engine.world import World
from pipeline.errors import ParamError, TrainingError
from pipeline.losses import consistent_cross_entropy, jensen_shannon
from pipeline.methods import aughfl, load, rahfl
from pipeline.methods.aughfl import AugHFL, firmness_weights, released_loss
from pipeline.methods.fedproto_hetero import FedProtoHetero
from pipeline.methods.ktpfl import (
    KTpFL,
    gradient,
    objective,
    onto_rows,
    released_coefficients,
    stepped_coefficients,
)
from pipeline.methods.local import Local
from pipeline.methods.rahfl import RAHFL, supervised_contrast, transfer_matrix, view_distillation
from pipeline.models import Network
from pipeline.prototypes import prototype_distance
from pipeline.schema import Model, Optimiser, Public


def numbers(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(values) -> torch.Tensor:
    return F.normalize(numbers(values), dim=1)


def near(found, wanted, within=1e-6) -> None:
    found, wanted = (torch.as_tensor(values, dtype=torch.float64) for values in (found, wanted))
    torch.testing.assert_close(found, wanted, atol=within, rtol=0)


# logits of three clients, and features of three views
Z = numbers(
    [
        [[2, 0, -1], [0.5, 1.5, 0], [-1, 0, 2], [1, -1, 0.5]],
        [[1, 0.5, -0.5], [0, 2, -1], [0.5, -0.5, 1], [0, 1, 1]],
        [[3, -1, 0], [1, 1, -1], [0, 0.5, 1.5], [2, -0.5, -1]],
    ]
)
Z1, Z2, Z3 = Z
X, WEAK, STRONG = (
    rows([[1, 0], [0, 1], [1, 1], [2, 1]]),
    rows([[1, 0.2], [0.1, 1], [1, 2], [1, 0]]),
    rows([[1, 1], [-1, 1], [0, 1], [1, -1]]),
)
Y = torch.tensor([0, 1, 0, 1])
HFL = [0.257000, 0.426732, 0.442064]


# -- views: Jensen-Shannon -----------------------------------------------------------------------------------


def test_jensen_shannon_and_its_gradients():
    near(jensen_shannon(Z1, Z2, Z3), 0.111246)
    near(jensen_shannon(Z1, Z1, Z2), 0.068140)
    views = [z.clone().requires_grad_() for z in Z]
    found = torch.autograd.grad(jensen_shannon(*views), views)
    near(
        torch.stack([g[0] for g in found]),
        [[0.004859, -0.003008, -0.001850], [-0.021843, 0.017547, 0.004296], [0.005365, -0.003310, -0.002055]],
    )


def test_jensen_shannon_of_equal_views_is_zero_and_it_has_a_bound():
    near(jensen_shannon(Z1, Z1, Z1), 0.0, 1e-12)
    apart = [1e4 * F.one_hot(torch.full((2,), c), 3).double().requires_grad_() for c in range(3)]
    value = jensen_shannon(*apart)
    near(value, math.log(3))
    assert value <= math.log(3) + 1e-9
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, apart))


def test_cross_entropy_is_of_the_plain_view_alone():
    labels = torch.tensor([0, 1, 2, 0])
    stacked = torch.cat([Z1, Z2, Z3])
    near(consistent_cross_entropy(stacked, labels, 12.0), 0.339754 + 12 * jensen_shannon(Z1, Z2, Z3))
    near(consistent_cross_entropy(stacked, labels, 0.0), 0.339754)


# -- views: contrast and distillation ------------------------------------------------------------------------


def test_supervised_contrast_of_two_views():
    two = torch.cat([X, WEAK])
    near(supervised_contrast(two, Y, 0.2), 2.870458)
    near(RAHFL().contrasted(two, Y), 8.201308)
    # Eq. 5: a sum over the 2B anchors
    near(RAHFL(contrast_form="paper").contrasted(two, Y), 8 * 2.870458, 8e-6)
    near(supervised_contrast(torch.cat([X, STRONG]), Y, 0.2), 3.888150)
    near(RAHFL().contrasted(torch.cat([X, STRONG]), Y), 11.109001)


def test_with_distinct_labels_the_only_positive_is_the_other_view():
    z, tau, terms = torch.cat([X, WEAK]), 0.2, []
    for i in range(8):
        others = [a for a in range(8) if a != i]
        scores = torch.stack([z[i] @ z[a] / tau for a in others])
        terms.append(-(z[i] @ z[(i + 4) % 8] / tau - scores.logsumexp(0)))
    near(supervised_contrast(z, torch.arange(4), tau), torch.stack(terms).mean(), 1e-12)


def test_distillation_between_views():
    near(view_distillation(X, WEAK, STRONG, 0.2), 0.803596)
    near(view_distillation(X, WEAK, STRONG, 0.2, "paper"), 0.439980)
    near(RAHFL(distillation_form="paper").distilled(X, WEAK, STRONG), 1.759919)
    near(RAHFL().contrasted(torch.cat([X, WEAK]), Y) + RAHFL().distilled(X, WEAK, STRONG), 9.004904)


def test_only_the_soft_target_is_a_constant():
    views = [z.clone().requires_grad_() for z in (X, WEAK, STRONG)]
    found = torch.autograd.grad(view_distillation(*views, 0.2), views)
    near(
        torch.stack([g[0] for g in found]),
        [[-0.194224, -0.594009], [-0.733462, -0.288729], [-0.445821, 1.598143]],
    )


def test_the_papers_form_to_the_letter():
    """Sums of Eq. 6 to 8 with x''_i left out, by hand."""
    members, total = torch.cat([WEAK, X]), 0.0
    for i in range(4):
        others = [a for a in range(8) if a != i]
        q, s = (
            F.softmax(torch.stack([z[i] @ members[a] / 0.2 for a in others]), dim=0) for z in (WEAK, STRONG)
        )
        total += (q * (q / s).log()).sum() / 4
    near(view_distillation(X, WEAK, STRONG, 0.2, "paper"), total, 1e-12)


@pytest.mark.parametrize("form", ["code", "paper"])
def test_a_strong_view_like_the_weak_one_has_nothing_to_learn(form):
    near(view_distillation(X, WEAK, WEAK, 0.2, form), 0.0, 1e-8)  # code: -O(1e-9 * 2B)


@pytest.mark.parametrize("form", ["code", "paper"])
def test_rotated_features_give_the_same_terms(form):
    turn = numbers([[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]])
    near(
        supervised_contrast(torch.cat([X, WEAK]) @ turn, Y, 0.2),
        supervised_contrast(torch.cat([X, WEAK]), Y, 0.2),
        1e-12,
    )
    near(
        view_distillation(X @ turn, WEAK @ turn, STRONG @ turn, 0.2, form),
        view_distillation(X, WEAK, STRONG, 0.2, form),
        1e-12,
    )


@pytest.mark.parametrize("form", ["code", "paper"])
def test_one_image_has_finite_terms(form):
    z = [x[:1].clone().requires_grad_() for x in (X, WEAK, STRONG)]
    near(supervised_contrast(torch.cat([X[:1], WEAK[:1]]), Y[:1], 0.2).detach(), 0.0, 1e-12)
    value = view_distillation(*z, 0.2, form) + supervised_contrast(torch.cat(z[:2]), Y[:1], 0.2)
    assert value.isfinite() and all(g.isfinite().all() for g in torch.autograd.grad(value, z))


# -- RAHFL: the local loss -----------------------------------------------------------------------------------


class Pictured:
    """A model whose features are its images and whose logits are twice these."""

    def features(self, images):
        return images

    def __call__(self, images):
        return 2 * images


SEEN = Batch(3 * X, Y, (STRONG, X, 5 * WEAK))  # lengths do not matter: features are scaled


def local_loss(**options) -> torch.Tensor:
    return RAHFL(**options).loss(Pictured(), SEEN, None, None)


def test_the_local_loss_is_the_sum_of_its_terms():
    fit = F.cross_entropy(6 * X, Y) + 12 * jensen_shannon(6 * X, 2 * STRONG, 2 * X)
    near(local_loss(), fit + 9.004904)
    near(local_loss(gamma=0.0), fit + 8.201308)
    near(local_loss(gamma=2.0), fit + 8.201308 + 2 * 0.803596, 2e-6)
    near(local_loss(contrast="supcon"), fit + 11.109001)
    near(local_loss(contrast="none"), fit)
    near(local_loss(mu=0.0, contrast="none"), F.cross_entropy(6 * X, Y))
    near(local_loss(augmix=False, contrast="none"), F.cross_entropy(6 * X, Y))
    near(local_loss(contrast_form="paper", distillation_form="paper"), fit + 8 * 2.870458 + 1.759919, 1e-5)


def test_a_contrast_without_augmix_is_refused_by_name():
    with pytest.raises(
        ParamError, match="rows: contrast: dcl compares AugMix views, so it needs augmix: true"
    ):
        load("rahfl", {"augmix": False}, "rows")


def test_views_are_made_of_one_plain_view(monkeypatch):
    pixels, calls = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8), []
    monkeypatch.setattr(rahfl, "plain", lambda images, g: images // 2)
    monkeypatch.setattr(rahfl, "augmix", lambda images, g: calls.append(images) or images + len(calls))
    monkeypatch.setattr(rahfl, "simple", lambda images, g: images)
    x, first, second, weak = RAHFL().views(pixels, torch.Generator())
    assert (
        torch.equal(x, pixels // 2)
        and torch.equal(first, x + 1)
        and torch.equal(second, x + 2)
        and torch.equal(weak, pixels)
    )
    assert all(call is x for call in calls)
    assert len(RAHFL(contrast="supcon").views(pixels, torch.Generator())) == 3


def test_aughfl_takes_nine_operations_or_all(monkeypatch):
    asked = []
    monkeypatch.setattr(aughfl, "augmix", lambda images, g, operations: asked.append(operations) or images)
    pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    assert len(AugHFL().views(pixels, torch.Generator().manual_seed(0))) == 3
    AugHFL(operations="all").mixed(pixels, torch.Generator())
    assert asked == ["nine", "nine", "all", "all"]


# -- RAHFL: who learns from whom -----------------------------------------------------------------------------


def collaborative(method, state=None, logits=Z) -> list[float]:
    """Every client's loss on one public batch; 0 where it takes no step."""
    received = method.aggregate(list(logits), state, None)
    return [
        0.0 if r is None else float(method.distillation_loss(z, r, None))
        for z, r in zip(logits, received, strict=True)
    ]


def after(*accuracies) -> State:
    return State(matrix=transfer_matrix(numbers(accuracies)))


def test_those_at_least_as_accurate_teach():
    assert transfer_matrix(numbers([60, 70, 65])).tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]
    near(collaborative(RAHFL(), after(60, 70, 65)), [0.257000, 0, 0.670834])
    near(collaborative(RAHFL(), after(70, 60, 65)), [0, 0.426732, 0.213294])
    near(collaborative(RAHFL(), after(65, 65, 65)), HFL)  # equals teach each other: HFL
    near(collaborative(RAHFL(asymmetric=False)), HFL)
    near([2 * collaborative(RAHFL(), after(60, 70, 65))[0]], [0.513999])  # Eq. 13 has no 1 / m_k


def test_a_client_without_accuracy_neither_learns_nor_teaches():
    assert transfer_matrix(numbers([0.5, math.nan, 0.4])).tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_the_gradient_is_that_of_the_averaged_target():
    z = Z1.clone().requires_grad_()
    received = RAHFL(asymmetric=False).aggregate(list(Z), None, None)
    (found,) = torch.autograd.grad(RAHFL().distillation_loss(z, received[0], None), z)
    near(found[0], [0.025600, -0.015032, -0.010568])
    target = F.softmax(Z[1:], dim=2).mean(0)
    near(found, (F.softmax(Z1, dim=1) - target) / 4, 1e-12)
    (towards,) = torch.autograd.grad(F.kl_div(F.log_softmax(z, dim=1), target, reduction="batchmean"), z)
    near(found, towards, 1e-12)


# -- AugHFL --------------------------------------------------------------------------------------------------

AUGMENTED = [(Z1, Z1 + 0.1, 0.9 * Z1), (Z2, 0.5 * Z2, Z2 + numbers([1, 0, 0])), (Z3, 1.1 * Z3, Z1)]


class Answering:
    """A model whose logits are its images."""

    def __call__(self, images):
        return images


def shown(views=AUGMENTED) -> list[dict]:
    return [AugHFL().client_output(Answering(), seen, None) for seen in views]


def aughfl_losses(all_shown) -> list[float]:
    method = AugHFL()
    return [
        float(method.distillation_loss(mine, r, None))
        for mine, r in zip(all_shown, method.aggregate(all_shown, None, None), strict=True)
    ]


def test_firm_answers_weigh_more():
    near(firmness_weights(torch.stack([one["kappa"] for one in shown()])), [0.966099, 0.017916, 0.015985])
    near(aughfl_losses(shown()), [0.008898, 0.291752, 0.218082])


def test_weights_are_uniform_where_answers_do_not_move():
    # float32 rounding can fall below 0
    for kappa in (torch.zeros(3), torch.zeros(3) - 1e-9, torch.full((3,), 0.4)):
        near(firmness_weights(kappa), [1 / 3] * 3)
    assert firmness_weights(torch.tensor([3.0, 4.0, 5.0])).sum() <= 1


def test_weights_of_one_over_the_others_are_hfl(monkeypatch):
    monkeypatch.setattr(
        aughfl, "firmness_weights", lambda kappa: torch.full_like(kappa, 1 / (len(kappa) - 1))
    )
    near(aughfl_losses(shown()), HFL)


def test_identical_clients_have_nothing_to_agree_on():
    near(aughfl_losses(shown([AUGMENTED[1]] * 3)), [0, 0, 0], 1e-12)


def test_a_client_alone_takes_no_step():
    assert AugHFL().aggregate(shown()[:1], None, None) == [None]
    assert RAHFL(asymmetric=False).aggregate([Z1], None, None) == [None]


def test_the_released_loss_has_no_gradient():
    z = Z1.clone().requires_grad_()
    value = released_loss(z, Z[1:], numbers([0.5, 0.5]))
    assert value.isfinite() and torch.autograd.grad(value, z)[0].count_nonzero() == 0


# -- KT-pFL --------------------------------------------------------------------------------------------------

P, UNIFORM = F.softmax(Z, dim=2), torch.full((3, 3), 1 / 3, dtype=torch.float64)


def sent(c) -> list[torch.Tensor]:
    return KTpFL().aggregate([{"sent": p, "logits": z} for p, z in zip(P, Z)], State(coefficients=c), None)


def test_coefficients_of_the_paper():
    near(sent(UNIFORM)[0][0], [0.775528, 0.154281, 0.070191])
    near(objective(UNIFORM, P), 0.416792)
    near(
        gradient(UNIFORM, P),
        [[0.953349, 1.195110, 1.031801], [1.246061, 0.842100, 1.431565], [1.166643, 1.512934, 0.870812]],
    )
    stepped = stepped_coefficients(UNIFORM, P, 0.1, 1.0, 0.7)
    near(
        stepped,
        [[0.237998, 0.213822, 0.230153], [0.208727, 0.249123, 0.190177], [0.216669, 0.182040, 0.246252]],
    )
    near(stepped[0].sum(), 0.68, 5e-3)  # so targets would not be distributions
    near(onto_rows(stepped).sum(1), [1, 1, 1], 1e-12)


def test_the_written_gradient_is_that_of_the_objective():
    c = F.softmax(
        torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), dim=1
    ).requires_grad_()
    near(gradient(c.detach(), P), torch.autograd.grad(objective(c, P), c)[0], 1e-12)


def test_coefficients_of_the_released_code():
    found = released_coefficients(UNIFORM, P, 0.7)
    near(
        found,
        [[0.355698, 0.307856, 0.336446], [0.327751, 0.356835, 0.315414], [0.329370, 0.248771, 0.421859]],
    )
    near(found.sum(1), [1, 1, 1], 1e-12)
    assert (found > 0).all()


def test_equal_clients_keep_uniform_coefficients():
    same = P[:1].expand(3, -1, -1)
    slope = gradient(UNIFORM, same)
    near(slope, slope[:, :1].expand(3, 3), 1e-12)  # constant within a row
    near(onto_rows(stepped_coefficients(UNIFORM, same, 0.1, 1.0, 0.7)), UNIFORM, 1e-12)
    near(released_coefficients(UNIFORM, same, 0.7), UNIFORM, 1e-12)


def test_a_heavy_penalty_keeps_coefficients_uniform():
    c = F.softmax(Z[:, :3, 0], dim=1)
    # eta = 1 / (2 rho): lands on 1/K - grad / (2 rho)
    near(stepped_coefficients(c, P, 0.5 / 1e9, 1.0, 1e9), UNIFORM)


def test_rows_without_a_positive_entry_become_uniform():
    near(onto_rows(numbers([[-1, -2, 0], [3, -1, 0], [1, 3, 0]])), [[1 / 3] * 3, [1, 0, 0], [0.25, 0.75, 0]])


def test_targets_are_mixtures_of_probabilities():
    own = sent(torch.eye(3, dtype=torch.float64))
    z = Z2.clone().requires_grad_()
    value = KTpFL().distillation_loss({"logits": z}, own[1], None)
    near(value.detach(), 0.0, 1e-12)
    near(torch.autograd.grad(value, z)[0], torch.zeros(4, 3), 1e-12)
    near(torch.stack(sent(UNIFORM)), P.mean(0).expand(3, -1, -1), 1e-12)  # not the softmax of the mean logits
    assert (P.mean(0) - F.softmax(Z.mean(0), dim=1)).abs().max() > 1e-3


def test_distillation_and_its_two_means():
    target = sent(UNIFORM)[0]
    near(KTpFL().distillation_loss({"logits": Z1}, target, None), 0.060087)
    near(KTpFL(reduction="mean").distillation_loss({"logits": Z1}, target, None), 0.020029)
    soft = F.softmax(Z1 / 10, dim=1)
    # the student at the same temperature
    near(KTpFL(tau=10.0).distillation_loss({"logits": Z1}, soft, None), 0.0, 1e-12)


# -- FedProto ------------------------------------------------------------------------------------------------

A = ([[1, 0], [1, 1], [0, 2], [3, 1]], [0, 1, 1, 0])
B = ([[0.5, 0.5], [1, 2], [2, 1], [0, 1]], [0, 0, 2, 2])


def vectors_world(monkeypatch, *clients) -> World:
    """Clients of 2-vectors that are their own representations, three classes."""
    return tiny_world(
        monkeypatch,
        *clients,
        network=lambda: Network(nn.Flatten(1), nn.Linear(2, 3)),
        dtype=torch.float64,
        classes=3,
    )


def test_prototypes_of_two_clients(monkeypatch):
    world = vectors_world(monkeypatch, A, B)
    seen = FedProtoHetero(space="features").class_means(world.new_models(), world)
    near(seen.means[0], [[2, 0.5], [0.5, 1.5], [0, 0]])
    near(seen.means[1], [[0.75, 1.25], [0, 0], [1, 1]])
    assert seen.counts.tolist() == [[2, 2, 0], [2, 0, 2]]
    for means in ("eval", "running", "last_epoch"):
        found = run_one(FedProtoHetero(space="features", means=means), world).prototypes
        near(found.vectors, [[1.375, 0.875], [0.5, 1.5], [1, 1]])
    near([prototype_distance(numbers(x), torch.tensor(y), **found) for x, y in (A, B)], [0.570312, 0.539062])


def test_a_client_without_data_has_no_prototypes(monkeypatch):
    world = vectors_world(monkeypatch, ([], []), A)
    nothing = {
        "images": torch.zeros(0, 2, 1, 1, dtype=torch.float64),
        "labels": torch.zeros(0, dtype=torch.int64),
    }
    world = World.create(
        [dataclasses.replace(world.clients[0], **nothing), world.clients[1]], world.training, world.classes, 0
    )
    seen = FedProtoHetero(space="features").class_means(world.new_models(), world)
    assert seen.counts.tolist() == [[0, 0, 0], [2, 2, 0]] and not seen.means[0].any()


def test_equal_prototypes_aggregate_to_themselves(monkeypatch):
    world = vectors_world(monkeypatch, A, A)
    found = run_one(FedProtoHetero(space="features"), world).prototypes
    near(found.vectors, [[2, 0.5], [0.5, 1.5], [0, 0]])
    assert found.known.tolist() == [True, True, False]
    on_them = found.vectors[torch.tensor([0, 1, 1])]
    near(prototype_distance(on_them, torch.tensor([0, 1, 1]), **found), 0.0)


def test_a_client_alone_is_drawn_to_its_own_class_means():
    w = small_world(sizes=(20,), models=[Model("cnn4", projector=8)])
    state = run(FedProtoHetero(means="eval"), w, 1)
    means = FedProtoHetero().class_means(state.models, w)
    assert torch.equal(state.prototypes.vectors, means.means[0]) and state.prototypes.vectors.shape == (10, 8)


def test_without_its_term_fedproto_is_local():
    w = small_world(projector=8)
    ours, alone = (run(method, w).models for method in (FedProtoHetero(lam=0.0), Local()))
    for mine, theirs in zip(ours, alone, strict=True):
        kept = [name for name in mine if not name.startswith("projector.")]
        assert equal(Params((n, mine[n]) for n in kept), Params((n, theirs[n]) for n in kept))
    drawn = run(FedProtoHetero(), w).models
    assert largest_difference(ours[0], drawn[0]) > 1e-4
    # CE only
    assert (
        largest_difference(run(FedProtoHetero(), w, 1).models.features, run(Local(), w, 1).models.features)
        == 0
    )


def test_running_means_are_of_the_embeddings_before_each_step():
    # one batch, one step
    w = small_world(sizes=(12,), models=[Model("cnn4", projector=8)], dtype=torch.float64)
    found, start = (
        run(FedProtoHetero(), w, 1).prototypes,
        w.network(0, w.new_models(individual=True)[0]).train(),
    )
    with torch.no_grad():
        h = start.projector(start.features(w.clients[0].images))
    for c in w.clients[0].labels.unique():
        near(found.vectors[c], h[w.clients[0].labels == c].mean(0), 1e-9)
    assert found.known.sum() == len(w.clients[0].labels.unique())
    later = run(FedProtoHetero(means="eval"), w, 1).prototypes
    assert largest_difference(found.vectors, later.vectors) > 1e-2


def test_weighted_prototypes_count_samples(monkeypatch):
    world = vectors_world(monkeypatch, ([[1, 0], [3, 0], [2, 3]], [0, 0, 1]), ([[8, 3], [0, 1]], [0, 1]))
    for means in ("eval", "running"):
        found = run_one(FedProtoHetero(space="features", weighted=True, means=means), world).prototypes
        near(found.vectors, [[4, 1], [1, 2], [0, 0]])


def test_the_projector_knows_its_statistics_before_the_first_prototypes():
    w = small_world(projector=8)
    after_one, start = run(FedProtoHetero(), w, 1).models, w.new_models()
    assert not torch.equal(after_one[0]["projector.1.running_mean"], start[0]["projector.1.running_mean"])
    assert torch.equal(after_one[0]["projector.0.weight"], start[0]["projector.0.weight"])


def test_fedproto_predicts_by_the_classifier_or_by_prototypes(monkeypatch):
    world = vectors_world(monkeypatch, A, B)
    method = FedProtoHetero(space="features", prediction="prototype")
    state, images = run_one(method, world), numbers([[2, 0.5], [0.5, 1.6], [1, 1]]).view(3, 2, 1, 1)
    scores = world.each(state.models, lambda model, *_: method.scores(model, images, state))[0]
    assert scores.argmax(1).tolist() == [0, 1, 2]
    plain = world.each(
        state.models, lambda model, *_: FedProtoHetero().scores(model, images, state) - model(images)
    )[0]
    assert not plain.any()


def test_networks_without_a_projector_are_told_so():
    with pytest.raises(TrainingError, match="needs a projector"):
        run(FedProtoHetero(), small_world(projector=None), 1)


# -- federations of different networks -----------------------------------------------------------------------

SIZES = (20, 33, 0, 1, 12)
HETERO = (Model("cnn4"), Model("cnn2", features=32), Model("cnn4"), Model("cnn2", features=32), Model("cnn5"))


def small_world(
    sizes=SIZES,
    models=None,
    projector=None,
    public=40,
    settings=None,
    heldout=30,
    dtype=torch.float32,
    one_class=False,
    **changes,
) -> World:
    models = (
        [dataclasses.replace(m, projector=projector) for m in HETERO[: len(sizes)]]
        if models is None
        else models
    )
    clients = [
        dataclasses.replace(
            c, images=c.images.to(dtype), labels=torch.full_like(c.labels, 3) if one_class else c.labels
        )
        for c in image_clients(sizes, models)
    ]
    drawn = torch.Generator().manual_seed(9)
    images = torch.rand(public, 1, 16, 16, generator=drawn).to(dtype) * 2 - 1
    apart, test = (
        Batch(
            torch.rand(n, 1, 16, 16, generator=drawn).to(dtype) * 2 - 1,
            torch.randint(0, 10, (n,), generator=drawn),
        )
        for n in (heldout, 50)
    )
    return World.create(
        clients,
        training(**{"optimiser": Optimiser("adam", 0.003), **changes}),
        10,
        0,
        public=(images, settings or Public("made up", batch_size=16)),
        heldout=apart if heldout else None,
        test=test,
    )


def run(method, world, rounds=3, state=None):
    state = method.init(world) if state is None else state
    for number in range(world.round + 1, world.round + rounds + 1):
        state = method.round(state, world.at(number))
    return state


def run_one(method, world):
    return run(method, world, 1)


def largest_difference(a, b) -> float:
    if isinstance(a, torch.Tensor):
        return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0
    if isinstance(a, Clients):
        return max(largest_difference(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        return max(largest_difference(a[name], b[name]) for name in a)
    assert a is None and b is None
    return 0.0


METHODS = {
    "ktpfl": KTpFL(),
    "ktpfl-code": KTpFL(update="code", tau=2.0),
    "fedproto": FedProtoHetero(),
    "fedproto-eval": FedProtoHetero(weighted=True, means="eval"),
    "fedproto-last-epoch": FedProtoHetero(means="last_epoch"),
    "aughfl": AugHFL(),
    "aughfl-all": AugHFL(operations="all"),
    "aughfl-bug": AugHFL(released_bug=True),
    "rahfl": RAHFL(),
    "rahfl-paper": RAHFL(contrast_form="paper", distillation_form="paper", acc_source="test"),
    "hfl": RAHFL(asymmetric=False, augmix=False, contrast="none"),
    "asymhfl": RAHFL(augmix=False, contrast="none"),
    "asymhfl-aug": RAHFL(contrast="none"),
    "supcon": RAHFL(contrast="supcon"),
    "private": RAHFL(acc_source="private"),
}


@pytest.mark.parametrize(
    ("optimiser", "within"),
    [(Optimiser("sgd", 0.05), 1e-9), (Optimiser("adam", 0.003), 1e-7)],
    ids=["sgd", "adam"],
)
@pytest.mark.parametrize("name", METHODS)
def test_both_executors_agree(name, optimiser, within, monkeypatch):
    """The first step of a new Adam divides by |g| + 1e-8, so that rounding of a tiny gradient grows (AugHFL's
    small weights)."""
    method, states = METHODS[name], []
    if not isinstance(method, FedProtoHetero):
        method = dataclasses.replace(method, public_optimiser=optimiser.name)
    for executor in ("sequential", "stacked"):
        monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
        w = small_world(projector=8, dtype=torch.float64, optimiser=optimiser)
        states.append(run(method, w))
    assert largest_difference(*states) < within
    assert largest_difference(states[0].models, w.new_models()) > 1e-3


@pytest.mark.parametrize("name", METHODS)
def test_states_outlive_a_checkpoint(name):
    method, w = METHODS[name], small_world(sizes=(20, 0, 12), projector=8)
    half, file = run(method, w, 1), io.BytesIO()
    torch.save(pack(half), file)
    file.seek(0)
    resumed = run(method, w.at(1), 1, unpack(torch.load(file, weights_only=True)))
    assert largest_difference(resumed, run(method, w, 2)) == 0


@pytest.mark.parametrize("name", METHODS)
def test_clients_without_data_and_classes_are_no_obstacle(name):
    """Also: a client alone, public images of one batch, one class per client."""
    w = small_world(sizes=(0, 9), projector=8, one_class=True)
    for world in (w, small_world(sizes=(20,), projector=8, public=9)):
        state = run(METHODS[name], world, 2)
        assert all(value.isfinite().all() for model in state.models for value in model.values())


def test_one_network_for_all_is_averaged_where_the_scenario_says_so():
    w = small_world(sizes=(20, 12), models=[Model("cnn2")] * 2, averaging="uniform", local_epochs=0)
    for method in (KTpFL(), AugHFL(), RAHFL()):
        models = run(method, w, 1).models
        assert equal(models[0], models[1])
    assert KTpFL().traffic(w)[0] == 400 + w.scalars()


def test_a_better_client_does_not_move_and_a_worse_one_does():
    w = small_world(sizes=(20, 33), local_epochs=0)
    start = w.new_models()
    with torch.no_grad():
        # client 1 is always right
        vars(w)["heldout"] = Batch(w.heldout.images, w.network(1, start[1])(w.heldout.images).argmax(1))
    state = run(RAHFL(), w, 1)
    assert state.accuracies["heldout"][1] == 1 and state.matrix.tolist() == [[0, 1], [0, 0]]
    found = RAHFL().diagnostics(state)
    assert (found["learns.0.1"], found["learns.1.0"], "learns.0.0" in found) == (1.0, 0.0, False)
    assert equal(state.models[1], start[1]) and largest_difference(state.models[0], start[0]) > 1e-4


def test_accuracies_of_every_source_are_kept():
    state = run(RAHFL(), small_world(), 1)
    assert {name: values.shape for name, values in state.accuracies.items()} == {
        "heldout": (5,),
        "test": (5,),
    }
    private = run(RAHFL(acc_source="private"), small_world(), 1)
    assert private.accuracies["private"].isnan().tolist() == [False, False, True, False, False]
    assert not private.matrix[2].any() and not private.matrix[:, 2].any()
    assert torch.equal(state.matrix, transfer_matrix(state.accuracies["heldout"]))
    tested = run(RAHFL(acc_source="test"), small_world(), 1)
    assert torch.equal(tested.matrix, transfer_matrix(tested.accuracies["test"]))


def test_the_images_of_a_column_choose_its_teachers(monkeypatch):
    """Client 0 knows 3 of 4 clean images and 1 of 4 corrupted ones, client 1 two of each: as in the released
    code each column has teachers of its own, where one training by `test` has those of the corruption."""
    w = tiny_world(monkeypatch, ([[1.0, 2.0]], [0]), ([[1.0, 2.0]], [0]))
    models = Clients(
        [
            Params({"head.weight": torch.eye(2), "head.bias": torch.zeros(2)}),
            Params(
                {"head.weight": torch.zeros(2, 2), "head.bias": torch.tensor([1.0, 0.0])}
            ),  # always class 0
        ]
    )
    labels = torch.tensor([0, 0, 1, 1])
    clean = Batch(torch.tensor([[1.0, 0], [0, 1], [0, 1], [0, 1]]).view(4, 2, 1, 1), labels)
    corrupted = Batch(torch.tensor([[1.0, 0], [0, 1], [1, 0], [1, 0]]).view(4, 2, 1, 1), labels)
    vars(w).update(test=corrupted, test_sets={"clean": clean, "corrupted": corrupted})
    wanted = {
        "test_clean": ([0.75, 0.5], [[0, 0], [1, 0]]),
        "test_corrupted": ([0.25, 0.5], [[0, 1], [0, 0]]),
        "test": ([0.25, 0.5], [[0, 1], [0, 0]]),
    }
    for source, (accuracies, matrix) in wanted.items():
        state = RAHFL(acc_source=source).before_round(State(models=models), w.at(1))
        assert state.accuracies[source].tolist() == accuracies and state.matrix.tolist() == matrix
        assert state.accuracies.keys() == {"test", source}  # no other source is measured for it


def test_accuracy_is_counted_on_the_given_images(monkeypatch):
    w = tiny_world(monkeypatch, ([[1.0, 2.0], [-1.0, 0.5]], [0, 1]))
    model = Params({"head.weight": torch.eye(2), "head.bias": torch.zeros(2)})
    images = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]]).view(4, 2, 1, 1)
    seen = Batch(images, torch.tensor([0, 1, 1, 1]))
    assert rahfl.shares_right(w, Clients([model]), [seen]).tolist() == [0.75]
    assert rahfl.shares_right(w, Clients([model]), [Batch(images[:0], seen.labels[:0])]).isnan().all()


def test_a_missing_source_is_named():
    with pytest.raises(TrainingError, match="acc_source: heldout needs labelled images"):
        run(RAHFL(), small_world(heldout=0), 1)
    with pytest.raises(TrainingError, match="acc_source: test_clean needs labelled images"):
        run(RAHFL(acc_source="test_clean"), small_world(), 1)


def test_the_matrix_is_renewed_every_few_rounds():
    method, w, seen = RAHFL(matrix_every=2), small_world(), []
    state = method.init(w)
    for number in range(1, 5):
        state = method.round(state, w.at(number))
        seen.append(state.accuracies["test"])
    assert (
        torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3]) and not torch.equal(seen[1], seen[2])
    )


def test_rahfl_with_everything_off_and_nobody_to_learn_from_is_local(monkeypatch):
    w = small_world(sizes=(33,), dtype=torch.float64)
    alone = run(Local(), w).models
    assert equal(run(RAHFL(augmix=False, contrast="none"), w).models[0], alone[0])
    monkeypatch.setattr(rahfl, "plain", lambda images, g: images)
    monkeypatch.setattr(rahfl, "augmix", lambda images, g: images)
    vars(w)["pixels"] = Untouched()  # no rounding to bytes
    assert largest_difference(run(RAHFL(mu=0.0, contrast="none"), w).models, alone) < 1e-9


class Untouched:
    def bytes(self, images):
        return images

    def inputs(self, pixels, like):
        return pixels


def test_the_contrast_has_a_forward_of_its_own():
    counts = {}
    for contrast in ("none", "supcon", "dcl"):
        w = small_world(sizes=(16,), models=[Model("resnet10")])
        models = RAHFL(contrast=contrast).local_training(w.new_models(), None, w)
        counts[contrast] = int(next(v for n, v in models[0].items() if n.endswith("num_batches_tracked")))
    assert counts == {"none": 1, "supcon": 2, "dcl": 2}


def test_the_released_aughfl_moves_nothing_but_statistics():
    w = small_world(sizes=(8, 8), models=[Model("resnet10"), Model("resnet10", dropout=0.1)])
    start = w.new_models()
    bugged = AugHFL(released_bug=True).collaborate(State(models=start), w)
    meant = AugHFL().collaborate(State(models=start), w)
    for k in range(2):
        weights = [n for n in start[k] if n.endswith("weight") or n.endswith("bias")]
        assert all(torch.equal(bugged[k][n], start[k][n]) for n in weights)
        assert any(not torch.equal(bugged[k][n], start[k][n]) for n in start[k] if n.endswith("running_mean"))
        assert any(not torch.equal(meant[k][n], start[k][n]) for n in weights)


def test_every_client_mixes_the_same_public_images_for_itself():
    w = small_world(sizes=(8, 8))
    (x, first, second), (same, other, _) = next(AugHFL().public_batches(None, w)).images
    assert x is same and not torch.equal(first, second) and not torch.equal(first, other)


def test_the_teachers_of_ktpfl_stay_as_they_were(monkeypatch):
    """Its targets in the last batch are the coefficients times the predictions of the models that the round
    began with."""
    w, method, received = small_world(sizes=(20, 33), public=48).at(1), KTpFL(), []
    state = method.before_round(method.init(w), w)
    *_, (last, _) = w.public_batches()
    real = KTpFL.aggregate
    monkeypatch.setattr(KTpFL, "aggregate", lambda *given: received.append(real(*given)) or received[-1])
    moved = method.collaborate(state, w)
    with torch.no_grad():
        P = torch.stack([F.softmax(w.network(k, model)(last), dim=1) for k, model in enumerate(state.models)])
    torch.testing.assert_close(
        torch.stack(received[-1]), torch.einsum("km,mbc->kbc", state.coefficients.float(), P)
    )
    assert largest_difference(moved, state.models) > 1e-4 and len(received) == 3


# -- communication -------------------------------------------------------------------------------------------


def test_scalars_per_round():
    full, dropped = Public("made up", batch_size=512), Public("made up", batch_size=256, drop_last=True)
    four = dict(sizes=(8,) * 4, models=[Model("cnn2", projector=8)] * 4, public=5000)
    assert KTpFL().traffic(small_world(settings=full, **four)) == (50_000, 50_000)
    w = small_world(settings=dropped, **four)
    assert RAHFL().traffic(w) == (48_641, 1.5 * 48_640)
    assert RAHFL(matrix_every=4).traffic(w) == (48_640.25, 1.5 * 48_640)
    # Accuracies 0.5, 0.5, 0.7, 0.9: two clients teach each other, so that 3 + 3 + 1 + 0 teachers send.
    tied = State(matrix=transfer_matrix(torch.tensor([0.5, 0.5, 0.7, 0.9])))
    assert RAHFL().traffic(w, tied) == (48_641, 7 / 4 * 48_640)
    silent = State(matrix=transfer_matrix(torch.tensor([torch.nan] * 4)))
    assert RAHFL().traffic(w, silent) == (48_641, 0)
    assert RAHFL(asymmetric=False).traffic(w, tied) == (48_640, 145_920)
    assert RAHFL(asymmetric=False).traffic(w) == (48_640, 145_920)
    assert AugHFL().traffic(w) == (48_640 + 19, 145_920)


def test_scalars_of_prototypes():
    w = small_world(sizes=(6, 4), projector=8)
    clients = [
        dataclasses.replace(c, labels=torch.tensor(y))
        for c, y in zip(w.clients, ([0, 0, 1, 1, 2, 2], [0, 0, 3, 3]))
    ]
    w = World.create(clients, w.training, w.classes, 0)
    assert FedProtoHetero().traffic(w) == (2.5 * 8, 4 * 8)
    assert FedProtoHetero(weighted=True).traffic(w) == (2.5 * 8 + 2.5, 4 * 8)


@pytest.mark.parametrize("algorithm", ["ktpfl", "fedproto_hetero", "aughfl", "rahfl"])
def test_methods_are_found_by_name(algorithm):
    assert type(load(algorithm, {}, "here")).__module__ == f"pipeline.methods.{algorithm}"
