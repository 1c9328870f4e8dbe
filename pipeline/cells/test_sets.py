"""The images that models are scored on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

# Test images that are scored at once; public images whose logits are kept for figures.
BATCH, PUBLIC = 1024, 512


@dataclass(frozen=True)
class TestSet:
    """Images (N, C, H, W) and labels (N,) with a name (of a client, a domain, or `test`).

    If they are corrupted, also the name and the severity of each corruption, (N,) both.
    """

    __test__ = False  # not a pytest class
    name: str
    images: Tensor
    labels: Tensor
    corruption: tuple[np.ndarray, np.ndarray] | None = None

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(images, labels) in batches of BATCH."""
        if len(self.labels):
            yield from zip(self.images.split(BATCH), self.labels.split(BATCH))
