"""Renders the report of one paper, or of all, and the pages over all papers; a file that cannot be used ends
it with 2 after the rest is written."""
import os

from pipeline.commands.status import estimate, rates_of, read_results
from pipeline.report import render
from pipeline.schema import papers
from stages._stage import stage


def main(paper: str | None = None) -> None:
    """Write reports/."""
    os.environ.pop("FEDREPRO_MIRROR", None)           # pages are the same where data come from a mirror
    results = read_results()
    rates = rates_of(results)
    written = render([paper] if paper else papers(), hours=lambda cell: estimate(cell, rates)[0])
    print(f"reports: {len(written)} files, start at reports/index.html")


if __name__ == "__main__":
    stage(main, paper="a folder of papers/; without it all")
