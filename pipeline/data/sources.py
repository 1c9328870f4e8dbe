"""Prepare a data set from bundled images, a mirror folder, or the official files, whichever comes first.

meta.json records which source was used.
"""

import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pipeline import files
from pipeline.data import bundled, corrupted, download, formats, gate, reading, registry, store, twins
from pipeline.data.registry import DataSet
from pipeline.data.store import TEST, TRAIN, Arrays
from pipeline.errors import DataError, FedReproError, cause, unknown
from pipeline.schema import shorten

SOURCES = ("auto", "mirror", "canonical")
# a folder of .npz files, one per set
MIRROR = "FEDREPRO_MIRROR"
# images in a row of a mirror's mosaic
GRID = 40
CHUNK = 4096
# files that a line names
NAMED = 3


def prepare(name: str, out_folder: Path, source: str = "auto") -> dict:
    """Make data/<set>/ at `out_folder` and return its meta.json; official files stay in raw/<set>/.

    source: "auto" takes the mirror named by FEDREPRO_MIRROR where it has the set, else the official files;
    "mirror" and "canonical" insist. Bundled sets and composites of other prepared sets ignore it. Raises
    DataError for an unknown set or source, a missing, altered or incomplete file, a failed download or a step
    that a person must do.
    """
    out_folder, entry = Path(out_folder), registry.find(name)
    if source not in SOURCES:
        raise DataError(unknown("source", source, SOURCES))
    scratch = _raw(name, out_folder) / "unpacked"
    try:
        if entry.bundled:
            arrays, facts = bundled.make(name)
        elif entry.parts:
            arrays, facts = from_parts(name, entry, out_folder)
        elif source == "mirror" or (source == "auto" and mirror_has(entry)):
            arrays, facts = from_mirror(name, entry)
        else:
            arrays, facts = from_canonical(name, entry, out_folder, scratch)
        _check_counts(name, entry, arrays, facts)
        arrays, found, facts = _admitted(name, entry, arrays, facts, scratch)
        meta = {
            "set": name,
            "classes": arrays.classes,
            "domains": entry.domains,
            "official_split": entry.official_split,
            **({} if entry.images else {"dtype": entry.dtype}),
            **facts,
        }
        meta = store.write(
            out_folder, arrays.images, arrays.labels, arrays.domains, arrays.split, meta, arrays.columns
        )
        _tell(name, out_folder, found.document(arrays))
        return meta
    except DataError as error:
        raise DataError(_named(str(error), name)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _named(text: str, name: str) -> str:
    """A line of error that begins with the set's name where it names neither the set nor one of its files."""
    known = (f"{name}:", f"/{name}/", f"/{name}:", f"/{name} ")
    return text if any(word in f" {text}" for word in known) else f"{name}: {text}"


def _admitted(
    name: str, entry: DataSet, arrays: Arrays, facts: dict, scratch: Path
) -> tuple[Arrays, gate.Found, dict]:
    """What the gate lets through; facts with the number of twins that it left out."""
    before = len(arrays.labels)
    arrays, found = gate.admit(entry, arrays, scratch)
    if gone := before - len(arrays.labels):
        parts = (facts["deviation"], f"{gone} images left out that another is the same as")
        facts = {**facts, "deviation": "; ".join(filter(None, parts))}
    return arrays, found, facts


def _tell(name: str, out_folder: Path, document: dict) -> None:
    """Write what was found to data/<set>.found.json and say it; without anything to tell no file stays."""
    path = out_folder.with_name(f"{out_folder.name}.{twins.OF_SET}")
    if not document:
        path.unlink(missing_ok=True)
        return
    files.write_json(path, document)
    for line in gate.lines(document):
        download.say(f"{name}: {line}")


def _raw(name: str, out_folder: Path) -> Path:
    return out_folder.parent / "raw" / name


def _check_counts(name: str, entry: DataSet, arrays: Arrays, facts: dict) -> None:
    """Too few or too many images of a domain are an error: the file is a different one, or incomplete."""
    for domain, expected in entry.expected(facts["source"]).items():
        here = arrays.domains == entry.domains.index(domain)
        train, test = (int((here & (arrays.split == part)).sum()) for part in (TRAIN, TEST))
        if (train, test) != expected:
            raise DataError(
                f"{name}: domain {domain} has {train:,} training and {test:,} test images in "
                f"{', '.join(facts['inputs'])}, expected {expected[0]:,} and {expected[1]:,}"
            )
    if entry.classes and len(arrays.classes) != entry.classes:
        raise DataError(
            f"{name}: {len(arrays.classes)} classes in {', '.join(facts['inputs'])}, expected {entry.classes}"
        )


def _in_mirror(entry: DataSet) -> Path | None:
    """The set's file in the folder that FEDREPRO_MIRROR names, there or not; None without such a folder. If
    the folder is missing, that is an error and not a reason to download."""
    if not os.environ.get(MIRROR) or entry.mirror is None:
        return None
    folder = Path(os.environ[MIRROR]).expanduser()
    if not folder.is_dir():
        raise DataError(f"{MIRROR}: {folder} is not a folder")
    return folder / entry.mirror.file


def mirror_has(entry: DataSet) -> bool:
    path = _in_mirror(entry)
    return path is not None and path.exists()


def from_mirror(name: str, entry: DataSet) -> tuple[Arrays, dict]:
    """A set from its .npz file in the mirror folder, whose SHA-256 is checked before it is opened.

    Plain files hold x_train, y_train, x_test, y_test and classes; others hold images as JPEG or WebP mosaics
    (`_tiles`), and sets of several domains x, y, domain and domains without a split.
    """
    if entry.mirror is None:
        raise DataError(f"{name}: no mirror has this set; use the source canonical")
    path, wanted = _in_mirror(entry), f"{entry.mirror.file} (SHA-256 {entry.mirror.sha256})"
    if path is None:
        raise DataError(f"{name}: the environment variable {MIRROR} must name the folder that holds {wanted}")
    if not path.exists():
        raise DataError(f"{name}: {path} is missing; expected {wanted}")
    download.check(path, f"sha256:{entry.mirror.sha256}")
    with reading.reading(path), np.load(path, allow_pickle=False) as content:
        arrays = (
            _by_domain(content, entry)
            if "domain" in content
            else reading.two_parts(
                [(_images(content, f"x_{part}"), content[f"y_{part}"]) for part in ("train", "test")],
                content["classes"].tolist(),
            )
        )
    return arrays, {
        "source": "mirror",
        "deviation": entry.mirror.deviation,
        "inputs": {path.name: entry.mirror.sha256},
    }


def _by_domain(content: Any, entry: DataSet) -> Arrays:
    """A mirror file's images, shuffled within a domain, in the order of the classes again."""
    names = [domain.lower() for domain in content["domains"].tolist()]
    domains = np.array([entry.domains.index(domain) for domain in names])[content["domain"]]
    labels = content["y"].astype(np.int64)
    order = np.lexsort((labels, domains))  # lexsort is stable within a class
    return Arrays(
        _images(content, "x")[order],
        labels[order],
        domains[order],
        np.full(len(labels), TRAIN, np.uint8),
        content["classes"].tolist(),
    )


def _images(content: Any, name: str) -> np.ndarray:
    """(N, H, W) or (N, H, W, 3) uint8."""
    return content[name] if name in content else _tiles(content, name)


def _tiles(content: Any, name: str) -> np.ndarray:
    """Mosaics, GRID images wide, row by row: tile t is the file in bytes offsets[t] to offsets[t + 1]."""
    blob, offsets = content[f"{name}_blob"], content[f"{name}_offsets"]
    height, width, channels = content["shape"].tolist()
    per_tile = int(content["per_tile"])
    images = np.empty((len(content["y" + name[1:]]), height, width, channels), np.uint8)
    for tile in range(len(offsets) - 1):
        with Image.open(io.BytesIO(blob[offsets[tile] : offsets[tile + 1]])) as picture:
            mosaic = np.asarray(picture.convert("RGB"))
        cut = (
            mosaic.reshape(-1, height, GRID, width, channels)
            .swapaxes(1, 2)
            .reshape(-1, height, width, channels)
        )
        target = images[tile * per_tile : (tile + 1) * per_tile]
        target[:] = cut[: len(target)]  # the last tile is padded
    return images


def from_canonical(name: str, entry: DataSet, out_folder: Path, scratch: Path) -> tuple[Arrays, dict]:
    """A set from its official files in raw/<set>/, downloaded where that needs no person."""
    if entry.canonical is None:
        raise DataError(f"{name}: no official files of this set are known")
    raw, canonical = _raw(name, out_folder), entry.canonical
    paths = {path: raw / path.rpartition("/")[2] for path in canonical.files}
    missing = [file.name for file in paths.values() if not file.exists()]
    if missing and not canonical.base:
        raise DataError(
            f"{name}: download {entry.title} from {canonical.page or 'its owner'}, put it as "
            f"{', '.join(missing)} into {shorten(raw)}/, then run: {store.remake(out_folder)}"
            f"{_or_mirror(entry)}"
        )
    if missing and canonical.note:
        download.say(f"{name}: {canonical.note}")
    inputs = {}
    for path, file in paths.items():
        _fetch(canonical, path, file, f"{name}: ", _or_mirror(entry))
        digest = inputs[file.name] = files.sha256(file)
        if not canonical.files[path]:
            unknown_yet = "no official checksum is known; the number of images is checked"
            download.say(f"{file.name}: SHA-256 {digest} ({unknown_yet})")
        gate.check_file(file)
    reader = canonical.reader
    if isinstance(reader, str):
        if reader not in formats.READERS:
            raise DataError(f"{name}: {unknown('reader', reader, formats.READERS)}")
        reader = formats.READERS[reader]
    arrays = _read(reader, [*paths.values()], scratch, entry, name)
    return arrays, {"source": "canonical", "deviation": canonical.deviation, "inputs": inputs}


def _read(reader: Any, paths: list[Path], scratch: Path, entry: DataSet, key: str) -> Arrays:
    """What the reader takes of the files; DataError for a paper's reader that fails, and for archives within
    an archive where nothing else was found."""
    try:
        arrays = reader(paths, scratch, entry)
    except DataError as error:
        inner = [
            path.name for path in sorted(scratch.rglob("*")) if path.name.lower().endswith(gate.ARCHIVES)
        ]
        if not inner:
            raise
        advice = f"it holds archives ({', '.join(inner[:NAMED])}): unpack them and pack their folders as one"
        raise DataError(f"{error}; {advice}") from None
    except (MemoryError, OSError, FedReproError):
        raise
    except Exception as error:  # of a paper's code
        raise DataError(f"{key}: its reader fails: {cause(error)}") from error
    if not isinstance(arrays, Arrays):
        raise DataError(f"{key}: its reader returns {type(arrays).__name__}, expected Arrays of data.store")
    return arrays


def _fetch(canonical: registry.Canonical, path: str, file: Path, where: str, otherwise: str) -> None:
    """Download an official file from the first address that works, verified where a checksum is known."""
    checksum, failures = canonical.files[path], []
    if file.exists():
        if checksum:
            download.check(file, checksum)
        return
    for url in canonical.urls(path):
        try:
            download.fetch(url, file, checksum)
            return
        except DataError as error:
            failures.append(str(error))
    by_hand = f"get {file.name} from {canonical.page} and put it into {shorten(file.parent)}/{otherwise}"
    raise DataError(f"{where}{'; '.join(failures)}. By hand: {by_hand}")


def _or_mirror(entry: DataSet) -> str:
    return f"; or name a folder with {entry.mirror.file} in {MIRROR}" if entry.mirror else ""


def from_parts(name: str, entry: DataSet, out_folder: Path) -> tuple[Arrays, dict]:
    """A union of sets that are prepared next to `out_folder`, one domain per part, at the entry's size and in
    colour.

    The images come as blocks; source and deviation name what the parts have, inputs are the parts' digests.
    """
    parts = {part: store.verify(out_folder.parent / part) for part in entry.parts}
    sizes = [len(part) for part in parts.values()]
    images = (
        corrupted.rgb(np.asarray(part.images[start : start + CHUNK]), entry.shape[0])
        for part in parts.values()
        for start in range(0, len(part), CHUNK)
    )
    arrays = Arrays(
        images,
        np.concatenate([part.labels for part in parts.values()]),
        np.repeat(np.arange(len(sizes)), sizes),
        np.concatenate([part.split for part in parts.values()]),
        entry.names,
    )
    sources = sorted({part.meta["source"] for part in parts.values()})
    deviations = [f"{key}: {part.meta['deviation']}" for key, part in parts.items() if part.meta["deviation"]]
    return arrays, {
        "source": " + ".join(sources),
        "deviation": "; ".join(deviations),
        "inputs": {key: part.meta["digest"] for key, part in parts.items()},
    }
