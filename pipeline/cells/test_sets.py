"""The images that models are scored on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from pipeline.engine.phase import draw

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


def sampled(wanted: int, images: Sequence[int], seed: int) -> tuple[int, ...]:
    """The clients that are scored in place of all, in their order: a draw of the seed's, the same in every
    round and for every method.

    wanted: how many, `evaluation.sample`
    images: the number of test images of every client that trains; one without any is not drawn
    seed: of the cell

    There are fewer than `wanted` if not so many clients have test images; `loading.load_world` refuses that.
    """
    candidates = [k for k, count in enumerate(images) if count]
    return draw(candidates, wanted, len(images), "scored", seed)
