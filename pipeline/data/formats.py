"""Readers of the official files: each turns downloaded files into Arrays.

A reader gets the files in the registry's order, a folder to unpack into, and the set's entry. Images that
would not fit into memory come as blocks. No reader executes anything that a file says: no pickle is ever
loaded.
"""

import contextlib
import gzip
import re
import struct
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import loadmat
from scipy.io.matlab import MatReadError
from sklearn.datasets import load_svmlight_file

from pipeline.data.download import extract, say
from pipeline.data.registry import DataSet
from pipeline.data.store import TEST, TRAIN, Arrays
from pipeline.errors import DataError
from pipeline.schema import shorten

BLOCK = 64  # decoded photographs held in memory
# Formats that Pillow lists and does not decode by itself: EPS starts Ghostscript, the others need a plug-in.
NOT_DECODED = {"EPS", "MPEG", "WMF", "HDF5", "GRIB", "BUFR"}
NAMED = 3  # files that a line names
SEVERITY = 10_000  # images per severity of CIFAR-10-C
# What the parsers raise for damaged files; a broken PNG is a SyntaxError to Pillow.
DAMAGED = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    EOFError,
    SyntaxError,
    struct.error,
    zlib.error,
    MatReadError,
    Image.DecompressionBombError,
    NotImplementedError,  # SciPy, of a MATLAB file of version 7.3
)

Reader = Callable[[list[Path], Path, DataSet], Arrays]


# -- shared ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes its parser raise becomes a DataError that names the file."""
    try:
        yield
    except DAMAGED as error:
        raise DataError(
            f"{shorten(path)}: cannot be read ({type(error).__name__}: {' '.join(str(error).split())})"
        ) from None


def two_parts(parts: Sequence[tuple[np.ndarray, np.ndarray]], classes: Iterable[str]) -> Arrays:
    """Arrays of one domain from (images, labels) of the training and of the test part; (N, H, W) images are
    grey."""
    train, test = parts
    images = np.concatenate([train[0], test[0]])
    labels = np.concatenate([train[1], test[1]]).astype(np.int64)
    split = np.repeat(np.array([TRAIN, TEST], np.uint8), [len(train[1]), len(test[1])])
    return Arrays(
        images if images.ndim == 4 else images[..., None],
        labels,
        np.zeros(len(labels), np.int64),
        split,
        list(classes),
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


def blocks(paths: list[Path], side: int) -> Iterator[np.ndarray]:
    """Decoded images, some at a time."""
    for start in range(0, len(paths), BLOCK):
        yield np.stack([open_image(path, side) for path in paths[start : start + BLOCK]])


def unpack(archive: Path, target: Path, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """`extract` without the hidden files and shadow folders that a Mac leaves in archives."""
    return extract(
        archive,
        target,
        lambda name: (
            wanted(name) and not any(part.startswith((".", "__MACOSX")) for part in Path(name).parts)
        ),
    )


@cache
def _suffixes() -> frozenset[str]:
    """Endings of the files that Pillow decodes."""
    return frozenset(
        end
        for end, kind in Image.registered_extensions().items()
        if kind in Image.OPEN and kind not in NOT_DECODED
    )


def _listed(folder: Path) -> list[Path]:
    """The images of a folder in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _suffixes() and path.is_file())


def _say_left_out(listed: Iterable[Path], folders: Iterable[Path], archive: Path) -> None:
    """A line about what lies in the images' folders and is not among the images."""
    left = sorted({path for folder in folders for path in folder.iterdir()} - {*listed})
    if left:
        names = ", ".join("/".join(path.parts[-3:]) for path in left[:NAMED])
        more = f" and {len(left) - NAMED} more" * (len(left) > NAMED)
        say(f"{shorten(archive)}: left out, no image of a class: {names}{more}")


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _composed(name: str) -> str:
    """The same text for an accent that a Mac writes as a character of its own."""
    return unicodedata.normalize("NFC", name)


def _plain(name: str) -> str:
    """`Real World`, `real_world` and `RealWorld` are one name; `-15` and `15` are two."""
    return re.sub(r"(?<=[^\W\d_])[\s_-]+(?=[^\W\d_])", "", _composed(name).casefold())


def _holding(root: Path, names: tuple[str, ...], archive: Path) -> dict[str, Path]:
    """{name: folder} of the first folder under `root`, itself included, that has a subfolder for every name:
    one of just this name, else the only one whose name is plainly the same."""
    for folder in [root, *sorted(path for path in root.rglob("*") if path.is_dir())]:
        inside = _subfolders(folder)
        found = {
            name: [path for path in inside if _composed(path.name) == _composed(name)]
            or [path for path in inside if _plain(path.name) == _plain(name)]
            for name in names
        }
        if all(len(paths) == 1 for paths in found.values()) and len(
            {path for (path,) in found.values()}
        ) == len(names):
            return {name: path for name, (path,) in found.items()}
    raise DataError(f"{shorten(archive)}: no folder in it has the subfolders {', '.join(names)}")


# -- digits and characters ---------------------------------------------------------------------------------


def idx(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """MNIST's format: training images, training labels, test images, test labels."""
    train_images, train_labels, test_images, test_labels = map(_idx_array, files)
    return two_parts([(train_images, train_labels), (test_images, test_labels)], entry.names)


def emnist(split: str, first: int, files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """One split of EMNIST. The files hold the images transposed; `first` is the number of the first class."""
    names = [
        f"emnist-{split}-{part}-{kind}-ubyte.gz"
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]
    unpack(files[0], scratch, lambda name: Path(name).name in names)
    found = {path.name: path for path in scratch.rglob("*.gz")}
    if set(found) != set(names):
        raise DataError(f"{shorten(files[0])}: lacks {', '.join(sorted(set(names) - set(found)))}")
    train_images, train_labels, test_images, test_labels = (_idx_array(found[name]) for name in names)
    return two_parts(
        [
            (train_images.swapaxes(1, 2), train_labels.astype(np.int64) - first),
            (test_images.swapaxes(1, 2), test_labels.astype(np.int64) - first),
        ],
        entry.names,
    )


def _idx_array(path: Path) -> np.ndarray:
    with reading(path), gzip.open(path) as file:
        content = file.read()
        kind, dimensions = struct.unpack(">HBB", content[:4])[1:]
        shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
        if kind != 8:  # unsigned bytes
            raise ValueError(f"number type {kind}, expected 8")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def usps(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """LIBSVM's files: values in [-1, 1], labels 1 to 10. Grey levels are cut off, not rounded, as torchvision
    does."""
    parts = []
    for path in files:
        with reading(path):
            values, labels = load_svmlight_file(str(path), n_features=256, dtype=np.float32)
        grey = ((values.toarray() + 1) / 2 * 255).astype(np.uint8)
        parts.append((grey.reshape(-1, 16, 16), labels - 1))
    return two_parts(parts, entry.names)


def svhn(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """MATLAB files with X (32, 32, 3, N) and y (N, 1), where 10 stands for the digit 0."""
    parts = []
    for path in files:
        with reading(path):
            content = loadmat(path, variable_names=("X", "y"))
            parts.append((content["X"].transpose(3, 0, 1, 2), content["y"].reshape(-1) % 10))
    return two_parts(parts, entry.names)


def mnistm(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """PNGs and, for each part, a list of `name label` lines."""
    root = unpack(files[0], scratch)
    parts = []
    for part in ("train", "test"):
        listed = root / "mnist_m" / f"mnist_m_{part}_labels.txt"
        with reading(listed):
            lines = [line.split() for line in listed.read_text().splitlines() if line.strip()]
            labels = np.array([int(label) for _, label in lines])
        images = np.stack(
            [open_image(listed.with_name(f"mnist_m_{part}") / name, entry.shape[0]) for name, _ in lines]
        )
        parts.append((images, labels))
    return two_parts(parts, entry.names)


def syn(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """imgs_train/<digit>/ and imgs_valid/<digit>/; the latter is the test part."""
    folders = _holding(unpack(files[0], scratch), ("imgs_train", "imgs_valid"), files[0])
    parts = []
    for folder in folders.values():
        listed = _of_classes([folder / str(digit) for digit in range(entry.classes)], files[0])
        parts.append(
            (
                np.stack([open_image(path, entry.shape[0]) for path, _ in listed]),
                np.array([digit for _, digit in listed]),
            )
        )
    return two_parts(parts, entry.names)


def synth_digits(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """A MATLAB file with train_data and test_data (N, 32, 32, 3), train_label and test_label (N, 1)."""
    with reading(files[0]):
        content = loadmat(files[0])
        parts = [
            (content[f"{part}_data"].astype(np.uint8), content[f"{part}_label"].reshape(-1))
            for part in ("train", "test")
        ]
    return two_parts(parts, entry.names)


def _of_classes(folders: list[Path], archive: Path) -> list[tuple[Path, int]]:
    """(image, label) of a folder for each class. DataError for a folder that is not there or holds none."""
    if lacking := [folder for folder in folders if not folder.is_dir()]:
        raise DataError(f"{shorten(archive)}: lacks the folder {lacking[0].parent.name}/{lacking[0].name}")
    listed = [_listed(folder) for folder in folders]
    _say_left_out((path for paths in listed for path in paths), folders, archive)
    if empty := [folder for folder, paths in zip(folders, listed) if not paths]:
        raise DataError(
            f"{shorten(archive)}: {empty[0].parent.name}/{empty[0].name} has no image that Pillow decodes"
        )
    return [(path, label) for label, paths in enumerate(listed) for path in paths]


# -- photographs, one domain -------------------------------------------------------------------------------


def cifar(
    train: tuple[str, ...],
    test: str,
    names: str,
    label_bytes: int,
    files: list[Path],
    scratch: Path,
    entry: DataSet,
) -> Arrays:
    """The binary version: records of `label_bytes` labels, the fine one last, and 3 x 32 x 32 bytes. It needs
    no pickle."""
    folder = _only_folder(unpack(files[0], scratch), files[0])
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


def _only_folder(root: Path, archive: Path) -> Path:
    folders = _subfolders(root)
    if len(folders) != 1:
        raise DataError(f"{shorten(archive)}: expected one folder in it, found {len(folders)}")
    return folders[0]


def cifar10_c(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """<corruption>.npy (50,000, 32, 32, 3), severity 1 to 5 in turn, and labels.npy for all of them; one
    domain each."""
    folder = _only_folder(unpack(files[0], scratch), files[0])

    def load(name: str) -> np.ndarray:
        path = folder / f"{name}.npy"
        with reading(path):
            return np.load(path, mmap_mode="r", allow_pickle=False)

    labels = np.asarray(load("labels"), np.int64)
    corrupted = [load(domain) for domain in entry.domains]
    images = (
        stack[start : start + SEVERITY] for stack in corrupted for start in range(0, len(stack), SEVERITY)
    )
    count = len(entry.domains)
    return Arrays(
        images,
        np.tile(labels, count),
        np.repeat(np.arange(count), len(labels)),
        np.full(count * len(labels), TEST, np.uint8),
        list(entry.names),
    )


def tiny_imagenet(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """Classes by sorted WordNet number; the validation part, whose labels are public, serves as test part."""
    root = _only_folder(unpack(files[0], scratch, lambda name: "/test/" not in name), files[0])
    numbers = [folder.name for folder in _subfolders(root / "train")]
    with reading(root / "words.txt"):
        words = dict(
            line.split("\t", 1) for line in (root / "words.txt").read_text(encoding="utf-8").splitlines()
        )
    annotations = root / "val" / "val_annotations.txt"
    with reading(annotations):
        validation = sorted(
            (root / "val" / "images" / line[0], numbers.index(line[1]))
            for line in (text.split("\t") for text in annotations.read_text().splitlines())
        )
    train = _of_classes([root / "train" / number / "images" for number in numbers], files[0])
    listed = train + validation
    return Arrays(
        blocks([path for path, _ in listed], entry.shape[0]),
        np.array([k for _, k in listed]),
        np.zeros(len(listed), np.int64),
        np.repeat(np.array([TRAIN, TEST], np.uint8), [len(train), len(validation)]),
        [words[n].strip() for n in numbers],
    )


# -- several domains ---------------------------------------------------------------------------------------


def folders(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """<domain>/<class>/ or <domain>/images/<class>/, anywhere in the archive. Order: domain, class name, file
    name."""
    listed: list[tuple[Path, int, int]] = []
    classes: list[str] = []
    for number, (domain, folder) in enumerate(
        _holding(unpack(files[0], scratch), entry.domains, files[0]).items()
    ):
        inner = _subfolders(folder)
        inner = _subfolders(inner[0]) if [path.name for path in inner] == ["images"] else inner
        names = [path.name for path in inner]
        classes = classes or names
        if [_plain(name) for name in names] != [_plain(name) for name in classes] or len(
            names
        ) != entry.classes:
            raise DataError(
                f"{shorten(files[0])}: {domain} has {len(names)} classes, {', '.join(names)}; expected "
                f"{entry.classes}, "
                "the same in every domain"
            )
        _say_left_out(_subfolders(folder), [folder], files[0])
        listed += [(path, label, number) for path, label in _of_classes(inner, files[0])]
    paths, labels, domains = zip(*listed, strict=True)
    return Arrays(
        blocks(list(paths), entry.shape[0]),
        np.array(labels),
        np.array(domains),
        np.zeros(len(paths), np.uint8),
        classes,
    )


def domainnet(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """Per domain an archive and the lists of its training and test images; only the entry's classes are
    unpacked."""
    listed = []
    for number, start in enumerate(range(0, len(files), 3)):
        archive, *lists = files[start : start + 3]
        folder = unpack(
            archive, scratch / entry.domains[number], lambda name: Path(name).parent.name in entry.names
        )
        for split, path in zip((TRAIN, TEST), lists, strict=True):
            with reading(path):
                names = [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
            listed += [
                (number, name, split, folder / name)
                for name in names
                if Path(name).parent.name in entry.names
            ]
    listed.sort()  # domain, class name, file name
    labels = [entry.names.index(Path(name).parent.name) for _, name, _, _ in listed]
    return Arrays(
        blocks([path for *_, path in listed], entry.shape[0]),
        np.array(labels),
        np.array([row[0] for row in listed]),
        np.array([row[2] for row in listed], np.uint8),
        list(entry.names),
    )


READERS: dict[str, Reader] = {
    "idx": idx,
    "usps": usps,
    "svhn": svhn,
    "mnistm": mnistm,
    "syn": syn,
    "synth_digits": synth_digits,
    "emnist_balanced": partial(emnist, "balanced", 0),
    "emnist_letters": partial(emnist, "letters", 1),
    "cifar10": partial(
        cifar, tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", "batches.meta.txt", 1
    ),
    "cifar100": partial(cifar, ("train.bin",), "test.bin", "fine_label_names.txt", 2),
    "cifar10_c": cifar10_c,
    "tiny_imagenet": tiny_imagenet,
    "folders": folders,
    "domainnet": domainnet,
}
