"""CIFAR-10-C corruptions: snow, frost and fog, uint8 (N, 32, 32, 3) -> the same."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from pipeline import files, keys
from pipeline.data.corruptions.tools import SIDE, Draws, motion, to_bytes, zoomed

GREY = np.array([0.299, 0.587, 0.114])
PACKAGE = "imagecorruptions"
# The reference holds a sixth photograph and draws from five.
PHOTOS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
SYNTHETIC = "synthetic texture"
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


# -- frost -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ice:
    """Five pictures uint8 (H, W, 3) to cut frost from, their origin, and the digests of their files."""

    pictures: tuple[np.ndarray, ...]
    source: str
    inputs: dict[str, str]


def frost(images: np.ndarray, severity: int, draws: Draws, ice: Ice | None = None) -> np.ndarray:
    """A share of the image plus a share of a random cut of a picture of ice."""
    keep, amount = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    pictures = (ice or find_ice()).pictures
    cuts = np.empty(images.shape)
    chosen, rows, columns = draws.integers(0, len(pictures)), draws.uniform(0, 1), draws.uniform(0, 1)
    for i, (which, row, column) in enumerate(zip(chosen, rows, columns, strict=True)):
        picture = pictures[which]
        top, left = int(row * (picture.shape[0] - SIDE)), int(column * (picture.shape[1] - SIDE))
        cuts[i] = picture[top : top + SIDE, left : left + SIDE]
    return to_bytes((keep * images + amount * cuts) / 255)


@cache
def find_ice() -> Ice:
    """The photographs where the package that ships them is installed, else generated pictures."""
    folder = _photo_folder()
    return photographs(folder) if folder else synthetic_ice()


def _photo_folder() -> Path | None:
    """Located without an import of the package, which would ask for OpenCV and scikit-image."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = [Path(place) / "frost" for place in (spec and spec.submodule_search_locations) or ()]
    return next((folder for folder in folders if all((folder / name).is_file() for name in PHOTOS)), None)


def photographs(folder: Path) -> Ice:
    """Every fifth pixel, from the third on: what bilinear shrinking by exactly 5 picks in OpenCV."""
    pictures = []
    for name in PHOTOS:
        with Image.open(folder / name) as file:
            photo = np.asarray(file.convert("RGB"))
        height, width = round(photo.shape[0] / PHOTO_STEP), round(photo.shape[1] / PHOTO_STEP)
        pictures.append(photo[PHOTO_STEP // 2 :: PHOTO_STEP, PHOTO_STEP // 2 :: PHOTO_STEP][:height, :width])
    return Ice(
        tuple(pictures),
        f"photographs of the package {PACKAGE}",
        {name: files.sha256(folder / name) for name in PHOTOS},
    )


def synthetic_ice() -> Ice:
    """Ridged noise at three scales, bluish, with about the mean and the spread of the photographs. A
    stand-in, not ice."""
    pictures = []
    for i in range(len(PHOTOS)):
        draw = np.random.default_rng(keys.key("ice", i))
        light = np.zeros((96, 128))
        for scale in (0.7, 2, 5):
            hills = ndimage.gaussian_filter(draw.standard_normal(light.shape), scale, mode="wrap")
            light -= np.abs(hills / hills.std())
        light = (light - light.mean()) / light.std()
        pictures.append(np.clip((146, 164, 177) + 30 * light[..., None], 0, 255).astype(np.uint8))
    return Ice(tuple(pictures), SYNTHETIC, {})
