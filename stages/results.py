"""Writes reports/results.csv: every measured number of the miniatures, one row each."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.cli import stage
from pipeline.files import write_text
from pipeline.params import MINIATURE, PAPERS, ROOT
from pipeline.results import as_csv, collect, curves, tidy


def main():
    """Collect the miniatures' numbers into one table, and their curves into one file per paper for `dvc plots`."""
    cells = {cell: result for cell, result in collect().items() if cell.scenario == MINIATURE}
    write_text(ROOT / "reports" / "results.csv", as_csv(tidy(cells)))
    for paper in PAPERS:
        write_text(ROOT / "reports" / "curves" / f"{paper}.csv", as_csv(curves({c: r for c, r in cells.items() if c.paper == paper})))
    print(f"reports/results.csv: {len(cells)} miniature cells")


if __name__ == "__main__":
    stage(main)
