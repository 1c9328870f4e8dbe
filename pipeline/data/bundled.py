"""Data sets made from images that scikit-learn includes, so that everything runs without a network.

All of it is deterministic.

`digits`: the 1,797 scans of 8x8 pixels. `digit_domains`: four domains derived from them. `photo_patches`:
unlabelled patches of the two sample photographs.
"""

from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import StratifiedKFold, train_test_split

from pipeline import files
from pipeline.data.registry import find
from pipeline.data.store import TEST, TRAIN, Arrays

SEED = 0
SIDE = 16  # pixels of the derived domains and of the patches
TEST_SHARE = 0.2


def make(name: str) -> tuple[Arrays, dict]:
    """A bundled set, and its entries of meta.json: deviation and digests of scikit-learn's files."""
    arrays, deviation, inputs = {
        "digits": _digits,
        "digit_domains": _digit_domains,
        "photo_patches": _photo_patches,
    }[name]()
    return arrays, {"source": "bundled", "deviation": deviation, "inputs": inputs}


def _digits() -> tuple[Arrays, str, dict]:
    images, labels, inputs = _scans()
    none = np.zeros(len(labels), np.int64)
    arrays = Arrays(images[..., None], labels, none, _split(labels), find("digits").names)
    return arrays, "stratified 80/20 split of our own, seed 0", inputs


def _digit_domains() -> tuple[Arrays, str, dict]:
    """Each scan goes to one domain only, so that no two domains share an image; classes are spread evenly."""
    scans, labels, inputs = _scans()
    scans = np.stack(
        [np.asarray(Image.fromarray(scan).resize((SIDE, SIDE), Image.Resampling.BILINEAR)) for scan in scans]
    )
    quarters = [part for _, part in StratifiedKFold(4, shuffle=True, random_state=SEED).split(scans, labels)]
    order = np.concatenate(quarters)
    images = [
        render(scans[part], np.random.default_rng([SEED, i]))
        for i, (render, part) in enumerate(zip((_scanned, _inverted, _rotated, _noisy), quarters))
    ]
    arrays = Arrays(
        np.concatenate(images),
        labels[order],
        np.repeat(np.arange(4), [len(part) for part in quarters]),
        np.concatenate([_split(labels[part]) for part in quarters]),
        find("digit_domains").names,
    )
    deviation = (
        "derived: each of the 1,797 scans is enlarged from 8x8 to 16x16 and rendered in one of four styles, "
        "so that no two domains share a scan; stratified 80/20 split of our own, seed 0"
    )
    return arrays, deviation, inputs


def _photo_patches() -> tuple[Arrays, str, dict]:
    """Patches side by side, row by row; the strips at the right and lower edge are left out."""
    photos = load_sample_images()
    patches = []
    for photo in photos.images:
        rows, columns = photo.shape[0] // SIDE, photo.shape[1] // SIDE
        cut = photo[: rows * SIDE, : columns * SIDE].reshape(rows, SIDE, columns, SIDE, 3)
        patches.append(cut.swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3))
    images = np.concatenate(patches)
    none = np.zeros(len(images), np.int64)
    inputs = {Path(path).name: files.sha256(path) for path in photos.filenames}
    deviation = "16x16 patches of two photographs, without labels"
    return Arrays(images, none - 1, none, none, []), deviation, inputs


def _scans() -> tuple[np.ndarray, np.ndarray, dict]:
    """(N, 8, 8) uint8, light ink on dark ground, the scans' 16 becoming 255; labels (N,); digest of
    scikit-learn's file."""
    digits = load_digits()
    images = (digits.images.astype(np.int64) * 255 + 8) // 16
    file = Path(str(resources.files("sklearn.datasets.data") / "digits.csv.gz"))
    return images.astype(np.uint8), digits.target.astype(np.int64), {file.name: files.sha256(file)}


def _split(labels: np.ndarray) -> np.ndarray:
    split, order = np.full(len(labels), TRAIN, np.uint8), np.arange(len(labels))
    test = train_test_split(order, test_size=TEST_SHARE, stratify=labels, random_state=SEED)[1]
    split[test] = TEST
    return split


def _scanned(scans: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    return _colour(scans)


def _inverted(scans: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Dark ink on a light ground, both of a random colour."""
    ground = draw.integers(128, 256, (len(scans), 1, 1, 3))
    ink = draw.integers(0, 64, (len(scans), 1, 1, 3))
    light = scans[..., None].astype(np.int64)
    return ((ink * light + ground * (255 - light) + 127) // 255).astype(np.uint8)


def _rotated(scans: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Turned by 20 to 45 degrees to either side, so that a 6 does not become a 9."""
    angles = draw.integers(20, 46, len(scans)) * draw.choice([-1, 1], len(scans))
    turned = [
        Image.fromarray(scan).rotate(int(angle), Image.Resampling.BILINEAR)
        for scan, angle in zip(scans, angles, strict=True)
    ]
    return _colour(np.stack([np.asarray(image) for image in turned]))


def _noisy(scans: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Blurred with the 3x3 binomial kernel, then noise of deviation 30 on every pixel and channel."""
    wide = np.pad(scans.astype(np.int64), ((0, 0), (1, 1), (1, 1)), mode="edge")
    rows = wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]
    blurred = (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:] + 8) // 16
    noise = np.rint(draw.normal(0, 30, (*scans.shape, 3))).astype(np.int64)
    return np.clip(blurred[..., None] + noise, 0, 255).astype(np.uint8)


def _colour(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., None], 3, axis=3)
