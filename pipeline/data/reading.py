"""Helpers of data set readers: report damaged files, decode image files to arrays."""

import contextlib
import pickle
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from pipeline.data import gate
from pipeline.data.registry import DataSet
from pipeline.data.store import TEST, TRAIN, Arrays
from pipeline.errors import DAMAGED, DataError, cause
from pipeline.schema import shorten

# decoded photographs held in memory
BLOCK = 64
# image, label, TRAIN or TEST, domain
Row = tuple[Path, int, int, int]
# of two parts, as an error says them
NAMES = (("the training images", "the training labels"), ("the test images", "the test labels"))


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes its parser raise becomes a DataError that names the file."""
    try:
        yield
    except (*DAMAGED, MatReadError, Image.DecompressionBombError, pickle.UnpicklingError) as error:
        raise DataError(f"{shorten(path)}: cannot be read ({cause(error)})") from None


def matlab(path: Path) -> dict[str, np.ndarray]:
    """A MATLAB 4 or 5 file's variables, read in another process: SciPy crashes on some damaged ones."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(loadmat, path).result()
        except BrokenProcessPool:
            raise MatReadError("SciPy crashed while reading it") from None


def two_parts(
    parts: Sequence[tuple[np.ndarray, np.ndarray]],
    classes: Iterable[str] = (),
    names: Sequence[tuple[str, str]] = NAMES,
    entry: DataSet | None = None,
) -> Arrays:
    """Arrays of one domain from (images, labels) of training and test part; (N, H, W) images are grey.

    classes: their names; none: what the labels say. names: of the four arrays in a line of error. entry: the
    set, where it need not be of images: samples are then numbers of its shape. DataError where the arrays do
    not pass the gate or do not fit each other.
    """
    samples = {names[at][0]: part[0] for at, part in enumerate(parts)}
    images = gate.pixels(samples) if entry is None else gate.converted(entry, samples)
    counts = [len(part) for part in images]
    labels, known = gate.labels({names[at][1]: part[1] for at, part in enumerate(parts)}, counts, [*classes])
    return Arrays(
        np.concatenate(images),
        np.concatenate(labels),
        np.zeros(sum(counts), np.int64),
        np.repeat(np.array([TRAIN, TEST], np.uint8), counts),
        known,
    )


def open_image(path: Path, side: int) -> np.ndarray:
    """(side, side, 3) uint8: RGB, squashed where the size differs (bilinear, antialiased)."""
    with reading(path), Image.open(path) as image:
        return np.asarray(_in_colour(image).resize((side, side), Image.Resampling.BILINEAR))


def _in_colour(image: Image.Image) -> Image.Image:
    """RGB, 8 bits. Of 16 bits the range is brought to 8, which Pillow's `convert` would cut off at 255."""
    if image.mode == "I" and image.format in ("PNG", "PPM") or image.mode.startswith("I;16"):
        grey = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((grey * 255 + 32767) // 65535).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"pixels of Pillow's mode {image.mode} have no known range")
    return image.convert("RGB")


def from_files(rows: Iterable[Row], side: int, classes: Iterable[str], **columns: np.ndarray) -> Arrays:
    """Arrays of image files, decoded some at a time to (side, side, 3).

    rows: (path, label, split, domain). columns: further values of each image.
    """
    rows = list(rows)
    labels, split, domains = (np.array([row[i] for row in rows]) for i in (1, 2, 3))
    images = (
        np.stack([open_image(path, side) for path, *_ in rows[start : start + BLOCK]])
        for start in range(0, len(rows), BLOCK)
    )
    taken = frozenset(path for path, *_ in rows)
    return gate.FromFiles(images, labels, domains, split, list(classes), columns, taken)
