"""CIFAR-10-C corruptions: Gaussian, shot and impulse noise, uint8 (N, 32, 32, 3) -> the same."""

import numpy as np

from pipeline.data.corruptions.tools import Draws, to_bytes


def gaussian_noise(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """x + N(0, sigma^2) on every value."""
    sigma = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return to_bytes(images / 255 + sigma * draws.normal(*images.shape[1:]))


def shot_noise(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """Poisson(c x) / c: `c` photons for white."""
    photons = (500, 250, 100, 75, 50)[severity - 1]
    return to_bytes(draws.poisson(images / 255 * photons) / photons)


def impulse_noise(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """A share of the values, every channel separately, becomes 0 or 255."""
    amount = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    hit, white = np.moveaxis(draws.uniform(0, 1, 2, *images.shape[1:]), 1, 0)
    return np.where(hit < amount, np.where(white < 0.5, 255, 0), images).astype(np.uint8)
