"""KT-pFL: a matrix of coefficients for what clients learn from one another."""

import torch
import torch.nn.functional as F
from all_methods import PROJECTED, small_world
from federation import close, difference
from tiny import Z1, Z2, Z, numbers

from pipeline.engine.state import State
from pipeline.methods.ktpfl import KTpFL, gradient, onto_rows, released_coefficients, stepped_coefficients
from pipeline.schema import Model, Public

P, UNIFORM = F.softmax(Z, dim=2), torch.full((3, 3), 1 / 3, dtype=torch.float64)


def sent(c) -> list[torch.Tensor]:
    return KTpFL().aggregate([{"sent": p, "logits": z} for p, z in zip(P, Z)], State(coefficients=c), None)


def objective(c, predictions):
    targets = torch.einsum("km,mnc->knc", c, predictions)
    return (targets * (targets.log() - predictions.log())).sum((0, 2)).mean()


def test_targets_and_objective_of_the_worked_example():
    close(sent(UNIFORM)[0][0], [0.775528, 0.154281, 0.070191])
    close(objective(UNIFORM, P), 0.416792)


def test_a_step_of_the_papers_coefficients():
    stepped = stepped_coefficients(UNIFORM, P, 0.1, 1.0, 0.7)
    close(
        stepped,
        [[0.237998, 0.213822, 0.230153], [0.208727, 0.249123, 0.190177], [0.216669, 0.182040, 0.246252]],
    )
    close(onto_rows(stepped).sum(1), [1, 1, 1], 1e-12)


def test_the_gradient_of_the_coefficients_is_that_of_autograd():
    rng = torch.Generator().manual_seed(0)
    c = F.softmax(torch.randn(3, 3, dtype=torch.float64, generator=rng), dim=1).requires_grad_()
    close(gradient(c.detach(), P), torch.autograd.grad(objective(c, P), c)[0], 1e-12)


def test_the_coefficients_of_the_released_code():
    actual = released_coefficients(UNIFORM, P, 0.7)
    close(
        actual,
        [[0.355698, 0.307856, 0.336446], [0.327751, 0.356835, 0.315414], [0.329370, 0.248771, 0.421859]],
    )
    close(actual.sum(1), [1, 1, 1], 1e-12)
    assert (actual > 0).all()


def test_rows_are_made_positive_and_of_sum_one():
    close(onto_rows(numbers([[-1, -2, 0], [3, -1, 0], [1, 3, 0]])), [[1 / 3] * 3, [1, 0, 0], [0.25, 0.75, 0]])


def test_a_client_that_learns_from_itself_alone_has_no_loss_and_no_slope():
    identical = sent(torch.eye(3, dtype=torch.float64))
    z = Z2.clone().requires_grad_()
    value = KTpFL().distillation_loss({"logits": z}, identical[1], None)
    close(value.detach(), 0.0, 1e-12)
    close(torch.autograd.grad(value, z)[0], torch.zeros(4, 3), 1e-12)


def test_targets_are_mixtures_of_probabilities_and_not_of_logits():
    close(torch.stack(sent(UNIFORM)), P.mean(0).expand(3, -1, -1), 1e-12)


def test_the_loss_of_the_worked_example():
    target = sent(UNIFORM)[0]
    close(KTpFL().distillation_loss({"logits": Z1}, target, None), 0.060087)
    close(KTpFL(reduction="mean").distillation_loss({"logits": Z1}, target, None), 0.020029)


def test_the_student_has_the_same_temperature():
    soft = F.softmax(Z1 / 10, dim=1)
    close(KTpFL(tau=10.0).distillation_loss({"logits": Z1}, soft, None), 0.0, 1e-12)


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
    assert difference(moved, state.models) > 1e-4
    assert len(received) == 3


def test_it_sends_the_logits_of_all_public_images():
    full = Public("made up", batch_size=512)
    assert KTpFL().traffic(small_world((8,) * 4, PROJECTED[0], public=full)) == (50_000, 50_000)


def test_the_released_update_pulls_the_coefficients_of_equal_answers_together():
    c = numbers([[0.7, 0.3], [0.3, 0.7]])
    after = released_coefficients(c, torch.stack([Z1, Z1]), 0.7)
    assert 0.5 < after[0, 0] < F.softmax(5 * c, dim=1)[0, 0]
