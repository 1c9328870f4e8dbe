"""Readers of data sets stored as image files: a folder per class or domain, or lists with labels.

A reader gets the files in the registry's order, a folder to unpack into, and the set's entry.
"""

import csv
import io
import itertools
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import numpy as np

from pipeline.data.download import extract, say
from pipeline.data.image_suffixes import suffixes
from pipeline.data.reading import Row, from_files, reading
from pipeline.data.registry import DataSet
from pipeline.data.store import TEST, TRAIN, Arrays
from pipeline.errors import DataError
from pipeline.files import leads_out
from pipeline.schema import shorten

# files that a line names
NAMED = 3
# of a list of images
COLUMNS = ("file", "label", "split", "domain")
SEPARATORS = (",", ";", "\t")
# how people call the folders of a set's parts
PART_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "val"),
}


def _listed(folder: Path) -> list[Path]:
    """The images of a folder in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes() and path.is_file())


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
    """The same text for an accent that a Mac writes as a separate character."""
    return unicodedata.normalize("NFC", name)


def _plain(name: str) -> str:
    """`Real World`, `real_world` and `RealWorld` are one name; `-15` and `15` are two."""
    return re.sub(r"(?<=[^\W\d_])[\s_-]+(?=[^\W\d_])", "", _composed(name).casefold())


def _holding(root: Path, names: list[str], archive: Path) -> dict[str, Path]:
    """{name: folder} of the first folder under `root`, itself included, that has a subfolder for every name:
    one of just this name, else the only one whose name is plainly the same."""
    for folder in [root, *sorted(path for path in root.rglob("*") if path.is_dir())]:
        inside = _subfolders(folder)
        matches = {
            name: [path for path in inside if _composed(path.name) == _composed(name)]
            or [path for path in inside if _plain(path.name) == _plain(name)]
            for name in names
        }
        chosen = [path for paths in matches.values() for path in paths]
        if all(len(paths) == 1 for paths in matches.values()) and len({*chosen}) == len(names):
            return dict(zip(names, chosen, strict=True))
    raise DataError(f"{shorten(archive)}: no folder in it has the subfolders {', '.join(names)}")


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


def only_folder(root: Path, archive: Path) -> Path:
    folders = _subfolders(root)
    if len(folders) != 1:
        raise DataError(f"{shorten(archive)}: {len(folders)} folders in it, expected one")
    return folders[0]


def folders(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """<domain>/<class>/ or <domain>/images/<class>/, anywhere. Order: domain, class name, file name."""
    rows: list[Row] = []
    classes: list[str] = []
    in_domains = _holding(extract(files[0], scratch), entry.domains, files[0])
    for number, (domain, folder) in enumerate(in_domains.items()):
        inner = _subfolders(folder)
        inner = _subfolders(inner[0]) if [path.name for path in inner] == ["images"] else inner
        names = [path.name for path in inner]
        classes, expected = classes or names, entry.classes or len(classes) or len(names)
        if [_plain(name) for name in names] != [_plain(name) for name in classes] or len(names) != expected:
            raise DataError(
                f"{shorten(files[0])}: {domain} has {len(names)} classes, {', '.join(names)}; expected "
                f"{expected}, the same in every domain"
            )
        _say_left_out(_subfolders(folder), [folder], files[0])
        rows += [(path, label, TRAIN, number) for path, label in _of_classes(inner, files[0])]
    return from_files(rows, entry.shape[0], classes)


def image_folder(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """train/<class>/ and test/<class>/ (or val, imgs_train, imgs_valid); or <class>/ without a split."""
    root = extract(files[0], scratch)
    while len(inside := _subfolders(root)) == 1:
        root = inside[0]
    splits = _splits(inside, files[0]) or {TRAIN: root}
    classes = [path.name for path in _subfolders(splits[TRAIN])]
    if not classes:
        raise DataError(f"{shorten(files[0])}: no folder of a class in it")
    for folder in splits.values():
        if more := [path.name for path in _subfolders(folder) if path.name not in classes]:
            where = f"{shorten(files[0])}: {folder.name}/ has the class {more[0]}"
            raise DataError(f"{where}, which {splits[TRAIN].name}/ lacks")
    rows = [
        (path, label, split, 0)
        for split, folder in splits.items()
        for path, label in _of_classes([folder / name for name in classes], files[0])
    ]
    return from_files(rows, entry.shape[0], classes)


def _splits(folders: list[Path], archive: Path) -> dict[int, Path]:
    """The folders of training and test images; empty where no folder is called as one. DataError where just
    one of them is there: read as classes, the parts would be what is learned."""
    called: dict[str, Path] = {}
    for path in folders:
        part = PART_NAMES.get(path.name.casefold().removeprefix("imgs_"))
        if part in called:
            raise DataError(f"{shorten(archive)}: {called[part].name}/ and {path.name}/ are one part")
        if part:
            called[part] = path
    if not called:
        return {}
    test = called.get("test", called.get("val"))
    if "train" not in called or test is None:
        names = ", ".join(f"{path.name}/" for path in folders)
        raise DataError(
            f"{shorten(archive)}: expected train/ and test/, or a folder per class; it has {names}"
        )
    return {TRAIN: called["train"], TEST: test}


def table(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """A CSV with the columns file and label, and an archive with the files.

    Further columns: domain, one of the entry's; split, `train` or `test`; any other is stored as a column of
    the set, such as the user to whom an image belongs. Columns may be separated by a comma, a semicolon or a
    tab; blanks around a value and capitals in the names of these columns mean nothing.
    """
    root = extract(files[1], scratch)
    with reading(files[0]), files[0].open(encoding="utf-8-sig", newline="") as file:
        text = file.read()
    lines = listing(text, shorten(files[0]))
    classes = entry.names or sorted({row["label"] for _, row in lines})
    choices = {"label": [*classes], "split": ["train", "test"], "domain": entry.domains}
    rows: list[Row] = []
    before: dict[str, tuple[int, dict]] = {}
    for number, row in lines:
        where = f"{shorten(files[0])}:{number}"
        label, split, domain = (
            _choice(row.get(key, known[0]), known, f"{where}: {key}") for key, known in choices.items()
        )
        _check_once(row["file"], number, row, before, where)
        if not (root / row["file"]).is_file():
            raise DataError(f"{where}: {row['file']!r} is not in {shorten(files[1])}")
        rows.append((root / row["file"], label, split, domain))
    others = [key for key in lines[0][1] if key not in COLUMNS]
    columns = {key: np.array([row[key] for _, row in lines]) for key in others}
    return from_files(rows, entry.shape[0], classes, **columns)


def listing(text: str, name: str) -> list[tuple[int, dict[str, str]]]:
    """(line, {column: value}) of a list of images; DataError, beginning with the list's name, for what is no
    such list."""
    head, *_ = text.splitlines() or [""]
    separator = next((one for one in SEPARATORS if {"file", "label"} <= {*_header(head, one)}), None)
    if separator is None:
        raise DataError(
            f"{name}:1: expected the columns file and label, separated by commas; it has {head!r:.80}"
        )
    header = _header(head, separator)
    if twice := [key for key in header if header.count(key) > 1]:
        raise DataError(f"{name}:1: the column {twice[0]!r} is there twice")
    lines = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for values in itertools.islice(reader, 1, None):
            if not any(value.strip() for value in values):
                continue
            if len(values) != len(header):
                raise csv.Error(f"{len(values)} fields, the columns are {len(header)}")
            row = dict(zip(header, (value.strip() for value in values)))
            row |= {key: _composed(row[key]) for key in COLUMNS[1:] if key in row}
            row["file"] = str(PurePosixPath(row["file"].replace("\\", "/")))
            if leads_out(row["file"]):
                raise csv.Error(f"{row['file']!r} lies outside the archive")
            lines.append((reader.line_num, row))
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: cannot be read ({error})") from None
    if not lines:
        raise DataError(f"{name}: lists no image")
    return lines


def _header(line: str, separator: str) -> list[str]:
    """Names of columns, those that mean something here in small letters."""
    names = [name.strip().strip('"').strip() for name in line.split(separator)]
    return [name.casefold() if name.casefold() in COLUMNS else name for name in names]


def _choice(value: str, known: list[str], where: str) -> int:
    """The place of a value among those known."""
    if value and value in known:
        return known.index(value)
    alike = [at for at, one in enumerate(known) if one.casefold() == value.casefold()]
    if len(alike) != 1 or not value:
        raise DataError(f"{where} {value!r:.80} is none of {', '.join(known[:NAMED])}")
    return alike[0]


def _check_once(file: str, number: int, row: dict, before: dict, where: str) -> None:
    """DataError for a file that an earlier line names."""
    if file in before:
        first, other = before[file]
        differ = [key for key in ("split", "label", "domain") if row.get(key) != other.get(key)]
        also = f", with another {differ[0]}" if differ else ""
        raise DataError(f"{where}: {file} is in line {first} already{also}")
    before[file] = (number, row)


def mnistm(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """PNGs and, for each part, a list of `name label` lines."""
    rows, root = [], extract(files[0], scratch) / "mnist_m"
    for split, part in ((TRAIN, "mnist_m_train"), (TEST, "mnist_m_test")):
        for name, label in _lines(root / f"{part}_labels.txt"):
            rows.append((root / part / name, int(label), split, 0))
    return from_files(rows, entry.shape[0], entry.names)


def _lines(path: Path, separator: str | None = None) -> list[list[str]]:
    """The fields of every line of a list."""
    with reading(path):
        text = path.read_text(encoding="utf-8")
        return [line.split(separator) for line in text.splitlines() if line.strip()]


def tiny_imagenet(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """Classes by sorted WordNet number; the validation part, whose labels are public, serves as test part."""
    root = only_folder(extract(files[0], scratch, lambda name: "/test/" not in name), files[0])
    numbers = [folder.name for folder in _subfolders(root / "train")]
    words = dict(_lines(root / "words.txt", "\t"))
    annotations = root / "val" / "val_annotations.txt"
    with reading(annotations):
        validation = sorted((line[0], numbers.index(line[1])) for line in _lines(annotations, "\t"))
    train = _of_classes([root / "train" / number / "images" for number in numbers], files[0])
    rows = [(path, label, TRAIN, 0) for path, label in train]
    rows += [(root / "val" / "images" / name, label, TEST, 0) for name, label in validation]
    return from_files(rows, entry.shape[0], [words[number].strip() for number in numbers])


def domainnet(files: list[Path], scratch: Path, entry: DataSet) -> Arrays:
    """Per domain an archive and the lists of its training and test images; only the entry's classes are
    unpacked. Order: domain, class name, file name."""
    rows: list[Row] = []

    def label(name: str) -> str:
        return Path(name).parent.name

    for number, domain in enumerate(entry.domains):
        archive, *lists = files[3 * number : 3 * number + 3]
        folder = extract(archive, scratch / domain, lambda name: label(name) in entry.names)
        listed = [
            (name, split)
            for split, path in zip((TRAIN, TEST), lists, strict=True)
            for name, *_ in _lines(path)
        ]
        rows += [
            (folder / name, entry.names.index(label(name)), split, number)
            for name, split in sorted(listed)
            if label(name) in entry.names
        ]
    return from_files(rows, entry.shape[0], entry.names)
