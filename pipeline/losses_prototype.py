"""Terms of the methods that contrast unit representations with class means (FedProc, FedPCL)."""
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.losses import SMALLEST_NORM


def unit(z: Tensor) -> Tensor:
    """Rows (B, d) at length one; a zero row stays zero."""
    return F.normalize(z, dim=1, eps=SMALLEST_NORM)


def prototype_sets_contrast(z: Tensor, labels: Tensor, sets: Tensor, tau: float, known: Tensor | None = None,
                            exclude_positive: bool = False) -> Tensor:
    """Mean over batch and sets of -log( e^{z.p_y / tau} / sum_a e^{z.p_a / tau} ), p from one set at a time (FedPCL, Tan
    et al. 2022).

    z (B, d), of unit length, carries the gradient; labels (B,); sets (N, C, d) are constants; `known` (C,) leaves classes
    out. `exclude_positive` leaves p_y out of the denominator. A sample whose class is not known, or that has nothing in
    its denominator, adds 0 and counts in the mean.
    """
    classes = torch.arange(sets.shape[1], device=labels.device)
    known = torch.ones_like(classes, dtype=torch.bool) if known is None else known
    logits = torch.einsum("bd,ncd->bnc", z, sets.detach()) / tau
    positive = classes == labels[:, None]                                              # (B, C)
    against = (known & ~positive if exclude_positive else known.expand_as(positive))
    never = torch.finfo(logits.dtype).min
    nearness = torch.where(positive[:, None], logits, 0.0).sum(2)
    missed = logits.masked_fill(~against[:, None], never).logsumexp(2) - nearness      # (B, N)
    counted = known[labels] & against.any(1)
    return torch.where(counted[:, None], missed, 0.0).mean()


def batch_contrast(z: Tensor, labels: Tensor, prototypes: Tensor, tau: float) -> Tensor:
    """FedPCL's released loss: a sample's class mean as the anchor, the batch's other representations as what it is compared with.

    l_i = -mean over p of i's class, p != i, of log( e^{s_ip} / sum_{a != i} e^{s_ia} ) with s_ia = p_{y_i}.z_a / tau; mean
    over i. z (B, d), of unit length, carries the gradient; labels (B,); prototypes (C, d) are constants. A sample without
    another of its class adds 0.
    """
    others = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    logits = prototypes.detach()[labels] @ z.T / tau
    logits = logits - logits.masked_fill(~others, torch.finfo(logits.dtype).min).logsumexp(1, keepdim=True)
    positive = (labels[:, None] == labels) & others
    return -(torch.where(positive, logits, 0.0).sum(1) / positive.sum(1).clamp(min=1)).mean()
