"""Writes reports/processors.csv: miniature cells that git holds from processors of two makers, compared round
by round.

    PYTHONPATH=. python benchmarks/studies/processors.py
    fedrepro report     # the page `across` shows it

Of the results under portable arithmetic the two of different makers count that follow each other most
closely, so that they are of the same code; `setting` says whether the cell has the same numbers today.
Accuracies and losses of all rounds and seeds are compared as they are written, without tolerance. Accuracy
under attack is left out: other code computes it since c8910f4b.
"""

import io
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pipeline.git import git
from pipeline.schema import MINIATURES, ROOT, papers, planned

LEFT_OUT = ("seconds", "state", "fgsm", "pgd")
COLUMNS = ["cell", "first", "second", "numbers", "different", "setting"]
TODAY = "today's"
EARLIER = "an earlier one"


def main() -> None:
    """Compare every miniature cell and write the table."""
    cells = [cell for paper in papers() for cell in planned(paper) if cell.scenario in MINIATURES]
    rows = [row for cell in cells if (row := compare(str(cell), cell.folder()))]
    pd.DataFrame(rows, columns=COLUMNS).to_csv(ROOT / "reports/processors.csv", index=False)


def compare(name: str, folder: Path) -> tuple[str, str, str, int, int, str] | None:
    """(cell, both processors, numbers compared, numbers that differ, setting); None with one maker alone."""
    versions = portable(folder.relative_to(ROOT))
    pairs = [
        (later - earlier, earlier, later)
        for earlier, later in itertools.combinations(range(len(versions)), 2)
        if versions[earlier].maker != versions[later].maker
    ]
    if not pairs:
        return None
    _, *nearest = min(pairs)
    one, other = sorted((versions[place] for place in nearest), key=lambda version: version.maker)
    numbers, different = differences(one.history, other.history)
    _, since = differences(versions[0].history, versions[min(nearest)].history)
    return name, one.processor, other.processor, numbers, different, EARLIER if since else TODAY


@dataclass(frozen=True)
class Version:
    """A result of a cell under portable arithmetic, as a commit has it."""

    processor: str
    history: pd.DataFrame

    @property
    def maker(self) -> str:
        """`AMD`, `Intel`."""
        return self.processor.split()[0].partition("(")[0]


def portable(where: Path) -> list[Version]:
    """The versions of a cell's result, the newest first."""
    found = []
    for commit in git(ROOT, "log", "--format=%h", "--", f"{where}/result.json").split():
        versions = json.loads(git(ROOT, "show", f"{commit}:{where}/result.json")).get("versions", {})
        processor = versions.get("processor", "")
        if versions.get("arithmetic") == "portable" and processor:
            history = io.StringIO(git(ROOT, "show", f"{commit}:{where}/history.csv"))
            found.append(Version(processor, pd.read_csv(history)))
    return found


def differences(one: pd.DataFrame, other: pd.DataFrame) -> tuple[int, int]:
    """How many numbers two histories share, and in how many of them they differ."""
    shared = [column for column in one.columns.intersection(other.columns) if not column.endswith(LEFT_OUT)]
    if len(one) != len(other):
        return one[shared].size, one[shared].size
    unlike = (one[shared] != other[shared]) & ~(one[shared].isna() & other[shared].isna())
    return unlike.size, int(unlike.to_numpy().sum())


if __name__ == "__main__":
    main()
