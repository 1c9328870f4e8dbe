"""CIFAR-10-C corruptions: defocus, glass, motion and zoom blur, uint8 (N, 32, 32, 3) -> the same."""

import numpy as np
from scipy import ndimage

from pipeline.data.corruptions.tools import SIDE, SLACK, Draws, motion, pick, to_bytes, zoomed

# The ends of arange, so the last factors are 1.06, 1.11, 1.15, 1.20 and 1.25.
ZOOM_END = (1.06, 1.11, 1.16, 1.21, 1.26)


def defocus_kernel(radius: float, alias: float) -> np.ndarray:
    """(5, 5): a disk, smoothed by a 3x3 Gaussian. Beyond it the reference's 17x17 kernel is zero, since
    radius <= 1.5."""
    place = np.arange(-2, 3)
    disk = (place[:, None] ** 2 + place**2 <= radius**2).astype(float)
    side = np.exp(-0.5 / alias**2)
    smooth = np.array([side, 1, side]) / (1 + 2 * side)
    kernel = ndimage.correlate(disk / disk.sum(), np.outer(smooth, smooth), mode="constant")
    return kernel / kernel.sum()  # the sum is 1 up to rounding


def defocus_blur(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """Correlation with a disk; the border is reflected without its edge pixel."""
    radius, alias = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    return to_bytes(
        ndimage.correlate(images / 255, defocus_kernel(radius, alias)[None, :, :, None], mode="mirror"), SLACK
    )


def glass_blur(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """Blur, let every pixel take the value of a neighbour above and to the left, blur. The neighbour keeps
    its value, as CIFAR-10-C was made: its exchange of two array views left it as it was."""
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    x = to_bytes(_gaussian(images / 255, sigma), SLACK)
    for _ in range(rounds):
        steps = draws.integers(-1, 1, SIDE - 2, SIDE - 2, 2)  # [n, h - 2, w - 2] = (dx, dy)
        x = _copy(x, steps)
    return to_bytes(_gaussian(x / 255, sigma), SLACK)


def _gaussian(x: np.ndarray, sigma: float) -> np.ndarray:
    return ndimage.gaussian_filter(x, (0, sigma, sigma, 0), mode="nearest", truncate=4)


def _copy(x: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The sweep runs from the lower right and reads above and to the left, so it never reads what it wrote:
    one look-up does it."""
    place = np.arange(2, SIDE)
    out = x.copy()
    out[:, 2:, 2:] = pick(x, place[:, None] + steps[..., 1], place + steps[..., 0])
    return out


def motion_blur(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """One-sided Gaussian along a direction within 45 degrees of the horizontal."""
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[severity - 1]
    return to_bytes(motion(images / 255, radius, sigma, draws.uniform(-45, 45)), SLACK)


def zoom_factors(severity: int) -> np.ndarray:
    """As arange gives them: 1.2500000000000002 enlarges 26 to 33 pixels, 1.25 would give 32."""
    return np.arange(1, ZOOM_END[severity - 1], 0.01)


def zoom_blur(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """The mean of the image and of its enlargements."""
    planes = np.moveaxis(images / 255, 3, 1)
    factors = zoom_factors(severity)
    total = planes + sum(zoomed(planes, factor) for factor in factors)
    return to_bytes(np.moveaxis(total, 1, 3) / (len(factors) + 1), SLACK)
