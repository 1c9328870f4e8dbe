"""How long does one wait for the command line? `PYTHONPATH=. python benchmarks/commands.py`.

`fedrepro --help`, `status`, `sync --check` and `explain` of a cell, each five times in a process of its own,
after one that writes the bytecode. Writes benchmarks/results/commands.json: medians of CPU seconds, which
hardly depend on what else runs, and of wall seconds.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from cut_down import RESULTS
from machine import ROOT, machine

COMMANDS, TURNS = ("--help", "status", "sync --check", "explain fedlsa/mini/fedavg"), 5


def measure(words: str) -> tuple[float, float]:
    """(CPU seconds of the process and what it starts, wall seconds)."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pipeline", *words.split()],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - begun


def main() -> None:
    rows = []
    for words in COMMANDS:
        measure(words)
        cpu, wall = zip(*(measure(words) for _ in range(TURNS)))
        rows.append(
            {
                "command": f"fedrepro {words}",
                "cpu": round(statistics.median(cpu), 2),
                "wall": round(statistics.median(wall), 2),
            }
        )
        print(rows[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "commands.json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    main()
