"""Convert partitions of PFLlib, Flower Datasets or an exported CSV to image indices into data/<set>, and
back.

PFLlib (dataset/utils/dataset_utils.py) writes config.json, train/<client>.npz and test/<client>.npz, each
with `data`, a pickled dict of x (n, C, H, W), normalised by mean and deviation 0.5, and y (n,). Their images
are looked up in the set. Samples that are not images are in x as they are. Flower's partitioners have a list
of positions for each client, in the training part, or in both parts joined by `Merger` of flwr_datasets.
"""

import hashlib
import io
import json
import pickle
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import files
from pipeline.data import listed
from pipeline.data.reading import reading
from pipeline.data.store import TRAIN, Stored
from pipeline.errors import DataError

Split = tuple[list[np.ndarray], list[np.ndarray]]  # each client's training and test indices
# Ends the name of Flower's second file: the clients' own test samples.
OWN_TESTS = "-test"
# What a pickled dict of arrays needs; every other name is refused.
ARRAY = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{
        (f"numpy.{core}.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0]
        for core in ("core", "_core")
    },
}


def read(source: Path, stored: Stored) -> Split:
    """The split of a folder of PFLlib's, a .json with a list of positions for each client, or a .csv as
    `fedrepro export partition` writes it. DataError names the file that is none."""
    if source.is_dir():
        return _pfllib(source, stored)
    with reading(source):
        if source.suffix == ".json":
            train = _flower(source, stored)
            tests = source.with_name(f"{source.stem}{OWN_TESTS}.json")
            test = _flower(tests, stored) if tests.exists() else [np.empty(0, np.int64)] * len(train)
            if len(test) != len(train):
                raise ValueError(f"{tests.name} has {len(test)} clients, {len(train)} expected")
            return train, test
        if source.suffix == ".csv":
            return listed.read(source)
    raise DataError(f"{source}: neither a folder of PFLlib's, nor a .json or .csv file")


def _flower(path: Path, stored: Stored) -> list[np.ndarray]:
    content = json.loads(path.read_text(encoding="utf-8"))
    lists = [content[key] for key in sorted(content, key=int)] if isinstance(content, dict) else content
    places = _joined(stored)
    if not lists or any(min(held, default=0) < 0 for held in lists):
        raise ValueError("expected a list of positions for each client")
    return [places[np.array(held, np.int64)] for held in lists]


def _joined(stored: Stored) -> np.ndarray:
    """Indices into data/<set> in Flower's order: the training part, after it the test part."""
    return np.concatenate([np.flatnonzero(stored.split == TRAIN), np.flatnonzero(stored.split != TRAIN)])


def _pfllib(folder: Path, stored: Stored) -> Split:
    with reading(folder / "config.json"):
        clients = range(int(json.loads((folder / "config.json").read_text())["num_clients"]))
    known = defaultdict(list)
    for at in reversed(range(len(stored))):
        known[_key(stored.images[at], stored.labels[at])].append(at)
    train, test = (
        [_places(folder / part / f"{client}.npz", known, stored) for client in clients]
        for part in ("train", "test")
    )
    return train, test


def _places(path: Path, known: dict[bytes, list[int]], stored: Stored) -> np.ndarray:
    """Where the images of a file lie in the set; equal ones are taken in their order."""
    with reading(path):
        content = _unpickled(path)
        values, labels = np.asarray(content["x"], np.float64), np.asarray(content["y"], np.int64)
        images = _stored(values, stored)
    places = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        if not (same := known.get(_key(image, label))):
            name = stored.meta["set"]
            raise DataError(f"{path}: image {number} of class {label} is not, or no more, in data/{name}")
        places.append(same.pop())
    return np.array(places, np.int64)


def _stored(values: np.ndarray, stored: Stored) -> np.ndarray:
    """Samples as the set has them, of PFLlib's x in float64."""
    if "dtype" in stored.meta:
        return values.astype(stored.images.dtype)
    if values.min(initial=0) < 0:
        values = values / 2 + 0.5
    return np.round(values * 255).astype(np.uint8).transpose(0, 2, 3, 1)


def write_flower(
    train: Sequence[np.ndarray], test: Sequence[np.ndarray], stored: Stored, path: Path
) -> tuple[list[str], bool]:
    """Write a .json with each client's positions, as Flower's partitioners hold them, and one beside it where
    clients have test samples of their own.

    train, test: each client's training and test indices into data/<set>
    Returns the files' names, and whether they number both parts of the set: the test part goes on where the
    training part ends.
    """
    positions = np.empty(len(stored), np.int64)
    positions[_joined(stored)] = np.arange(len(stored))
    parts = {path: train}
    tests = path.with_name(f"{path.stem}{OWN_TESTS}.json")
    if any(map(len, test)):
        parts[tests] = test
    else:
        tests.unlink(missing_ok=True)  # of an earlier export, which `read` would take for this one's
    for file, part in parts.items():
        held = {str(client): positions[indices].tolist() for client, indices in enumerate(part)}
        files.write_json(file, held)
    of_both = any((stored.split[indices] != TRAIN).any() for part in parts.values() for indices in part)
    return [file.name for file in parts], of_both


def write_pfllib(
    train: Sequence[np.ndarray], test: Sequence[np.ndarray], stored: Stored, folder: Path
) -> None:
    """Write config.json, train/<client>.npz and test/<client>.npz, as PFLlib's `save_file` does.

    train, test: each client's training and test indices into data/<set>
    """
    held = []
    for client, indices in enumerate(train):
        labels, counts = np.unique(stored.labels[indices], return_counts=True)
        held.append(np.stack([labels, counts], axis=1).tolist())
        for part, chosen in (("train", indices), ("test", test[client])):
            x = stored.images[np.asarray(chosen)]
            if "dtype" not in stored.meta:
                x = (x.transpose(0, 3, 1, 2).astype(np.float32) / 255 - 0.5) / 0.5
            data: Any = {"x": x, "y": stored.labels[np.asarray(chosen)]}
            np.savez_compressed(content := io.BytesIO(), data=data)
            files.write_bytes(folder / part / f"{client}.npz", content.getvalue())
    config = {"num_clients": len(train), "num_classes": len(stored.meta["classes"])}
    files.write_json(folder / "config.json", {**config, "Size of samples for labels in clients": held})


def _key(image: np.ndarray, label: int) -> bytes:
    return hashlib.blake2b(f"{label} {image.shape}".encode() + image.tobytes(), digest_size=16).digest()


class _Arrays(pickle.Unpickler):
    """Reads containers and arrays, and calls nothing else that a file names."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAY:
            raise ValueError(f"holds {module}.{name}, which is no array")
        return ARRAY[module, name]


def _unpickled(path: Path) -> dict:
    """`data` of an .npz as PFLlib writes it."""
    with zipfile.ZipFile(path) as archive:
        member = io.BytesIO(archive.read("data.npy"))
    if np.lib.format.read_magic(member) != (1, 0):
        raise ValueError("not a file of PFLlib's")
    np.lib.format.read_array_header_1_0(member)
    return _Arrays(member).load().item()
