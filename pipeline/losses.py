"""The terms of the papers' losses, as pure functions of tensors."""
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the batch of -log softmax(logits)_label. logits (B, C), labels (B,)."""
    return F.cross_entropy(logits, labels)


def squared_distance(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """sum over all tensors of ||params - anchor||^2, the anchor held constant. Entries that only the anchor has
    (buffers, frozen parts) do not count. (FedProx, Li et al. 2020, Eq. 2.)"""
    return sum((value - anchor[name].detach()).pow(2).sum() for name, value in params.items())
