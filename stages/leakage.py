"""Measure what can be reconstructed of the images from what clients send: `python -m stages.leakage`."""

from pipeline.cells import arithmetic
from pipeline.report.experiments import PAPER, write
from pipeline.schema import MINIATURE, load_paper
from stages._stage import stage


def main() -> None:
    """Attack what methods send in FedCRL's miniature, and write reports/leakage/."""
    arithmetic.adopt(load_paper(PAPER).scenarios[MINIATURE].arithmetic)  # before torch is imported
    from pipeline.cells.leakage import measure

    write(measure())


if __name__ == "__main__":
    stage(main)
