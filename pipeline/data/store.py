"""The common format of data sets on disk, data/<set>/: write, read, verify.

images.npy: uint8 (N, H, W, C) with C 1 or 3
labels.npy: int64 (N,), -1 for an image without label
domains.npy: int64 (N,), an index into meta["domains"]
split.npy: uint8 (N,), 0 for training, 1 for test
column-<name>.npy: (N,), a text or a whole number for every image, if the set has users or other groups
meta.json: names, source, the SHA-256 digest of each array, and a seal over the rest

If samples are not images, images.npy is (N, ...) with the type meta["dtype"]: float32, int64 (tokens) or
uint8. Sets of images do not have this key. Reading needs only NumPy.
"""

import contextlib
import hashlib
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline import files
from pipeline.errors import DAMAGED, DataError, ParamError
from pipeline.schema import ROOT, check, shorten, visible
from pipeline.schema.checker import Name, Sha256, check_keys
from pipeline.sealing import is_sealed, seal

ARRAYS: dict[str, np.dtype] = {
    "images.npy": np.dtype(np.uint8),
    "labels.npy": np.dtype(np.int64),
    "domains.npy": np.dtype(np.int64),
    "split.npy": np.dtype(np.uint8),
}
META = "meta.json"
# types of images.npy
SAMPLE = Literal["uint8", "float32", "int64"]
# What readers use of it.
KINDS: dict[str, Any] = {
    **dict.fromkeys(("set", "source", "deviation"), str),
    **dict.fromkeys(("classes", "domains"), list[str]),
    "official_split": bool,
    "inputs": dict[str, str],
    "shape": list[int],
    "digest": Sha256,
    "digests": dict[str, Sha256],
}
TRAIN, TEST = 0, 1
# The sets that come with scikit-learn, so that no download and no copy is needed. The list is repeated here
# because asking the registry would make its wording part of the code that every trained cell depends on.
BUNDLED = ("digits", "digit_domains", "photo_patches")
UNIONS = ("digits4", "digits4_synth", "digit5")


@dataclass(frozen=True)
class Arrays:
    """A data set before it is written to disk.

    images: uint8 (N, H, W, C), or an iterable of blocks (n, H, W, C) if the set does not fit into memory; if
        samples are not images, (N, ...), such as rows (N, columns) or signals (N, channels, length)
    labels, domains, split: (N,)
    classes: name of every label
    columns: name -> further array (N,)
    """

    images: np.ndarray | Iterable[np.ndarray]
    labels: np.ndarray
    domains: np.ndarray
    split: np.ndarray
    classes: list[str]
    columns: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """A data set in memory, read-only: images (N, H, W, C) uint8, or other samples (N, ...); further arrays
    (N,).

    meta: the content of meta.json
    """

    images: np.ndarray
    labels: np.ndarray
    domains: np.ndarray
    split: np.ndarray
    meta: dict
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def facts(self) -> dict[str, str]:
        """What partitions and results record: name, source, digest, and deviation from the official set."""
        return {key: self.meta[key] for key in ("set", "source", "digest", "deviation")}


def write(
    folder: Path,
    images: np.ndarray | Iterable[np.ndarray],
    labels: np.ndarray,
    domains: np.ndarray,
    split: np.ndarray,
    meta: dict[str, Any],
    columns: dict[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Write data/<set>/ completely or not at all; returns meta with shape and digests added.

    `images` is an array or an iterable of blocks (see Arrays). Blocks are written one after another, so that
    a large set is never in memory as a whole. DataError if the arrays do not fit each other or meta;
    FedReproError if the disk is full.
    """
    meta = {**meta, "columns": sorted(columns)} if columns else {**meta}
    others = {"labels.npy": labels, "domains.npy": domains, "split.npy": split}
    others |= {_file(name): values for name, values in (columns or {}).items()}
    with files.replace_folder(folder) as temporary:
        kind = np.dtype(meta.get("dtype", "uint8"))
        shape = _write_images(temporary / "images.npy", images, len(labels), kind, folder)
        for name, values in others.items():
            np.save(temporary / name, np.ascontiguousarray(values, ARRAYS.get(name)), allow_pickle=False)
        meta["digests"] = {name: files.sha256(temporary / name) for name in _names(meta)}
        meta = seal({**meta, "shape": list(shape), "digest": _over(meta)})
        _check_meta(meta, folder)
        files.write_json(temporary / META, meta)
        for name in _names(meta):
            files.sync(temporary / name)
        mapped = [np.load(temporary / name, mmap_mode="r", allow_pickle=False) for name in _names(meta)]
        _check(_stored(meta, mapped), folder)
    return meta


def verify(folder: Path) -> Stored:
    """Read the set in data/<set>/ into memory; the returned arrays are the bytes that were hashed.

    DataError names a file that is missing, damaged or not as `write` has written it, and the command that
    makes it again. The meta.json of sets written before it had a seal is checked only by its digests and its
    number of classes.
    """
    meta = read_meta(folder)
    stored = _stored(meta, [array(folder, name, meta["digests"][name]) for name in _names(meta)])
    _check(stored, folder)
    if "self" not in meta and len(meta["classes"]) != (count := stored.labels.max(initial=-1) + 1):
        raise _broken(folder, META, f"names {len(meta['classes'])} classes, and the labels are of {count}")
    return stored


def read_meta(folder: Path) -> dict:
    """The meta.json of a set; DataError if it is missing, damaged or altered."""
    meta = document(folder, KINDS, _again(folder))
    _check_meta(meta, folder)
    return meta


def document(folder: Path, kinds: dict[str, Any], again: str) -> dict:
    """A meta.json with these keys and types. DataError, ending with `again`, if it is damaged or altered."""
    path = folder / META
    with readable(path, again):
        meta = json.loads(path.read_text(encoding="utf-8"))
        check_keys(meta, kinds, f"{shorten(path)}:", more=True)
    if "self" in meta and not is_sealed(meta):
        raise DataError(f"{shorten(path)} was altered; {again}")
    return meta


@contextlib.contextmanager
def readable(path: Path, again: str) -> Iterator[None]:
    """Turns the error of a reader about a missing or damaged file into a DataError with its name and
    `again`."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{shorten(path)} is missing; {again}") from None
    except ParamError as error:
        raise DataError(f"{error}; {again}") from None
    except DAMAGED as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{shorten(path)} cannot be read ({reason:.200}); {again}") from None


def array(folder: Path, name: str, digest: str) -> np.ndarray:
    """The array of an .npy file, read-only. It is parsed only if the file's SHA-256 is `digest`; otherwise
    DataError."""
    with readable(folder / name, _again(folder)):
        content = (folder / name).read_bytes()
        if (actual := hashlib.sha256(content).hexdigest()) != digest:
            raise _broken(folder, name, f"was altered: SHA-256 {actual}, expected {digest}")
        file = io.BytesIO(content)
        np.lib.format.read_magic(file)
        shape, _, kind = np.lib.format.read_array_header_1_0(file)
        return np.frombuffer(content, kind, offset=file.tell()).reshape(shape)


def _check_meta(meta: dict, folder: Path) -> None:
    """Names of columns, the samples' type, and the digest over those of the arrays."""
    with readable(folder / META, _again(folder)):
        check(SAMPLE, meta.get("dtype", "uint8"), f"{shorten(folder / META)}: dtype")
        check(list[Name], meta.get("columns", []), f"{shorten(folder / META)}: columns")
        actual = _over(meta)
    if actual != meta["digest"]:
        raise _broken(folder, META, f"was altered: digest {meta['digest']}, expected {actual}")


def remake(folder: Path) -> str:
    """The command that makes data/<set>/."""
    name = Path(folder).name
    if name in BUNDLED:
        return f"dvc repro data@{name}"
    if name.endswith("-corrupted"):
        return f"python -m stages.corrupt {name.removesuffix('-corrupted')}"
    for file in visible(ROOT, "papers/*/data.py"):
        if re.search(rf"^{re.escape(name)}\b", file.read_text(errors="replace"), re.M):
            return f"dvc repro {shorten(file.parent)}/dvc.yaml:data@{name}"
    return f"fedrepro run data/dvc.yaml:{name if name in UNIONS else f'fetch@{name}'}"


def _write_images(
    path: Path, images: np.ndarray | Iterable[np.ndarray], count: int, kind: np.dtype, folder: Path
) -> tuple[int, ...]:
    """Write blocks one after another behind an .npy header. A memory map is not used, because a full disk
    would then end the process by a signal instead of an error."""
    blocks = iter([images] if isinstance(images, np.ndarray) else images)
    first = next(blocks, None)
    if first is None:
        raise DataError(f"{shorten(folder)}: no images")
    shape = (count, *first.shape[1:])
    written = 0
    with open(path, "wb") as file:
        header = {"descr": kind.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in itertools.chain([first], blocks):
            if block.dtype != kind or block.shape[1:] != shape[1:]:
                raise DataError(
                    f"{shorten(folder)}: images of type {block.dtype} and shape {block.shape[1:]}, "
                    f"expected {kind} and {shape[1:]}"
                )
            file.write(np.ascontiguousarray(block).data)
            written += len(block)
    if written != count:
        raise DataError(f"{shorten(folder)}: {written} images for {count} labels")
    return shape


def _stored(meta: dict, arrays: list[np.ndarray]) -> Stored:
    """arrays: in the order of `_names`."""
    images, labels, domains, split, *columns = arrays
    return Stored(images, labels, domains, split, meta, dict(zip(meta.get("columns", []), columns)))


def _names(meta: dict) -> list[str]:
    """The files of a set's arrays, those of its columns last."""
    return [*ARRAYS, *map(_file, meta.get("columns", []))]


def _file(column: str) -> str:
    return f"column-{column}.npy"


def _check(stored: Stored, folder: Path) -> None:
    """Types, sizes and ranges of what was read."""
    whole = tuple(stored.meta["shape"])
    ranges = {
        "labels.npy": (-1, len(stored.meta["classes"])),
        "domains.npy": (0, len(stored.meta["domains"])),
        "split.npy": (0, 2),
    }
    kinds = ARRAYS | {"images.npy": np.dtype(stored.meta.get("dtype", "uint8"))}
    for name, kind in kinds.items():
        values = getattr(stored, name.removesuffix(".npy"))
        shape = whole[:1] if name in ranges else whole
        if values.dtype != kind or values.shape != shape:
            raise _broken(folder, name, f"holds {values.dtype} {values.shape}, expected {kind} {shape}")
        if name in ranges and len(values):
            (low, high), least, most = ranges[name], values.min(), values.max()
            if least < low or most >= high:
                raise _broken(folder, name, f"holds {least} to {most}, expected {low} to {high - 1}")
    if "dtype" not in stored.meta and (len(whole) != 4 or whole[3] not in (1, 3)):
        raise _broken(folder, "images.npy", f"holds images of shape {whole}, expected (N, H, W, 1 or 3)")
    for name, values in stored.columns.items():
        if values.shape != whole[:1] or values.dtype.kind not in "iuU":
            raise _broken(folder, _file(name), f"holds {values.dtype} {values.shape}")


def _broken(folder: Path, name: str, what: str) -> DataError:
    return DataError(f"{shorten(folder / name)} {what}; {_again(folder)}")


def _again(folder: Path) -> str:
    return f"make it with: {remake(folder)}"


def _over(meta: dict) -> str:
    """One digest over those of the arrays."""
    return hashlib.sha256("".join(meta["digests"][name] for name in _names(meta)).encode()).hexdigest()
