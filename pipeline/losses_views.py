"""The terms of AugHFL's and RAHFL's local losses, which compare several views of the same images, as pure functions."""
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.losses import cross_entropy

LEAST_PROBABILITY = 1e-7                                      # of the mixture, so that no divergence explodes (AugMix's code)
LEAST_SIMILARITY = 1e-9                                       # of the strong view's similarities (RAHFL's code)


def jensen_shannon(*logits: Tensor) -> Tensor:
    """Mean over views of KL(p_v || pbar), mean over rows; p = softmax(logits), pbar their mean (AugMix; RAHFL Eq. 4).

    logits: one (B, C) per view; every view carries gradient. At most log(number of views).
    """
    logs = [F.log_softmax(z, dim=1) for z in logits]          # p log p from here is finite where p underflows
    mixture = (sum(log.exp() for log in logs) / len(logs)).clamp(LEAST_PROBABILITY, 1).log()
    return sum((log.exp() * (log - mixture)).sum(1).mean() for log in logs) / len(logs)


def consistent_cross_entropy(logits: Tensor, labels: Tensor, mu: float) -> Tensor:
    """CE of the plain view + mu * JSD of all three (AugHFL's and RAHFL's local loss).

    logits (3B, C) of [x, x'_1, x'_2] from one forward, so that BatchNorm sees the three views together; labels (B,).
    """
    plain, *mixed = logits.split(len(labels))
    fit = cross_entropy(plain, labels)
    return fit + mu * jensen_shannon(plain, *mixed) if mu else fit


def supervised_contrast(z: Tensor, labels: Tensor, tau: float) -> Tensor:
    """Mean over anchors i of -(1 / |P_i|) sum_{p in P_i} log( e^{z_i.z_p / tau} / sum_{a != i} e^{z_i.z_a / tau} ).

    z (V B, d): the rows of V views one below the other, each of length 1; labels (B,). P_i are the other rows of the same
    label. (Khosla et al. 2020, L_out; RAHFL Eq. 5 without its sum over anchors.)
    """
    labels = labels.repeat(len(z) // len(labels))
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = z @ z.T / tau
    shares = F.log_softmax(logits.masked_fill(itself, torch.finfo(logits.dtype).min), dim=1)
    positive = (labels == labels[:, None]) & ~itself
    found = torch.where(positive, shares, 0.0).sum(1) / positive.sum(1).clamp(min=1)
    return -found.mean()


def view_distillation(plain: Tensor, weak: Tensor, strong: Tensor, tau: float, form: Literal["code", "paper"] = "code") -> Tensor:
    """Mean over rows of KL(q_i || s_i): how the weak view is similar to a batch teaches the strong view (RAHFL Eq. 6 to 8).

    plain, weak, strong (B, d), rows of length 1; the batch is R = [weak; plain]. As in the released code
    q_i = softmax(exp(weak_i . R) / tau), s_i the same of strong_i, with q constant, while R inside s carries gradient; as in
    the paper there is no inner exponential, weak_i itself is left out of both, and q carries gradient too.
    """
    rows = torch.cat([weak, plain])
    teacher, student = weak @ rows.T, strong @ rows.T
    if form == "code":
        q = F.softmax(teacher.exp() / tau, dim=1).detach()
        return F.kl_div((F.softmax(student.exp() / tau, dim=1) + LEAST_SIMILARITY).log(), q, reduction="sum") / len(weak)
    itself = torch.eye(len(weak), len(rows), dtype=torch.bool, device=rows.device)
    q, s = (F.log_softmax((z / tau).masked_fill(itself, torch.finfo(z.dtype).min), dim=1) for z in (teacher, student))
    return torch.where(itself, 0.0, q.exp() * (q - s)).sum() / len(weak)
