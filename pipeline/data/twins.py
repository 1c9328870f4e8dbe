"""Images that a set contains several times, and test images that are also trained on under another index.

Two images are twins if all their pixels are equal; their labels may differ.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline import files
from pipeline.data import partition, store
from pipeline.data.parts import Parts
from pipeline.errors import DAMAGED
from pipeline.schema import ROOT, Scenario, find_scenario

# beside a set's folder, and in the folder of a scenario's results
OF_SET = "found.json"
OF_SCENARIO = "twins.json"
# bytes of a picture's key
KEY = 16


def keys(images: np.ndarray) -> list[bytes]:
    """What identifies the content of every image of (N, H, W, C) uint8."""
    return [hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=KEY).digest() for image in images]


def of_set(known: Sequence[bytes], split: np.ndarray, labels: np.ndarray) -> dict[str, int]:
    """Counts of a set's twins; empty where every picture is there once.

    known: the images' keys. pictures: those that occur more than once; images: how many images they are;
    across: test images that the training part has too, of `tests`; labels: pictures with several labels.
    """
    times = Counter(known)
    if len(times) == len(known):
        return {}
    trained = {key for key, part in zip(known, split, strict=True) if part == store.TRAIN}
    tested = [key for key, part in zip(known, split, strict=True) if part == store.TEST]
    several = {(key, int(label)) for key, label in zip(known, labels, strict=True) if times[key] > 1}
    counts = {
        "pictures": sum(count > 1 for count in times.values()),
        "images": sum(count for count in times.values() if count > 1),
        "labels": sum(count > 1 for count in Counter(key for key, _ in several).values()),
    }
    across = {"across": sum(key in trained for key in tested), "tests": len(tested)} if tested else {}
    return counts | across


def sentence(counts: dict[str, int]) -> str:
    """Counts of `of_set` in words."""
    said = f"{counts['pictures']} pictures occur more than once, as {counts['images']} images"
    if counts.get("across"):
        said += f"; {counts['across']} of {counts['tests']} test images are among the training images too"
    if counts["labels"]:
        said += f"; {counts['labels']} of the pictures have several labels"
    return said


def kept(known: Sequence[bytes], split: np.ndarray) -> np.ndarray:
    """Indices of the images of which each picture is there once: a test image before a training image, of
    one part the first."""
    order = np.argsort(-np.asarray(split, np.int64), kind="stable")
    chosen: dict[bytes, int] = {}
    for at in order.tolist():
        chosen.setdefault(known[at], at)
    return np.array(sorted(chosen.values()), np.int64)


# -- of a partition ------------------------------------------------------------------------------------------


def of_parts(parts: Parts, known: Sequence[bytes]) -> dict[str, list[int]]:
    """{tests: [test images that have a twin among all clients' training images, test images]}, for each
    domain, and for each client where domains have no test images."""
    trained = {known[at] for part in parts.train for at in part.tolist()}
    own = {name: part for (name, _), part in zip(parts.clients, parts.client_test, strict=True)}
    tests = parts.domain_test if any(map(len, parts.domain_test.values())) else own
    return {
        name: [sum(known[at] in trained for at in part.tolist()), len(part)] for name, part in tests.items()
    }


def note(scenario: str, root: Path = ROOT) -> str:
    """Count the twins of the first seed's draw of a scenario's partition in papers/<paper>/runs/<scenario>/
    twins.json, with what else was found of the set, so that pages can tell it; the file is there only where
    there is something to tell. Returns a line to show where a test image is trained on, or nothing."""
    paper, name, settings = find_scenario(scenario, root)
    counts = _counted(root / "papers" / paper / "partitions" / name, settings, root)
    path = root / "papers" / paper / "runs" / name / OF_SCENARIO
    counts = {test: count for test, count in counts.items() if count[0]}
    found = read(root / "data" / f"{settings.data.set}.{OF_SET}")
    found = {key: value for key, value in found.items() if key != "twins"}
    document = {key: value for key, value in {"tests": counts, "found": found}.items() if value}
    if not document:
        path.unlink(missing_ok=True)
        return ""
    files.write_json(path, document)
    return f"{scenario}: {in_words(counts)}" if counts else ""


def _counted(folder: Path, settings: Scenario, root: Path) -> dict[str, list[int]]:
    stored = store.verify(root / "data" / settings.data.set)
    parts, _ = partition.read(partition.folder_of_draw(folder, settings.draw(settings.seeds[0])))
    return of_parts(parts, keys(stored.images))


def in_words(counts: dict[str, list[int]]) -> str:
    each = ", ".join(f"{few} of {all_} of {name}" for name, (few, all_) in counts.items())
    return f"test images that are trained on under another index, pixel by pixel the same: {each}"


def noted(paper: str, scenario: str, root: Path = ROOT) -> dict:
    """What `note` wrote of a scenario; empty where there is nothing that can be used."""
    return read(root / "papers" / paper / "runs" / scenario / OF_SCENARIO)


def told(paper: str, scenario: str, root: Path = ROOT) -> str:
    """The twins that `note` found of a scenario, in words; empty where it found none."""
    try:
        counts = noted(paper, scenario, root).get("tests", {})
        return in_words(counts) if counts else ""
    except DAMAGED:
        return ""


def read(path: Path) -> dict:
    """A document of `note` or of a set; empty where there is none that can be used."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return document if isinstance(document, dict) else {}
    except DAMAGED:
        return {}
