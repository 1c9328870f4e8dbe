"""How numbers are rounded that are recorded, and a check that history.csv belongs to a result."""

import math
from pathlib import Path

from pipeline.cells import stamps
from pipeline.errors import FedReproError
from pipeline.schema import ROOT, Cell, shorten


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
