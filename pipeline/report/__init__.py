"""Reports: every table of a paper with the measured numbers beside the published ones, in three formats."""
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.cells.results import as_csv, survey, tidy
from pipeline.errors import FedReproError
from pipeline.files import write_text
from pipeline.report.across import Across, across
from pipeline.report.context import Hours, Page, found_in, page
from pipeline.report.formats import FORMATS, fill
from pipeline.report.leakage import leakage
from pipeline.report.noise import noise
from pipeline.report.runs import repository
from pipeline.report.study import Study, studies
from pipeline.schema import ROOT, load_paper


def render(papers: Iterable[str] | None = None, root: Path = ROOT, hours: Hours | None = None) -> list[Path]:
    """Write reports/<paper>.md, .html, .tex, the run pages and the figures of the given papers, and of all
    the index, the page across papers and every measured number as measured.csv. hours: how long a cell that
    waits would train.

    The same inputs give the same bytes. Raises FedReproError for an unknown paper or a malformed published
    table; for a result that cannot be used only after all the rest is written, and the pages name the file.
    """
    papers = None if papers is None else list(papers)
    for name in papers or ():
        load_paper(name, root)                        # reports a wrong name before anything is read
    results, problems = survey(root)
    known = studies(results, root, problems)
    papers = list(known) if papers is None else papers
    pages = {name: page(study, hours) for name, study in known.items()}
    files: dict[str, str] = {}
    failed: dict[str, dict[str, str]] = {}
    for name in papers:
        drawn, failed[name] = _draw(pages[name])
        files |= drawn
    for name in papers:
        files |= _of_paper(pages[name], pages, failed[name])
        _clear(root / "reports", {Path(path) for path in files}, name)
    table = across(known)
    files |= _across(table, known, pages, root)
    said = [*dict.fromkeys([problem.text for problem in problems]
                           + [text for found in pages.values() for text in found.problems]
                           + [text for name in papers for text in failed[name].values()]
                           + table.problems)]
    first = {"pages": pages, "problems": said, "found": found_in(pages.values()), "code": repository(root)}
    for kind in ("md", "html"):
        files[f"index.{kind}"] = fill("index", kind, **first)
    files["measured.csv"] = as_csv(tidy(results))
    for name, text in files.items():
        write_text(root / "reports" / name, text)
    if said:
        count = "" if len(said) == 1 else f"{len(said)} problems, which reports/index.html lists; the first: "
        raise FedReproError(count + said[0])
    return [root / "reports" / name for name in files]


def _of_paper(page: Page, pages: dict[str, Page], failed: dict[str, str]) -> dict[str, str]:
    """{path: text} of a paper's page in every format, and of the pages of its runs."""
    files = {
        f"{page.key}.{kind}": fill("paper", kind, page=page, pages=pages, failed=failed) for kind in FORMATS
    }
    inner: dict[str, Any] = {"pages": pages, "home": "../../", "failed": failed}
    if page.mini.planned:
        files[page.miniature] = fill("miniature", "html", page=page, **inner)
    return files | {runs.path: fill("runs", "html", page=runs, **inner) for runs in page.runs}


def _across(table: Across, known: dict[str, Study], pages: dict[str, Page], root: Path) -> dict[str, str]:
    """{path: text} of the page `across` in every format, and of its figure."""
    rounding, leaked = noise(known, root), leakage(known, root)
    drawn, failed = _draw(table)
    return drawn | {
        f"across.{kind}": fill(
            "across", kind, page=table, pages=pages, noise=rounding, leakage=leaked, failed=failed
        )
        for kind in FORMATS
    }


def _draw(page: Page | Across) -> tuple[dict[str, str], dict[str, str]]:
    """({path: SVG}, {path: why it could not be drawn}) of a page's figures."""
    drawn, failed = {}, {}
    for drawing in page.drawings:
        try:
            drawn[drawing.path] = drawing.draw()
        except FedReproError as error:
            failed[drawing.path] = str(error)
    return drawn, failed


def _clear(reports: Path, keep: set[Path], paper: str) -> None:
    """Remove the run pages of a paper's scenarios that no longer have a run."""
    for path in (reports / "runs" / paper).glob("*.html"):
        if path.relative_to(reports) not in keep:
            path.unlink()
