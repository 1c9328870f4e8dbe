"""Write, read and verify data/<set>-corrupted/: a data set's copy with every image corrupted once.

Every rate of corruption takes its images from it.

The store's form (pipeline/data/store.py), images 32x32 RGB in the order of the clean set, and three more
arrays (N,): kind.npy uint8, an index into meta["corruption"]["kinds"]; severity.npy uint8; rank.npy int32,
the image's place in a random order of the training part, -1 for test images. Reading needs NumPy and Pillow.
"""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline import files
from pipeline.data import store
from pipeline.data.store import TEST, Stored
from pipeline.errors import DAMAGED, DataError, ParamError
from pipeline.schema import check, shorten
from pipeline.sealing import seal

SIDE = 32
SUFFIX = "-corrupted"
# what meta["corruption"] holds
FACTS = {"of": str, "clean": str, "digest": str, "kinds": list[str]}
ARRAYS: dict[str, np.dtype] = {
    "kind.npy": np.dtype(np.uint8),
    "severity.npy": np.dtype(np.uint8),
    "rank.npy": np.dtype(np.int32),
}


@dataclass(frozen=True)
class Corrupted:
    """images uint8 (N, 32, 32, 3), read-only, all of them corrupted; kind, severity, rank (N,);
    meta.json as a dict."""

    images: np.ndarray
    kind: np.ndarray
    severity: np.ndarray
    rank: np.ndarray
    meta: dict

    def chosen(self, xi: float) -> np.ndarray:
        """(N,) bool: exactly floor(xi N) of the N training images, and every test image. A higher rate keeps
        the images of a lower one."""
        if not 0 <= xi <= 1:
            raise ValueError(f"rate {xi}, expected 0 to 1")
        training = int((self.rank >= 0).sum())
        # 0.29 * 100 is 28.999..., hence the 1e-9; a test image's rank is -1.
        return self.rank < math.floor(xi * training + 1e-9)


def rgb(images: np.ndarray, side: int = SIDE) -> np.ndarray:
    """uint8 (N, H, W, C) -> a new array (N, side, side, 3): resized (bilinear, antialiased), grey repeated
    over three channels."""
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
    folder: Path,
    stored: Stored,
    images: np.ndarray,
    kind: np.ndarray,
    severity: np.ndarray,
    rank: np.ndarray,
    facts: dict,
    deviation: str,
    inputs: dict[str, str],
) -> dict:
    """Write the corrupted form of `stored` as a whole or not at all; returns its meta.

    facts: how it was corrupted (seed, max_severity, kinds, frost), for meta["corruption"].
    """
    extra = dict(zip(ARRAYS, (kind, severity, rank), strict=True))
    clean, name = stored.meta["digest"], stored.meta["set"]
    meta = {
        **{key: stored.meta[key] for key in ("source", "classes", "domains", "official_split")},
        "set": name + SUFFIX,
        "deviation": "; ".join(filter(None, (stored.meta["deviation"], deviation))),
        "inputs": {name: clean, **inputs},
    }
    with files.replace_folder(folder) as new:
        meta = store.write(new, images, stored.labels, stored.domains, stored.split, meta)
        for array, values in extra.items():
            np.save(new / array, np.ascontiguousarray(values, ARRAYS[array]), allow_pickle=False)
            files.sync(new / array)
        meta["digests"] |= {array: files.sha256(new / array) for array in ARRAYS}
        meta["corruption"] = {**facts, "of": name, "clean": clean, "digest": _over(meta["digests"])}
        meta = seal(meta)
        files.write_json(new / store.META, meta)
    return meta


def read_meta(folder: Path) -> dict:
    """meta.json of data/<set>-corrupted/. DataError naming the command that makes it where there is none."""
    return _corruption(store.read_meta(folder), folder)


def _corruption(meta: dict, folder: Path) -> dict:
    """The same meta; DataError where it has no valid `corruption`."""
    try:
        for key, kind in FACTS.items():
            check(kind, meta["corruption"][key], f"corruption.{key}")
    except (*DAMAGED, ParamError) as error:
        reason = f"its images are not marked as corrupted ({error})"
        raise DataError(f"{shorten(folder)}: {reason}; {_again(folder)}") from None
    if meta["corruption"]["digest"] != _over(meta["digests"]):
        raise DataError(f"{shorten(folder / store.META)} was altered; {_again(folder)}")
    return meta


def verify(folder: Path) -> Corrupted:
    """data/<set>-corrupted/ with every array in memory and checked, see `store.verify`."""
    stored = store.verify(folder)
    meta = _corruption(stored.meta, folder)
    arrays = {name: store.array(folder, name, meta["digests"].get(name, "")) for name in ARRAYS}
    for name, dtype in ARRAYS.items():
        if (values := arrays[name]).dtype != dtype or values.shape != stored.labels.shape:
            raise DataError(
                f"{shorten(folder / name)} holds {values.dtype} {values.shape}, "
                f"expected {dtype} {stored.labels.shape}; {_again(folder)}"
            )
    if not np.array_equal(arrays["rank.npy"] < 0, stored.split == TEST):
        raise DataError(f"{shorten(folder / 'rank.npy')} does not fit split.npy; {_again(folder)}")
    kind, severity, rank = arrays.values()
    return Corrupted(stored.images, kind, severity, rank, meta)


def _over(digests: dict[str, str]) -> str:
    """One digest over those of all arrays."""
    return hashlib.sha256("".join(value for _, value in sorted(digests.items())).encode()).hexdigest()


def _again(folder: Path) -> str:
    return f"run `python -m stages.corrupt {folder.name.removesuffix(SUFFIX)}`"
