"""Renders the report of one paper, or of all five, and the index page; a file that cannot be used ends it with 2 after the rest is written."""

from pipeline.report import render
from pipeline.schema import PAPERS
from stages._stage import stage


def main(paper=None):
    written = render([paper] if paper else PAPERS)
    print(f"reports: {len(written)} files, start at reports/index.html")


if __name__ == "__main__":
    stage(main, paper="fedccl, fcclplus, fedlsa, rahfl or fedcrl; without it all five")
