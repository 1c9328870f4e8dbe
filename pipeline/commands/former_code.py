"""The code of an earlier commit, checked out next to today's data, to train the same cell with both codes.

A refactoring changes the digest of every cell that uses the changed code. If a result was trained on another
maker's processor, it cannot be verified on this machine. But the two codes can be compared on any machine: if
they give the same bits, a result that was valid for the earlier commit is valid for today's code.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline import files
from pipeline.cells.documents import Result
from pipeline.errors import FedReproError
from pipeline.git import git
from pipeline.schema import Cell

# A program that asks the earlier code itself which results count as its own. It gets names of cells, and
# prints a line of JSON for each: the cell, what holds of its result ("counts", "stale", or an error), and the
# seal of the result.
QUESTION = """
import json
import sys
from pipeline.cells import results
from pipeline.cells.experiment import Experiment
from pipeline.schema import ROOT, Cell
try:
    from pipeline.provenance import identity
except ImportError:  # where the code is older than this room
    from pipeline.cells import provenance as identity
for name in json.load(sys.stdin):
    cell = Cell(*name.split("/"))
    try:
        result = results.read(cell.folder(ROOT) / "result.json")
        state = "counts" if identity.current(result, Experiment.of(cell, ROOT)) else "stale"
        print(json.dumps([name, state, result["self"]]), flush=True)
    except Exception as error:
        print(json.dumps([name, str(error) or repr(error), ""]), flush=True)
"""

# The module that trains a seed again for `fedrepro verify`: its name now and its earlier one.
WALKS = ("pipeline.training.walk", "pipeline.cells.walk")


class Answer(NamedTuple):
    """What a commit says of one of its results: "counts", "stale" or an error, and the result's seal."""

    state: str
    seal: str


@dataclass(frozen=True)
class FormerCode:
    """The code of a commit.

    commit  its full hash
    root    folder with its files, and with today's data
    """

    commit: str
    root: Path

    def ask(self, cells: Iterable[Cell]) -> dict[Cell, Answer]:
        """What the commit's own code says of its results: one process for all, as its start takes seconds.

        FedReproError if that code cannot be loaded.
        """
        names = json.dumps([str(cell) for cell in cells])
        command = [sys.executable, "-c", QUESTION]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, input=names)
        if done.returncode:
            last = (done.stderr.splitlines() or ["no answer"])[-1]
            raise FedReproError(f"{self.commit[:8]} cannot read its results: {last}")
        answers = map(json.loads, done.stdout.splitlines())
        return {Cell.parse(name): Answer(state, seal) for name, state, seal in answers}

    def check_counts(self, result: Result, answer: Answer) -> None:
        """Check that the commit has this very result, and that its code is known to give it.

        answer: of `ask`

        Raises FedReproError if it does not.
        """
        if not answer.seal:
            raise FedReproError(f"{self.commit[:8]} has no such result, or cannot read it: {answer.state}")
        if answer.seal != result["self"]:
            raise FedReproError(f"{self.commit[:8]} has another result of it")
        if answer.state != "counts":
            raise FedReproError(f"its result does not count as that of {self.commit[:8]}'s code either")


@contextlib.contextmanager
def checked_out(commit: str, root: Path) -> Iterator[FormerCode]:
    """Check out a commit in `.cells`, with hard links to the data sets and partitions of `root`.

    It is removed at the end. Another command that compares with a commit is waited for.

    commit  any name that git knows it by
    root    folder of the repository

    Raises FedReproError if there is no such commit.
    """
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


def walk_module(root: Path) -> str:
    """The name of the module that trains a seed again, in the code at `root`."""
    return next((name for name in WALKS if (root / f"{name.replace('.', '/')}.py").is_file()), WALKS[0])


def _link(source: str, target: str) -> None:
    """Make a hard link; a copy if the file system has none, or if the target is on another one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def remove(folder: Path, root: Path) -> None:
    """Remove the checkout in a folder, also one that a killed command has left.

    folder  of the checkout
    root    folder of the repository
    """
    if folder.exists():
        shutil.rmtree(folder)
        git(root, "worktree", "prune")
