"""Write the overview, a page per paper and the page across papers, from the committed results alone."""

import base64
import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pipeline.cells.results import as_csv, metrics, survey, tidy
from pipeline.errors import FedReproError
from pipeline.files import renew_text
from pipeline.findings_file import FILE, GONE, as_text, lost, read_findings, withdrawn
from pipeline.place import cores
from pipeline.report import across, latex, markdown
from pipeline.report.citations import citation
from pipeline.report.findings import as_rows
from pipeline.report.page import Overview, Page
from pipeline.report.study import Study, studies
from pipeline.report.templates import templates
from pipeline.report.words import counted
from pipeline.schema import ROOT, load_paper

# Name of a file in reports/ -> its text.
Files = dict[str, str]
# What the forks of this process are to make, while they run.
_PARTS: list[Callable[[], Files]] = []


def main(paper: str | None = None) -> None:
    """Write reports/: the pages of one paper, or of all, and those over all papers. A file that cannot be
    used ends it with an error after the rest is written."""
    os.environ.pop("FEDREPRO_MIRROR", None)  # pages are the same where data come from a mirror
    workers = int(os.environ.get("FEDREPRO_WORKERS") or cores())
    written = render([paper] if paper else None, workers=workers)
    print(f"reports: {len(written)} files, start at reports/index.html")


def render(
    papers: Sequence[str] | None = None, root: Path = ROOT, out: Path | None = None, workers: int = 1
) -> list[Path]:
    """Write the pages, summaries and LaTeX tables of the given papers (None: of all), the overview, the page
    across papers, and every measured number.

    papers   keys of papers
    root     the checkout whose results are read
    out      folder of the pages; None: reports/ of the checkout
    workers  processes that draw pages at once

    The same inputs give the same bytes, and a file whose bytes stay is not touched. Raises FedReproError for
    an unknown paper or a malformed published table; only after all the rest is written for a result that
    cannot be used, and for a finding that would disappear from findings.csv without a line in withdrawn.csv,
    unless the folder of its paper is gone.
    """
    for name in papers or ():  # reports a wrong name before anything is read
        load_paper(name, root)
    out = out or root / "reports"
    results, problems = survey(root)
    known = studies(results, root, problems)
    pages = {name: Page(study) for name, study in known.items()}
    written = [pages[name] for name in papers or pages]

    excused = withdrawn(root / GONE)
    cite = citation(root)
    overview = Overview(pages.values(), excused)
    parts: list[Callable[[], Files]] = [partial(_across, known, pages, cite)]  # the longest first
    parts += [partial(_page, page, pages, cite) for page in written]
    files = {"index.html": fill("index.html", view=overview, pages=pages, cite=cite)}
    files["index.md"] = markdown.fill("index.md", view=overview, cite=cite)
    for made in _made(parts, workers):
        files |= made
    for page in written:
        files[f"metrics/{page.key}.json"] = metrics(page.key, results)
    files["measured.csv"] = as_csv(tidy(results))

    found = as_rows(finding for page in pages.values() for finding in page.findings.rows.values())
    before = [row for row in read_findings(out / FILE.name) if (root / "papers" / row["paper"]).is_dir()]
    gone = lost(before, found, excused)
    if not gone:
        files[FILE.name] = as_text(found)

    for name, text in files.items():
        renew_text(out / name, text)
    _remove_old_tables(out / "tables", written)
    front = root / "README.md"
    if markdown.EXAMPLE in pages and front.exists() and out == root / "reports":
        renew_text(front, markdown.readme(front.read_text(encoding="utf-8"), pages))

    texts = list(dict.fromkeys(problems.values()))
    if gone:
        numbers = counted(len(gone), "number")
        texts.append(f"{FILE}: {numbers} would disappear, the first: {gone[0]}; say why in {GONE}")
    if len(texts) == 1:
        raise FedReproError(texts[0])
    if texts:
        raise FedReproError(f"{len(texts)} problems; the first: {texts[0]}")
    return [out / name for name in files]


def _page(page: Page, pages: Mapping[str, Page], cite: object) -> Files:
    """What is written of one paper, but for its metrics."""
    files = {f"{page.key}.html": fill("paper.html", page=page, pages=pages, cite=cite)}
    files[f"{page.key}.md"] = markdown.paper(page)
    return files | latex.files(page)


def _across(known: dict[str, Study], pages: Mapping[str, Page], cite: object) -> Files:
    """The page across papers."""
    view = across.across(known)
    return {
        "across.html": fill("across.html", view=view, pages=pages, cite=cite),
        "across.md": markdown.fill("across.md", view=view),
    }


def _made(parts: Sequence[Callable[[], Files]], workers: int) -> list[Files]:
    """What the parts make, in their order: by forks of this process, which know what it has read and found,
    where there is more than one worker. Where a fork was killed, all is made here."""
    workers = min(workers, len(parts))
    if workers < 2 or sys.platform == "darwin":  # whose libraries do not survive a fork
        return [part() for part in parts]
    _PARTS[:] = parts
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as forks:
            return list(forks.map(_part, range(len(parts))))
    except BrokenProcessPool:
        return [part() for part in parts]
    finally:
        _PARTS.clear()


def _part(place: int) -> Files:
    """In a fork."""
    return _PARTS[place]()


def _remove_old_tables(folder: Path, pages: Sequence[Page]) -> None:
    """Delete the LaTeX tables of these papers that their pages no longer have."""
    current = {f"{page.key}-{tab.key}.tex" for page in pages for tab in page.tabs}
    starts = tuple(f"{page.key}-" for page in pages)
    for path in folder.glob("*.tex"):
        if path.name.startswith(starts) and path.name not in current:
            path.unlink()


def fill(template: str, **context: Any) -> str:
    """A page in HTML; every text of a paper or a result is escaped."""
    return environment().get_template(f"{template}.j2").render(context)


@cache
def environment() -> jinja2.Environment:
    """Of the HTML templates, with style and script inline: a page is one file. The browser runs no other
    script than this one, by its hash."""
    made = templates(autoescape=True)
    folder = ROOT / "reports" / "templates"
    style = (folder / "style.css").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    made.globals |= {"style": Markup(style), "script": Markup(script), "script_hash": f"sha256-{digest}"}
    made.filters["latex"] = latex.table
    return made
