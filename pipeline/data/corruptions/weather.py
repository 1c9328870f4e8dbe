"""CIFAR-10-C corruptions: snow, frost and fog, uint8 (N, 32, 32, 3) -> the same."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline import files
from pipeline.data.corruptions.tools import SIDE, Draws, motion, to_bytes, zoomed
from pipeline.errors import DataError

GREY = np.array([0.299, 0.587, 0.114])
PACKAGE = "imagecorruptions"
# The reference holds a sixth photograph and draws from five.
PHOTOS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
PHOTO_STEP = 5  # photographs are shrunk by this factor


def snow(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """Flakes: sparse noise, enlarged and blurred along a direction near the vertical; the image pales."""
    mean, std, zoom, threshold, radius, sigma, keep = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    layer = zoomed(mean + std * draws.normal(SIDE, SIDE), zoom)
    layer = to_bytes(np.where(layer < threshold, 0, layer))[..., None] / 255
    layer = to_bytes(motion(layer, radius, sigma, draws.uniform(-135, -45))) / 255
    x = images / 255
    pale = np.maximum(x, 1.5 * (x @ GREY)[..., None] + 0.5)
    return to_bytes(keep * x + (1 - keep) * pale + layer + layer[:, ::-1, ::-1])


def fog(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """A cloud added to all channels, then scaled so that the image's maximum is never passed."""
    amount, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[severity - 1]
    x = images / 255
    top = x.max((1, 2, 3), keepdims=True)
    return to_bytes(
        (x + amount * plasma(draws.uniform(-1, 1, SIDE**2 - 1), decay)[..., None]) * top / (top + amount)
    )


def plasma(noise: np.ndarray, decay: float) -> np.ndarray:
    """Diamond-square fractals (N, 32, 32) in [0, 1] from noise (N, 1023) in [-1, 1], with wrap-around.

    A new value is the mean of its four neighbours plus wibble^2 times noise: the reference multiplies by the
    wibble and draws within it.
    """
    heights = np.zeros((len(noise), SIDE, SIDE))
    step, wibble, used = SIDE, 100.0, 0

    def around(four: np.ndarray) -> np.ndarray:
        nonlocal used
        count = (SIDE // step) ** 2
        used += count
        return four / 4 + wibble**2 * noise[:, used - count : used].reshape(four.shape)

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        two = corners + np.roll(corners, -1, 1)
        centres = around(two + np.roll(two, -1, 2))
        heights[:, half::step, half::step] = centres
        heights[:, ::step, half::step] = around(
            centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)
        )
        heights[:, half::step, ::step] = around(
            centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)
        )
        step, wibble = half, wibble / decay
    heights -= heights.min((1, 2), keepdims=True)
    return heights / heights.max((1, 2), keepdims=True)


@dataclass(frozen=True)
class Ice:
    """Five pictures uint8 (H, W, 3) to cut frost from, and the digests of their files."""

    pictures: tuple[np.ndarray, ...]
    inputs: dict[str, str]


def frost(images: np.ndarray, severity: int, draws: Draws) -> np.ndarray:
    """A share of the image plus a share of a random cut of a picture of ice."""
    keep, amount = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    pictures = find_ice().pictures
    cuts = np.empty(images.shape)
    chosen, rows, columns = draws.integers(0, len(pictures)), draws.uniform(0, 1), draws.uniform(0, 1)
    for i, (which, row, column) in enumerate(zip(chosen, rows, columns, strict=True)):
        picture = pictures[which]
        top, left = int(row * (picture.shape[0] - SIDE)), int(column * (picture.shape[1] - SIDE))
        cuts[i] = picture[top : top + SIDE, left : left + SIDE]
    return to_bytes((keep * images + amount * cuts) / 255)


@cache
def find_ice() -> Ice:
    """The reference's photographs, from the package that ships them; DataError without it. Every fifth pixel,
    from the third on: what bilinear shrinking by exactly 5 picks in OpenCV."""
    spec = importlib.util.find_spec(PACKAGE)  # not imported: it would ask for OpenCV and scikit-image
    if spec is None or spec.origin is None:
        raise DataError(f"frost needs the photographs of {PACKAGE}: `pip install {PACKAGE}`")
    folder, pictures = Path(spec.origin).with_name("frost"), []
    for name in PHOTOS:
        with Image.open(folder / name) as file:
            photo = np.asarray(file.convert("RGB"))
        height, width = round(photo.shape[0] / PHOTO_STEP), round(photo.shape[1] / PHOTO_STEP)
        pictures.append(photo[PHOTO_STEP // 2 :: PHOTO_STEP, PHOTO_STEP // 2 :: PHOTO_STEP][:height, :width])
    return Ice(tuple(pictures), {name: files.sha256(folder / name) for name in PHOTOS})
