"""reports/findings.csv, one row per claim: its columns, reading it, and what a later one may not lose.

`pipeline.report.findings` computes the rows. Reading them needs no pandas, so that commands stay fast.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.errors import ParamError
from pipeline.files import read_csv
from pipeline.schema import ROOT, shorten

FILE = Path("reports", "findings.csv")
# Findings that are gone for a reason.
GONE = Path("reports", "withdrawn.csv")
COLUMNS = [
    *("paper", "id", "claim", "setting", "printed", "difference", "low", "high", "unit", "seeds", "p"),
    *("looks", "level", "direction", "size", "verdict", "same_network", "tuned_alike", "same_hook"),
    *("other_settings", "planned", "false_discovery", "stale", "cells"),
]
# Of a row, those with a measured number.
COMPARISONS = ("difference", "same_network", "tuned_alike", "same_hook", "other_settings")
GONE_COLUMNS = ["paper", "id", "date", "reason"]
Row = Mapping[str, str]


def as_text(rows: Iterable[Row]) -> str:
    """The file's content."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_findings(path: Path) -> list[dict[str, str]]:
    """Its rows; none where it is missing. ParamError for what is no such table."""
    return [row for _, row in read_csv(path, COLUMNS)] if path.exists() else []


def of_cell(cell: str, root: Path = ROOT) -> list[dict[str, str]]:
    """The findings that compare a cell, `paper/scenario/method`."""
    return [row for row in read_findings(root / FILE) if cell in row["cells"].split()]


def withdrawn(path: Path) -> set[tuple[str, str]]:
    """(paper, id) of the findings of which withdrawn.csv says why they are gone; none where it is missing.
    ParamError names the line that gives no reason."""
    gone = set()
    for line, row in read_csv(path, GONE_COLUMNS) if path.exists() else []:
        for key in GONE_COLUMNS:
            if not row[key].strip():
                raise ParamError(f"{shorten(path)}:{line}: {key}: is empty")
        gone.add((row["paper"], row["id"]))
    return gone


def lost(before: Iterable[Row], now: Iterable[Row], excused: Iterable[tuple[str, str]] = ()) -> list[str]:
    """`fedlsa L04: tuned_alike`: rows, and numbers of rows, that an earlier table has and a later one has
    not.

    excused: (paper, id) of what is withdrawn
    """
    there = {(row["paper"], row["id"]): row for row in now}
    excused, gone = set(excused), []
    for row in before:
        key = row["paper"], row["id"]
        name = " ".join(key)
        if key in excused:
            continue
        if key not in there:
            gone.append(f"{name}: the whole row")
            continue
        later = there[key]
        gone += [f"{name}: {one}" for one in COMPARISONS if _numbers(row[one]) > _numbers(later[one])]
    return gone


def _numbers(text: str) -> int:
    """How many comparisons with a number a column holds: other settings have several."""
    return sum(any(letter.isdigit() for letter in part) for part in text.split("; "))
