"""The overview of all papers, as plain data for its template, and how to cite FedRepro."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipeline.report.comparison import Axis, ClaimRow, claim_row, claims_axis
from pipeline.report.page import TILES, Page
from pipeline.report.verdicts import Chip, count
from pipeline.report.words import bibtex_entry


@dataclass(frozen=True)
class Overview:
    """What the first page shows."""

    pages: list[Page]
    axis: Axis | None
    # paper -> its main claims that have a number; without any the first of them
    main: list[tuple[Page, list[ClaimRow]]]
    counts: dict[Chip, int]
    done: int
    planned: int


def overview(pages: Iterable[Page]) -> Overview:
    """Papers with measured claims come first."""
    pages = sorted(pages, key=lambda page: not page.measured)
    chosen = {page.key: measured_first(page.main) for page in pages}
    axis = claims_axis([row.verdict for rows in chosen.values() for row in rows])
    main = [(page, [claim_row(row.verdict, axis) for row in chosen[page.key]]) for page in pages]
    return Overview(
        pages,
        axis,
        main,
        count(row.verdict for page in pages for row in page.claims),
        sum(page.done for page in pages),
        sum(page.planned for page in pages),
    )


def measured_first(rows: list[ClaimRow]) -> list[ClaimRow]:
    """Of a paper's tiles those with a number; without any the first."""
    return [row for row in rows if row.verdict.point is not None][:TILES] or rows[:1]


@dataclass(frozen=True)
class Citation:
    """CITATION.cff: how to cite FedRepro, and where its repository is (empty: nowhere yet)."""

    version: str
    code: str
    bibtex: str


def citation(root: Path) -> Citation:
    """Of the checkout; a remote's address would give other pages on every machine."""
    file = root / "CITATION.cff"
    facts = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
    version, code = str(facts.get("version", "")), str(facts.get("repository-code", "")).rstrip("/")
    released = str(facts.get("date-released", ""))
    people = [
        person.get("name") or f"{person['given-names']} {person['family-names']}"
        for person in facts.get("authors", [])
    ]
    fields = {
        "title": f"{{{facts.get('title', 'FedRepro')}}}",
        "author": " and ".join(f"{{{name}}}" for name in people),
        "year": released[:4],
        "version": version,
        "url": code,
    }
    return Citation(version, code, bibtex_entry("software", "fedrepro", fields))
