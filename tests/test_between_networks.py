"""Identities and worked numbers of AugHFL, RAHFL, KT-pFL and FedProto between different networks."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from all_methods import PROJECTED, small_world
from federation import close, difference, run, same, tiny_world
from tiny import Z1, Z2, Z3, Z, numbers
from torch import nn

from pipeline.engine.handle import Batch
from pipeline.engine.state import Params, State
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.losses import consistent_cross_entropy, jensen_shannon, supervised_contrast
from pipeline.methods import aughfl, rahfl
from pipeline.methods.aughfl import AugHFL, firmness_weights, released_loss
from pipeline.methods.fedproto_hetero import FedProtoHetero
from pipeline.methods.ktpfl import (
    KTpFL,
    gradient,
    onto_rows,
    released_coefficients,
    stepped_coefficients,
)
from pipeline.methods.local import Local
from pipeline.methods.rahfl import RAHFL, transfer_matrix, view_distillation
from pipeline.models import Network
from pipeline.prototypes import prototype_distance
from pipeline.schema import Model, Public


def unit_rows(values) -> torch.Tensor:
    return F.normalize(numbers(values), dim=1)


X = unit_rows([[1, 0], [0, 1], [1, 1], [2, 1]])
WEAK = unit_rows([[1, 0.2], [0.1, 1], [1, 2], [1, 0]])
STRONG = unit_rows([[1, 1], [-1, 1], [0, 1], [1, -1]])
Y = torch.tensor([0, 1, 0, 1])
HFL = [0.257000, 0.426732, 0.442064]


def test_jensen_shannon():
    close(jensen_shannon(Z1, Z2, Z3), 0.111246)
    close(jensen_shannon(Z1, Z1, Z2), 0.068140)
    close(jensen_shannon(Z1, Z1, Z1), 0.0, 1e-12)
    apart = [1e4 * F.one_hot(torch.full((2,), c), 3).double().requires_grad_() for c in range(3)]
    value = jensen_shannon(*apart)
    close(value, math.log(3))
    assert value <= math.log(3) + 1e-9
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, apart))
    labels = torch.tensor([0, 1, 2, 0])
    stacked = torch.cat([Z1, Z2, Z3])
    close(consistent_cross_entropy(stacked, labels, 12.0), 0.339754 + 12 * jensen_shannon(Z1, Z2, Z3))
    close(consistent_cross_entropy(stacked, labels, 0.0), 0.339754)


def test_contrast_and_distillation_of_views():
    two = torch.cat([X, WEAK])
    close(supervised_contrast(two, Y, 0.2), 2.870458)
    close(RAHFL().contrasted(two, Y), 8.201308)
    # Eq. 5: a sum over the 2B anchors
    close(RAHFL(contrast_form="paper").contrasted(two, Y), 8 * 2.870458, 8e-6)
    close(view_distillation(X, WEAK, STRONG, 0.2), 0.803596)
    close(view_distillation(X, WEAK, STRONG, 0.2, "paper"), 0.439980)
    close(RAHFL(distillation_form="paper").distilled(X, WEAK, STRONG), 1.759919)


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
    close(local_loss(), fit + 9.004904)
    close(local_loss(gamma=0.0), fit + 8.201308)
    close(local_loss(gamma=2.0), fit + 8.201308 + 2 * 0.803596, 2e-6)
    close(local_loss(contrast="supcon"), fit + 11.109001)
    close(local_loss(contrast="none"), fit)
    close(local_loss(mu=0.0, contrast="none"), F.cross_entropy(6 * X, Y))
    close(local_loss(augmix=False, contrast="none"), F.cross_entropy(6 * X, Y))
    close(local_loss(contrast_form="paper", distillation_form="paper"), fit + 8 * 2.870458 + 1.759919, 1e-5)


def test_views_are_made_of_one_plain_view(monkeypatch):
    pixels, calls = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8), []
    monkeypatch.setattr(rahfl, "plain", lambda images, g: images // 2)
    monkeypatch.setattr(rahfl, "augmix", lambda images, g: calls.append(images) or images + len(calls))
    monkeypatch.setattr(rahfl, "simple", lambda images, g: images)
    x, first, second, weak = RAHFL().views(pixels, torch.Generator())
    assert torch.equal(x, pixels // 2)
    assert torch.equal(first, x + 1)
    assert torch.equal(second, x + 2)
    assert torch.equal(weak, pixels)
    assert all(call is x for call in calls)
    assert len(RAHFL(contrast="supcon").views(pixels, torch.Generator())) == 3


def test_aughfl_takes_nine_operations_or_all(monkeypatch):
    operations_of = []
    monkeypatch.setattr(
        aughfl, "augmix", lambda images, g, operations: operations_of.append(operations) or images
    )
    pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    assert len(AugHFL().views(pixels, torch.Generator().manual_seed(0))) == 3
    AugHFL(operations="all").mixed(pixels, torch.Generator())
    assert operations_of == ["nine", "nine", "all", "all"]


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
    close(collaborative(RAHFL(), after(60, 70, 65)), [0.257000, 0, 0.670834])
    close(collaborative(RAHFL(), after(70, 60, 65)), [0, 0.426732, 0.213294])
    close(collaborative(RAHFL(), after(65, 65, 65)), HFL)  # equals teach each other: HFL
    close(collaborative(RAHFL(asymmetric=False)), HFL)
    close([2 * collaborative(RAHFL(), after(60, 70, 65))[0]], [0.513999])  # Eq. 13 has no 1 / m_k
    assert transfer_matrix(numbers([0.5, math.nan, 0.4])).tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]


AUGMENTED = [(Z1, Z1 + 0.1, 0.9 * Z1), (Z2, 0.5 * Z2, Z2 + numbers([1, 0, 0])), (Z3, 1.1 * Z3, Z1)]


def outputs(views=AUGMENTED) -> list[dict]:
    return [AugHFL().client_output(lambda images: images, seen, None) for seen in views]


def test_firm_answers_weigh_more_and_a_client_alone_takes_no_step():
    close(firmness_weights(torch.stack([one["kappa"] for one in outputs()])), [0.966099, 0.017916, 0.015985])
    close(collaborative(AugHFL(), logits=outputs()), [0.008898, 0.291752, 0.218082])
    assert AugHFL().aggregate(outputs()[:1], None, None) == [None]
    assert RAHFL(asymmetric=False).aggregate([Z1], None, None) == [None]
    z = Z1.clone().requires_grad_()
    value = released_loss(z, Z[1:], numbers([0.5, 0.5]))
    assert value.isfinite() and torch.autograd.grad(value, z)[0].count_nonzero() == 0


def test_what_is_missing_is_named():
    with pytest.raises(TrainingError, match="needs a projector"):
        run(FedProtoHetero(), small_world((20, 12), [Model("cnn2")] * 2), 1)
    with pytest.raises(TrainingError, match="acc_source: heldout needs labelled images"):
        run(RAHFL(), small_world(heldout=0), 1)
    with pytest.raises(TrainingError, match="acc_source: test_clean needs labelled images"):
        run(RAHFL(acc_source="test_clean"), small_world(), 1)


def test_one_network_for_all_is_averaged_where_the_scenario_says_so():
    w = small_world((20, 12), [Model("cnn2")] * 2, averaging="uniform", local_epochs=0)
    for method in (KTpFL(), AugHFL(), RAHFL()):
        models = run(method, w, 1).models
        assert same(models[0], models[1])
    assert KTpFL().traffic(w)[0] == 400 + w.scalars()


def test_a_better_client_does_not_move_and_a_worse_one_does():
    w = small_world((20, 33), local_epochs=0)
    start = w.new_models()
    with torch.no_grad():
        # client 1 is always right
        vars(w)["heldout"] = Batch(w.heldout.images, w.network(1, start[1])(w.heldout.images).argmax(1))
    state = run(RAHFL(), w, 1)
    assert state.accuracies["heldout"][1] == 1 and state.matrix.tolist() == [[0, 1], [0, 0]]
    actual = RAHFL().diagnostics(state)
    assert (actual["learns.0.1"], actual["learns.1.0"], "learns.0.0" in actual) == (1.0, 0.0, False)
    assert same(state.models[1], start[1]) and difference(state.models[0], start[0]) > 1e-4


def test_accuracies_of_every_source_are_kept():
    state = run(RAHFL(), small_world(), 1)
    assert {name: len(values) for name, values in state.accuracies.items()} == {"heldout": 5, "test": 5}
    private = run(RAHFL(acc_source="private"), small_world(), 1)
    assert private.accuracies["private"].isnan().tolist() == [False, False, True, True, False]
    assert not private.matrix[2].any() and not private.matrix[:, 2].any()
    assert torch.equal(state.matrix, transfer_matrix(state.accuracies["heldout"]))


def test_the_matrix_is_renewed_every_few_rounds():
    method, w, seen = RAHFL(matrix_every=2), small_world(sizes=(20, 33)), []
    state = method.init(w)
    for number in range(1, 5):
        state = method.round(state, w.at(number))
        seen.append(state.accuracies["test"])
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[1], seen[2])


def test_rahfl_with_everything_off_and_nobody_to_learn_from_is_local():
    off = RAHFL(augmix=False, contrast="none")
    assert same(*(run(method, small_world((33,))).models for method in (off, Local())))


def test_the_contrast_has_a_separate_forward():
    counts = {}
    for contrast in ("none", "supcon", "dcl"):
        w = small_world(sizes=(16,), models=[Model("cnn3_bn")])
        models = RAHFL(contrast=contrast).local_training(w.new_models(), None, w)
        counts[contrast] = int(next(v for n, v in models[0].items() if n.endswith("num_batches_tracked")))
    assert counts == {"none": 1, "supcon": 2, "dcl": 2}


def test_the_released_aughfl_moves_nothing_but_statistics():
    w = small_world((8, 8), [Model("cnn3_bn"), Model("cnn3_bn", dropout=0.1)])
    start = w.new_models()
    bugged = AugHFL(released_bug=True).collaborate(State(models=start), w)
    meant = AugHFL().collaborate(State(models=start), w)
    for k in range(2):
        weights = [n for n in start[k] if n.endswith("weight") or n.endswith("bias")]
        assert all(torch.equal(bugged[k][n], start[k][n]) for n in weights)
        assert any(not torch.equal(bugged[k][n], start[k][n]) for n in start[k] if n.endswith("running_mean"))
        assert any(not torch.equal(meant[k][n], start[k][n]) for n in weights)


def test_scalars_per_round():
    full, dropped = Public("made up", batch_size=512), Public("made up", batch_size=256, drop_last=True)
    four = dict(sizes=(8,) * 4, models=PROJECTED[0])
    assert KTpFL().traffic(small_world(public=full, **four)) == (50_000, 50_000)
    w = small_world(public=dropped, **four)
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
    w = small_world((6, 4))
    clients = [
        dataclasses.replace(c, labels=torch.tensor(y))
        for c, y in zip(w.clients, ([0, 0, 1, 1, 2, 2], [0, 0, 3, 3]))
    ]
    w = World.create(clients, w.training, w.classes, 0)
    assert FedProtoHetero().traffic(w) == (2.5 * 8, 4 * 8)
    assert FedProtoHetero(weighted=True).traffic(w) == (2.5 * 8 + 2.5, 4 * 8)


P, UNIFORM = F.softmax(Z, dim=2), torch.full((3, 3), 1 / 3, dtype=torch.float64)


def sent(c) -> list[torch.Tensor]:
    return KTpFL().aggregate([{"sent": p, "logits": z} for p, z in zip(P, Z)], State(coefficients=c), None)


def objective(c, predictions):
    targets = torch.einsum("km,mnc->knc", c, predictions)
    return (targets * (targets.log() - predictions.log())).sum((0, 2)).mean()


def test_coefficients_of_the_paper_and_of_the_code():
    close(sent(UNIFORM)[0][0], [0.775528, 0.154281, 0.070191])
    close(objective(UNIFORM, P), 0.416792)
    stepped = stepped_coefficients(UNIFORM, P, 0.1, 1.0, 0.7)
    close(
        stepped,
        [[0.237998, 0.213822, 0.230153], [0.208727, 0.249123, 0.190177], [0.216669, 0.182040, 0.246252]],
    )
    close(onto_rows(stepped).sum(1), [1, 1, 1], 1e-12)
    c = F.softmax(
        torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), dim=1
    ).requires_grad_()
    close(gradient(c.detach(), P), torch.autograd.grad(objective(c, P), c)[0], 1e-12)
    actual = released_coefficients(UNIFORM, P, 0.7)
    close(
        actual,
        [[0.355698, 0.307856, 0.336446], [0.327751, 0.356835, 0.315414], [0.329370, 0.248771, 0.421859]],
    )
    close(actual.sum(1), [1, 1, 1], 1e-12)
    assert (actual > 0).all()
    close(onto_rows(numbers([[-1, -2, 0], [3, -1, 0], [1, 3, 0]])), [[1 / 3] * 3, [1, 0, 0], [0.25, 0.75, 0]])


def test_targets_are_mixtures_of_probabilities():
    identical = sent(torch.eye(3, dtype=torch.float64))
    z = Z2.clone().requires_grad_()
    value = KTpFL().distillation_loss({"logits": z}, identical[1], None)
    close(value.detach(), 0.0, 1e-12)
    close(torch.autograd.grad(value, z)[0], torch.zeros(4, 3), 1e-12)
    close(
        torch.stack(sent(UNIFORM)), P.mean(0).expand(3, -1, -1), 1e-12
    )  # not the softmax of the mean logits
    target = sent(UNIFORM)[0]
    close(KTpFL().distillation_loss({"logits": Z1}, target, None), 0.060087)
    close(KTpFL(reduction="mean").distillation_loss({"logits": Z1}, target, None), 0.020029)
    soft = F.softmax(Z1 / 10, dim=1)
    # the student at the same temperature
    close(KTpFL(tau=10.0).distillation_loss({"logits": Z1}, soft, None), 0.0, 1e-12)


A = ([[1, 0], [1, 1], [0, 2], [3, 1]], [0, 1, 1, 0])
B = ([[0.5, 0.5], [1, 2], [2, 1], [0, 1]], [0, 0, 2, 2])


def vectors_world(monkeypatch, *clients) -> World:
    """Clients of 2-vectors that are their representations, three classes."""
    return tiny_world(
        monkeypatch,
        *clients,
        network=lambda: Network(nn.Flatten(1), nn.Linear(2, 3)),
        dtype=torch.float64,
        classes=3,
    )


def test_prototypes_of_clients(monkeypatch):
    world = vectors_world(monkeypatch, A, B)
    seen = world.class_means(world.new_models())
    close(seen.means[0], [[2, 0.5], [0.5, 1.5], [0, 0]])
    close(seen.means[1], [[0.75, 1.25], [0, 0], [1, 1]])
    assert seen.counts.tolist() == [[2, 2, 0], [2, 0, 2]]
    for means in ("eval", "running", "last_epoch"):
        actual = run(FedProtoHetero(space="features", means=means), world, 1).prototypes
        close(actual.vectors, [[1.375, 0.875], [0.5, 1.5], [1, 1]])
    close(
        [prototype_distance(numbers(x), torch.tensor(y), **actual) for x, y in (A, B)], [0.570312, 0.539062]
    )
    world = vectors_world(monkeypatch, ([[1, 0], [3, 0], [2, 3]], [0, 0, 1]), ([[8, 3], [0, 1]], [0, 1]))
    for means in ("eval", "running"):
        actual = run(FedProtoHetero(space="features", weighted=True, means=means), world, 1).prototypes
        close(actual.vectors, [[4, 1], [1, 2], [0, 0]])


def test_without_its_term_fedproto_is_local():
    w = small_world()
    ours, alone = (run(method, w).models for method in (FedProtoHetero(lam=0.0), Local()))
    for mine, theirs in zip(ours, alone, strict=True):
        saved = [name for name in mine if not name.startswith("projector.")]
        assert same(Params((n, mine[n]) for n in saved), Params((n, theirs[n]) for n in saved))
    drawn = run(FedProtoHetero(), w).models
    assert difference(ours[0], drawn[0]) > 1e-4
    # CE only
    assert difference(run(FedProtoHetero(), w, 1).models.features, run(Local(), w, 1).models.features) == 0


def test_running_means_are_of_the_embeddings_before_each_step():
    # one batch, one step
    w = small_world(sizes=(12,), models=[Model("cnn4", projector=8)], dtype=torch.float64)
    actual = run(FedProtoHetero(), w, 1).prototypes
    start = w.network(0, w.new_models(individual=True)[0]).train()
    with torch.no_grad():
        h = start.projector(start.features(w.clients[0].images))
    for c in w.clients[0].labels.unique():
        close(actual.vectors[c], h[w.clients[0].labels == c].mean(0), 1e-9)
    assert actual.known.sum() == len(w.clients[0].labels.unique())
    later = run(FedProtoHetero(means="eval"), w, 1).prototypes
    assert difference(actual.vectors, later.vectors) > 1e-2


def test_fedproto_predicts_by_the_classifier_or_by_prototypes(monkeypatch):
    world = vectors_world(monkeypatch, A, B)
    method = FedProtoHetero(space="features", prediction="prototype")
    state, images = run(method, world, 1), numbers([[2, 0.5], [0.5, 1.6], [1, 1]]).view(3, 2, 1, 1)
    scores = world.each(state.models, lambda model, *_: method.scores(model, images, state))[0]
    assert scores.argmax(1).tolist() == [0, 1, 2]
    plain = world.each(
        state.models, lambda model, *_: FedProtoHetero().scores(model, images, state) - model(images)
    )[0]
    assert not plain.any()


def test_the_teachers_of_ktpfl_stay_as_they_were(monkeypatch):
    """Its targets in the last batch: coefficients times predictions of the models of the round's begin."""
    w, method, received = small_world((20, 33), [Model("cnn4"), Model("cnn2")]).at(1), KTpFL(), []
    state = method.before_round(method.init(w), w)
    *_, (last, _) = w.public_batches()
    real = KTpFL.aggregate
    monkeypatch.setattr(KTpFL, "aggregate", lambda *given: received.append(real(*given)) or received[-1])
    moved = method.collaborate(state, w)
    with torch.no_grad():
        P = torch.stack([F.softmax(w.network(k, model)(last), dim=1) for k, model in enumerate(state.models)])
    close(torch.stack(received[-1]), torch.einsum("km,mbc->kbc", state.coefficients.float(), P), 1e-5)
    assert difference(moved, state.models) > 1e-4 and len(received) == 3
