"""Write, read and verify data/<set>-corrupted/: a copy of a data set in which every image is corrupted once.

Scenarios with any rate of corruption take their corrupted images from it.

It has the form of pipeline/data/store.py with images 32x32 RGB in the order of the original set, and three
more arrays (N,): kind.npy uint8, an index into meta["corruption"]["kinds"]; severity.npy uint8; rank.npy
int32, the image's place in a random order of the training part, -1 for test images. Reading needs NumPy and
Pillow.
"""

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline import files
from pipeline.data import store
from pipeline.data.store import Stored
from pipeline.errors import DataError
from pipeline.schema import shorten
from pipeline.schema.checker import check_keys
from pipeline.sealing import seal

SIDE = 32
SUFFIX = "-corrupted"
# what meta["corruption"] holds
FACTS = {"of": str, "clean": str, "digest": str, "kinds": list[str]}


@dataclass(frozen=True)
class Corrupted:
    """images uint8 (N, 32, 32, 3), all of them corrupted; kind uint8 (N,), an index into the kinds; severity
    uint8 (N,); rank int32 (N,); meta.json of a stored set as a dict."""

    images: np.ndarray
    kind: np.ndarray
    severity: np.ndarray
    rank: np.ndarray
    meta: dict = field(default_factory=dict)

    def chosen(self, xi: float) -> np.ndarray:
        """(N,) bool: exactly floor(xi N) of the N training images, and every test image. A higher rate keeps
        the images of a lower one."""
        if not 0 <= xi <= 1:
            raise ValueError(f"rate {xi}, expected 0 to 1")
        training = int((self.rank >= 0).sum())
        # 0.29 * 100 is 28.999..., hence the 1e-9; a test image's rank is -1.
        return self.rank < math.floor(xi * training + 1e-9)


def rgb(images: np.ndarray, side: int = SIDE) -> np.ndarray:
    """uint8 (N, H, W, C) -> a new array (N, side, side, 3): resized (bilinear, antialiased), in colour."""
    if images.shape[1:3] != (side, side):
        squeezed = images[..., 0] if images.shape[3] == 1 else images
        resized = np.empty((len(images), side, side, *squeezed.shape[3:]), np.uint8)
        for i, image in enumerate(squeezed):
            resized[i] = np.asarray(
                Image.fromarray(np.ascontiguousarray(image)).resize((side, side), Image.Resampling.BILINEAR)
            )
        images = resized.reshape(len(images), side, side, -1)
    return np.array(images) if images.shape[3] == 3 else np.repeat(images, 3, axis=3)


def folder_of(clean: Path) -> Path:
    """data/<set> -> data/<set>-corrupted."""
    return clean.with_name(clean.name + SUFFIX)


def write(
    folder: Path, stored: Stored, made: Corrupted, facts: dict, deviation: str, inputs: dict[str, str]
) -> dict:
    """Write the corrupted form of `stored` as a whole or not at all; returns its meta.

    facts: how it was corrupted (seed, max_severity, kinds, frost), for meta["corruption"].
    """
    clean, name = stored.meta["digest"], stored.meta["set"]
    meta = {
        **{key: stored.meta[key] for key in ("source", "classes", "domains", "official_split")},
        "set": name + SUFFIX,
        "deviation": "; ".join(filter(None, (stored.meta["deviation"], deviation))),
        "inputs": {name: clean, **inputs},
    }
    with files.replace_folder(folder) as new:
        meta = store.write(new, made.images, stored.labels, stored.domains, stored.split, meta)
        for array, values in (("kind", made.kind), ("severity", made.severity), ("rank", made.rank)):
            path = new / f"{array}.npy"
            np.save(path, values, allow_pickle=False)
            files.sync(path)
            meta["digests"][path.name] = files.sha256(path)
        meta["corruption"] = {**facts, "of": name, "clean": clean, "digest": _over(meta["digests"])}
        meta = seal(meta)
        files.write_json(new / store.META, meta)
    return meta


def read_meta(folder: Path) -> dict:
    """meta.json of data/<set>-corrupted/. DataError naming the command that makes it where there is none."""
    return _corruption(store.read_meta(folder), folder)


def _corruption(meta: dict, folder: Path) -> dict:
    """The same meta; DataError where it has no valid `corruption`."""
    path, again = folder / store.META, f"run `{store.remake(folder)}`"
    with store.readable(path, again):
        check_keys(meta.get("corruption"), FACTS, f"{shorten(path)}: corruption", more=True)
    if meta["corruption"]["digest"] != _over(meta["digests"]):
        raise DataError(f"{shorten(path)} was altered; {again}")
    return meta


def verify(folder: Path) -> Corrupted:
    """data/<set>-corrupted/ with every array in memory and checked, see `store.verify`."""
    stored = store.verify(folder)
    meta = _corruption(stored.meta, folder)
    names = ("kind.npy", "severity.npy", "rank.npy")
    kind, severity, rank = (store.array(folder, name, meta["digests"].get(name, "")) for name in names)
    return Corrupted(stored.images, kind, severity, rank, meta)


def _over(digests: dict[str, str]) -> str:
    """One digest over those of all arrays."""
    return hashlib.sha256("".join(value for _, value in sorted(digests.items())).encode()).hexdigest()
