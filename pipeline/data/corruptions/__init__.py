"""The 15 corruptions of CIFAR-10-C (Hendrycks & Dietterich, ICLR 2019) at 5 severities, for images of 32x32.

The constants are those of the reference's make_cifar_c.py; ImageNet-C's differ. Every function takes and
returns uint8 (N, 32, 32, 3). Random numbers are drawn from the key (seed, part, corruption, index of the
image).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline import keys
from pipeline.data.corruptions import blur, digital, noise, weather
from pipeline.data.corruptions.tools import SIDE, Draws

CORRUPTIONS = {
    function.__name__: function
    for function in (
        noise.gaussian_noise,
        noise.shot_noise,
        noise.impulse_noise,
        blur.defocus_blur,
        blur.glass_blur,
        blur.motion_blur,
        blur.zoom_blur,
        weather.snow,
        weather.frost,
        weather.fog,
        digital.brightness,
        digital.contrast,
        digital.elastic_transform,
        digital.pixelate,
        digital.jpeg_compression,
    )
}
KINDS = tuple(CORRUPTIONS)
SEVERITIES = 5
CHUNK = 512  # images corrupted at once, which bounds the memory of the intermediate floats


@dataclass(frozen=True)
class CorruptSet:
    """images uint8 (N, 32, 32, 3), all corrupted; kind (N,) uint8, an index into KINDS; severity (N,) uint8;
    rank (N,) int32.

    At the rate xi the corrupted images are those of a rank below floor(xi N).
    """

    images: np.ndarray
    kind: np.ndarray
    severity: np.ndarray
    rank: np.ndarray


def corrupt(
    images: np.ndarray,
    name: str,
    severity: int,
    seed: int = 0,
    indices: Sequence[int] | np.ndarray | None = None,
    part: str = "train",
) -> np.ndarray:
    """Images under one corruption at one severity; severity 0 gives a copy.

    indices: the images' numbers in their set (default 0, 1, ...), part: the part of the set; both enter the
    keys.
    """
    _check(images)
    if name not in CORRUPTIONS:
        raise ValueError(f"corruption {name!r}; known: {', '.join(KINDS)}")
    if not 0 <= severity <= SEVERITIES:
        raise ValueError(f"severity {severity}, expected 0 to {SEVERITIES}")
    if severity == 0 or len(images) == 0:
        return images.copy()
    indices = range(len(images)) if indices is None else indices
    return CORRUPTIONS[name](images, severity, Draws(name, indices, seed, part))


def corrupt_set(
    images: np.ndarray,
    seed: int,
    max_severity: int = 4,
    part: str = "train",
    progress: Callable[[int], None] = lambda done: None,
) -> CorruptSet:
    """Every image with a random corruption of a random severity from 1 to max_severity, and a random order of
    the images.

    RAHFL's released code draws the severities 1 to 4; its text says five levels.
    """
    _check(images)
    if not 1 <= max_severity <= SEVERITIES:
        raise ValueError(f"max_severity {max_severity}, expected 1 to {SEVERITIES}")
    count = len(images)

    def generator(what: str) -> np.random.Generator:
        return np.random.default_rng(keys.key(seed, "corruption", part, what))

    kind = generator("kind").integers(len(KINDS), size=count).astype(np.uint8)
    severity = generator("severity").integers(1, max_severity + 1, size=count).astype(np.uint8)
    rank = np.empty(count, np.int32)
    rank[generator("rank").permutation(count)] = np.arange(count)
    out, done = np.empty((count, SIDE, SIDE, 3), np.uint8), 0
    for code, name in enumerate(KINDS):
        for level in range(1, max_severity + 1):
            chosen = np.flatnonzero((kind == code) & (severity == level))
            for chunk in np.split(chosen, range(CHUNK, len(chosen), CHUNK)):
                out[chunk] = corrupt(images[chunk], name, level, seed, chunk, part)
                done += len(chunk)
                progress(done)
    return CorruptSet(out, kind, severity, rank)


def _check(images: np.ndarray) -> None:
    if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE, 3):
        raise ValueError(
            f"images of type {images.dtype} and shape {images.shape}, expected uint8 and (N, {SIDE}, {SIDE}, "
            "3)"
        )
