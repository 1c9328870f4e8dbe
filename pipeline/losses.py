"""The terms of the papers' losses, as pure functions of tensors."""
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the batch of -log softmax(logits)_label. logits (B, C), labels (B,)."""
    return F.cross_entropy(logits, labels)


def squared_distance(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """sum over all tensors of ||params - anchor||^2, the anchor held constant. Entries that only the anchor has
    (buffers, frozen parts) do not count. (FedProx, Li et al. 2020, Eq. 2.)"""
    return sum(F.mse_loss(value, anchor[name].detach(), reduction="sum") for name, value in params.items())


def distance(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """||params - anchor|| over all tensors of `params`, the anchor held constant; its gradient is zero where they are
    equal. (FedAMP's penalty in PFLlib.)"""
    return torch.linalg.vector_norm(torch.cat([(value - anchor[name].detach()).flatten() for name, value in params.items()]))


def model_contrast(z: Tensor, positive: Tensor, negatives: Sequence[Tensor], tau: float) -> Tensor:
    """Mean over the batch of -log softmax of cos(z, .) / tau at the positive (MOON, Li et al. 2021, Eq. 3).

    z, positive and each of the negatives (B, d); z carries the gradient. Without negatives it is 0.
    """
    similarities = torch.stack([F.cosine_similarity(z, other.detach(), dim=1) for other in (positive, *negatives)], dim=1)
    return -F.log_softmax(similarities / tau, dim=1)[:, 0].mean()


# -- vectors per class ---------------------------------------------------------------------------------------

SMALLEST_NORM = 1e-8                                          # a representation of zeros has cosine 0 with everything


def cosine(z: Tensor, vectors: Tensor) -> Tensor:
    """Cosine of every row of z (B, d) with every row of vectors (P, d): (B, P)."""
    return F.normalize(z, dim=1, eps=SMALLEST_NORM) @ F.normalize(vectors, dim=1, eps=SMALLEST_NORM).T


def prototype_contrast(z: Tensor, labels: Tensor, vectors: Tensor, tau: float, classes: Tensor | None = None,
                       known: Tensor | None = None, similarity: Callable[[Tensor, Tensor], Tensor] = cosine) -> Tensor:
    """Mean over the batch of -log( sum_{p of class y} e^{s(z,p)/tau} / sum_{all p} e^{s(z,p)/tau} ).

    z (B, d) carries the gradient; labels (B,). vectors (P, d) are constants of the classes `classes` (P,), by default one
    per class in order; `known` (P,) bool leaves the others out altogether. A sample whose class has no vector adds 0 and
    counts in the mean. `similarity` (z, vectors) -> (B, P). (FedCRL Eq. 12; FPL, Huang et al. 2023, Eq. 8.)
    """
    classes = torch.arange(len(vectors), device=labels.device) if classes is None else classes
    known = torch.ones_like(classes, dtype=torch.bool) if known is None else known
    logits = similarity(z, vectors.detach()) / tau
    never = torch.finfo(logits.dtype).min                     # not -inf, whose gradient is NaN where nothing is left
    positive = (classes == labels[:, None]) & known
    share = F.log_softmax(logits.masked_fill(~known, never), dim=1).masked_fill(~positive, never).logsumexp(1)
    return -torch.where(positive.any(1), share, 0.0).mean()


def prototype_distance(z: Tensor, labels: Tensor, vectors: Tensor, known: Tensor | None = None) -> Tensor:
    """Mean over batch and dimensions of (z - vectors_y)^2 (FedProto's code; FPL's UPCR; FedPAC; FedTGP).

    z (B, d) carries the gradient; labels (B,); vectors (C, d) are constants. Samples whose class is not `known` (C,) add 0
    and count in the mean.
    """
    gap = z - vectors.detach()[labels]
    return (gap if known is None else torch.where(known[labels][:, None], gap, 0.0)).pow(2).mean()


def class_sums(z: Tensor, labels: Tensor, classes: int) -> dict[str, Tensor]:
    """What a batch adds to its client's class means, per sample: `class_sum` (C, d) and `class_count` (C,). z (B, d) is taken as a
    constant. A loss that logs it lets Trained.class_means give the means of what a phase saw in passing."""
    member = (labels[:, None] == torch.arange(classes, device=labels.device)).to(z.dtype)
    return {"class_sum": member.T @ z.detach() / len(labels), "class_count": member.mean(0)}


def prototype_scores(z: Tensor, vectors: Tensor, known: Tensor) -> Tensor:
    """(B, C): minus the mean squared distance of z (B, d) to every class's vector (C, d), -inf where it is not known."""
    distances = torch.cdist(z, vectors, compute_mode="donot_use_mm_for_euclid_dist").pow(2) / z.shape[1]
    return -distances.masked_fill(~known, torch.inf)
