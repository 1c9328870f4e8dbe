"""Clinics that see tumours of different sizes."""

from dataclasses import dataclass

import numpy as np

from pipeline.schema import Pooled, Share


@dataclass(frozen=True)
class Clinics(Pooled):
    """Samples sorted by `column` and cut into equal parts; a share `mixed` of them is dealt at random."""

    kind = "clinics"
    column: str
    mixed: Share = 0.2

    def cut(self, pool, indices, rng):
        order = indices[np.argsort(pool.columns[self.column][indices], kind="stable")]
        chosen = rng.random(len(order)) < self.mixed
        order[chosen] = rng.permutation(order[chosen])
        return np.array_split(order, self.clients)
