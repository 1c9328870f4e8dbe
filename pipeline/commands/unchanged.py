"""Whether any file has changed since `fedrepro run` last found the same targets up to date.

DVC reads every dvc.yaml, dvc.lock and parameter file to find this out, which takes five CPU seconds for the
miniatures. This module compares the files of the stages by inode number, size and time, as DVC itself
compares data. If something differs, or was never compared, DVC decides.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import DAMAGED
from pipeline.files import write_json

# What was found up to date, from the root of a DVC repository.
FILE = ".cells/unchanged.json"
# Files and folders that are compared besides those that the stages name; a folder with all that is in it.
ALWAYS = ("pipeline", "stages", "dvc.yaml", "params.yaml", ".dvcignore", ".dvc/config", ".dvc/config.local")
# The same of all papers: `fedrepro run` first writes the stages that paper.yaml asks for.
OF_PAPERS = ("papers/*/*.yaml", "papers/*/*/dvc.yaml")
# A folder that is not compared: Python writes it beside the code that it reads.
SKIPPED = "__pycache__"


def root_of(folder: Path) -> Path | None:
    """The root of the DVC repository that a folder lies in; None outside of any."""
    for place in (folder, *folder.parents):
        if (place / ".dvc").is_dir():
            return place
    return None


def key(targets: Sequence[str]) -> str:
    """A text for these targets of `fedrepro run` in the current folder, under which FILE notes them."""
    return json.dumps([os.getcwd(), *targets])


def known(asked: str, root: Path | None) -> int | None:
    """How many stages of some targets are up to date; None if that is not known without DVC.

    It is known if all were when DVC looked last, and no file has changed since.

    asked  `key` of the targets
    root   of the repository; None: there is none
    """
    if root is None:
        return None
    try:
        entry = json.loads((root / FILE).read_text(encoding="utf-8"))[asked]
        same = entry["state"] == state(entry["places"], root)
        return int(entry["stages"]) if same else None
    except DAMAGED:
        return None


def remember(asked: str, root: Path, stages: int, places: list[str], looked: str) -> None:
    """Note that DVC has found all stages of some targets up to date, unless a file has changed meanwhile.

    asked   `key` of the targets
    root    of the repository
    stages  how many there are
    places  of `places_of` these stages
    looked  `state` of the places before DVC looked
    """
    if state(places, root) != looked:
        return
    entries: dict[str, Any] = {}
    with contextlib.suppress(*DAMAGED):
        entries = dict(json.loads((root / FILE).read_text(encoding="utf-8")))
    entries[asked] = {"stages": stages, "places": places, "state": looked}
    with contextlib.suppress(OSError):  # a checkout where nobody may write
        (root / FILE).parent.mkdir(exist_ok=True)
        write_json(root / FILE, entries)


def places_of(stages: Iterable[Any], root: Path) -> list[str]:
    """The files and folders that decide whether stages are up to date.

    stages  DVC's
    root    of the repository, to which paths below it are relative

    Returns ALWAYS, the dependencies and outputs of the stages, and their dvc.yaml and dvc.lock.
    """
    paths = {str(root / name) for name in ALWAYS}
    for stage in stages:
        paths |= {os.path.abspath(file.fs_path) for file in (*stage.deps, *stage.outs)}
        file = Path(os.path.abspath(stage.path))
        paths |= {str(file), str(file.with_suffix(".lock"))}
    start = f"{root}{os.sep}"
    return sorted(path.removeprefix(start) for path in paths)


def state(places: Iterable[str], root: Path) -> str:
    """A digest of inode number, size and time of change of every file at these places and of OF_PAPERS."""
    whole = hashlib.sha256()
    of_papers = sorted(str(path) for pattern in OF_PAPERS for path in root.glob(pattern))
    for place in (*places, *of_papers):
        for name, found in _files(os.path.join(root, place)):
            numbers = (found.st_ino, found.st_size, found.st_mtime_ns) if found else ()
            whole.update(f"{name} {numbers}\n".encode())
    return whole.hexdigest()


def _files(path: str) -> Iterator[tuple[str, os.stat_result | None]]:
    """(path, its state) of a file, or of all files below a folder in a fixed order.

    The state is None for a folder, and for a path that does not exist.
    """
    try:
        if not os.path.isdir(path):
            yield path, os.stat(path)
            return
        with os.scandir(path) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        yield path, None
        return
    yield f"{path}{os.sep}", None
    for entry in listed:
        if entry.name != SKIPPED:
            yield from _files(entry.path)
