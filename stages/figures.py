"""Embeds representations in the plane for the figures of a paper: `python stages/figures.py fedcrl`, or fedcrl/mini/fedavg."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.cli import stage
from pipeline.params import shorten
from pipeline.report.computed import update


def figures(what: str) -> None:
    """Write papers/<paper>/figures/<figure>-<scenario>-<method>.csv and .json of a paper (every cell that was run) or of one cell."""
    written = update(what)
    print("\n".join(shorten(path) for path in written) or f"{what}: no representations of any cell that its figures show")


if __name__ == "__main__":
    stage(figures, "what")
