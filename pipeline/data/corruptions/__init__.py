"""The 15 corruptions of CIFAR-10-C (Hendrycks & Dietterich, ICLR 2019) at 5 severities, for images of 32x32.

The constants are those of the reference's make_cifar_c.py; ImageNet-C's differ. Every function takes and
returns uint8 (N, 32, 32, 3). Random numbers are drawn from the key (seed, part, corruption, index of the
image).
"""

from collections.abc import Callable, Sequence

import numpy as np

from pipeline import keys
from pipeline.data.corrupted import Corrupted
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
) -> Corrupted:
    """Every image with a random corruption of a random severity from 1 to max_severity, and a random order of
    the images: at the rate xi the corrupted ones are those of a rank below floor(xi N).

    RAHFL's released code draws the severities 1 to 4; its text says five levels.
    """
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
    return Corrupted(out, kind, severity, rank)
