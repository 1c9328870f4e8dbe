"""The common format of data sets on disk, data/<set>/: write, read, verify.

images.npy uint8 (N, H, W, C) with C 1 or 3; labels.npy int64 (N,), -1 where there is no label; domains.npy
int64 (N,), an index into meta["domains"]; split.npy uint8 (N,), 0 training, 1 test; meta.json with the names,
the source, the SHA-256 digest of each array and a seal over the rest. Where a set has users or other groups,
column-<name>.npy (N,) holds a text or a whole number for every image. Reading needs NumPy alone.
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
from typing import Any

import numpy as np

from pipeline import files
from pipeline.errors import DAMAGED, DataError
from pipeline.schema import ROOT, shorten, visible
from pipeline.schema.checker import Spelling
from pipeline.sealing import is_sealed, seal

ARRAYS: dict[str, np.dtype] = {
    "images.npy": np.dtype(np.uint8),
    "labels.npy": np.dtype(np.int64),
    "domains.npy": np.dtype(np.int64),
    "split.npy": np.dtype(np.uint8),
}
META = "meta.json"
# Types of its values, and of what is inside them (in a text: its characters).
KINDS: dict[str, tuple[type, type]] = {
    "set": (str, str),
    "source": (str, str),
    "deviation": (str, str),
    "classes": (list, str),
    "domains": (list, str),
    "shape": (list, int),
    "digest": (str, str),
    "digests": (dict, str),
    "columns": (list, str),
}
TRAIN, TEST = 0, 1
# The sets that come with scikit-learn, so that no download and no copy is needed. The list is repeated here
# because asking the registry would make its wording part of the code that every trained cell depends on.
BUNDLED = ("digits", "digit_domains", "photo_patches")
UNIONS = ("digits4", "digits4_synth", "digit5")


@dataclass(frozen=True)
class Arrays:
    """A data set on its way to disk.

    images: uint8 (N, H, W, C), or an iterable of blocks (n, H, W, C) for sets that are too big for memory;
    labels, domains, split: (N,); classes: name of every label; columns: further (N,) by their names.
    """

    images: np.ndarray | Iterable[np.ndarray]
    labels: np.ndarray
    domains: np.ndarray
    split: np.ndarray
    classes: list[str]
    columns: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """A data set: images (N, H, W, C) uint8, in memory and read-only; the other arrays (N,); meta.json as a
    dict."""

    images: np.ndarray
    labels: np.ndarray
    domains: np.ndarray
    split: np.ndarray
    meta: dict
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)


def write(
    folder: Path, images, labels, domains, split, meta: dict, columns: dict[str, np.ndarray] | None = None
) -> dict:
    """Write data/<set>/ as a whole or not at all, and return meta with shape and digests added.

    `images` is an array or an iterable of blocks (see Arrays), written one after another so that a big set
    never lies in memory. Raises DataError when the arrays do not fit each other or meta, FedReproError when
    there is no space.
    """
    others = {"labels.npy": labels, "domains.npy": domains, "split.npy": split}
    if columns:
        meta = {**meta, "columns": sorted(columns)}
    further = {_file(name): columns[name] for name in sorted(columns or {})}  # type: ignore[index]
    with files.replace_folder(folder) as temporary:
        shape = _write_images(temporary / "images.npy", images, len(labels), folder)
        for name, values in others.items():
            np.save(temporary / name, np.ascontiguousarray(values, dtype=ARRAYS[name]), allow_pickle=False)
        for name, values in further.items():
            np.save(temporary / name, np.ascontiguousarray(values), allow_pickle=False)
        digests = {name: files.sha256(temporary / name) for name in (*ARRAYS, *further)}
        meta = seal({**meta, "shape": list(shape), "digests": digests, "digest": _over(digests)})
        _check_meta(meta, folder)
        files.write_json(temporary / META, meta)
        for name in digests:
            files.sync(temporary / name)
        mapped = [np.load(temporary / name, mmap_mode="r", allow_pickle=False) for name in _names(meta)]
        _check(_stored(meta, mapped), folder)
    return meta


def verify(folder: Path) -> Stored:
    """The set in data/<set>/, every array in memory: what is returned are the bytes that were hashed.

    Raises DataError naming a file that is missing, damaged or not what `write` wrote, and the command that
    makes it. The meta.json of a set that was written before these had a seal is checked as far as its digests
    and the number of its classes go.
    """
    folder = Path(folder)
    meta = read_meta(folder)
    stored = _stored(meta, [array(folder, name, meta["digests"][name]) for name in _names(meta)])
    _check(stored, folder)
    if "self" not in meta and len(meta["classes"]) != (count := stored.labels.max(initial=-1) + 1):
        raise _broken(folder, META, f"names {len(meta['classes'])} classes, and the labels are of {count}")
    return stored


def read_meta(folder: Path) -> dict:
    """meta.json of a set; DataError where it is missing, damaged or altered."""
    with _readable(folder, META):
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    _check_meta(meta, folder)
    if "self" in meta and not is_sealed(meta):
        raise _broken(folder, META, "was altered")
    if (actual := _over(meta["digests"])) != meta["digest"]:
        raise _broken(folder, META, f"was altered: digest {meta['digest']}, expected {actual}")
    return meta


def array(folder: Path, name: str, digest: str) -> np.ndarray:
    """The array in an .npy file, read-only. Raises DataError where the file's bytes have another SHA-256;
    only then are they parsed."""
    with _readable(folder, name):
        content = (folder / name).read_bytes()
        if (actual := hashlib.sha256(content).hexdigest()) != digest:
            raise _broken(folder, name, f"was altered: SHA-256 {actual}, expected {digest}")
        file = io.BytesIO(content)
        np.lib.format.read_magic(file)
        shape, _, kind = np.lib.format.read_array_header_1_0(file)
        return np.frombuffer(content, kind, offset=file.tell()).reshape(shape)


def _check_meta(meta: Any, folder: Path) -> None:
    """Keys and types of what readers use."""
    if not isinstance(meta, dict):
        raise _broken(folder, META, "is not a mapping")
    if lacking := sorted({*KINDS, "official_split", "inputs"} - {"columns"} - set(meta)):
        raise _broken(folder, META, f"lacks {', '.join(lacking)}")
    for key, (kind, inner) in KINDS.items():
        value = meta.get(key, [])
        values = value.values() if isinstance(value, dict) else value
        if not isinstance(value, kind) or not all(isinstance(one, inner) for one in values):
            raise _broken(folder, META, f"has no valid {key!r}")
    if any(Spelling().problem(name) for name in meta.get("columns", [])):
        raise _broken(folder, META, "names a column as none can be called")
    if lacking := [name for name in _names(meta) if name not in meta["digests"]]:
        raise _broken(folder, META, f"has no digest of {', '.join(lacking)}")
    for name, digest in {"digest": meta["digest"], **meta["digests"]}.items():
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise _broken(folder, META, f"holds {digest!r:.80} as the SHA-256 of {name!r:.80}")


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


def _write_images(path: Path, images, count: int, folder: Path) -> tuple[int, ...]:
    """Write blocks one after another behind an .npy header. A memory map is not used, because a full disk
    would then end the process by a signal instead of an error."""
    blocks = iter([images] if isinstance(images, np.ndarray) else images)
    first = next(blocks, None)
    if first is None:
        raise DataError(f"{shorten(folder)}: no images")
    shape = (count, *first.shape[1:])
    written = 0
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for block in itertools.chain([first], blocks):
            if block.dtype != np.uint8 or block.shape[1:] != shape[1:]:
                raise DataError(
                    f"{shorten(folder)}: images of type {block.dtype} and shape {block.shape[1:]}, "
                    f"expected uint8 and {shape[1:]}"
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


@contextlib.contextmanager
def _readable(folder: Path, name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise _broken(folder, name, "is missing") from None
    except DAMAGED as error:
        raise _broken(folder, name, f"cannot be read ({' '.join(str(error).split())})") from None


def _check(stored: Stored, folder: Path) -> None:
    """Types, sizes and ranges of what was read."""
    meta = stored.meta
    shapes = dict.fromkeys(ARRAYS, tuple(meta["shape"][:1])) | {"images.npy": tuple(meta["shape"])}
    for (name, kind), array in zip(
        ARRAYS.items(), (stored.images, stored.labels, stored.domains, stored.split), strict=True
    ):
        if array.dtype != kind or array.shape != shapes[name]:
            raise _broken(folder, name, f"holds {array.dtype} {array.shape}, expected {kind} {shapes[name]}")
    if (
        stored.images.ndim != 4
        or stored.images.shape[3] not in (1, 3)
        or not stored.images.flags.c_contiguous
    ):
        raise _broken(
            folder, "images.npy", f"holds images of shape {stored.images.shape}, expected (N, H, W, 1 or 3)"
        )
    for name, values in stored.columns.items():
        if values.shape != stored.labels.shape or values.dtype.kind not in "iuU":
            raise _broken(folder, _file(name), f"holds {values.dtype} {values.shape}")
    ranges = {
        "labels.npy": (stored.labels, -1, len(meta["classes"])),
        "domains.npy": (stored.domains, 0, len(meta["domains"])),
        "split.npy": (stored.split, 0, 2),
    }
    for name, (values, low, high) in ranges.items():
        if len(values) and not (low <= values.min() and values.max() < high):
            raise _broken(
                folder, name, f"holds {values.min()} to {values.max()}, expected {low} to {high - 1}"
            )


def _broken(folder: Path, name: str, what: str) -> DataError:
    return DataError(f"{shorten(Path(folder) / name)} {what}; make it with: {remake(folder)}")


def _over(digests: dict[str, str]) -> str:
    """One digest over those of the arrays."""
    columns = sorted(name for name in digests if name.startswith("column-"))
    return hashlib.sha256("".join(digests[name] for name in (*ARRAYS, *columns)).encode()).hexdigest()
