"""Train one cell: `python stages/train.py fedcrl/mini/fedprox`."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline import arithmetic
from pipeline.cli import stage
from pipeline.params import Cell


def train(cell: str) -> None:
    """Train every seed of a cell, <paper>/<scenario>/<method>, and write its metrics, history and result."""
    cell = Cell.parse(cell)
    scenario = cell.resolve()[0]                              # a wrong name is said before torch is imported
    arithmetic.adopt(scenario.arithmetic)
    from pipeline.training import train_cell
    train_cell(cell)


if __name__ == "__main__":
    stage(train, "cell")
