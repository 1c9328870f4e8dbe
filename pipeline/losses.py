"""Loss terms that methods share: cross-entropy, proximal term, distillation, consistency, contrast."""

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import cross_entropy

# Lower bounds of probabilities and labels in RHFL's code; the first is also Keras's.
SMALLEST_SHARE, SMALLEST_LABEL = 1e-7, 1e-4
LEAST_PROBABILITY = 1e-7  # of the mixture, so that no divergence explodes (AugMix's code)


def total(terms: Iterable[Tensor]) -> Tensor:
    """The sum of one or more tensors, from the first to the last."""
    terms = iter(terms)
    return sum(terms, next(terms))


def squared_distance(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """sum over all tensors of ||params - anchor||^2, the anchor held constant. Entries that only the anchor
    has (buffers, frozen parts) do not count. (FedProx, Li et al. 2020, Eq. 2.)"""
    return total(F.mse_loss(value, anchor[name].detach(), reduction="sum") for name, value in params.items())


def knowledge_distillation(student: Tensor, teacher: Tensor, tau: float = 1.0) -> Tensor:
    """KL_bm(softmax(teacher / tau) || softmax(student / tau)), without a factor tau^2; logits (B, C).
    (FedDF, Lin et al. 2020, Eq. 3; FCCL, Huang et al. 2022; times tau^2 it is FCCL+ Eq. 10)."""
    log_teacher = F.log_softmax(teacher.detach() / tau, dim=1)
    return (log_teacher.exp() * (log_teacher - F.log_softmax(student / tau, dim=1))).sum(1).mean()


def weighted_distillation(student: Tensor, teachers: Tensor, weights: Tensor) -> Tensor:
    """sum_i w_i KL_bm(softmax(teacher_i) || softmax(student)) (RHFL, Fang & Ye 2022; HFL with all w_i = 1 /
    (K - 1)).

    teachers (M, B, C) logits, weights (M,) of any sum.
    """
    log_teachers = F.log_softmax(teachers.detach(), dim=-1)
    each = (log_teachers.exp() * (log_teachers - F.log_softmax(student, dim=-1))).sum(-1).mean(-1)
    return (weights.to(each.dtype) * each).sum()


def jensen_shannon(*logits: Tensor) -> Tensor:
    """Mean over views of KL(p_v || pbar), mean over rows; p = softmax(logits), pbar their mean (AugMix; RAHFL
    Eq. 4).

    logits: one (B, C) per view; every view carries gradient. At most log(number of views).
    """
    logs = [F.log_softmax(z, dim=1) for z in logits]  # p log p from here is finite where p underflows
    mixture = (total(log.exp() for log in logs) / len(logs)).clamp(LEAST_PROBABILITY, 1).log()
    return total((log.exp() * (log - mixture)).sum(1).mean() for log in logs) / len(logs)


def consistent_cross_entropy(logits: Tensor, labels: Tensor, mu: float) -> Tensor:
    """CE of the plain view + mu * JSD of all three (AugHFL's and RAHFL's local loss).

    logits (3B, C) of [x, x'_1, x'_2] from one forward, so that BatchNorm sees the three views together;
    labels (B,).
    """
    plain, *mixed = logits.split(len(labels))
    fit = cross_entropy(plain, labels)
    return fit + mu * jensen_shannon(plain, *mixed) if mu else fit


def supervised_contrast(z: Tensor, labels: Tensor, tau: float, anchors: Tensor | None = None) -> Tensor:
    """Mean over anchors i of -(1 / |P_i|) sum_{p in P_i} log( e^{a_i.z_p / tau} / sum_{q != i} e^{a_i.z_q /
    tau} ), P_i the other rows of i's label; 0 where there is none.

    z (V B, d): the rows of V views one below the other, each of length 1; labels (B,). anchors (V B, d), by
    default z. (Khosla et al. 2020, L_out; RAHFL Eq. 5 without its sum over anchors; FedPCL's released loss.)
    """
    labels = labels.repeat(len(z) // len(labels))
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = (z if anchors is None else anchors) @ z.T / tau
    shares = F.log_softmax(logits.masked_fill(itself, torch.finfo(logits.dtype).min), dim=1)
    positive = (labels == labels[:, None]) & ~itself
    return -(torch.where(positive, shares, 0.0).sum(1) / positive.sum(1).clamp(min=1)).mean()
