"""CIFAR-10-C corruptions: brightness, contrast, elastic transform, pixelation, JPEG, on uint8 images.

uint8 (N, 32, 32, 3) -> the same.
"""

import io
from collections.abc import Callable

import numpy as np
from PIL import Image
from scipy import ndimage

from pipeline.data.corruptions.tools import SIDE, SLACK, Draws, reflect, reflect_101, sample, to_bytes


def brightness(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """V + c in HSV. Hue and saturation stay, so every channel grows by the factor that V grows by."""
    amount = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    x = images / 255
    value = x.max(3, keepdims=True)
    colour = np.divide(x, value, out=np.ones_like(x), where=value > 0)  # black becomes grey
    return to_bytes(colour * np.clip(value + amount, 0, 1))


def contrast(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """Every channel drawn towards its mean over the image."""
    share = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    x = images / 255
    mean = x.mean((1, 2), keepdims=True)
    return to_bytes((x - mean) * share + mean, SLACK)


def elastic_transform(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """A random affine map, then a smooth random displacement of the pixels."""
    alpha, sigma, corner = (
        (0, 0, 2.56),
        (1.6, 6.4, 2.24),
        (2.56, 1.92, 1.92),
        (3.2, 1.28, 1.6),
        (3.2, 0.96, 0.96),
    )[severity - 1]
    rows, columns = affine_places(draws.uniform(-corner, corner, 3, 2))
    warped = sample(images / 255, rows, columns, reflect_101)
    noise = draws.uniform(-1, 1, 2, SIDE, SIDE)
    across, down = alpha * np.moveaxis(
        ndimage.gaussian_filter(noise, (0, 0, sigma, sigma), mode="reflect", truncate=3), 1, 0
    )
    place = np.arange(SIDE)
    return to_bytes(sample(warped, place[:, None] + down, place + across, reflect), SLACK)


def affine_places(shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each pixel comes from, rows and columns (N, 32, 32), if three points move by shift (N, 3, 2),
    given as (x, y)."""
    points = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])
    one = np.ones((len(shift), 3, 1))
    # (N, 3, 2)
    back = np.linalg.solve(np.concatenate([points + shift, one], 2), np.broadcast_to(points, shift.shape))
    y, x = np.mgrid[:SIDE, :SIDE]
    places = np.stack([x, y, np.ones_like(x)], 2).reshape(-1, 3) @ back
    columns, rows = np.moveaxis(places.reshape(-1, SIDE, SIDE, 2), 3, 0)
    return rows, columns


def pixelate(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """Made smaller and enlarged again, both by means over boxes."""
    side = int(SIDE * (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1])

    def through(image: Image.Image) -> Image.Image:
        return image.resize((side, side), Image.Resampling.BOX).resize((SIDE, SIDE), Image.Resampling.BOX)

    return _each(images, through)


def jpeg_compression(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """Encoded and decoded by Pillow."""
    quality = (80, 65, 58, 50, 40)[severity - 1]

    def through(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _each(images, through)


def _each(images: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    out = np.empty_like(images)
    for i, image in enumerate(images):
        out[i] = np.asarray(change(Image.fromarray(image)))
    return out
