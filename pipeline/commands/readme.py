"""The numbers of README.md: a result and the state of the papers, written between markers.

`fedrepro report` writes them; a test compares. Text outside of the markers is a person's.
"""

import re
from pathlib import Path

from pipeline.errors import FedReproError
from pipeline.files import write_text
from pipeline.report2.comparison import Dots
from pipeline.report2.page import Page
from pipeline.schema import ROOT

BLOCK = re.compile(r"(<!-- (\w+): written by `fedrepro report` -->\n).*?(<!-- end -->)", re.DOTALL)
# The paper whose first table and claim the README shows.
SHOWN = "fedlsa"


def write(pages: dict[str, Page], root: Path = ROOT) -> Path:
    """README.md with today's numbers. FedReproError where a marker is missing."""
    path = root / "README.md"
    write_text(path, filled(path.read_text(encoding="utf-8"), pages))
    return path


def filled(text: str, pages: dict[str, Page]) -> str:
    """The README's text with its blocks written from the pages."""
    blocks = {"result": result(pages[SHOWN]), "status": status(pages)}
    if missing := blocks.keys() - {name for _, name, _ in BLOCK.findall(text)}:
        raise FedReproError(f"README.md: the block {min(missing)!r} is missing")
    return BLOCK.sub(lambda found: f"{found[1]}{blocks.get(found[2], '')}{found[3]}", text)


def result(page: Page) -> str:
    """The first setting of a paper as a table of two columns, and its first main claim."""
    chart = page.dots[0]
    half = (len(chart.rows) + 1) // 2
    lines = [
        f"{page.name}, {chart.title}: accuracy in %, mean ± standard deviation over {chart.seeds} seeds.",
        "",
    ]
    lines += [
        "| method | measured | printed | | method | measured | printed |",
        "|---|--:|--:|---|---|--:|--:|",
    ]
    for i in range(half):
        right = _cells(chart, half + i) if half + i < len(chart.rows) else ["", "", ""]
        lines.append(f"| {' | '.join([*_cells(chart, i), '', *right])} |")
    claim = page.main[0]
    lines += [
        "",
        f"{claim.title}: {claim.point} {claim.interval}, printed {claim.printed} (points, 95 % interval): "
        f"**{claim.verdict.chip}**.",
    ]
    return "\n".join(lines) + "\n"


def _cells(chart: Dots, at: int) -> list[str]:
    row = chart.rows[at]
    spread = "" if row.number.std is None else f" ± {row.number.std:.1f}"
    printed = "" if row.printed is None else f"{row.printed:.1f}"
    texts = [row.name, f"{row.number.mean:.1f}{spread}", printed]
    return [f"**{text}**" if row.own and text else text for text in texts]


def status(pages: dict[str, Page]) -> str:
    """How much of each paper is measured, and its headline."""
    done, planned = (sum(getattr(page, name) for page in pages.values()) for name in ("done", "planned"))
    lines = [
        f"A *cell* is one method in one setting with all its seeds: {done} of {planned} are measured.",
        "",
    ]
    lines += ["| paper | cells | what was found | report |", "|---|--:|---|---|"]
    for page in pages.values():
        lines.append(
            f"| {page.name} ({page.reference}) | {page.done} / {page.planned} | {page.headline} "
            f"| [{page.key}](reports/{page.key}.md) |"
        )
    return "\n".join(lines) + "\n"
