"""Losses that several methods share, worked by hand."""

import math

import torch
import torch.nn.functional as F
from federation import close
from tiny import Z1, Z2, Z3
from torch.nn.functional import normalize
from written_out import labels

from pipeline.losses import (
    consistent_cross_entropy,
    jensen_shannon,
    knowledge_distillation,
    supervised_contrast,
    weighted_distillation,
)


def six():
    """Six unit rows of two classes, and a vector for each class."""
    generator = torch.Generator().manual_seed(0)
    z = normalize(torch.randn(6, 4, generator=generator))
    return z, labels(0, 1, 0, 0, 1, 0), torch.randn(2, 4, generator=generator)


def test_the_supervised_contrast_with_anchors_sample_by_sample():
    z, y, prototypes = six()
    values = []
    for i in range(6):
        s = [(prototypes[y[i]] @ z[a] / 0.5).item() for a in range(6)]
        total = math.log(sum(math.exp(s[a]) for a in range(6) if a != i))
        positive = [s[p] - total for p in range(6) if p != i and y[p] == y[i]]
        values.append(-sum(positive) / len(positive))
    close(supervised_contrast(z, y, 0.5, prototypes[y]), sum(values) / 6)


def test_a_sample_without_another_of_its_class_is_harmless():
    z, y, prototypes = six()
    three = labels(0, 1, 1)
    assert supervised_contrast(z[:3], three, 0.5, prototypes[three]).isfinite()


def test_a_sample_alone_has_no_supervised_contrast():
    z, y, prototypes = six()
    assert supervised_contrast(z[:1], y[:1], 0.5, prototypes[y[:1]]).item() == 0


def test_jensen_shannon_of_the_toy_logits():
    close(jensen_shannon(Z1, Z2, Z3), 0.111246)
    close(jensen_shannon(Z1, Z1, Z2), 0.068140)
    close(jensen_shannon(Z1, Z1, Z1), 0.0, 1e-12)


def test_jensen_shannon_of_answers_that_exclude_one_another_is_log_three():
    apart = [1e4 * F.one_hot(torch.full((2,), c), 3).double().requires_grad_() for c in range(3)]
    value = jensen_shannon(*apart)
    close(value, math.log(3))
    assert value <= math.log(3) + 1e-9
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, apart))


def test_the_consistent_cross_entropy_adds_jensen_shannon_of_three_views():
    truth, stacked = torch.tensor([0, 1, 2, 0]), torch.cat([Z1, Z2, Z3])
    close(consistent_cross_entropy(stacked, truth, 12.0), 0.339754 + 12 * jensen_shannon(Z1, Z2, Z3))
    close(consistent_cross_entropy(stacked, truth, 0.0), 0.339754)


def test_a_distillations_temperature_divides_the_students_and_the_teachers_logits():
    close(knowledge_distillation(Z1, Z2, 4.0), knowledge_distillation(Z1 / 4, Z2 / 4))


def test_the_distillation_from_several_teachers_is_the_weighted_sum_of_each():
    each = [knowledge_distillation(Z1, Z2), knowledge_distillation(Z1, Z3)]
    weights = torch.tensor([0.5, 2.0])
    close(weighted_distillation(Z1, torch.stack([Z2, Z3]), weights), 0.5 * each[0] + 2 * each[1])
