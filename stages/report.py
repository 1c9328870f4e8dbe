"""Renders the report of one paper, or of all five, and the index page; a file that cannot be used ends it with 2 after the rest is written."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.cli import stage
from pipeline.params import PAPERS
from pipeline.report import render


def main(paper=None):
    written = render([paper] if paper else PAPERS)
    print(f"reports: {len(written)} files, start at reports/index.html")


if __name__ == "__main__":
    stage(main, paper="fedccl, fcclplus, fedlsa, rahfl or fedcrl; without it all five")
