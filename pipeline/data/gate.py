"""Checks every data set from outside: values, shapes, labels, and files that a reader has not taken.

A reader returns what it has read, unchanged. This module converts it to the stored form by the rules below,
or ends with a one-line error. What a user should know about the set, such as images that occur twice, is
counted in data/<set>.found.json, next to the set's folder.

Pixels: booleans, and whole numbers that are only 0 and 1, become 0 and 255. Other whole numbers must be in 0
    to 255. Floats in [0, 1] are multiplied by 255; floats from -1 to 1 become (x + 1) * 127.5; floats from 0
    to 255 are rounded. All parts of a set must need the same rule. Any other range is refused.
Samples that are not images (`registry.DataSet.images`): finite numbers with the set's shape, stored as its
type; they must be whole numbers if the type is int64 or uint8.
Labels: whole numbers from 0 on, or texts, which become numbers in the order of the names. -1 means no label;
    even so, every class must have images.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pipeline.data import twins
from pipeline.data.image_suffixes import suffixes
from pipeline.data.registry import DataSet
from pipeline.data.store import TEST, TRAIN, Arrays
from pipeline.errors import DAMAGED, DataError, FedReproError, cause
from pipeline.schema import ROOT, shorten

# of floats, as rounding or resampling leaves it
TOLERANCE = 1e-4
# floats of [-1, 1] reach as far as this at both ends; what does not may be centred in another way
REACH = 0.9
# grey levels that the brightest pixel of a set has at least: darker sets are of another range, as 0 to 16
BRIGHT = 128
# names in one line
NAMED = 5
# first bytes of what people put in an archive's place -> what it is, and what to do
IMPOSTORS = {
    b"version https://git-lfs": "a pointer of Git LFS, not the file: `git lfs pull` fetches it",
    b"Rar!": "a .rar archive, which Python cannot unpack: pack its folders as .zip",
    b"7z\xbc\xaf\x27\x1c": "a .7z archive, which Python cannot unpack: pack its folders as .zip",
    b"<!doctype html": "a web page, not the file: the download asked for something",
    b"<html": "a web page, not the file: the download asked for something",
}
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".rar", ".7z")


@dataclass(frozen=True)
class FromFiles(Arrays):
    """Arrays of image files, with the files that were taken, so that the gate sees which were not."""

    paths: frozenset[Path] = frozenset()


# -- values --------------------------------------------------------------------------------------------------


def check_file(path: Path) -> None:
    """DataError for a file that is plainly something else: a pointer of Git LFS, a web page, an archive that
    Python cannot unpack, or nothing."""
    with open(path, "rb") as file:
        head = file.read(64)
    if not head:
        raise DataError(f"{shorten(path)}: is empty")
    for start, what in IMPOSTORS.items():
        if head.lstrip().lower().startswith(start.lower()):
            raise DataError(f"{shorten(path)}: is {what}")


def pixels(parts: dict[str, np.ndarray]) -> list[np.ndarray]:
    """uint8 (N, H, W, C) of every part of a set, (N, H, W) being grey.

    parts: name, as a line of error says it -> values as they were read, of any type and shape. DataError for
    a type or range without a rule, for parts of different rules and for other shapes.
    """
    shaped = {what: _images(np.asarray(values), what) for what, values in parts.items()}
    sizes = {what: values.shape[1:] for what, values in shaped.items() if len(values)}
    _same(sizes, "images of shape")
    rules = {what: _rule(values, what) for what, values in shaped.items() if values.size}
    _same({what: rule for what, rule in rules.items() if rule != "any"}, "values")
    return [_converted(values, rules.get(what, "uint8")) for what, values in shaped.items()]


def _images(values: np.ndarray, what: str) -> np.ndarray:
    if values.ndim == 3:
        values = values[..., None]
    if values.ndim != 4 or values.shape[3] not in (1, 3):
        first = values.ndim == 4 and values.shape[1] in (1, 3)
        advice = "; the channels come last: use transpose(0, 2, 3, 1)" if first else ""
        raise DataError(
            f"{what} has the shape {values.shape}, expected (N, H, W) or (N, H, W, 1 or 3){advice}"
        )
    return values


def _same(values: dict, kind: str) -> None:
    """DataError where not all parts have the same."""
    if len(set(values.values())) > 1:
        each = "; ".join(f"{what} has {kind} {value}" for what, value in values.items())
        raise DataError(f"{each}: expected the same")


def _rule(values: np.ndarray, what: str) -> str:
    """The name of the rule by which values become grey levels; DataError where none fits."""
    kind = values.dtype
    if kind == np.bool_:
        return "True and False"
    if kind.kind not in "iuf":
        raise DataError(f"{what} holds {kind}, expected numbers from 0 to 255 or from 0 to 1")
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DataError(f"{what} holds values that are no numbers (NaN or infinite)")
    if kind.kind in "iu":
        if low == high == 0:
            return "any"
        if 0 <= low and high == 1:
            return "True and False"
        if 0 <= low and high <= 255:
            return "from 0 to 255"
    elif low >= -TOLERANCE and high <= 1 + TOLERANCE:
        # all black fits any range
        if high <= TOLERANCE:
            return "any"
        if high * 255 >= BRIGHT:
            return "from 0 to 1"
    elif low >= -1 - TOLERANCE and high <= 1 + TOLERANCE:
        if low <= -REACH and high >= REACH:
            return "from -1 to 1"
    elif low >= 0 and BRIGHT <= high <= 255:
        return "from 0 to 255"
    raise DataError(
        f"{what} holds {kind} from {low:.6g} to {high:.6g}, a range without a rule: "
        "store uint8 from 0 to 255, or floats from 0 to 1"
    )


def _converted(values: np.ndarray, rule: str) -> np.ndarray:
    if not values.size:
        return np.empty(values.shape, np.uint8)
    if rule == "True and False":
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype == np.uint8:
        return values
    grey = {"from 0 to 1": lambda x: x * 255.0, "from -1 to 1": lambda x: (x + 1.0) * 127.5}
    if rule not in grey:
        return np.rint(values).astype(np.uint8)
    out = np.empty(values.shape, np.uint8)
    for at, image in enumerate(values):  # one by one: no copy of all of them as float64
        out[at] = np.rint(grey[rule](image.astype(np.float64))).clip(0, 255)
    return out


def numbers(entry: DataSet, parts: dict[str, np.ndarray]) -> list[np.ndarray]:
    """(N, ...) of the entry's shape and type, of every part of a set that is not of images.

    parts: as of `pixels`. DataError for another shape, and for values that the type does not hold.
    """
    return [_numbers(entry, np.asarray(values), what) for what, values in parts.items()]


def _numbers(entry: DataSet, values: np.ndarray, what: str) -> np.ndarray:
    shape, kind = tuple(entry.shape), np.dtype(entry.dtype)
    if not shape:
        raise DataError(f"{what}: the set has the shape [], expected at least one number, [1]")
    if values.shape[1:] != shape:
        raise DataError(f"{what} has the shape {values.shape}, expected (N, {str(shape)[1:-1].rstrip(',')})")
    if values.dtype.kind not in "biuf":
        raise DataError(f"{what} holds {values.dtype}, expected numbers")
    if not np.isfinite(values).all():
        raise DataError(f"{what} holds values that are no numbers (NaN or infinite)")
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(kind)
    lost = not np.isfinite(stored).all() if kind.kind == "f" else (stored != values).any()
    if lost:
        raise DataError(
            f"{what} holds {values.dtype} from {values.min():.6g} to {values.max():.6g}, "
            f"which {entry.dtype} does not hold"
        )
    return stored


# -- labels --------------------------------------------------------------------------------------------------


def labels(
    parts: dict[str, np.ndarray], counts: Sequence[int], names: Sequence[str]
) -> tuple[list[np.ndarray], list[str]]:
    """int64 (N,) of every part, and the names of the classes.

    parts: name, as a line of error says it -> labels as they were read. counts: images of each part. names:
    of the classes; empty: the texts, or the numbers from 0 to the largest. DataError for numbers that are not
    whole, one-hot labels, other names and lengths.
    """
    flat = {what: _flat(np.asarray(values), what) for what, values in parts.items()}
    for (what, values), count in zip(flat.items(), counts, strict=True):
        if len(values) != count:
            raise DataError(f"{what} has {len(values)} labels for {count} images")
    texts = [values.dtype.kind == "U" for values in flat.values() if len(values)]
    if any(texts):
        if not all(texts):
            raise DataError(f"{' and '.join(flat)}: some labels are texts, some are numbers")
        return _of_texts(flat, names)
    whole = [_whole(values, what) for what, values in flat.items()]
    most = max((int(values.max(initial=-1)) for values in whole), default=-1)
    known = list(names) or [str(number) for number in range(most + 1)]
    if most >= len(known):
        raise DataError(f"{' and '.join(flat)}: a label is {most}, the {len(known)} classes count from 0")
    return whole, known


def _flat(values: np.ndarray, what: str) -> np.ndarray:
    """(N,) of (N,), (N, 1) or (1, N), as MATLAB has them; texts as str."""
    if values.ndim == 0 or sum(size != 1 for size in values.shape) > 1:
        advice = "; of one-hot labels store argmax(1)" if values.ndim == 2 else ""
        raise DataError(f"{what} has the shape {values.shape}, expected one label for each image{advice}")
    values = values.reshape(-1)
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{what} holds texts that are not UTF-8") from None
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    if values.dtype.kind not in "iufU":
        raise DataError(f"{what} holds {values.dtype}, expected whole numbers or texts")
    return values


def _whole(values: np.ndarray, what: str) -> np.ndarray:
    if not len(values):
        return values.astype(np.int64)
    odd = (
        values[~np.isfinite(values) | (np.rint(values) != values)] if values.dtype.kind == "f" else values[:0]
    )
    if odd.size:
        raise DataError(f"{what} holds the label {odd.flat[0]:g}, expected whole numbers")
    low, high = values.min(), values.max()
    if low < -1 or high >= len(values) + 10**6:
        raise DataError(f"{what} holds labels from {low:g} to {high:g}, expected classes counted from 0")
    return values.astype(np.int64)


def _of_texts(parts: dict[str, np.ndarray], names: Sequence[str]) -> tuple[list[np.ndarray], list[str]]:
    stripped = {what: np.char.strip(values.astype(str)) for what, values in parts.items()}
    occurring = sorted({str(text) for values in stripped.values() for text in np.unique(values)})
    if "" in occurring:
        raise DataError(f"{' and '.join(parts)}: a label is empty")
    digits = all(text.isascii() and text.isdecimal() and len(text) < 10 for text in occurring)
    if digits and not set(occurring) <= set(names):
        numbers = {what: values.astype(np.int64) for what, values in stripped.items()}
        return labels(numbers, [len(values) for values in numbers.values()], names)
    known = list(names) or occurring
    if other := [text for text in occurring if text not in known]:
        raise DataError(f"{' and '.join(parts)}: the label {other[0]!r:.80} is none of {_some(known)}")
    at = {name: number for number, name in enumerate(known)}
    found = [np.array([at[str(text)] for text in values], np.int64) for values in stripped.values()]
    return found, known


# -- the whole set -------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What a user should know of a set: counts, filled while its images go to disk."""

    keys: list[bytes] = field(default_factory=list)
    # grey level; None of a set that is not of images
    brightest: int | None = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def document(self, arrays: Arrays) -> dict:
        """What there is to tell; empty where nothing is."""
        split, of = np.asarray(arrays.split), np.asarray(arrays.labels)
        parts: dict[str, object] = {"twins": twins.of_set(self.keys, split, of), "left_out": self.left_out}
        parts["unlabelled"] = int((of < 0).sum()) if (of >= 0).any() else 0
        parts["one_part"] = _one_part(arrays) if (split == TEST).any() else {}
        blank = {name: _blank(values) for name, values in arrays.columns.items()}
        parts["blank"] = {name: count for name, count in blank.items() if count}
        grey = self.brightest
        parts["dark"] = grey if grey is not None and grey < BRIGHT else None
        return {key: value for key, value in parts.items() if value or (key == "dark" and value is not None)}


def admit(entry: DataSet, arrays: Arrays, scratch: Path) -> tuple[Arrays, Found]:
    """The set in the stored form, and what is found of it once its images have been written.

    scratch: where its archives were unpacked. DataError for what has no rule.
    """
    _check_classes_are_names(arrays.classes)
    arrays = replace(arrays, columns={name: _column(values, name) for name, values in arrays.columns.items()})
    found = Found(left_out=_left_out(arrays, scratch), brightest=0 if entry.images else None)
    images = arrays.images
    if isinstance(images, np.ndarray):
        [images] = converted(entry, {"the images" if entry.images else "the samples": images})
    [of], classes = _checked_labels(arrays)
    split = _indices(arrays.split, "the parts (0 training, 1 test)", len(of), 2).astype(np.uint8)
    domains = _indices(arrays.domains, "the domains", len(of), len(entry.domains))
    arrays = replace(arrays, labels=of, classes=classes, images=images, split=split, domains=domains)
    _check_classes(entry, arrays)
    if entry.without_twins:
        arrays = _without_twins(arrays)
    return replace(arrays, images=_watched(entry, arrays.images, found)), found


def converted(entry: DataSet, parts: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Every part of a set in the stored form: `pixels` of images, else `numbers`."""
    return pixels(parts) if entry.images else numbers(entry, parts)


def _checked_labels(arrays: Arrays) -> tuple[list[np.ndarray], list[str]]:
    of = np.asarray(arrays.labels)
    if len(arrays.classes):
        return labels({"the labels": of}, [len(of)], arrays.classes)
    return [_whole(_flat(of, "the labels"), "the labels")], []


def _check_classes_are_names(classes: Sequence[str]) -> None:
    """DataError for classes that are no texts or not each there once."""
    if odd := [name for name in classes if not isinstance(name, str)]:
        raise DataError(f"the class {odd[0]!r:.80} is {type(odd[0]).__name__}, expected a text")
    if len(set(classes)) < len(classes):
        raise DataError(f"the classes {_some(sorted(classes))} are not each there once")


def _indices(values: np.ndarray, what: str, count: int, most: int) -> np.ndarray:
    """int64 (count,) from 0 to below `most`; DataError for anything else, such as halves, which a cast would
    cut."""
    values = np.asarray(values)
    if values.shape != (count,):
        raise DataError(f"{what} have the shape {values.shape}, expected ({count},), one for each label")
    if values.dtype.kind not in "biuf":
        raise DataError(f"{what} are {values.dtype}, expected whole numbers")
    whole = values.astype(np.int64)
    if not np.array_equal(whole, values) or (count and (whole.min() < 0 or whole.max() >= most)):
        raise DataError(f"{what} go from {values.min():g} to {values.max():g}, expected 0 to {most - 1}")
    return whole


def _column(values: np.ndarray, name: str) -> np.ndarray:
    """A column as it is; DataError for what is neither texts nor whole numbers."""
    values = np.asarray(values)
    if values.dtype.kind not in "iuU" or values.ndim != 1:
        holds = f"holds {values.dtype} {values.shape}, expected texts or whole numbers (N,)"
        raise DataError(f"the column {name!r:.80} {holds}")
    return values


def _check_classes(entry: DataSet, arrays: Arrays) -> None:
    """DataError for classes without an image, and for names that differ in capitals alone, where nothing but
    the labels says which classes there are."""
    counts = np.bincount(arrays.labels[arrays.labels >= 0], minlength=len(arrays.classes))
    empty = [arrays.classes[label] for label in np.flatnonzero(counts == 0)]
    numbered = arrays.classes == [str(number) for number in range(len(arrays.classes))]
    unlabelled = int((arrays.labels < 0).sum())
    alike: dict[str, str] = {}
    for name in () if entry.names else arrays.classes:
        other = alike.setdefault(name.casefold(), name)
        if other != name:
            two = "give `names` to the set if they are two"
            raise DataError(f"the classes {other!r} and {name!r} differ in capitals alone: {two}")
    if empty and ((numbered and not entry.names) or unlabelled):
        raise DataError(
            f"the labels go from {arrays.labels.min()} to {arrays.labels.max()} and no image is of class "
            f"{_some(empty)}: count the classes from 0 without a gap"
        )
    if 0 < unlabelled < len(arrays.labels) and len(arrays.classes) < 2:
        raise DataError(
            f"{unlabelled} of {len(arrays.labels)} labels are -1, and the others are of one class"
        )


def _left_out(arrays: Arrays, scratch: Path) -> dict[str, int]:
    """{folder: images and archives in it that were unpacked and not taken}, of readers of image files."""
    if not isinstance(arrays, FromFiles) or not scratch.is_dir():
        return {}

    counted: dict[str, int] = {}
    for path in sorted(scratch.rglob("*")):
        name = path.name.lower()
        picture = path.suffix.lower() in suffixes() or name.endswith(ARCHIVES)
        if picture and path not in arrays.paths and path.is_file():
            folder = path.relative_to(scratch).parent.as_posix()
            counted[folder] = counted.get(folder, 0) + 1
    return counted


def _blank(values: np.ndarray) -> int:
    """How many images have no value of a column; a partition by this column would make them one user's."""
    values = np.asarray(values)
    return int((np.char.strip(values) == "").sum()) if values.dtype.kind == "U" else 0


def _one_part(arrays: Arrays) -> dict[str, list[str]]:
    """The classes that only the training or only the test part has."""
    of = {part: set(arrays.labels[arrays.split == part].tolist()) - {-1} for part in (TRAIN, TEST)}
    only = {"train": of[TRAIN] - of[TEST], "test": of[TEST] - of[TRAIN]}
    return {part: [arrays.classes[label] for label in sorted(some)] for part, some in only.items() if some}


def _without_twins(arrays: Arrays) -> Arrays:
    """Every picture once: of the test part where that has it, else the first."""
    images = arrays.images if isinstance(arrays.images, np.ndarray) else np.concatenate([*arrays.images])
    kept = twins.kept(twins.keys(images), np.asarray(arrays.split))
    columns = {name: values[kept] for name, values in arrays.columns.items()}
    of = {name: np.asarray(getattr(arrays, name))[kept] for name in ("labels", "domains", "split")}
    return replace(arrays, images=images[kept], columns=columns, **of)


def _watched(entry: DataSet, images: np.ndarray | Iterable[np.ndarray], found: Found) -> Iterator[np.ndarray]:
    """The blocks as they are stored, counted on their way. DataError for blocks of different rules, and for
    those of a paper's reader that fails meanwhile."""
    rules: dict[str, str] = {}
    for block in [images] if isinstance(images, np.ndarray) else _blocks(images):
        if entry.images:
            done = _picture_block(np.asarray(block), rules)
            found.brightest = max(found.brightest or 0, int(done.max(initial=0)))
        else:
            [done] = converted(entry, {"a block of samples": np.asarray(block)})
        found.keys += twins.keys(done)
        yield done


def _picture_block(block: np.ndarray, rules: dict[str, str]) -> np.ndarray:
    """A block of images as uint8. DataError where the values are of another kind than in earlier blocks, as
    `rules` has them."""
    what = "a block of images"
    shaped = _images(block, what)
    rule = "from 0 to 255" if shaped.dtype == np.uint8 else _rule(shaped, what) if shaped.size else "any"
    if rule != "any":
        rules.setdefault(rule, f"{what} ({len(rules) + 1})")
    _same({name: kind for kind, name in rules.items()}, "values")
    return _converted(shaped, rule)


def _blocks(images: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """What a reader yields; what fails in it becomes a DataError."""
    try:
        yield from images
    except (MemoryError, OSError, FedReproError):
        raise
    except Exception as error:  # of a paper's code
        raise DataError(f"its reader fails: {cause(error)}") from error


# -- in words ------------------------------------------------------------------------------------------------


def told(name: str, root: Path = ROOT) -> list[str]:
    """What was found of a set when it was prepared; nothing where nothing was, or where nobody knows."""
    try:
        return lines(twins.read(root / "data" / f"{name}.{twins.OF_SET}"))
    except DAMAGED:
        return []


def noted(paper: str, scenario: str, root: Path = ROOT) -> list[str]:
    """What was found of a scenario's set, as the partition noted it in git; twins apart."""
    try:
        return lines(twins.noted(paper, scenario, root).get("found", {}))
    except DAMAGED:
        return []


def lines(document: dict) -> list[str]:
    """What was found of a set, a sentence each."""
    said = []
    if left := document.get("left_out"):
        folders = [f"{folder} ({count})" for folder, count in left.items()]
        said.append(f"{sum(left.values())} images of the archive are left out: {_some(folders)}")
    if same := document.get("twins"):
        said.append(twins.sentence(same))
    for part, classes in document.get("one_part", {}).items():
        said.append(f"only the {'training' if part == 'train' else part} part has the class {_some(classes)}")
    if count := document.get("unlabelled"):
        said.append(f"{count} images have no label")
    for column, count in document.get("blank", {}).items():
        said.append(f"{count} images have no {column}: a partition by it would take them for one user's")
    if (grey := document.get("dark")) is not None:
        said.append(f"the brightest pixel is {grey} of 255: are the values of another range?")
    return said


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
