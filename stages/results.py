"""Writes reports/results.csv: every measured number of the miniatures, one row each."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.cli import stage
from pipeline.files import write_text
from pipeline.params import MINIATURE, PAPERS, ROOT
from pipeline.results import collect, curves, tidy


def main():
    """Collect the miniatures' numbers into one table, and their curves into one file per paper for `dvc plots`."""
    cells = {cell: result for cell, result in collect().items() if cell.scenario == MINIATURE}
    write(ROOT / "reports" / "results.csv", tidy(cells))
    for paper in PAPERS:
        write(ROOT / "reports" / "curves" / f"{paper}.csv", curves({c: r for c, r in cells.items() if c.paper == paper}))
    print(f"reports/results.csv: {len(cells)} miniature cells")


def write(path, table):
    write_text(path, table.to_csv(index=False, float_format="%.4f", lineterminator="\n"))


if __name__ == "__main__":
    stage(main)
