"""Which parts of a report need not be drawn again, since none of their inputs and files have changed.

A part is the page of a paper with its tables, the page across papers, or the overview with the tables of all
numbers. FILE notes of each a digest of the files that it was drawn from, and the digests of what was written.
A part stays if both are as they were. So a page that was edited or deleted is drawn again, and so is one that
was being written when the process was killed: FILE is written last.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.errors import DAMAGED, FedReproError
from pipeline.files import sha256, write_json
from pipeline.schema import ROOT
from pipeline.schema.documents import UNTRUSTED

# What was drawn, from the root.
FILE = ".cells/pages.json"
# Names of the parts that are of no single paper; no paper can have them.
ACROSS = "across"
OVERVIEW = "index"
# Files and folders that every page may depend on. Those of OF_CODE also count in the repository of the code
# that runs.
OF_CODE = ("pipeline", "reports/templates")
OF_ALL = (*OF_CODE, "stages", "params.yaml", "CITATION.cff", "data/twins.csv")
# The same of the pages over all papers.
OVER_PAPERS = ("reports/leakage", "reports/processors.csv", "reports/withdrawn.csv")
# Of other papers' folders, these count for the page of a paper: their names, rows, networks and data sets.
OF_OTHERS = ("paper.yaml", "params.yaml", UNTRUSTED)
# Folders of a paper that no page reads, and that may be large, and what DVC writes when the page is drawn.
NOT_READ = {"partitions", "representations", "final-models", "extra-seeds", "sweeps", "dvc.lock"}
# What Python writes beside the code that it reads.
CACHE = "__pycache__"


@dataclass(frozen=True)
class Files:
    """The files that pages may depend on, each as a line of its name and its digest (`_lines`).

    shared     for every page
    of_papers  key of a paper -> those of its folder
    over       further ones for the pages over all papers
    """

    shared: list[str]
    of_papers: dict[str, list[str]]
    over: list[str]

    @classmethod
    def of(cls, root: Path) -> "Files":
        """Those of a repository as they are now.

        root  its folder
        """
        places = [(ROOT, name) for name in OF_CODE if root != ROOT]
        places += [(root, name) for name in OF_ALL]
        shared: list[str] = []
        for base, name in places:
            shared += _lines(base / name, base)
        of_papers: dict[str, list[str]] = {}
        for file in sorted(root.glob("papers/*/paper.yaml")):
            folder = file.parent
            of_papers[folder.name] = [*_lines(folder, root), *_lines(folder / UNTRUSTED, root)]
        over: list[str] = []
        for name in OVER_PAPERS:
            over += _lines(root / name, root)
        return cls(shared, of_papers, over)


@dataclass(frozen=True)
class Inputs:
    """Digests of all that pages are drawn from.

    papers  key of a paper -> of what its page is drawn from
    whole   of what the page across papers and the overview are drawn from
    """

    papers: Mapping[str, str]
    whole: str

    @classmethod
    def of(cls, root: Path) -> "Inputs":
        """Those of the files as they are now.

        root  folder of the repository
        """
        files = Files.of(root)
        shared = [*_packages(), *files.shared]
        for key, lines in files.of_papers.items():
            shared += [line for line in lines if _of_others(line, key)]
        papers = {key: _digest([*shared, *lines]) for key, lines in files.of_papers.items()}
        return cls(papers, _digest([*shared, *papers.values(), *files.over]))

    def part(self, name: str) -> str:
        """The digest of a part's inputs; empty for a paper that does not exist."""
        return self.whole if name in (ACROSS, OVERVIEW) else self.papers.get(name, "")


class Drawn:
    """What was drawn of a report, as FILE notes it.

    root  folder of the repository
    out   folder of the pages
    """

    def __init__(self, root: Path, out: Path):
        self.root = root
        self.out = out
        # Pages that are written elsewhere are compared with nothing.
        self.kept = out == root / "reports"

    @cached_property
    def _parts(self) -> dict[str, dict[str, Any]]:
        """Name of a part -> its `inputs`, and its `files` with their digests; empty where FILE is missing or
        damaged."""
        if not self.kept:
            return {}
        with contextlib.suppress(*DAMAGED):
            document = json.loads((self.root / FILE).read_text(encoding="utf-8"))
            return {str(name): {**part, "files": dict(part["files"])} for name, part in document.items()}
        return {}

    def stays(self, name: str, inputs: str, tables: Iterable[str] = ()) -> bool:
        """Whether a part need not be drawn.

        name    of the part
        inputs  digest of its inputs
        tables  files of the part that are in tables/, which may be left over from an earlier drawing
        """
        part = self._parts.get(name)
        if part is None or part.get("inputs") != inputs or not set(tables) <= part["files"].keys():
            return False
        try:
            return all(sha256(self.out / file) == digest for file, digest in part["files"].items())
        except OSError:
            return False

    def files(self, name: str) -> list[str]:
        """The files of a part that stays, below the folder of the pages."""
        return list(self._parts[name]["files"])

    def note(self, written: Mapping[str, Iterable[str]], inputs: Mapping[str, str]) -> None:
        """Write FILE anew; in a checkout where nobody may write, nothing happens.

        written  name of a part that was drawn -> its files
        inputs   name of the part -> the digest of its inputs
        """
        if not self.kept or not written:
            return
        parts = dict(self._parts)
        with contextlib.suppress(OSError, FedReproError):
            for name, files in written.items():
                digests = {file: sha256(self.out / file) for file in files}
                parts[name] = {"inputs": inputs[name], "files": digests}
            (self.root / FILE).parent.mkdir(exist_ok=True)
            write_json(self.root / FILE, parts)


def _of_others(line: str, key: str) -> bool:
    """Whether a file of a paper's folder counts for the pages of other papers.

    line  of `_lines`
    key   of the paper
    """
    name = line.partition("\0")[0]
    return name.endswith(".py") or name in {f"papers/{key}/{file}" for file in OF_OTHERS}


def _packages() -> list[str]:
    """Python's version, and the names and versions of all installed packages."""
    found = [sys.version]
    for place in sys.path:
        with contextlib.suppress(OSError):
            found += [name for name in os.listdir(place) if name.endswith(".dist-info")]
    return sorted(found)


def _lines(path: Path, root: Path) -> Iterator[str]:
    """The name from the root and the digest of a file, or of each file below a folder; none where there is
    neither. Hidden files of a folder and what is in NOT_READ are left out; links are followed."""
    if path.is_file():
        kind = "link" if path.is_symlink() else "file"
        try:
            digest = sha256(path)
        except OSError:  # a page that needs it says so
            digest = "cannot be read"
        yield f"{path.relative_to(root).as_posix()}\0{kind} {digest}"
        return
    seen: set[str] = set()
    for folder, inner, names in os.walk(path, followlinks=True):
        place = os.path.realpath(folder)
        if place in seen:
            inner.clear()
            continue
        seen.add(place)
        inner[:] = sorted(name for name in inner if _counts(name))
        for name in sorted(names):
            if _counts(name) and os.path.isfile(os.path.join(folder, name)):
                yield from _lines(Path(folder, name), root)


def _counts(name: str) -> bool:
    """Whether pages may depend on a file or folder of this name."""
    return not name.startswith(".") and name not in NOT_READ and name != CACHE


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
