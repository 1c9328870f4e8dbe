"""Data sets from outside, drawn at random in every form that people give them: arrays (.npz, .mat, IDX),
image folders, lists, archives, a paper's own reader, some of them damaged. Each is drawn with its truth:
pictures with class and part. Wrong is anything but these pictures, with every other picture counted as left
out, or one line of refusal that names the file or the set: a traceback, ten seconds of computing without an
end, another picture, a usual form that is refused.

Some are read again through the command line, which must say the same.
"""

import bz2
import functools
import gzip
import io
import lzma
import os
import random
import shutil
import stat
import struct
import tarfile
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import inputs
import mutate
import numpy as np
import project
import scipy.io
from PIL import Image

from pipeline.data import registry, sources, store, twins
from pipeline.data.store import Arrays
from pipeline.errors import FedReproError

CASES = 100  # of one repository
# of so many cases one is read through the command line, too
BY_COMMAND = 50
SIDE = 4
CLASSES = ["ant", "bee", "cat"]
NAME = "mine"
PAPER = "tiny"
DECLARATION = """from pipeline.data.registry import Canonical, DataSet
mine = DataSet("Mine", {shape}, domains={domains}, canonical=Canonical({reader!r}, {files}, page="x"))
"""


class Truth(NamedTuple):
    """What a set holds: (bytes of the picture, class, part) of every image, and how many pictures of the
    archive belong to none of its parts."""

    images: Counter
    left_out: int = 0


class Case(NamedTuple):
    """Files from outside, and what they may become.

    truth: None where they can only be refused. must: a refusal is wrong, too. exact: whether the file's form
    notices each change, so that what is read must be the truth.
    """

    what: str
    reader: Any
    files: dict[str, bytes]
    truth: Truth | None
    must: bool = False
    exact: bool = True
    domains: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


# what every child would read anew
Image.init()
registry.sets()


def cases(folder: Path, draw: random.Random, expected: dict[str, str]) -> tuple[int, str]:
    """(cases, what was wrong with the first that was)."""
    kinds = [arrays, arrays, idx, tree, tree, domains, table, table, packed, packed, official, own_reader]
    outcomes: Counter = Counter()
    for number in range(1, CASES + 1):
        kind = draw.choice(kinds)
        case = kind(draw)
        answer = read(folder, case)
        outcomes[kind.__name__, answer[0]] += 1
        wrong = judged(case, answer)
        if not wrong and isinstance(case.reader, str) and draw.randrange(BY_COMMAND) == 0:
            wrong = by_command(folder, case, answer)
            outcomes["by command", answer[0]] += 1
        if wrong:
            return number, f"{case.what} ({case.reader}): {wrong}"
    said = ", ".join(f"{kind} {count} {what}" for (kind, what), count in sorted(outcomes.items()))
    print(f"foreign: {said}", flush=True)
    return CASES, ""


# -- what becomes of a case ----------------------------------------------------------------------------------


def read(folder: Path, case: Case) -> tuple[str, Any]:
    """In a separate process: ("taken", (images, pictures left out)), ("refused", line) or ("wrong", what)."""
    raw = folder / "data" / "raw" / NAME
    for name, content in case.files.items():
        path = raw / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    before = _listing(folder.parent)
    answer = inputs.in_a_child(functools.partial(_prepared, folder, case))
    for place in (folder / "data" / NAME, raw):
        shutil.rmtree(place, ignore_errors=True)
    (folder / "data" / f"{NAME}.{twins.OF_SET}").unlink(missing_ok=True)
    if isinstance(answer, str):
        return "wrong", answer
    if _listing(folder.parent) != before:
        return "wrong", "a file outside of the set's folder"
    return answer


def _listing(folder: Path) -> list[str]:
    """What lies where nothing may be written."""
    return sorted(path.name for path in (*folder.iterdir(), *folder.glob("*/data/*")) if path.name != NAME)


def _prepared(folder: Path, case: Case) -> tuple[str, Any]:
    canonical = registry.Canonical(case.reader, dict.fromkeys(case.files, ""), page="x")
    entry = registry.DataSet(
        "Mine", [SIDE, SIDE, 3], names=[*case.names], domains=[*case.domains] or [NAME], canonical=canonical
    )
    registry.sets()[NAME] = entry
    os.environ.pop("FEDREPRO_MIRROR", None)
    warnings.simplefilter("error", RuntimeWarning)  # of casts that lose values
    try:
        sources.prepare(NAME, folder / "data" / NAME, "canonical")
        stored = store.verify(folder / "data" / NAME)
    except FedReproError as error:
        return "refused", str(error)
    except Exception:  # noqa: BLE001  # what is looked for here
        return "wrong", "a traceback: " + " ".join(traceback.format_exc().split())[-500:]
    found = twins.read(folder / "data" / f"{NAME}.{twins.OF_SET}")
    classes = [*stored.meta["classes"], ""]
    labels = [classes[label] for label in stored.labels.tolist()]
    pictures = [image.tobytes() for image in _in_colour(stored.images)]
    parts = zip(pictures, labels, stored.split.tolist(), strict=True)
    return "taken", (Counter(parts), sum(found.get("left_out", {}).values()))


def judged(case: Case, answer: tuple[str, Any]) -> str:
    """What is wrong with an answer, or ""."""
    kind, said = answer
    if kind == "wrong":
        return said
    if kind == "refused":
        if "\n" in said:
            return f"a refusal of several lines: {said}"
        if NAME not in said and not any(name in said for name in case.files):
            return f"a refusal without a name: {said}"
        return f"a usual form is refused: {said}" if case.must else ""
    if case.truth is None:
        return "taken, though it means nothing"
    if not case.exact:
        return ""
    images, left_out = said
    if images != case.truth.images:
        other = sum((images - case.truth.images).values())
        return f"{other} of {sum(images.values())} images are not what was written"
    if left_out != case.truth.left_out:
        return f"{left_out} pictures counted as left out, {case.truth.left_out} were"
    return ""


def by_command(folder: Path, case: Case, answer: tuple[str, Any]) -> str:
    """What is wrong with the same set prepared by its stage, or ""."""
    declared = folder / "papers" / PAPER / "data.py"
    for name, content in case.files.items():
        path = folder / "data" / "raw" / NAME / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    files = dict.fromkeys(case.files, "")
    shape, names = [SIDE, SIDE, 3], [*case.domains] or [NAME]
    declared.write_text(DECLARATION.format(shape=shape, domains=names, reader=case.reader, files=files))
    process = project.start(folder, "stages.data", NAME)
    reply = project.heard(process)
    declared.unlink()
    for place in (folder / "data" / NAME, folder / "data" / "raw" / NAME):
        shutil.rmtree(place, ignore_errors=True)
    (folder / "data" / f"{NAME}.{twins.OF_SET}").unlink(missing_ok=True)
    if "Traceback" in reply:
        return f"by command a traceback: {reply[-500:]}"
    refused = answer[0] == "refused"
    if refused != bool(process.returncode):
        return f"by command exit code {process.returncode}, in process {answer[0]}: {reply[-300:]}"
    return (
        "" if not refused or "\nerror: " in f"\n{reply}" else f"by command no line of error: {reply[-300:]}"
    )


# -- pictures ------------------------------------------------------------------------------------------------


class Pictures(NamedTuple):
    """Images (N, SIDE, SIDE, 1 or 3) of which no two are the same and each has black and white; labels (N,);
    the first `train` are for training."""

    images: np.ndarray
    labels: np.ndarray
    train: int

    def truth(self, classes: list[str], left_out: int = 0) -> Truth:
        split = [0 if at < self.train else 1 for at in range(len(self.images))]
        keys = [image.tobytes() for image in _in_colour(self.images)]
        names = [classes[label] if label >= 0 else "" for label in self.labels.tolist()]
        return Truth(Counter(zip(keys, names, split, strict=True)), left_out)

    def parts(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values[: self.train], values[self.train :]


def pictures(draw: random.Random, channels: int = 0) -> Pictures:
    channels = channels or draw.choice([1, 3])
    train, test = draw.randint(3, 9), draw.randint(3, 9)
    images = np.random.default_rng(draw.getrandbits(32)).integers(
        0, 256, (train + test, SIDE, SIDE, channels), np.uint8
    )
    images[:, 0, 0], images[:, 0, 1] = 0, 255
    images[:, 1, 0, 0] = np.arange(train + test)  # no twins
    labels = np.arange(train + test) % 3
    return Pictures(images, labels, train)


def _in_colour(images: np.ndarray) -> np.ndarray:
    """Three channels, so that grey images compare with those of files."""
    return np.repeat(images, 3, axis=3) if images.shape[3] == 1 else np.ascontiguousarray(images)


# -- arrays --------------------------------------------------------------------------------------------------

GIVEN: dict[str, Callable] = {
    "uint8": lambda x: x,
    "int64": lambda x: x.astype(np.int64),
    "uint16": lambda x: x.astype(np.uint16),
    "big-endian": lambda x: x.astype(">i4"),
    "float32 of 1": lambda x: x / np.float32(255),
    "float16 of 1": lambda x: (x / 255).astype(np.float16),
    "float64 of 1": lambda x: x / 255.0,
    "-1 to 1": lambda x: x / np.float32(127.5) - 1,
    "float of bytes": lambda x: x.astype(np.float32),
    "Fortran's order": np.asfortranarray,
}
REFUSED: dict[str, Callable] = {
    "12 bits": lambda x: x.astype(np.int16) * 16,
    "16 bits": lambda x: x.astype(np.uint16) * 257,
    "signed": lambda x: (x.astype(np.int16) - 128).astype(np.int8),
    "negative": lambda x: -x.astype(np.int16),
    "standardised": lambda x: (x / 255.0 - 0.5) / 0.25,
    "centred": lambda x: x / 255.0 - 0.5,
    "divided twice": lambda x: x / 255.0 / 255.0,
    "percent": lambda x: x / 2.55,
    "NaN": lambda x: np.where(x == 255, np.nan, x / 255.0),
    "infinite": lambda x: np.where(x == 255, np.inf, x / 255.0),
    "complex": lambda x: x / 255.0 + 0j,
    "texts": lambda x: x.astype(str),
    "objects": lambda x: x.astype(object),
    "dates": lambda x: x.astype("M8[s]"),
    "flat": lambda x: x.reshape(len(x), -1),
    "channels first": lambda x: x.transpose(0, 3, 1, 2),
    "four channels": lambda x: np.concatenate([_in_colour(x), x[..., :1]], axis=3),
    "five axes": lambda x: x[:, None],
    "one number": lambda x: x.flat[0],
    "no image": lambda x: x[:0],
    "a record": lambda x: x.view([("v", np.uint8)]),
}
LABELS: dict[str, Callable] = {
    "int64": lambda y: y,
    "uint8": lambda y: y.astype(np.uint8),
    "whole floats": lambda y: y.astype(np.float32),
    "a column": lambda y: y[:, None],
    "a row": lambda y: y[None],
    "digits as texts": lambda y: y.astype(str),
}
NO_LABELS: dict[str, Callable] = {
    "halves": lambda y: y + 0.5,
    "from one": lambda y: y + 1,
    "with a gap": lambda y: y * 2,
    "negative": lambda y: y - 2,
    "huge": lambda y: y * 2**50,
    "NaN": lambda y: np.where(y == 1, np.nan, y),
    "infinite": lambda y: np.where(y == 1, np.inf, y),
    "one-hot": lambda y: np.eye(3)[y],
    "too few": lambda y: y[1:],
    "too many": lambda y: np.append(y, 0),
    "complex": lambda y: y + 0j,
    "objects": lambda y: y.astype(object),
    "an empty text": lambda y: np.array(["a", " ", "b"])[y],
    "no UTF-8": lambda y: np.array([b"a", b"\xff", b"b"])[y],
    "one number": lambda y: y[0],
    "dates": lambda y: y.astype("M8[D]"),
}


def arrays(draw: random.Random) -> Case:
    """An .npz or .mat file."""
    shown = pictures(draw)
    matlab = draw.random() < 0.15
    x_form, y_form = draw.choice([*GIVEN]), draw.choice([*LABELS])
    x, y, classes, must = GIVEN[x_form], LABELS[y_form], ["0", "1", "2"], True
    truth = shown.truth(classes)
    match draw.randrange(10):
        case 0 | 1:
            x_form = draw.choice([*REFUSED])
            x, truth = REFUSED[x_form], None
        case 2:
            y_form = draw.choice([*NO_LABELS])
            y, truth = NO_LABELS[y_form], None
        case 3:
            y_form, classes = "texts", draw.choice([CLASSES, ["é", "漢", "z z"], ["-1", "b", "c"]])
            y, truth = (lambda y: np.array(classes)[y]), shown.truth(classes)
        case 4:
            x_form, y_form = "bool", "bool"
            seen = shown.images > 127
            shown = shown._replace(images=seen * np.uint8(255), labels=shown.labels % 2)
            x, y, truth = (lambda x: x > 0), (lambda y: y > 0), shown.truth(["0", "1"])
    xs, ys = (
        shown.parts(x(shown.images) if x_form != "one number" else shown.images),
        shown.parts(shown.labels),
    )
    xs = tuple(map(x, shown.parts(shown.images)))
    ys = tuple(map(y, ys))
    if shown.images.shape[3] == 1 and draw.random() < 0.5 and xs[0].ndim == 4:
        xs = tuple(part[..., 0] if part.shape[-1] == 1 else part for part in xs)
    if x_form == "channels first" and shown.images.shape[3] == 1:
        truth = None  # (N, 1, H, W)
    named = {"x_train": xs[0], "y_train": ys[0], "x_test": xs[1], "y_test": ys[1]}
    what = f"{'.mat' if matlab else '.npz'}, images {x_form}, labels {y_form}"
    match draw.randrange(12):
        case 0:
            lost = draw.choice([*named])
            del named[lost]
            truth, what = None, f"{what}, without {lost}"
        case 1:
            named |= {"x_val": xs[0], "y_val": ys[0]}
        case 2:
            named = {name.replace("x_", "X_"): values for name, values in named.items()}
            truth, what = None, f"{what}, in capitals"
        case 3:
            other = draw.choice([*{*GIVEN, *REFUSED} - {"Fortran's order"}])
            named["x_test"] = {**GIVEN, **REFUSED}[other](shown.parts(shown.images)[1])
            must, what = False, f"{what}, test part {other}"
            if other in REFUSED:
                truth = None
    if matlab and (x_form in ("objects", "dates", "a record") or y_form in ("objects", "dates")):
        matlab = False
    return _file(draw, named, matlab, what, truth, must)


def _file(draw: random.Random, named: dict, matlab: bool, what: str, truth: Truth | None, must: bool) -> Case:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if matlab:
            packed = draw.random() < 0.5
            try:
                scipy.io.savemat(file, named, do_compression=packed)
            except (TypeError, ValueError, struct.error):
                file, matlab = io.BytesIO(), False
        if not matlab:
            draw.choice([np.savez, np.savez_compressed])(file, **named)
    # MATLAB has no types of NumPy's: what it makes of texts, booleans and complex numbers is its own
    must = must and truth is not None and not matlab
    content, damaged = file.getvalue(), draw.random() < 0.2
    if damaged:
        content, must, what = mutate.damaged(content, draw), False, f"{what}, damaged"
    name = "a.mat" if matlab else "a.npz"
    exact = not (matlab and (damaged or truth is None))
    if matlab and truth is None:
        truth = Truth(Counter())
    return Case(what, "arrays", {name: content}, truth, must, exact)


def idx(draw: random.Random) -> Case:
    """MNIST's four files."""
    shown = pictures(draw, 1)
    images, labels = shown.parts(shown.images[..., 0]), shown.parts(shown.labels)
    files = {}
    for part, x, y in zip(("train", "test"), images, labels, strict=True):
        files |= {f"{part}-x.gz": _idx(x), f"{part}-y.gz": _idx(y.astype(np.uint8))}
    what, truth, must = "IDX", shown.truth(["0", "1", "2"]), True
    name = draw.choice([*files])
    match draw.randrange(8):
        case 0:
            what, truth = f"{name} of another number type", None
            files[name] = bytes([0, 0, draw.choice([9, 11, 12, 13, 14, 0]), *files[name][3:]])
        case 1:
            what, truth = f"{name} with another size", None
            files[name] = files[name][:4] + struct.pack(">I", draw.choice([0, 1, 10**9])) + files[name][8:]
        case 2:
            what, truth = f"{name} cut", None
            files[name] = files[name][: draw.randrange(len(files[name]))]
        case 3:
            what, truth = f"{name} with more behind", None
            files[name] += bytes(draw.randint(1, 20))
        case 4:
            what, truth = "labels and images exchanged", None
            files["train-x.gz"], files["train-y.gz"] = files["train-y.gz"], files["train-x.gz"]
        case 5:
            what, truth = f"{name} with other axes", None
            files[name] = bytes([0, 0, 8, draw.choice([0, 5, 200])]) + files[name][4:]
    packed = {name: gzip.compress(content) for name, content in files.items()}
    if draw.random() < 0.2:
        packed[name] = mutate.damaged(packed[name], draw)
        must, what = False, f"{what}, damaged"
    return Case(what, "idx", packed, truth, must and truth is not None)


def _idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


# -- image files ---------------------------------------------------------------------------------------------

EXACT = {".png": "PNG", ".bmp": "BMP", ".PNG": "PNG", ".tif": "TIFF", ".ppm": "PPM", ".webp": "WEBP"}
PARTS = {
    "train": ["train", "Train", "TRAIN", "training", "imgs_train"],
    "test": ["test", "Test", "TESTING", "val", "valid", "validation", "imgs_valid"],
}
BESIDE = {
    "README.md": b"read me",
    "labels.csv": b"file,label\n",
    ".DS_Store": b"\x00",
    "__MACOSX/._0.png": b"\x00",
    "Thumbs.db": b"\x00",
}


def image_file(image: np.ndarray, draw: random.Random) -> tuple[str, bytes]:
    """(ending, content) of a file without loss."""
    ending = draw.choice([*EXACT])
    shown = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    if EXACT[ending] in ("PNG", "TIFF", "WEBP") and draw.random() < 0.2:
        shown = shown.convert("RGBA")
    if EXACT[ending] == "PNG" and image.shape[2] == 1 and draw.random() < 0.5:
        shown = Image.fromarray(image[..., 0].astype(np.uint16) * 257)
    file = io.BytesIO()
    shown.save(file, EXACT[ending], **({"lossless": True, "exact": True} if ending == ".webp" else {}))
    return ending, file.getvalue()


def _files(shown: Pictures, draw: random.Random, place: Callable[[int], str]) -> dict[str, bytes]:
    """A file of each image, in the folder that `place` says."""
    files = {}
    for at, image in enumerate(shown.images):
        ending, content = image_file(image, draw)
        files[f"{place(at)}/{at}{ending}"] = content
    return files


def tree(draw: random.Random) -> Case:
    """Folders of classes in folders of parts, or without parts."""
    shown = pictures(draw)
    what, left, must, truth = "folders of classes", 0, True, True
    train, test = (draw.choice(PARTS[part]) for part in ("train", "test"))
    top = draw.choice(["", "a/", "a b/漢/"])
    classes = draw.choice([CLASSES, ["0", "1", "10"], ["é", "z", "漢 字"], ["x.y", "x_y", "xy"]])
    split = draw.random() < 0.7
    if not split:
        shown = shown._replace(train=len(shown.images))

    def place(at: int) -> str:
        part = f"{train if at < shown.train else test}/" if split else ""
        return f"{top}{part}{classes[shown.labels[at]]}"

    files = _files(shown, draw, place)
    match draw.randrange(12):
        case 0:
            files |= {top + name: content for name, content in BESIDE.items()}
        case 1 if split:
            third = "val" if PARTS["test"].index(test) < 3 else "test"
            extra = _files(
                shown._replace(images=255 - shown.images), draw, lambda at: f"{top}{third}/{classes[0]}"
            )
            if third == "val":
                files, left, what = {**files, **extra}, len(extra), "a third part"
        case 2 if split:
            files[f"{top}{test}/owl/x.png"] = files[next(iter(files))]
            truth, what = False, "a class that only the test part has"
        case 3:
            files[f"{place(0)}/deep/x.png"] = _png(draw)
            left, what = 1, "a picture in a folder of a class"
        case 4:
            files[f"{place(0)}/x.png"] = draw.choice([b"", b"no picture", _png(draw)[:40]])
            truth, what = False, "a file that is no picture"
        case 5:
            files = {name: content for name, content in files.items() if f"/{classes[0]}/" not in f"/{name}"}
            must, what = False, "no image of a class"
            kept = [at for at in range(len(shown.images)) if shown.labels[at]]
            early = sum(at < shown.train for at in kept)
            shown = Pictures(shown.images[kept], shown.labels[kept], early)
        case 6:
            files[f"{top}loose.png"] = _png(draw)
            left, what = 1, "a picture outside of the classes"
        case 7 if classes[shown.labels[0]].upper() != classes[shown.labels[0]]:
            alike = f"{place(0)[: -len(classes[shown.labels[0]])]}{classes[shown.labels[0]].upper()}/x.png"
            files[alike] = _png(draw)
            must, what = False, "two classes of one name"
            truth = False
        case 8 if split:
            files = {name.replace(f"{test}/", "holdout/"): content for name, content in files.items()}
            truth, what = False, "an unknown part"
    form, content = archive(draw, files)
    truth = shown.truth(classes, left) if truth else None
    must = must and truth is not None
    return Case(f"{what} in {form}", "image_folder", {f"a.{form}": content}, truth, must)


def domains(draw: random.Random) -> Case:
    """Folders of classes in folders of domains."""
    shown = pictures(draw)
    shown = shown._replace(train=len(shown.images), labels=shown.labels % 2)
    named = draw.choice([("art", "photo"), ("Real World", "Clip-Art"), ("é", "è")])
    spelt = [draw.choice([name, name.upper(), name.replace(" ", "_")]) for name in named]
    inner = draw.choice(["", "images/"])
    # image 0, 2, 4, ... of the first domain; both classes in both
    labels = np.arange(len(shown.images)) // 2 % 2
    shown = shown._replace(labels=labels)
    files = _files(shown, draw, lambda at: f"top/{spelt[at % 2]}/{inner}{CLASSES[labels[at]]}")
    what, left, truth, must = "domains", 0, True, len(shown.images) > 6
    match draw.randrange(5):
        case 0:
            files[f"top/sketch/{inner}ant/x.png"] = _png(draw)
            left, what = 1, "a further domain"
        case 1:
            files[f"top/{spelt[0]}/{inner}owl/x.png"] = _png(draw)
            truth, what = False, "a class of one domain"
        case 2:
            files = {name: content for name, content in files.items() if f"/{spelt[0]}/" not in name}
            truth, what = False, "a domain is missing"
    form, content = archive(draw, files)
    truth = shown.truth(CLASSES, left) if truth else None
    must = must and truth is not None
    return Case(f"{what} in {form}", "folders", {f"a.{form}": content}, truth, must, domains=named)


def _png(draw: random.Random) -> bytes:
    file = io.BytesIO()
    noise = np.frombuffer(draw.randbytes(SIDE * SIDE * 3), np.uint8).reshape(SIDE, SIDE, 3)
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()


def table(draw: random.Random) -> Case:
    """A list of images."""
    shown = pictures(draw)
    files = _files(shown, draw, lambda at: "im")
    names = [*files]
    split = ["train" if at < shown.train else "test" for at in range(len(names))]
    rows = [
        [name, CLASSES[label], part] for name, label, part in zip(names, shown.labels, split, strict=True)
    ]
    header, left, what, truth, must = ["file", "label", "split"], 0, "a list", True, True
    at = draw.randrange(len(rows))
    match draw.randrange(14):
        case 0:
            rows.append([rows[at][0], rows[at][1], draw.choice(["train", "test"])])
            truth, what = False, "a file twice"
        case 1:
            rows[at][1] = f"{rows[at][1]} "
            what = "a blank behind a label"
        case 2:
            header = draw.choice([["File", "Label", "Split"], [" file", "label ", " SPLIT "]])
            what = "other capitals"
        case 3:
            rows[at][2] = draw.choice(["Train", "TEST", "holdout", "", "0"])
            truth, what = rows[at][2].lower() == split[at], "another part"
            if not truth and rows[at][2].lower() in ("train", "test"):
                rows[at][2] = split[at].upper()
                truth = True
        case 4:
            rows[at][0] = draw.choice(["../x.png", "/etc/passwd", "im/none.png", "", "C:\\x.png", "im"])
            truth, what = False, "a file that is not there"
        case 5:
            rows[at][0] = draw.choice(
                [f"./{names[at]}", names[at].replace("/", "\\"), f"im/./{names[at][3:]}"]
            )
            what = "a path in another spelling"
        case 6:
            files["im/more.png"] = _png(draw)
            left, what = 1, "a picture that nobody lists"
        case 7:
            header, rows = [*header, "user"], [[*row, f"u{n % 2}"] for n, row in enumerate(rows)]
            what = "users"
        case 8:
            header = draw.choice([["path", *header[1:]], [*header[:2], "label"], ["file", "class", "split"]])
            truth, what = False, "other columns"
        case 9:
            rows[at] = rows[at][: draw.randrange(3)]
            truth, what = not rows[at], "a short row"
            if truth:
                truth = False
                must = False
                left = None
        case 10:
            header, rows = [*header, "domain"], [[*row, draw.choice(["art", "owl"])] for row in rows]
            truth, what = False, "unknown domains"
        case 11:
            rows[at][1] = rows[at][1].upper()
            truth, what = False, "a class in capitals"
    if left is None:  # an empty line: one image less, counted as left out
        kept = [n for n in range(len(rows)) if n != at]
        early = sum(n < shown.train for n in kept)
        shown = Pictures(shown.images[kept], shown.labels[kept], early)
        truth, left, what = True, 1, "an empty line"
    separator = draw.choice([",", ";", "\t"])
    ends = draw.choice(["\n", "\r\n"])
    quoted = draw.random() < 0.3
    lines = [separator.join(f'"{value}"' if quoted else value for value in row) for row in [header, *rows]]
    text = ends.join(lines) + draw.choice(["", ends, ends * 3])
    content = draw.choice([b"", b"\xef\xbb\xbf"]) + text.encode()
    form, packed_files = archive(draw, files)
    exact = True
    if draw.random() < 0.15:
        content, exact, must, what = mutate.damaged(content, draw), False, False, f"{what}, damaged"
        truth = True
    truth = shown.truth(CLASSES, left) if truth else None
    must = must and truth is not None
    both = {"t.csv": content, f"a.{form}": packed_files}
    return Case(f"{what}, {separator!r}, in {form}", "table", both, truth, must, exact)


# -- archives ------------------------------------------------------------------------------------------------

FORMS = ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"]
PACKED = {"tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress}


def archive(draw: random.Random, files: dict[str, bytes], form: str = "") -> tuple[str, bytes]:
    """(ending, content) of an archive with these files."""
    form = form or draw.choice(FORMS)
    names = [*files]
    draw.shuffle(names)
    file = io.BytesIO()
    if form == "zip":
        with zipfile.ZipFile(file, "w", draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as target:
            for name in names:
                target.writestr(name, files[name])
        return form, file.getvalue()
    with tarfile.open(fileobj=file, mode="w") as target:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            target.addfile(member, io.BytesIO(files[name]))
    return form, PACKED[form](file.getvalue())


def packed(draw: random.Random) -> Case:
    """An archive of folders of classes that has something of an attack, an accident or a habit."""
    shown = pictures(draw)._replace()
    shown = shown._replace(train=len(shown.images))
    files = _files(shown, draw, lambda at: f"top/{CLASSES[shown.labels[at]]}")
    form, content = archive(draw, files)
    truth, must, exact, left = True, False, True, 0
    what = draw.choice([*ACCIDENTS])
    match what:
        case "cut":
            # what is lost may be nothing but the zeros at a tar's end
            content = content[: draw.randrange(len(content) * 9 // 10)]
        case "damaged":
            content = mutate.damaged(content, draw)
            exact = form != "tar"
        case "in an archive":
            form, content = archive(draw, {f"data.{form}": content})
            truth = None
        case "beside an archive":
            form, content = archive(draw, {**files, "top/more.zip": archive(draw, files, "zip")[1]})
            left = 1
        case "a link":
            form, content = "tar", _tar_with(files, draw, draw.choice([tarfile.SYMTYPE, tarfile.LNKTYPE]))
            truth = None
        case "a device":
            kinds = [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
            form, content = "tar", _tar_with(files, draw, draw.choice(kinds))
            truth = None
        case "a link of .zip":
            form, content, truth = "zip", _zip_with_link(files), None
        case "outside":
            name = draw.choice(
                ["../x.png", "/tmp/foreign-x.png", "top/../../x.png", "..\\x.png", "C:\\x.png"]
            )
            form, content = archive(draw, {**files, name: _png(draw)})
            truth = None
        case "a bomb":
            form, content = "zip", _bomb(files)
            truth = None
        case "no archive":
            content, truth = draw.choice(NO_ARCHIVES), None
        case "of another ending":
            form = draw.choice([other for other in FORMS if other != form])
            must = True
        case "encrypted":
            form, content = "zip", _encrypted(files, draw)
            truth = None
        case "one name twice":
            form, content = "zip", _twice(files, draw)
            truth = None
        case "a name that no system has":
            odd = draw.choice(["a" * 300, "x\ny.png", "NUL.png", "con\t.png", "\u202ex.png", "-rf.png"])
            files[f"top/{CLASSES[0]}/{odd if odd.endswith('.png') else odd + '.png'}"] = picture = _png(draw)
            form, content = archive(draw, files)
            extra = np.asarray(Image.open(io.BytesIO(picture)))[None]
            images = np.concatenate([_in_colour(shown.images), extra])
            shown = Pictures(images, np.append(shown.labels, 0), len(images))
        case "a file and a folder":
            name = next(iter(files))
            form, content = archive(draw, {**files, f"{name}/x.png": _png(draw)})
            truth = None
        case "more behind":
            content += draw.randbytes(draw.randint(1, 3000))
            exact = form == "zip"
        case "more before" if form == "zip":
            content = draw.randbytes(draw.randint(1, 300)) + content
        case "capitals alone":
            one = next(iter(files))
            files[one.rpartition("/")[0] + "/" + one.rpartition("/")[2].upper()] = _png(draw)
            form, content = archive(draw, files)
            exact = False
    truth = shown.truth(CLASSES, left) if truth else None
    must = must and truth is not None
    return Case(f"an archive {what}, {form}", "image_folder", {f"a.{form}": content}, truth, must, exact)


ACCIDENTS = (
    *("cut", "damaged", "in an archive", "beside an archive", "a link", "a device", "a link of .zip"),
    *("outside", "a bomb", "no archive", "of another ending", "encrypted", "one name twice"),
    *("a name that no system has", "a file and a folder", "more behind", "more before", "capitals alone"),
)
NO_ARCHIVES = [
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    b"Rar!\x1a\x07\x01\x00" + bytes(100),
    b"7z\xbc\xaf\x27\x1c" + bytes(100),
    b"<!DOCTYPE html><title>Sign in</title>",
    b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
    b'{"error": "quota"}',
    b"",
    b"\x00" * 2000,
    b"PK\x05\x06" + bytes(18),
    b"\x1f\x8b\x08\x00",
    bytes(10240),
    b"\x89HDF\r\n\x1a\n" + bytes(64),
]


def _tar_with(files: dict[str, bytes], draw: random.Random, kind: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as target:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
        special = tarfile.TarInfo(f"top/{CLASSES[0]}/x.png")
        special.type, special.linkname = kind, draw.choice(["/etc/passwd", next(iter(files)), "..", "x.png"])
        target.addfile(special)
    return file.getvalue()


def _zip_with_link(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        for name, content in files.items():
            target.writestr(name, content)
        link = zipfile.ZipInfo(f"top/{CLASSES[0]}/x.png")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        target.writestr(link, "/etc/passwd")
    return file.getvalue()


def _bomb(files: dict[str, bytes]) -> bytes:
    """Two gigabytes of zeros by its directory, which is what is looked at."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in files.items():
            target.writestr(name, content)
        target.writestr(f"top/{CLASSES[0]}/x.png", bytes(1 << 20))
    content = bytearray(file.getvalue())
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = struct.pack("<I", 1 << 31)
    return bytes(content)


def _encrypted(files: dict[str, bytes], draw: random.Random) -> bytes:
    content = bytearray(archive(draw, files, "zip")[1])
    at = content.index(b"PK\x01\x02")
    content[at + 8] |= 1
    content[content.index(b"PK\x03\x04") + 6] |= 1
    return bytes(content)


def _twice(files: dict[str, bytes], draw: random.Random) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as target:
        warnings.simplefilter("ignore")
        for name, content in files.items():
            target.writestr(name, content)
        target.writestr(next(name for name in files if name.lower().endswith("png") or name), _png(draw))
    return file.getvalue()


# -- official files and a paper's own reader -----------------------------------------------------------------


def official(draw: random.Random) -> Case:
    """CIFAR-10's binary records, or SVHN's or USPS's files, damaged or not."""
    count = draw.randint(2, 5)
    rng = np.random.default_rng(draw.getrandbits(32))
    images = rng.integers(0, 256, (6, count, 32, 32, 3), np.uint8)
    images[:, :, 0, 0, 0] = np.arange(6 * count).reshape(6, count)
    labels = np.arange(6 * count).reshape(6, count) % 10
    names = [f"c{number}" for number in range(10)]
    files = {"c/batches.meta.txt": "\n".join(names).encode()}
    for at, name in enumerate([f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]):
        records = [
            bytes([y]) + x.transpose(2, 0, 1).tobytes() for x, y in zip(images[at], labels[at].tolist())
        ]
        files[f"c/{name}"] = b"".join(records)
    rows = [
        (images[at, n].tobytes(), names[labels[at, n]], int(at == 5)) for at in range(6) for n in range(count)
    ]
    truth, what, exact, name = Truth(Counter(rows)), "CIFAR-10", True, draw.choice([*files])
    match draw.randrange(6):
        case 0:
            del files[name]
            truth, what = None, f"CIFAR-10 without {name}"
        case 1:
            files[name] = mutate.damaged(files[name], draw)
            exact, what = False, f"CIFAR-10 with {name} damaged"
        case 2:
            files["c/data_batch_1.bin"] = b"\xff" + files["c/data_batch_1.bin"][1:]
            truth, what = None, "CIFAR-10 with a label of 255"
    form, content = archive(draw, files, "tar.gz")
    return Case(what, "cifar10", {f"a.{form}": content}, truth, what == "CIFAR-10", exact)


RETURNED: dict[str, Callable] = {
    "as it should": lambda a: a,
    "labels of floats": lambda a: a._replace(labels=a.labels.astype(float)),
    "a split of booleans": lambda a: a._replace(split=a.split == 1),
    "lists": lambda a: a._replace(labels=a.labels.tolist(), split=a.split.tolist()),
    "blocks": lambda a: a._replace(images=iter([a.images[:2], a.images[2:]])),
    "floats": lambda a: a._replace(images=a.images / 255.0),
}
NOT_RETURNED: dict[str, Callable] = {
    "a split of halves": lambda a: a._replace(split=a.split + 0.5),
    "a split of texts": lambda a: a._replace(split=np.where(a.split == 1, "test", "train")),
    "a split of 2": lambda a: a._replace(split=a.split + 1),
    "a split of -1": lambda a: a._replace(split=a.split - 1),
    "a short split": lambda a: a._replace(split=a.split[1:]),
    "a split of 256": lambda a: a._replace(split=a.split.astype(np.int64) * 256),
    "domains of halves": lambda a: a._replace(domains=a.domains + 0.5),
    "domains of -1": lambda a: a._replace(domains=a.domains - 1),
    "domains too high": lambda a: a._replace(domains=a.domains + 1),
    "short domains": lambda a: a._replace(domains=a.domains[1:]),
    "short labels": lambda a: a._replace(labels=a.labels[1:]),
    "fewer images": lambda a: a._replace(images=a.images[1:]),
    "flat images": lambda a: a._replace(images=a.images.reshape(len(a.images), -1)),
    "blocks of several shapes": lambda a: a._replace(images=iter([a.images[:2], a.images[2:, :2]])),
    "blocks of floats and bytes": lambda a: a._replace(images=iter([a.images[:2] / 255.0, a.images[2:]])),
    "dark blocks": lambda a: a._replace(images=iter([a.images[:2] / 255.0 / 255.0, a.images[2:] / 255.0])),
    "blocks that fail": lambda a: a._replace(images=(1 / 0 for _ in [1])),
    "no blocks": lambda a: a._replace(images=iter([])),
    "nothing": lambda a: None,
    "a tuple": lambda a: (a.images, a.labels),
    "no classes": lambda a: a._replace(classes=[]),
    "classes twice": lambda a: a._replace(classes=["a", "a", "b"]),
    "classes of numbers": lambda a: a._replace(classes=[0, 1, 2]),
    "too few classes": lambda a: a._replace(classes=["a", "b"]),
    "a column of objects": lambda a: a._replace(columns={"user": np.array([None] * len(a.labels))}),
    "a short column": lambda a: a._replace(columns={"user": np.arange(2)}),
    "a column without a name": lambda a: a._replace(columns={"../x": a.labels}),
}


class Returned(NamedTuple):
    """What a reader returns, as `Arrays`, whose fields can be replaced whatever they are."""

    images: Any
    labels: Any
    domains: Any
    split: Any
    classes: Any
    columns: Any = {}


def own_reader(draw: random.Random) -> Case:
    """A paper's own reader."""
    shown = pictures(draw, 3)
    good = draw.random() < 0.3
    what = draw.choice([*(RETURNED if good else NOT_RETURNED)])
    split = (np.arange(len(shown.images)) >= shown.train).astype(np.uint8)
    zeros = np.zeros(len(split), np.int64)
    whole = Returned(shown.images, shown.labels, zeros, split, CLASSES)
    change = {**RETURNED, **NOT_RETURNED}[what]

    def reader(files: list[Path], scratch: Path, entry: registry.DataSet) -> Any:
        returned = change(whole)
        return Arrays(*returned) if isinstance(returned, Returned) else returned

    truth = shown.truth(CLASSES) if good else None
    return Case(f"a reader that returns {what}", reader, {"a.bin": b"1"}, truth, good)
