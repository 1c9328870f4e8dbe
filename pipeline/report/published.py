"""The numbers that a paper prints, as papers/<paper>/published/*.csv holds them: one row each, as text."""
import csv
import re
from pathlib import Path

from pipeline.errors import ParamError
from pipeline.schema import ROOT, Table, shorten

FIELDS = ["paper", "table", "setting", "dataset", "column", "method", "value", "std", "note"]


def read_published(paper: str, table: Table, root: Path = ROOT) -> list[dict[str, str]]:
    """The rows of a published CSV as text; ParamError where the file or one of its columns is missing."""
    path = root / "papers" / paper / "published" / table.published
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except FileNotFoundError:
        raise ParamError(
            f"{shorten(path)}: no such file, although paper.yaml names it for table {table.number}"
        ) from None
    lost = [name for name in FIELDS if name not in (reader.fieldnames or [])]
    if lost or not rows:
        raise ParamError(f"{shorten(path)}: " + (f"the column {lost[0]!r} is missing" if lost else "no rows"))
    return rows


def printed_number(record: dict[str, str]) -> float | None:
    """The number of a published row, or for a garbled one the number that its note gives; None for words and
    formulas."""
    likely = re.search(r"likely=([+-]?[\d.]+)", record["note"])
    try:
        return float(likely[1] if likely else record["value"])
    except ValueError:
        return None
