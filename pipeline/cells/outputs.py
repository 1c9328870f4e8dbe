"""Headline accuracy of a result for `dvc metrics`, and a check that history.csv belongs to the result."""

import math
import statistics
from pathlib import Path

from pipeline.cells import stamps
from pipeline.errors import FedReproError
from pipeline.schema import ROOT, Cell, shorten


def metrics(result: dict) -> dict:
    """The few numbers of a cell that `dvc metrics` lists, percent."""
    headline = result["headline"]
    seeds = result["measures"][headline]
    spread = result["measures"].get("clients_std") or [
        statistics.pstdev(a for a in run if a is not None) for run in result["clients"]
    ]
    return {
        "accuracy": rounded(statistics.fmean(seeds)),
        "accuracy_std": rounded(statistics.stdev(seeds)) if len(seeds) > 1 else None,
        "clients_std": rounded(statistics.fmean(spread)),
        **{k: rounded(statistics.fmean(result[k][headline])) for k in ("last3", "last5", "final")},
        "loss": rounded(statistics.fmean(result["final"].get("loss", [math.nan]))),
        "up": result["traffic"]["up"],
        "down": result["traffic"]["down"],
        "seeds": len(seeds),
        "rounds": result["rounds"],
    }


def rounded(value: float) -> float | None:
    """To the four decimals that are recorded; None for NaN."""
    return None if math.isnan(value) else round(value, 4)


def check_history(cell: Cell, result: dict, content: bytes, root: Path = ROOT) -> None:
    """FedReproError where the content of history.csv is not what was written with the result. A history from
    before results had its digest is as its stamp says, where it has one."""
    stamp = stamps.of(cell, root) or {}
    stamped = stamp.get("history") if stamp.get("result") == result["self"] else None
    written = result.get("history") or stamped
    if written and written != stamps.digest(content):
        raise FedReproError(
            f"{shorten(cell.folder(root) / 'history.csv')}: not what was written with "
            "result.json; the file was altered, run the cell again"
        )
