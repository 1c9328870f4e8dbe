"""Add what this working copy has trained to MLflow; results that are in git are added by `fedrepro ui`."""

from pipeline.commands.ui import printed
from pipeline.schema import ROOT
from pipeline.tracking.mlflow_runs import Finished, say_import
from stages._stage import stage


def track() -> None:
    """Log every seed of the results that the last commit does not have. A server that is down costs one
    warning."""
    finished = Finished.trained_here(ROOT)
    say_import(printed(finished.cells), finished)


if __name__ == "__main__":
    stage(track)
