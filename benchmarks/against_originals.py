"""Our methods beside the public code that others wrote for them, from equal weights and on equal batches.

    PYTHONPATH=. python benchmarks/against_originals.py CHECKOUT [CHECKOUT ...] [--only METHOD ...]

A CHECKOUT is the clone of one of the repositories of benchmarks/originals/, whose own requirements are
importable. Prints a table, and writes what was found of these repositories into
benchmarks/results/fidelity.json and from it the tables of docs/fidelity.md. The exit code is 1 where a difference
is not explained.
"""
import argparse
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import warnings
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "fidelity.json", ROOT / "docs" / "fidelity.md"
ORIGINALS = ROOT / "benchmarks" / "originals"


def originals() -> list[str]:
    """The modules that know a repository."""
    return sorted(path.stem for path in ORIGINALS.glob("*.py") if path.stem not in ("__init__", "federation"))


def measure(name: str, checkout: Path, only: list[str]) -> None:
    """One repository in a process of its own, since two have modules of one name: prints a JSON line."""
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)                                             # they print a lot
    from benchmarks.originals.federation import Table
    original, table = importlib.import_module(f"benchmarks.originals.{name}"), Table()
    original.prepare(checkout)
    for case in original.CASES:
        if not only or case.__name__ in only:
            case(table)
    print(json.dumps([dataclasses.asdict(row) for row in table.rows]), file=answers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one")
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    a = parser.parse_args()
    if a.one:
        measure(a.one, a.checkouts[0], a.only)


if __name__ == "__main__":
    main()
