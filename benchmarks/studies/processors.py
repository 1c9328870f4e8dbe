"""Writes reports/processors.csv: miniature cells that git holds from processors of two makers, compared round
by round.

    PYTHONPATH=. python benchmarks/studies/processors.py

The newest result of each maker under portable arithmetic counts. Accuracies and losses of all rounds and
seeds are compared as they are written, without tolerance. Accuracy under attack is left out: other code
computes it since c8910f4b.
"""

import io
import json
from pathlib import Path

import pandas as pd

from pipeline.git import git
from pipeline.schema import MINIATURES, ROOT, papers, planned

LEFT_OUT = ("seconds", "state", "fgsm", "pgd")
COLUMNS = ["cell", "first", "second", "numbers", "different"]


def main() -> None:
    """Compare every miniature cell and write the table."""
    cells = [cell for paper in papers() for cell in planned(paper) if cell.scenario in MINIATURES]
    rows = [row for cell in cells if (row := compare(str(cell), cell.folder()))]
    pd.DataFrame(rows, columns=COLUMNS).to_csv(ROOT / "reports/processors.csv", index=False)


def compare(name: str, folder: Path) -> tuple[str, str, str, int, int] | None:
    """(cell, both processors, numbers compared, numbers that differ); None with fewer than two makers."""
    where = folder.relative_to(ROOT)
    newest: dict[str, tuple[str, pd.DataFrame]] = {}
    for commit in git(ROOT, "log", "--format=%h", "--", f"{where}/result.json").split():
        versions = json.loads(git(ROOT, "show", f"{commit}:{where}/result.json")).get("versions", {})
        processor = versions.get("processor", "")
        if versions.get("arithmetic") == "portable" and processor:
            history = io.StringIO(git(ROOT, "show", f"{commit}:{where}/history.csv"))
            newest.setdefault(processor.split()[0].partition("(")[0], (processor, pd.read_csv(history)))
    if len(newest) < 2:
        return None
    (first, one), (second, other) = [newest[maker] for maker in sorted(newest)][:2]
    shared = [column for column in one.columns.intersection(other.columns) if not column.endswith(LEFT_OUT)]
    if len(one) != len(other):
        return name, first, second, one[shared].size, one[shared].size
    unlike = (one[shared] != other[shared]) & ~(one[shared].isna() & other[shared].isna())
    return name, first, second, unlike.size, int(unlike.to_numpy().sum())


if __name__ == "__main__":
    main()
