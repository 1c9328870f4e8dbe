"""Write the overview, a page per paper and the page across papers, from the committed results alone."""

import base64
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from pipeline.report.named_measures import check_measures
from pipeline.report.page import Overview, Page
from pipeline.report.study import Study, studies
from pipeline.report.templates import templates
from pipeline.report.unchanged import ACROSS, OVERVIEW, Drawn, Inputs
from pipeline.report.words import counted
from pipeline.schema import ROOT, load_paper
from pipeline.schema import papers as all_papers

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

    Returns all files of these, also those that stay: in reports/ of the checkout, nothing is drawn again
    whose inputs and files are as the last call left them (`pipeline.report.unchanged`). The same inputs give
    the same bytes, and a file whose bytes stay is not touched.

    Raises FedReproError before anything is written for an unknown paper, a measure in paper.yaml that no
    result can have, a malformed published table, and a finding that would disappear from findings.csv without
    a line in withdrawn.csv, unless the folder of its paper is gone. A result that cannot be used is named on
    the pages, and raises FedReproError after these are written.
    """
    for name in papers or ():  # reports a wrong name before anything is read
        load_paper(name, root)
    out = out or root / "reports"
    front = root / "README.md" if out == root / "reports" else None
    drawn = Drawn(root, out)
    inputs = Inputs.of(root)
    asked = [*(papers or all_papers(root)), ACROSS, OVERVIEW]
    tables = {name: _tables(name, out, inputs.papers) for name in asked}
    anew = [name for name in asked if not drawn.stays(name, _inputs(name, inputs, front), tables[name])]
    staying: list[Path] = []
    for name in asked:
        if name not in anew:
            staying += [out / file for file in drawn.files(name)]
    if not anew:
        return staying

    for name in papers or all_papers(root):
        check_measures(name, root)
    results, problems = survey(root)
    known = studies(results, root, problems)
    # The overview shows something of every paper.
    pages = {name: Page(study) for name, study in known.items() if OVERVIEW in anew or name in anew}
    cite = citation(root)
    parts: dict[str, Callable[[], Files]] = {}
    if ACROSS in anew:  # takes longest
        parts[ACROSS] = partial(_across, known, cite)
    for name in asked:
        if name in anew and name in pages:
            parts[name] = partial(_page, pages[name], known, cite)
    made = dict(zip(parts, _made(list(parts.values()), workers), strict=True))
    for name in made.keys() & pages.keys():
        made[name][f"metrics/{name}.json"] = metrics(name, results)

    if OVERVIEW in anew:
        excused = withdrawn(root / GONE)
        made[OVERVIEW] = _overview(Overview(pages.values(), excused), known, cite)
        made[OVERVIEW]["measured.csv"] = as_csv(tidy(results))
        found = as_rows(finding for page in pages.values() for finding in page.findings.rows.values())
        before = [row for row in read_findings(out / FILE.name) if (root / "papers" / row["paper"]).is_dir()]
        gone = lost(before, found, excused)
        if gone:
            numbers = counted(len(gone), "number")
            why = f"{FILE}: {numbers} would disappear, the first: {gone[0]}; say why in {GONE}"
            raise _of_problems([*problems.values(), why])
        made[OVERVIEW][FILE.name] = as_text(found)
    introduction = ""
    if front and front.exists() and OVERVIEW in anew and markdown.EXAMPLE in pages:
        introduction = markdown.readme(front.read_text(encoding="utf-8"), pages)

    # From here on nothing is refused: pages, findings.csv and README.md tell the same results.
    for files in made.values():
        for name, text in files.items():
            renew_text(out / name, text)
    for name in made.keys() & pages.keys():
        for table in {*tables[name]} - made[name].keys():  # which the page no longer has
            (out / table).unlink(missing_ok=True)
    if front and introduction:
        renew_text(front, introduction)

    # What is wrong is told again the next time. What changed since `inputs` were read is drawn then.
    noted = {name: list(files) for name, files in made.items() if name != OVERVIEW or not problems}
    drawn.note(noted, {name: _inputs(name, inputs, front) for name in noted})
    if problems:
        raise _of_problems(problems.values())
    return [*staying, *(out / name for files in made.values() for name in files)]


def _of_problems(texts: Iterable[str]) -> FedReproError:
    """The error that names the first of several problems, and how many there are.

    texts  one or more; equal ones count once
    """
    different = list(dict.fromkeys(texts))
    if len(different) == 1:
        return FedReproError(different[0])
    return FedReproError(f"{len(different)} problems; the first: {different[0]}")


def _inputs(name: str, inputs: Inputs, front: Path | None) -> str:
    """The digest of a part's inputs. The blocks of README.md count as such for the overview, which writes
    them.

    front  the README; None where it is not written
    """
    digest = inputs.part(name)
    if name == OVERVIEW and front and front.exists():
        return f"{digest} {markdown.blocks_digest(front.read_text(encoding='utf-8'))}"
    return digest


def _tables(name: str, out: Path, keys: Iterable[str]) -> list[str]:
    """The LaTeX tables of a paper that are there, below the folder of the pages.

    keys  of all papers: one may begin with another's
    """
    longer = tuple(f"{key}-" for key in keys if key.startswith(f"{name}-"))
    files = [path.name for path in out.glob(f"tables/{name}-*.tex")]
    return [f"tables/{file}" for file in files if not file.startswith(longer)]


def _page(page: Page, known: Mapping[str, Study], cite: object) -> Files:
    """What is written of one paper, but for its metrics."""
    files = {f"{page.key}.html": fill("paper.html", page=page, pages=known, cite=cite)}
    files[f"{page.key}.md"] = markdown.paper(page)
    return files | latex.files(page)


def _across(known: dict[str, Study], cite: object) -> Files:
    """The page across papers."""
    view = across.across(known)
    return {
        "across.html": fill("across.html", view=view, pages=known, cite=cite),
        "across.md": markdown.fill("across.md", view=view),
    }


def _overview(view: Overview, known: Mapping[str, Study], cite: object) -> Files:
    """The first page."""
    return {
        "index.html": fill("index.html", view=view, pages=known, cite=cite),
        "index.md": markdown.fill("index.md", view=view, cite=cite),
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
