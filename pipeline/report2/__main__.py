"""`python -m pipeline.report2 [--out DIR] [PAPER...]`: render the pages."""

from argparse import ArgumentParser
from pathlib import Path

from pipeline.report2 import render

parser = ArgumentParser(prog="python -m pipeline.report2")
parser.add_argument("papers", nargs="*", metavar="PAPER")
parser.add_argument("--out", type=Path, metavar="DIR")
arguments = parser.parse_args()
for path in render(arguments.papers or None, out=arguments.out):
    print(path, path.stat().st_size)
