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

# Below the root of a DVC repository.
FILE = ".cells/unchanged.json"
# What decides besides the files that the stages name; a folder counts with all that is in it.
ALWAYS = ("pipeline", "stages", "dvc.yaml", "params.yaml", ".dvcignore", ".dvc/config", ".dvc/config.local")
# Likewise, of all papers: `fedrepro run` writes stages that are not those of paper.yaml.
OF_PAPERS = ("papers/*/*.yaml", "papers/*/*/dvc.yaml")
# Written by Python beside the code that it reads.
SKIPPED = "__pycache__"


def root_of(folder: Path) -> Path | None:
    """The root of the DVC repository that a folder lies in; None outside of any."""
    return next((one for one in (folder, *folder.parents) if (one / ".dvc").is_dir()), None)


def key(targets: Sequence[str]) -> str:
    """The targets and the folder from which they are meant."""
    return json.dumps([os.getcwd(), *targets])


def known(asked: str, root: Path | None) -> int | None:
    """How many stages of these targets, as `key` has them, are up to date, where all were when they were
    looked at last and no file has changed since; else None."""
    if root is None:
        return None
    try:
        entry = json.loads((root / FILE).read_text(encoding="utf-8"))[asked]
        same = entry["state"] == state(entry["places"], root)
        return int(entry["stages"]) if same else None
    except DAMAGED:
        return None


def remember(asked: str, root: Path, stages: int, places: list[str], looked: str) -> None:
    """Note of the targets, as `key` has them, that so many stages were found up to date, unless a file has
    changed since their `state` was `looked`."""
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
    """Files and folders that stages of DVC name, and those of their stages and locks, relative to the root
    where they lie below it."""
    paths = {str(root / name) for name in ALWAYS}
    for stage in stages:
        paths |= {os.path.abspath(one.fs_path) for one in (*stage.deps, *stage.outs)}
        file = Path(os.path.abspath(stage.path))
        paths |= {str(file), str(file.with_suffix(".lock"))}
    start = f"{root}{os.sep}"
    return sorted(path.removeprefix(start) for path in paths)


def state(places: Iterable[str], root: Path) -> str:
    """A digest of number, size and time of change of every file at these places and of OF_PAPERS."""
    whole = hashlib.sha256()
    of_papers = sorted(str(path) for pattern in OF_PAPERS for path in root.glob(pattern))
    for place in (*places, *of_papers):
        for name, found in _files(os.path.join(root, place)):
            numbers = (found.st_ino, found.st_size, found.st_mtime_ns) if found else ()
            whole.update(f"{name} {numbers}\n".encode())
    return whole.hexdigest()


def _files(path: str) -> Iterator[tuple[str, os.stat_result | None]]:
    """The file, or those below the folder, in a fixed order; None for what is not there."""
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
