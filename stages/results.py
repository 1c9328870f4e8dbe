"""Writes reports/results.csv: every measured number of the miniatures, one row each."""

from pipeline.cells.results import as_csv, collect, curves, tidy
from pipeline.files import write_text
from pipeline.schema import MINIATURE, PAPERS, ROOT
from stages._stage import stage


def main():
    """Collect the miniatures' numbers into one table, and their curves into one file per paper for `dvc plots`."""
    cells = {cell: result for cell, result in collect().items() if cell.scenario == MINIATURE}
    write_text(ROOT / "reports" / "results.csv", as_csv(tidy(cells)))
    for paper in PAPERS:
        write_text(ROOT / "reports" / "curves" / f"{paper}.csv", as_csv(curves({c: r for c, r in cells.items() if c.paper == paper})))
    print(f"reports/results.csv: {len(cells)} miniature cells")


if __name__ == "__main__":
    stage(main)
