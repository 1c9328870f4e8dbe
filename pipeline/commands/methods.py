"""`fedrepro methods`: list every method in one line; with `--page`, renew the table in docs/methods.md."""

import importlib
import re

from pipeline import methods
from pipeline.commands.options import wrapped
from pipeline.files import write_text
from pipeline.schema import ROOT, load_paper, papers, printed, shorten
from pipeline.schema.scenario import DEMANDS

PAGE = ROOT / "docs" / "methods.md"
# The line of the page after which the table is written.
MARK = "<!-- what follows is written by `fedrepro methods --page` -->"
# The head of the table.
HEAD = ("method", "what it does", "papers", "needs; supports")
# What most methods need, so that the table does not say it.
USUAL = "one network"


def main(page: bool = False) -> int:
    """Print every method in a line; returns the exit code.

    page  renew docs/methods.md instead
    """
    if page:
        write_text(PAGE, documented())
        print(f"{shorten(PAGE)}: written")
        return 0
    for name in methods.method_names():
        line = f"{name:<16} {': '.join(_described(name))}"
        print("\n".join(wrapped(line, 17)))
    return 0


def documented() -> str:
    """docs/methods.md with the table as it should be."""
    before = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    return f"{before}{MARK}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in _rows())


def _rows() -> list[tuple[str, ...]]:
    """The rows of the table in docs/methods.md, its head first."""
    rows: list[tuple[str, ...]] = [HEAD, ("---",) * len(HEAD)]
    for name in methods.method_names():
        title, what = _described(name)
        method = methods.load(name, {}, name)
        needs = ", ".join(sorted(method.requires - {USUAL})) if method.requires else "nothing"
        supports = ", ".join(demand.split()[0] for demand in DEMANDS if demand in method.supports)
        notes = "; ".join(filter(None, (needs, supports)))
        link = f"[{title}](../pipeline/methods/{name}.py) `{name}`"
        what = re.sub(r"(\d{4}), [^()]*\)", r"\1)", what)
        rows.append((link, what, ", ".join(_papers(name)), notes))
    return rows


def _described(name: str) -> tuple[str, str]:
    """(the method as its paper spells it, what it does), from the first paragraph of its file."""
    module = importlib.import_module(f"pipeline.methods.{name}")
    text = " ".join((module.__doc__ or "").split("\n\n")[0].split())
    title, colon, what = text.partition(": ")
    return (title, what.rstrip(".")) if colon else (name, text)


def _papers(name: str) -> list[str]:
    """The papers with a row of a method in one of their grids; supplementary grids do not count."""
    names = []
    for key in papers():
        paper = load_paper(key)
        if any(paper.algorithm(cell.method) == name for cell in printed(key)):
            names.append(paper.name)
    return names
