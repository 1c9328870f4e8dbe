"""Destroys things at random and looks whether the results are what they would have been.

    python tests/chaos kills --count 200 --seed 1        SIGKILL at random moments of every command
    python tests/chaos faults --count 100                the n-th file operation of a command fails
    python tests/chaos inputs --count 1000               a file that is read is changed at random
    python tests/chaos disk --count 100                  a disk fails below Python, or the clock jumps
    python tests/chaos power --count 40                  the power is cut: what was not synchronised is lost
    python tests/chaos foreign --count 2000              a data set from outside, in any form, is prepared
    python tests/chaos --seconds 120                     all of them, each for the same part of the time

All of it happens in small repositories in a temporary folder. `--seed` repeats a campaign, `--write` puts its
figures into docs/reliability.md. What went wrong is a line on the terminal, and the exit code is 1.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import disk
import faults
import figures
import foreign
import inputs
import kills
import project

KINDS = {"kills": kills.chain, "faults": faults.chain, "inputs": inputs.changes, "foreign": foreign.cases}
# these need a compiler
if disk.compiler():
    KINDS |= {"disk": disk.chain, "power": disk.power}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], metavar="kind", help=", ".join(KINDS))
    parser.add_argument("--count", type=float, default=float("inf"), help="so many of each kind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so long")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--write", action="store_true", help="the figures into docs/reliability.md")
    arguments = parser.parse_args()
    if min(arguments.count, arguments.seconds) == float("inf"):
        parser.error("say how much: --count or --seconds")
    kinds = arguments.kinds or list(KINDS)
    arguments.commit = figures.commit()  # what is committed meanwhile is not tried
    print(f"seed {arguments.seed}", flush=True)
    if not disk.compiler():
        print("disk and power: left out, there is no C compiler", flush=True)
    with tempfile.TemporaryDirectory() as place:
        fresh, whole = project.make(Path(place) / "fresh"), Path(place) / "whole"
        shutil.copytree(fresh, whole, symlinks=True)
        project.finish(whole)
        expected = project.outcome(whole)
        arguments.seconds /= len(kinds)
        wrong = [campaign(kind, arguments, Path(place), (fresh, whole), expected) for kind in kinds]
    return 1 if any(wrong) else 0


def campaign(kind, arguments, place: Path, bases: tuple[Path, Path], expected: dict[str, str]) -> int:
    """How often something was wrong; prints what."""
    count, seconds, draw = arguments.count, arguments.seconds, random.Random(arguments.seed)
    began, done, wrong = time.monotonic(), 0, 0
    while done < count and time.monotonic() - began < seconds:
        folder = place / kind
        shutil.copytree(draw.choice(bases) if kind != "inputs" else bases[1], folder, symlinks=True)
        steps, reply = KINDS[kind](folder, draw, expected)
        done, wrong = done + steps, wrong + bool(reply)
        state = f"{kind}: {done}, {wrong} wrong; {time.monotonic() - began:.0f} s"
        print(state, *filter(None, [reply]), sep="\n     ", flush=True)
        shutil.rmtree(folder)
    if arguments.write:
        figures.write(kind, arguments.seed, done, wrong, of=arguments.commit)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
