"""Helpers of the image corruptions: random draws per image, zoom, motion blur, bilinear sampling.

Float images hold values in [0, 1]; all have shape (N, 32, 32, C).
"""

from collections.abc import Callable, Sequence

import numpy as np

from pipeline import keys

SIDE = 32
# What rounding may take from a weighted mean. A mean of equal bytes must stay that byte when the fraction is
# cut off.
SLACK = 1e-6


class Draws:
    """One generator per image, so that an image's draws do not depend on the batch that it comes in.

    Every method returns (N, *shape): row i from image i's generator, whose key is (seed, part, name,
    index).
    """

    def __init__(self, name: str, indices: Sequence[int] | np.ndarray, seed: int = 0, part: str = "train"):
        self.generators = [
            np.random.default_rng(keys.key(seed, "corruption", part, name, int(index))) for index in indices
        ]

    def normal(self, *shape: int) -> np.ndarray:
        return self._stack(shape, lambda draw, _: draw.standard_normal(shape))

    def uniform(self, low: float, high: float, *shape: int) -> np.ndarray:
        return self._stack(shape, lambda draw, _: draw.uniform(low, high, shape))

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """low to high - 1."""
        return self._stack(shape, lambda draw, _: draw.integers(low, high, shape), np.int64)

    def poisson(self, rates: np.ndarray) -> np.ndarray:
        """rates (N, ...) -> counts of the same shape."""
        return self._stack(rates.shape[1:], lambda draw, i: draw.poisson(rates[i]), np.int64)

    def _stack(self, shape: Sequence[int], draw: Callable, kind: type = np.float64) -> np.ndarray:
        out: np.ndarray = np.empty((len(self.generators), *shape), kind)
        for i, generator in enumerate(self.generators):
            out[i] = draw(generator, i)
        return out


def to_bytes(x: np.ndarray, slack: float = 0.0) -> np.ndarray:
    """Clip to [0, 1], times 255, cut off the fraction (no rounding, as CIFAR-10-C was made)."""
    return (np.clip(x, 0, 1) * 255 + slack).astype(np.uint8)


def zoom_matrix(factor: float) -> np.ndarray:
    """(32, 32) matrix A with A @ rows = the central 32 of the linearly enlarged centre.

    The middle ceil(32 / factor) rows become round(that * factor), the first and last staying where they are.
    """
    cut = int(np.ceil(SIDE / factor))
    enlarged = round(cut * factor)
    place = (np.arange(SIDE) + (enlarged - SIDE) // 2) * (cut - 1) / (enlarged - 1)
    lower = np.minimum(np.floor(place).astype(int), cut - 2)
    share, rows, lower = place - lower, np.arange(SIDE), lower + (SIDE - cut) // 2
    matrix = np.zeros((SIDE, SIDE))
    matrix[rows, lower] = 1 - share
    matrix[rows, lower + 1] = share
    return matrix


def zoomed(planes: np.ndarray, factor: float) -> np.ndarray:
    """Planes (..., 32, 32), enlarged about the centre."""
    matrix = zoom_matrix(factor)
    return matrix @ planes @ matrix.T


def motion_weights(radius: int, sigma: float) -> np.ndarray:
    """(2 radius + 1,): the falling half of a Gaussian, as ImageMagick blurs."""
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def motion(x: np.ndarray, radius: int, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """Blur every image along its direction, degrees (N,); pixels beyond the edge are those of the
    edge."""
    angle, place = np.deg2rad(degrees), np.arange(SIDE)
    out = np.zeros(x.shape)
    for i, weight in enumerate(motion_weights(radius, sigma)):
        rows = np.clip(place + np.ceil(i * np.sin(angle) - 0.5).astype(int)[:, None], 0, SIDE - 1)
        columns = np.clip(place + np.ceil(i * np.cos(angle) - 0.5).astype(int)[:, None], 0, SIDE - 1)
        out += weight * pick(x, rows[:, :, None], columns[:, None, :])
    return out


def pick(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """out[n, i, j] = x[n, rows[n, i, j], columns[n, i, j]]; rows and columns broadcast to (N, 32, 32)."""
    return x[np.arange(len(x))[:, None, None], rows, columns]


def sample(
    x: np.ndarray, rows: np.ndarray, columns: np.ndarray, border: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Bilinear samples at (N, 32, 32) places; `border` brings an index back into the image."""
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    corner = {(i, j): pick(x, border(top + i), border(left + j)) for i in (0, 1) for j in (0, 1)}
    upper = corner[0, 0] * (1 - right) + corner[0, 1] * right
    lower = corner[1, 0] * (1 - right) + corner[1, 1] * right
    return upper * (1 - down) + lower * down


def reflect_101(index: np.ndarray) -> np.ndarray:
    """... 2 1 | 0 1 2 ...: the edge pixel is not repeated."""
    index = index % (2 * SIDE - 2)
    return np.minimum(index, 2 * SIDE - 2 - index)


def reflect(index: np.ndarray) -> np.ndarray:
    """... 1 0 | 0 1 ...: the edge pixel is repeated."""
    index = index % (2 * SIDE)
    return np.minimum(index, 2 * SIDE - 1 - index)
