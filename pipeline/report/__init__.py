"""Reports: every table of a paper with the measured numbers beside the published ones, in three formats."""
from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import FedReproError, ParamError, unknown
from pipeline.files import write_text
from pipeline.params import PAPERS, ROOT, shorten
from pipeline.report.context import Page, miniature_runs, page
from pipeline.report.figures import curves
from pipeline.report.formats import FORMATS, fill
from pipeline.results import collect, history


def render(papers: Iterable[str] = PAPERS, root: Path = ROOT) -> list[Path]:
    """Write reports/<paper>.md, .html, .tex and the miniature's figure of the given papers, and the index of all five.

    The same inputs give the same bytes. Raises FedReproError for an unknown paper, a missing or malformed
    published table, or a result that was altered.
    """
    papers = list(papers)
    for name in papers:
        if name not in PAPERS:
            raise ParamError(unknown("paper", name, PAPERS))
    results = collect(root)
    pages = {name: page(name, results, root) for name in PAPERS}
    files = {}
    for name in papers:
        for kind in FORMATS:
            files[f"{name}.{kind}"] = fill("paper", kind, page=pages[name], pages=pages)
        if pages[name].mini.curves:
            files[pages[name].mini.curves] = _miniature_curves(pages[name], results, root)
    for kind in ("md", "html"):
        files[f"index.{kind}"] = fill("index", kind, pages=pages)
    for name, text in files.items():
        write_text(root / "reports" / name, text)
    return [root / "reports" / name for name in files]


def _miniature_curves(paper: Page, results, root: Path) -> str:
    runs = {cell: run for cell, run in miniature_runs(paper.key, results, root).items() if run}
    histories = {paper.paper.label(cell.method): history(cell, root) for cell in runs}
    for cell, table in zip(runs, histories.values()):
        if paper.mini.headline not in table:
            raise FedReproError(f"{shorten(cell.folder(root) / 'history.csv')}: the column {paper.mini.headline!r} is missing")
    return curves(histories, paper.mini.headline, f"{paper.name} miniature, measured: accuracy ({paper.mini.headline}) over rounds")
