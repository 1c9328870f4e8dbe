"""Kills commands at random moments and looks whether the results are what they would have been:
`python tests/chaos/kills.py --kills 200 --seed 1`, or `--seconds 60` for as many as fit.

A chain is a few kills, each of another command at another moment (SIGKILL to the whole group, or to the first
process alone, so that its children live on), and then what a user does: the same command again. Every file
that a run leaves must have the bits of an undisturbed run, MLflow every run once, and nothing may lie about
that git does not ignore. Exit code 1 and a line for every chain where that is not so.
"""
import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import project

CHAIN = 5                                         # kills before what is left is finished and compared
LONGEST = {"run": 40, "force": 15, "repro": 30, "train": 12, "partition": 2.5, "report": 6, "import": 8}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no new chain after so long"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", action="store_true", help="keep the repository of a chain that went wrong")
    arguments = parser.parse_args()
    began, draw = time.monotonic(), random.Random(arguments.seed)
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        fresh = project.make(Path(place) / "fresh")
        whole = Path(place) / "whole"
        shutil.copytree(fresh, whole, symlinks=True)
        project.finish(whole)
        expected = project.outcome(whole)
        kills = chains = wrong = 0
        while kills < arguments.kills and time.monotonic() - began < arguments.seconds:
            folder = Path(place) / f"chain-{chains}"
            shutil.copytree(fresh if draw.random() < 0.5 else whole, folder, symlinks=True)
            said = chain(folder, draw, expected)
            kills, chains, wrong = kills + CHAIN, chains + 1, wrong + bool(said)
            print(f"{kills:4} kills, {chains} chains, {wrong} wrong; {time.monotonic() - began:.0f} s"
                  + (f"\n     {said}" if said else ""), flush=True)
            if said and arguments.keep:
                shutil.move(folder, Path(tempfile.mkdtemp()) / "kept")
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


def chain(folder: Path, draw: random.Random, expected: dict[str, str]) -> str:
    """What was wrong after the kills; nothing where all is as expected."""
    steps, started = [], []
    for _ in range(CHAIN):
        name = draw.choice(list(project.COMMANDS))
        after = draw.uniform(0.2, LONGEST[name])
        whole_group = draw.random() < 0.7
        steps.append(f"{name} {after:.1f}{'' if whole_group else ' alone'}")
        started.append(project.start(folder, *project.COMMANDS[name]))
        kill(started[-1], after, whole_group)
    try:
        project.finish(folder)
        found = project.outcome(folder)
    except (RuntimeError, subprocess.TimeoutExpired, OSError, ValueError) as error:
        return f"after {', '.join(steps)}: {error}"
    finally:
        for process in started:                   # children of a process that was killed alone
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    different = sorted(
        name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
    )
    return f"after {', '.join(steps)}: different: {', '.join(different)}" if different else ""


def kill(process: subprocess.Popen, after: float, whole_group: bool) -> None:
    """SIGKILL after so many seconds, if the process still lives."""
    try:
        process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        if whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
