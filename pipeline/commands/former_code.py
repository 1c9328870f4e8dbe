"""The code of an earlier commit, checked out beside the data of today, to train what today's code trains.

A refactoring changes the digest of every cell that reaches it. Results of another maker's processor cannot be
walked again here; but the two codes can be compared on any machine. Where they give the same bits, a result
that counted as the earlier commit's counts as today's.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline import files
from pipeline.errors import FedReproError
from pipeline.git import git
from pipeline.schema import Cell

# Asks the earlier code itself whether a result counts as its own.
QUESTION = """
import sys
from pathlib import Path
from pipeline.cells import results
from pipeline.provenance import identity
from pipeline.cells.experiment import Experiment
from pipeline.schema import ROOT, Cell
cell = Cell(*sys.argv[1].split("/"))
result = results.read(cell.folder(ROOT) / "result.json")
print("counts" if identity.current(result, Experiment.of(cell, ROOT)) else "stale", result["self"])
"""


@dataclass(frozen=True)
class FormerCode:
    """A commit, and the folder where its files lie beside the data of today."""

    commit: str
    root: Path

    def check_counts(self, cell: Cell, result: dict) -> None:
        """FedReproError unless the commit has this very result, and its code is known to give it."""
        command = [sys.executable, "-c", QUESTION, str(cell)]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.splitlines() or ["no answer"])[-1]
            raise FedReproError(f"{self.commit[:8]} has no such result, or cannot read it: {last}")
        state, seal = done.stdout.split()
        if seal != result["self"]:
            raise FedReproError(f"{self.commit[:8]} has another result of it")
        if state != "counts":
            raise FedReproError(f"its result does not count as that of {self.commit[:8]}'s code either")


@contextlib.contextmanager
def checked_out(commit: str, root: Path) -> Iterator[FormerCode]:
    """Meanwhile the commit lies in `.cells`, with hard links to the data sets and partitions of `root`.
    FedReproError where there is no such commit."""
    name = git(root, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}")
    folder = root / ".cells" / f"commit-{name}"
    waits = f"another command compares with {name[:8]}: waiting for it"
    with files.locked(root / ".cells" / "former-code.lock", waits):
        remove(folder, root)
        try:
            git(root, "worktree", "add", "--force", "--detach", str(folder), name)
            for path in (*root.glob("data/*/"), *root.glob("papers/*/partitions/")):
                place = folder / path.relative_to(root)
                if place.parent.is_dir():
                    shutil.copytree(path, place, copy_function=_link, dirs_exist_ok=True)
            yield FormerCode(name, folder)
        finally:
            remove(folder, root)


def _link(source: str, target: str) -> None:
    """A hard link; a copy where the file system has none, or is another one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def remove(folder: Path, root: Path) -> None:
    """What is checked out there, also what a killed command has left."""
    if folder.exists():
        shutil.rmtree(folder)
        git(root, "worktree", "prune")
