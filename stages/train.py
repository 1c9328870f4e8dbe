"""Train one cell (scenario and method) with all its seeds: `python -m stages.train fedcrl/mini/fedprox`."""

from pipeline import arithmetic
from pipeline.cells.experiment import Experiment
from pipeline.schema import Cell
from pipeline.training.checks import check_environment
from stages._stage import stage


def train(cell: str) -> None:
    """Train every seed of a cell, <paper>/<scenario>/<method>, and write its metrics, history and result."""
    parsed = Cell.parse(cell)
    scenario = Experiment.of(parsed).scenario  # reports a wrong name before torch is imported
    arithmetic.adopt(scenario.arithmetic)
    check_environment()
    from pipeline.training.trainer import train_cell

    train_cell(parsed)


if __name__ == "__main__":
    stage(train, "cell")
