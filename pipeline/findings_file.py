"""reports/findings.csv, one row for each claim: its columns, how it is read, and what a later version must
not lose.

`pipeline.report.findings` computes the rows. Reading them needs no pandas, so that commands stay fast.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.errors import ParamError, unknown
from pipeline.files import read_csv
from pipeline.schema import ROOT, shorten

FILE = Path("reports", "findings.csv")
# Findings that are gone for a reason.
GONE = Path("reports", "withdrawn.csv")
COLUMNS = [
    *("paper", "id", "claim", "setting", "printed", "difference", "low", "high", "unit", "seeds", "p"),
    *(
        "p_rows_alone",
        "looks",
        "level",
        "direction",
        "size",
        "verdict",
        "same_network",
        "tuned_alike",
        "same_hook",
    ),
    *("other_settings", "planned", "false_discovery", "stale", "cells"),
]
# That tables written by earlier versions lack.
LATER = ["p_rows_alone"]
# Of a row, those with a measured number.
COMPARISONS = ("difference", "same_network", "tuned_alike", "same_hook", "other_settings")
GONE_COLUMNS = ["paper", "id", "column", "number", "date", "reason"]
# In the column `column` of withdrawn.csv: all of a row.
WHOLE_ROW = "row"
# `cropped, flipped: +6.7 [5.1, 8.3], 12 seeds: holds`: of other settings the name comes first.
KIND = re.compile(r"(?:([a-z][^:\[]*): )?(.*)", re.DOTALL)
PLACE = re.compile(r"\b\d+(?:st|nd|rd|th) of (\d+)")
Row = Mapping[str, str]
# (paper, id, column, what stood there)
Loss = tuple[str, str, str, str]


def as_text(rows: Iterable[Row]) -> str:
    """The file's content."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_findings(path: Path) -> list[dict[str, str]]:
    """Its rows; none where it is missing. ParamError for what is no such table."""
    required = [name for name in COLUMNS if name not in LATER]
    return [row for _, row in read_csv(path, required, LATER)] if path.exists() else []


def of_cell(cell: str, root: Path = ROOT) -> list[dict[str, str]]:
    """The findings that compare a cell, `paper/scenario/method`."""
    return [row for row in read_findings(root / FILE) if cell in row["cells"].split()]


def withdrawn(path: Path) -> list[dict[str, str]]:
    """The rows of withdrawn.csv, which say of a number that is gone what it was and why; none where the file
    is missing. ParamError names the line and key that is empty or unknown."""
    rows = []
    for line, row in read_csv(path, GONE_COLUMNS) if path.exists() else []:
        for key in GONE_COLUMNS:
            without_number = key == "number" and row["column"] == WHOLE_ROW
            if not row[key].strip() and not without_number:
                raise ParamError(f"{shorten(path)}:{line}: {key}: is empty")
        if row["column"] not in (WHOLE_ROW, *COMPARISONS):
            known = (WHOLE_ROW, *COMPARISONS)
            raise ParamError(f"{shorten(path)}:{line}: column: {unknown('column', row['column'], known)}")
        rows.append(row)
    return rows


def losses(before: Iterable[Row], now: Iterable[Row], excused: Iterable[Row] = ()) -> list[Loss]:
    """Rows, and numbers of rows, that an earlier table has and a later one has not.

    excused: rows of withdrawn.csv; each excuses the one number that it quotes, and no later one
    """
    there = {(row["paper"], row["id"]): row for row in now}
    gone = []
    for row in before:
        paper, claim = row["paper"], row["id"]
        later = there.get((paper, claim))
        if later is None:
            gone.append((paper, claim, WHOLE_ROW, row["difference"]))
            continue
        columns = [one for one in COMPARISONS if _lacks(later[one], row[one])]
        gone += [(paper, claim, one, row[one]) for one in columns]
    known = {(one["paper"], one["id"], one["column"], one["number"]) for one in excused}
    return [one for one in gone if one not in known]


def lost(before: Iterable[Row], now: Iterable[Row], excused: Iterable[Row] = ()) -> list[str]:
    """`losses` in words: `fedlsa L04: tuned_alike was +0.1 [-4.4, 4.6]`."""
    texts = []
    for paper, claim, column, number in losses(before, now, excused):
        what = "the whole row" if column == WHOLE_ROW else column
        texts.append(f"{paper} {claim}: {what} was {number or 'without a number'}")
    return texts


def _lacks(later: str, earlier: str) -> bool:
    """Whether a column has lost a number, such as one of several other settings, or rivals of a place."""
    before, after = _numbers(earlier), _numbers(later)
    return any(kind not in after or after[kind] < rivals for kind, rivals in before.items())


def _numbers(text: str) -> dict[str, int]:
    """What a column has numbers of, which is a name for other settings, -> among how many methods its place
    is; 0: there is no place."""
    found = {}
    for part in text.split("; "):
        kind, number = KIND.fullmatch(part).groups()  # type: ignore[union-attr]
        if any(letter.isdigit() for letter in number) and not number.startswith("not run"):
            place = PLACE.search(number)
            found[kind or ""] = int(place[1]) if place else 0
    return found
