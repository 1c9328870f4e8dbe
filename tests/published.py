"""The five papers' published tables."""

import csv
from functools import cache

from pipeline.schema import ROOT, load_paper

PAPERS = ("fedccl", "fcclplus", "fedlsa", "rahfl", "fedcrl")  # those that come with FedRepro


@cache
def published(paper: str) -> dict[str, list[dict[str, str]]]:
    """Rows of every table of a paper by the table's key."""
    folder = ROOT / "papers" / paper / "published"
    actual = {}
    for key, table in load_paper(paper).tables.items():
        with (folder / table.published).open(encoding="utf-8", newline="") as file:
            actual[key] = list(csv.DictReader(file))
    return actual


def printed(paper, key, **where):
    """{(dataset, method, column): value} of a settings table."""
    return {
        (row["dataset"], row["method"], row["column"]): row["value"]
        for row in published(paper)[key]
        if all(text in row[field] for field, text in where.items())
    }
