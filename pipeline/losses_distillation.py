"""How one model's answers are drawn to others': the terms of the methods that agree on public data, as pure functions.

Logits are (B, C), a teacher's are constants, labels are (B,). "KL_bm(p || q)" is the mean over rows of
sum_c p_c (log p_c - log q_c).
"""
import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST_SPREAD = 1e-6                                        # of a column of logits: a constant one correlates with nothing
SMALLEST_SHARE, SMALLEST_LABEL = 1e-7, 1e-4                   # where RHFL's code (and Keras, the first) cuts probabilities and labels


# -- distillation --------------------------------------------------------------------------------------------

def knowledge_distillation(student: Tensor, teacher: Tensor, tau: float = 1.0) -> Tensor:
    """KL_bm(softmax(teacher / tau) || softmax(student / tau)), without a factor tau^2 (FedDF, Lin et al. 2020, Eq. 3;
    FCCL, Huang et al. 2022; times tau^2 it is FCCL+ Eq. 10)."""
    log_teacher = F.log_softmax(teacher.detach() / tau, dim=1)
    return (log_teacher.exp() * (log_teacher - F.log_softmax(student / tau, dim=1))).sum(1).mean()


def weighted_distillation(student: Tensor, teachers: Tensor, weights: Tensor) -> Tensor:
    """sum_i w_i KL_bm(softmax(teacher_i) || softmax(student)) (RHFL, Fang & Ye 2022; HFL with all w_i = 1 / (K - 1)).

    teachers (M, B, C) logits, weights (M,) of any sum.
    """
    log_teachers = F.log_softmax(teachers.detach(), dim=-1)
    each = (log_teachers.exp() * (log_teachers - F.log_softmax(student, dim=-1))).sum(-1).mean(-1)
    return (weights.to(each.dtype) * each).sum()


def non_target_distillation(student: Tensor, teacher: Tensor, labels: Tensor, tau: float = 1.0, renormalise: bool = False) -> Tensor:
    """Mean over the batch of sum_{u != y} p_T^u log(p_T^u / p_S^u), p = softmax(. / tau), without a factor tau^2 (FCCL+,
    Huang et al. 2023, Eq. 13).

    p runs over all C classes, as in Eq. 13 and the code: the value can be negative, and the student's target logit is
    always pushed down. `renormalise`: p over the C - 1 other classes, as Eq. 12 and its text need; the target logit has
    no gradient then.
    """
    target = torch.arange(student.shape[1], device=labels.device) == labels[:, None]
    student, teacher = student / tau, teacher.detach() / tau
    if renormalise:
        never = torch.finfo(student.dtype).min                # not -inf, whose gradient is NaN
        student, teacher = student.masked_fill(target, never), teacher.masked_fill(target, never)
    log_teacher = F.log_softmax(teacher, dim=1)
    terms = log_teacher.exp() * (log_teacher - F.log_softmax(student, dim=1))
    return torch.where(target, 0.0, terms).sum(1).mean()


# -- FCCL and FCCL+: what a batch of answers looks like ------------------------------------------------------------

def cross_correlation(logits: Tensor, consensus: Tensor, pearson: bool = False) -> Tensor:
    """M (C, C): how column u of the logits correlates with column v of the consensus over the batch (FCCL Eq. 1).

    As the code has it: columns standardised with the unbiased deviation, then a mean over B, so that M is (B - 1) / B times
    Pearson's correlation; `pearson` gives the paper's. A column that is constant over the batch has M = 0.
    """
    size = len(logits)
    exact = _standard(logits).T @ _standard(consensus)
    return exact if pearson else exact * (size - 1) / size


def _standard(columns: Tensor) -> Tensor:
    """Each column (B,) about its mean and of length one."""
    centred = columns - columns.mean(0)
    return centred / torch.linalg.vector_norm(centred, dim=0).clamp(min=SMALLEST_SPREAD)


def correlation_distance(matrix: Tensor, lam: float, off_target: float = -1.0) -> Tensor:
    """sum_u (1 - M_uu)^2 + lambda sum_{u != v} (M_uv - off_target)^2 (FCCL Eq. 2). matrix (C, C).

    The papers and both codes draw different classes to -1; 0 is the decorrelation of Barlow Twins.
    """
    same = torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    gap = torch.where(same, 1.0 - matrix, matrix - off_target).pow(2)
    return torch.where(same, gap, lam * gap).sum()


def instance_similarity(features: Tensor, mu: float) -> Tensor:
    """S (B, B - 1): cosines of every row of features (B, d) with the others in order, divided by mu (FCCL+ Eq. 3 and 4).
    Widths d need not agree between clients."""
    size, rows = len(features), F.normalize(features, dim=1)
    cosines = rows @ rows.T
    others = cosines.flatten()[1:].view(size - 1, size + 1)[:, :-1] if size > 1 else cosines[:, 1:]   # all but the diagonal
    return others.reshape(size, size - 1) / mu


def similarity_distillation(similarity: Tensor, consensus: Tensor) -> Tensor:
    """KL_bm(softmax(consensus) || softmax(similarity)) over the rows (B, B - 1) of `instance_similarity` (FCCL+ Eq. 5)."""
    return knowledge_distillation(similarity, consensus)


def elastic_penalty(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor], fisher: Mapping[str, Tensor]) -> Tensor:
    """sum_p F_p (theta_p - anchor_p)^2 over all trainable tensors, without a factor 1/2 (EWC in FCCL+ Table 16)."""
    return sum((fisher[name] * (value - anchor[name].detach()).pow(2)).sum() for name, value in params.items())


# -- RHFL ----------------------------------------------------------------------------------------------------

def reverse_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-mean_b sum_c p_bc log(onehot_bc), p cut to [1e-7, 1] and the label to [1e-4, 1]; the gradient flows through p."""
    others = torch.arange(logits.shape[1], device=labels.device) != labels[:, None]
    shares = F.softmax(logits, dim=1).clamp(SMALLEST_SHARE, 1.0)
    return -math.log(SMALLEST_LABEL) * torch.where(others, shares, 0.0).sum(1).mean()


def symmetric_cross_entropy(logits: Tensor, labels: Tensor, alpha: float, beta: float) -> Tensor:
    """alpha CE + beta RCE, the SL loss of RHFL (Fang & Ye 2022; after Wang et al. 2019)."""
    return alpha * F.cross_entropy(logits, labels) + beta * reverse_cross_entropy(logits, labels)


def confidence_weights(previous: Tensor, current: Tensor, eta: float, guarded: bool = False) -> Tensor:
    """W (K,): softmax over the clients of 1 / (K - 1) + eta F_k / sum_j F_j with F_k = (L_k^prev - L_k) / L_k (RHFL's client
    confidence re-weighting).

    previous, current (K,): the clients' mean private losses; NaN (no data) counts as a loss that stands still. A sum of F that
    is not positive turns the order round: literal, unless `guarded`, then W is uniform. It is uniform for a sum of 0 as well.
    """
    gain = (previous - current) / current
    gain = torch.where(gain.isfinite(), gain, 0.0)
    total = gain.sum()
    usable = total > 0 if guarded else total != 0
    share = torch.where(usable, gain / torch.where(usable, total, 1.0), 1 / len(gain))
    return F.softmax(1 / (len(gain) - 1) + eta * share, dim=0)


# -- FedMatch --------------------------------------------------------------------------------------------------

def inter_client_consistency(local: Tensor, helpers: Tensor, confident: Tensor) -> Tensor:
    """Mean over helpers and confident samples of sum_c p_h log(p_h / p_local); 0 where no sample is confident (FedMatch,
    Jeong et al. 2021, Eq. 2).

    Probabilities: local (B, C) with the gradient, helpers (H, B, C) constants; confident (B,) bool. Cut to [1e-7, 1].
    """
    local, helpers = local.clamp(SMALLEST_SHARE, 1.0), helpers.detach().clamp(SMALLEST_SHARE, 1.0)
    each = (helpers * (helpers.log() - local.log())).sum(-1).sum(0) / max(len(helpers), 1)
    return _mean_where(confident, each)


def majority_labels(local: Tensor, helpers: Tensor) -> Tensor:
    """(B,): the class that most of the local model and its helpers name; the smallest index of equals. Probabilities as above."""
    votes = F.one_hot(torch.cat([local.detach()[None], helpers]).argmax(-1), local.shape[-1]).sum(0)
    return votes.argmax(-1)                                   # the first of equal maxima


def pseudo_label_loss(logits: Tensor, labels: Tensor, confident: Tensor) -> Tensor:
    """Mean over the confident samples of the cross-entropy with pseudo-labels; 0 where there is none (FedMatch, Eq. 3)."""
    return _mean_where(confident, F.cross_entropy(logits, labels, reduction="none"))


def disjoint_penalty(sigma: Mapping[str, Tensor], psi: Mapping[str, Tensor], l1: float, l2: float) -> Tensor:
    """l2 ||sigma - psi||^2 + l1 ||psi||_1 over all trainable tensors (FedMatch, Eq. 5)."""
    return sum(l2 * (sigma[name].detach() - value).pow(2).sum() + l1 * value.abs().sum() for name, value in psi.items())


def _mean_where(chosen: Tensor, values: Tensor) -> Tensor:
    return torch.where(chosen, values, 0.0).sum() / chosen.sum().clamp(min=1)
