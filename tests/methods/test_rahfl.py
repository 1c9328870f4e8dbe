"""RAHFL: views, contrasts and who teaches whom."""

import math

import pytest
import torch
import torch.nn.functional as F
from all_methods import PROJECTED, small_world
from federation import close, difference, run, same
from public_data import collaborative
from tiny import Z1, numbers

from pipeline.engine.handle import Batch
from pipeline.engine.state import State
from pipeline.errors import ParamError, TrainingError
from pipeline.losses import jensen_shannon, supervised_contrast
from pipeline.methods import load, rahfl
from pipeline.methods.local import Local
from pipeline.methods.rahfl import RAHFL, transfer_matrix, view_distillation
from pipeline.schema import Model, Public


def unit_rows(values) -> torch.Tensor:
    return F.normalize(numbers(values), dim=1)


X = unit_rows([[1, 0], [0, 1], [1, 1], [2, 1]])


WEAK = unit_rows([[1, 0.2], [0.1, 1], [1, 2], [1, 0]])


STRONG = unit_rows([[1, 1], [-1, 1], [0, 1], [1, -1]])


Y = torch.tensor([0, 1, 0, 1])


def test_the_contrast_of_views_by_hand():
    two = torch.cat([X, WEAK])
    close(supervised_contrast(two, Y, 0.2), 2.870458)
    close(RAHFL().contrasted(two, Y), 8.201308)


def test_the_papers_contrast_is_a_sum_over_all_anchors():
    """Eq. 5: 2B of them."""
    close(RAHFL(contrast_form="paper").contrasted(torch.cat([X, WEAK]), Y), 8 * 2.870458, 8e-6)


def test_the_distillation_of_views_by_hand():
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


def test_without_distillation_there_are_three_views():
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    assert len(RAHFL(contrast="supcon").views(pixels, torch.Generator().manual_seed(0))) == 3


HFL = [0.257000, 0.426732, 0.442064]


def after(*accuracies) -> State:
    return State(matrix=transfer_matrix(numbers(accuracies)))


def test_the_matrix_of_those_at_least_as_accurate():
    assert transfer_matrix(numbers([60, 70, 65])).tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]


def test_a_client_without_accuracy_learns_from_nobody_and_teaches_nobody():
    assert transfer_matrix(numbers([0.5, math.nan, 0.4])).tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    "accuracies, wanted",
    [((60, 70, 65), [0.257000, 0, 0.670834]), ((70, 60, 65), [0, 0.426732, 0.213294])],
)
def test_clients_learn_from_those_at_least_as_accurate(accuracies, wanted):
    close(collaborative(RAHFL(), after(*accuracies)), wanted)


def test_equals_teach_each_other_as_in_hfl():
    close(collaborative(RAHFL(), after(65, 65, 65)), HFL)
    close(collaborative(RAHFL(asymmetric=False)), HFL)


def test_the_papers_loss_is_the_sum_over_teachers():
    """Eq. 13 has no 1 / m_k."""
    close([2 * collaborative(RAHFL(), after(60, 70, 65))[0]], [0.513999])


def test_a_client_alone_takes_no_step():
    assert RAHFL(asymmetric=False).aggregate([Z1], None, None) == [None]


@pytest.mark.parametrize(
    "method, changes, message",
    [
        (RAHFL(), {"heldout": 0}, "acc_source: heldout needs labelled images"),
        (RAHFL(acc_source="test_clean"), {}, "acc_source: test_clean needs labelled images"),
    ],
)
def test_a_source_of_accuracies_without_images_is_refused(method, changes, message):
    with pytest.raises(TrainingError, match=message):
        run(method, small_world(**changes), 1)


@pytest.fixture(scope="module")
def unequal():
    """The first models, and the state after a round without local training; client 1 is always right."""
    w = small_world((20, 33), local_epochs=0)
    start = w.new_models()
    with torch.no_grad():
        vars(w)["heldout"] = Batch(w.heldout.images, w.network(1, start[1])(w.heldout.images).argmax(1))
    return start, run(RAHFL(), w, 1)


def test_a_worse_client_learns_from_a_better_one(unequal):
    _, state = unequal
    assert state.accuracies["heldout"][1] == 1
    assert state.matrix.tolist() == [[0, 1], [0, 0]]


def test_who_learns_from_whom_is_recorded(unequal):
    actual = RAHFL().diagnostics(unequal[1])
    assert actual["learns.0.1"] == 1.0
    assert actual["learns.1.0"] == 0.0
    assert "learns.0.0" not in actual


def test_a_better_client_does_not_move_and_a_worse_one_does(unequal):
    start, state = unequal
    assert same(state.models[1], start[1])
    assert difference(state.models[0], start[0]) > 1e-4


def test_accuracies_of_every_source_are_kept():
    state = run(RAHFL(), small_world(), 1)
    assert {name: len(values) for name, values in state.accuracies.items()} == {"heldout": 5, "test": 5}
    assert torch.equal(state.matrix, transfer_matrix(state.accuracies["heldout"]))


def test_private_accuracies_need_images_to_hold_out():
    """The third client has none, the fourth one."""
    private = run(RAHFL(acc_source="private"), small_world(), 1)
    assert private.accuracies["private"].isnan().tolist() == [False, False, True, True, False]
    assert not private.matrix[2].any()
    assert not private.matrix[:, 2].any()


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


DROPPED = Public("made up", batch_size=256, drop_last=True)


def sends(state=None, **options):
    """What RAHFL sends and receives among four clients."""
    return RAHFL(**options).traffic(small_world((8,) * 4, PROJECTED[0], public=DROPPED), state)


def test_by_default_half_of_the_others_are_counted_as_teachers():
    assert sends() == (48_641, 1.5 * 48_640)


def test_an_accuracy_is_sent_once_every_few_rounds():
    assert sends(matrix_every=4) == (48_640.25, 1.5 * 48_640)


def test_clients_that_are_equally_good_teach_each_other():
    """Accuracies 0.5, 0.5, 0.7, 0.9: 3 + 3 + 1 + 0 teachers send."""
    tied = State(matrix=transfer_matrix(torch.tensor([0.5, 0.5, 0.7, 0.9])))
    assert sends(tied) == (48_641, 7 / 4 * 48_640)


def test_without_accuracies_nothing_is_received():
    silent = State(matrix=transfer_matrix(torch.tensor([torch.nan] * 4)))
    assert sends(silent) == (48_641, 0)


def test_where_all_teach_all_no_accuracy_is_sent():
    tied = State(matrix=transfer_matrix(torch.tensor([0.5, 0.5, 0.7, 0.9])))
    assert sends(tied, asymmetric=False) == (48_640, 145_920)
    assert sends(asymmetric=False) == (48_640, 145_920)


def test_a_contrast_of_augmix_views_without_augmix_is_refused():
    with pytest.raises(ParamError, match="x: contrast: dcl compares AugMix views"):
        load("rahfl", {"augmix": False}, "f: methods.x")
