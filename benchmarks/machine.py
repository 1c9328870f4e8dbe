"""What a benchmark ran on, and what a process has used."""

import os
import resource
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cpu() -> float:
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def machine() -> dict:
    """What the numbers were measured on."""
    from pipeline.cells import provenance
    from pipeline.git import git

    return provenance.machine() | {
        "cores": os.cpu_count(),
        "gpu": _gpu(),
        "date": time.strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
        "fedrepro": git(ROOT, "rev-parse", "HEAD").strip(),
    }


def _gpu() -> str | None:
    """The card's name and its driver's version; None where nvidia-smi is missing or fails."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # A failing nvidia-smi prints its error where the name would stand.
    return done.stdout.strip() or None if done.returncode == 0 else None
