"""Readers of the official files of data sets (IDX, CIFAR binary, MATLAB, LIBSVM, .npz). They return arrays.

A reader gets the files in the registry's order, a folder to unpack into, and the entry of the set. Images
that would not fit into memory are returned in blocks. No reader executes anything from a file: pickles are
never loaded.
"""

import gzip
import itertools
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from pipeline.data import image_trees
from pipeline.data.download import extract, say
from pipeline.data.reading import matlab, reading, two_parts
from pipeline.data.registry import DataSet
from pipeline.data.store import Arrays
from pipeline.errors import DataError
from pipeline.schema import shorten

Reader = Callable[[list[Path], Path, DataSet], Arrays]


def idx(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """MNIST's format: training images, training labels, test images, test labels."""
    train_images, train_labels, test_images, test_labels = map(_idx_array, files)
    return two_parts([(train_images, train_labels), (test_images, test_labels)], entry.names)


def emnist_balanced(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """The balanced split of EMNIST. The files hold the images transposed."""
    names = [
        f"emnist-balanced-{part}-{kind}-ubyte.gz"
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]
    extract(files[0], scratch, lambda name: Path(name).name in names)
    unpacked = {path.name: path for path in scratch.rglob("*.gz")}
    if lacking := sorted(set(names) - set(unpacked)):
        raise DataError(f"{shorten(files[0])}: lacks {', '.join(lacking)}")
    upright = idx([unpacked[name] for name in names], scratch, entry)
    return replace(upright, images=np.asarray(upright.images).swapaxes(1, 2))


def _idx_array(path: Path) -> np.ndarray:
    with reading(path), gzip.open(path) as file:
        content = file.read()
        kind, dimensions = struct.unpack(">HBB", content[:4])[1:]
        shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
        if kind != 8:  # unsigned bytes
            raise ValueError(f"number type {kind}, expected 8")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def arrays(
    files: list[Path], scratch: Path, entry: DataSet, pixels: str = "x_{}", numbers: str = "y_{}"
) -> Arrays:
    """An .npz or .mat file with x_train, x_test (N, H, W[, C]), or (N, ...) of a set that is not of images,
    and the labels y_train, y_test (N,)."""
    names = [(pixels.format(part), numbers.format(part)) for part in ("train", "test")]
    with reading(files[0]):
        content = matlab(files[0]) if files[0].suffix == ".mat" else np.load(files[0], allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ValueError(f"one array, expected an .npz with {', '.join(itertools.chain(*names))}")
        parts = [(content[x], content[y]) for x, y in names]
    taken = {*itertools.chain(*names)}
    if left := [name for name in content if name not in taken and not name.startswith("__")]:
        say(f"{shorten(files[0])}: left out, no part of the set: {', '.join(sorted(left))}")
    where = f"{shorten(files[0])}: "
    return two_parts(parts, entry.names, [(f"{where}{x}", f"{where}{y}") for x, y in names], entry)


def usps(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """LIBSVM: values in [-1, 1], labels 1 to 10. Grey levels are cut off, as torchvision does."""
    parts = []
    for path in files:
        with reading(path):
            values, labels = load_svmlight_file(str(path), n_features=256, dtype=np.float32)
        grey = ((values.toarray() + 1) / 2 * 255).astype(np.uint8)
        parts.append((grey.reshape(-1, 16, 16), labels - 1))
    return two_parts(parts, entry.names)


def svhn(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """MATLAB files with X (32, 32, 3, N) and y (N, 1), where 10 is the digit 0."""
    parts = []
    for path in files:
        with reading(path):
            content = matlab(path)
            parts.append((content["X"].transpose(3, 0, 1, 2), content["y"].reshape(-1) % 10))
    return two_parts(parts, entry.names)


def cifar(
    train: tuple[str, ...],
    test: str,
    names: str,
    label_bytes: int,
    files: list[Path],
    scratch: Path,
    entry: DataSet,
) -> Arrays:
    """The binary version: records of `label_bytes` labels, the fine one last, and 3 x 32 x 32 bytes."""
    folder = image_trees.only_folder(extract(files[0], scratch), files[0])
    with reading(folder / names):
        classes = (folder / names).read_text().split()

    def part(chosen: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        records = []
        for name in chosen:
            with reading(folder / name):
                records.append(np.fromfile(folder / name, np.uint8).reshape(-1, label_bytes + 3 * 32 * 32))
        joined = np.concatenate(records)
        return joined[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), joined[
            :, label_bytes - 1
        ]

    return two_parts([part(train), part((test,))], classes)


READERS: dict[str, Reader] = {
    "idx": idx,
    "arrays": arrays,
    "folders": image_trees.folders,
    "image_folder": image_trees.image_folder,
    "table": image_trees.table,
    "usps": usps,
    "svhn": svhn,
    "mnistm": image_trees.mnistm,
    "synth_digits": partial(arrays, pixels="{}_data", numbers="{}_label"),
    "emnist_balanced": emnist_balanced,
    "cifar10": partial(
        cifar, tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", "batches.meta.txt", 1
    ),
    "cifar100": partial(cifar, ("train.bin",), "test.bin", "fine_label_names.txt", 2),
    "tiny_imagenet": image_trees.tiny_imagenet,
    "domainnet": image_trees.domainnet,
}
