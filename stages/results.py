"""Writes reports/results.csv: every measured number of the miniatures, one row each."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.cli import stage
from pipeline.params import MINIATURE, ROOT
from pipeline.results import collect, tidy


def main():
    cells = {cell: result for cell, result in collect().items() if cell.scenario == MINIATURE}
    path = ROOT / "reports" / "results.csv"
    path.parent.mkdir(exist_ok=True)
    tidy(cells).to_csv(path, index=False, float_format="%.4f", lineterminator="\n")
    print(f"reports/results.csv: {len(cells)} miniature cells")


if __name__ == "__main__":
    stage(main)
