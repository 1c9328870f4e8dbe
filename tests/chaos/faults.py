"""Lets the n-th file operation of a command fail (no space left, input/output error), once or from there on,
and looks whether one line says so and the next run has the results of an undisturbed one: `python
tests/chaos/faults.py --faults 100 --seed 1`, or `--seconds 60` for as many as fit.

Wrong is a traceback, a command that goes wrong silently, a file of other bits after the same command was run
again, and anything that would have to be deleted by hand. Exit code 1 and a line for every fault where that
is so.
"""
import argparse
import errno
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import project

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
MOST = {"run": 60, "force": 60, "repro": 60, "train": 40, "partition": 12, "report": 60, "import": 40}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so long")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    began, draw = time.monotonic(), random.Random(arguments.seed)
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        fresh = project.make(Path(place) / "fresh")
        whole = Path(place) / "whole"
        shutil.copytree(fresh, whole, symlinks=True)
        project.finish(whole)
        expected = project.outcome(whole)
        faults = wrong = 0
        while faults < arguments.faults and time.monotonic() - began < arguments.seconds:
            folder = Path(place) / f"fault-{faults}"
            shutil.copytree(fresh if draw.random() < 0.5 else whole, folder, symlinks=True)
            said = fault(folder, draw, expected)
            faults, wrong = faults + 1, wrong + bool(said)
            print(f"{faults:4} faults, {wrong} wrong; {time.monotonic() - began:.0f} s"
                  + (f"\n     {said}" if said else ""), flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


def fault(folder: Path, draw: random.Random, expected: dict[str, str]) -> str:
    """What was wrong; nothing where all is as expected."""
    name, number = draw.choice(list(project.COMMANDS)), draw.choice(ERRORS)
    at, stays = draw.randint(1, MOST[name]), draw.random() < 0.5
    what = f"{name}, {errno.errorcode[number]} at operation {at}{' and after' if stays else ''}"
    process = project.start(
        folder, *project.COMMANDS[name], PYTHONPATH=str(Path(__file__).parent / "faulty"), FAULT_AT=str(at),
        FAULT_ERRNO=str(number), FAULT_ROOT=str(folder), FAULT_STAYS="1" if stays else "")
    said, _ = process.communicate(timeout=600)
    if "Traceback" in said:
        return f"{what}: a traceback: {said[-1500:]}"
    try:
        project.finish(folder)
        found = project.outcome(folder)
    except (RuntimeError, subprocess.TimeoutExpired, OSError, ValueError) as error:
        return f"{what}: afterwards: {error}"
    different = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return f"{what}: different: {', '.join(different)}" if different else ""


if __name__ == "__main__":
    sys.exit(main())
