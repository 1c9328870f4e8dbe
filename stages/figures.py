"""Compute the data that a paper's figures plot, without training: `python -m stages.figures fedcrl`."""

from pipeline.report.geometry import update
from pipeline.schema import shorten
from stages._stage import stage


def figures(what: str, figure: str | None = None) -> None:
    """Write papers/<paper>/figures/... of a paper (all cells that were run) or of one cell."""
    written = update(what, figure)
    print(
        "\n".join(shorten(path) for path in written)
        or f"{what}: no representations of any cell that its figures show"
    )


if __name__ == "__main__":
    stage(figures, "what", figure="its key in paper.yaml; without it all")
