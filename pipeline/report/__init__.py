"""Reports: every table of a paper with the measured numbers beside the published ones, in three formats."""
from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import ParamError, unknown
from pipeline.files import write_text
from pipeline.params import PAPERS, ROOT
from pipeline.report.context import page
from pipeline.report.formats import FORMATS, fill
from pipeline.results import collect


def render(papers: Iterable[str] = PAPERS, root: Path = ROOT) -> list[Path]:
    """Write reports/<paper>.md, .html, .tex and the figures of the given papers, and the index of all five.

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
        files |= {drawing.path: drawing.draw() for drawing in pages[name].drawings}
    for kind in ("md", "html"):
        files[f"index.{kind}"] = fill("index", kind, pages=pages)
    for name, text in files.items():
        write_text(root / "reports" / name, text)
    return [root / "reports" / name for name in files]
