"""Renders the report of one paper, or of all, and the pages over all papers."""

from pipeline.report.writing import main
from stages._stage import stage

if __name__ == "__main__":
    stage(main, paper="a folder of papers/; without it all")
