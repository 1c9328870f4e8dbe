"""The terms of the papers' losses, as pure functions of tensors."""
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the batch of -log softmax(logits)_label. logits (B, C), labels (B,)."""
    return F.cross_entropy(logits, labels)


def squared_distance(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """sum over all tensors of ||params - anchor||^2, the anchor held constant. Entries that only the anchor has
    (buffers, frozen parts) do not count. (FedProx, Li et al. 2020, Eq. 2.)"""
    return sum((value - anchor[name].detach()).pow(2).sum() for name, value in params.items())


def model_contrast(z: Tensor, positive: Tensor, negatives: Sequence[Tensor], tau: float) -> Tensor:
    """Mean over the batch of -log softmax of cos(z, .) / tau at the positive (MOON, Li et al. 2021, Eq. 3).

    z, positive and each of the negatives (B, d); z carries the gradient. Without negatives it is 0.
    """
    similarities = torch.stack([F.cosine_similarity(z, other.detach(), dim=1) for other in (positive, *negatives)], dim=1)
    return -F.log_softmax(similarities / tau, dim=1)[:, 0].mean()
