"""`fedrepro report [PAPER]` and DVC's `report` stages: write the report pages from existing results."""

import os

from pipeline.report import render
from pipeline.schema import papers


def main(paper: str | None = None) -> None:
    """Write reports/: the pages of one paper, or of all, and those over all papers. A file that cannot be
    used ends it with an error after the rest is written."""
    os.environ.pop("FEDREPRO_MIRROR", None)  # pages are the same where data come from a mirror
    written = render([paper] if paper else papers())
    print(f"reports: {len(written)} files, start at reports/index.html")
