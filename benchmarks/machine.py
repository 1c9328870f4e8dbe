"""What a benchmark ran on, and what a process has used."""

import csv
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cpu() -> float:
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured_alone(script: str, *case: object) -> dict:
    """What a benchmark prints as JSON for one case, in a process of its own with one thread.

    script: its file
    case: its arguments
    """
    done = subprocess.run(
        [sys.executable, script, *map(str, case)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(done.stdout)


def write_rows(path: Path, rows: list[dict]) -> None:
    """A CSV file of rows that all have the keys of the first."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def machine() -> dict:
    """What the numbers were measured on."""
    from pipeline.git import git
    from pipeline.place import nvidia_smi
    from pipeline.provenance import identity

    return identity.machine() | {
        "cores": os.cpu_count(),
        # name and driver; empty where no card answers
        "gpu": nvidia_smi("--query-gpu=name,driver_version", "--format=csv,noheader").strip() or None,
        "date": time.strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
        "fedrepro": git(ROOT, "rev-parse", "HEAD").strip(),
    }
