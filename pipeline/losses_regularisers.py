"""Further terms of losses, as pure functions of tensors: anchors, margins, Gaussians and a restricted softmax."""
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def anchor_distance(z: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Mean over the batch of ||z - a_y||, the anchors held constant. z (B, d), labels (B,), anchors (C, d).
    (FedLSA's ablation without the contrast: "L2-norm to constrain intra-class representations".)"""
    return torch.linalg.vector_norm(z - anchors.detach()[labels], dim=1).mean()


def class_gaps(vectors: Tensor, known: Tensor, to: Literal["nearest", "farthest"] = "nearest") -> Tensor:
    """(C,): the distance from every class's vector to the nearest (or farthest) of the others; a class that is not `known`
    takes the smallest of these, and all are infinite where fewer than two classes are known. (FedTGP's code.)

    vectors (C, d), known (C,) bool.
    """
    distances = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    pairs = known[:, None] & known & ~torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    if to == "nearest":
        gaps = distances.masked_fill(~pairs, torch.inf).amin(1)
    else:
        gaps = distances.masked_fill(~pairs, -torch.inf).amax(1).masked_fill(~pairs.any(1), torch.inf)
    return torch.where(known, gaps, gaps.amin())


def gaussian_divergence(mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor) -> Tensor:
    """(B,): KL( N(mean, deviation^2) || N(other_mean, other_deviation^2) ), summed over dimensions; all (B, d).
    (FedSR, Nguyen et al. 2022, the conditional information term.)"""
    ratio = (deviation.pow(2) + (mean - other_mean).pow(2)) / (2 * other_deviation.pow(2))
    return (other_deviation.log() - deviation.log() + ratio - 0.5).sum(1)


def restricted_scale(counts: Tensor, alpha: float, mode: Literal["hard", "soft"] = "hard") -> Tensor:
    """alpha_c (..., C) from a client's images per class, counts (..., C) (FedRS, Li & Zhan 2021).

    hard  1 for classes that the client holds, alpha for the others (paper)
    soft  alpha + (1 - alpha) n_c / max n: rare classes are damped too (released code)
    """
    held = (counts > 0).double() if mode == "hard" else counts.double() / counts.amax(-1, keepdim=True).clamp(min=1)
    return 1 - (1 - alpha) * (1 - held)                       # exactly 1 where the class is held in full


def restricted_cross_entropy(z: Tensor, labels: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of the logits scale_c * (w_c . z) (+ bias_c, which is not scaled) (FedRS, Li & Zhan 2021).

    z (B, d), labels (B,), weight (C, d), scale (C,), bias (C,).
    """
    logits = F.linear(z, weight) * scale
    return F.cross_entropy(logits if bias is None else logits + bias, labels)
