"""The numbers that a paper prints, as papers/<paper>/published/*.csv holds them: one row each, as text."""
import re
from pathlib import Path

from pipeline.errors import ParamError
from pipeline.files import read_csv
from pipeline.schema import PUBLISHED, ROOT, Table, shorten

PLACE = PUBLISHED[2:6]
NUMBER = r"[+-]?\d{1,15}(?:\.\d{1,15})?"
# A formula has bars, 2|theta|; a name has two letters, which a misread digit has not.
PRINTED = re.compile(rf"|{NUMBER}|[^|]*\|.*|[A-Za-z]{{2}}[A-Za-z0-9 -]*")
LIKELY = re.compile(r"likely=([^\s;]*)")


def read_published(paper: str, table: Table, root: Path = ROOT) -> list[dict[str, str]]:
    """The rows of a published CSV as text; ParamError names file and line of what is no such table, or of a
    value that is neither a number, a formula nor a name."""
    path = root / "papers" / paper / "published" / table.published
    try:
        rows = read_csv(path, PUBLISHED)
    except FileNotFoundError:
        raise ParamError(
            f"{shorten(path)}: no such file, although paper.yaml names it for table {table.number}"
        ) from None
    if not rows:
        raise ParamError(f"{shorten(path)}: no rows")
    places: dict[tuple[str, ...], int] = {}
    for line, row in rows:
        if problem := _problem(row, paper):
            raise ParamError(f"{shorten(path)}:{line}: {problem}")
        place = tuple(row[field] for field in PLACE)
        if (first := places.setdefault(place, line)) != line:
            raise ParamError(f"{shorten(path)}:{line}: {', '.join(place)} stands in line {first} already")
    return [row for _, row in rows]


def _problem(row: dict[str, str], paper: str) -> str | None:
    """What is wrong with a row of a paper; None where nothing is."""
    if row["paper"] != paper:
        return f"paper: {row['paper']!r:.80} is not {paper!r}"
    likely = LIKELY.search(row["note"])
    for field, text, form in (
        ("value", row["value"], PRINTED),
        ("std", row["std"], re.compile(rf"|{NUMBER}")),
        ("note", likely[1] if likely else "0", re.compile(NUMBER)),
    ):
        if not form.fullmatch(text):
            return f"{field}: {text!r:.80} is not a number"
    return None


def printed_number(record: dict[str, str]) -> float | None:
    """The number of a published row, or for a garbled one the number that its note gives; None for words and
    formulas."""
    likely = LIKELY.search(record["note"])
    text = likely[1] if likely else record["value"]
    return float(text) if re.fullmatch(NUMBER, text) else None
