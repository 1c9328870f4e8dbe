"""Train one seed again from round 0 and print the measures of every round, for `fedrepro verify` to compare.

`python -m pipeline.training.walk fedcrl/mini/fedprox 0 FOLDER ROOT`.

It runs the same training as the stage, on the cell's data, in a new FOLDER without files of earlier runs. It
prints these lines: {"machine": ...}, a line of history.csv for each round, and {"result": ...} after the last
round. The reader ends this process when it has seen enough. Whatever the training code prints goes to stderr.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from pipeline import arithmetic
from pipeline.cells.experiment import Experiment, link
from pipeline.errors import FedReproError
from pipeline.schema import Cell
from pipeline.schema.cell import Seeded
from pipeline.training.checks import check_environment


def walk(cell: Cell, seed: int, folder: Path, root: Path, say: Callable[[dict], None]) -> None:
    """Train one seed of a cell and say what each line tells. FedReproError as of a training.

    Args:
        cell: the cell.
        seed: the seed.
        folder: an empty folder for what the training writes.
        root: the project with the cell's data.
        say: takes a line, in the order of the training.
    """
    arithmetic.adopt(Experiment.of(cell, root).scenario.arithmetic)
    check_environment()
    from pipeline.provenance import identity
    from pipeline.training.trainer import train_cell

    say({"machine": identity.machine()})
    link(root, folder)
    one = Seeded(cell.paper, cell.scenario, cell.method, (seed,))
    result = train_cell(one, folder, write=False, watch=say)
    (cached,) = folder.glob(f".cells/*/seed-{seed}.json")
    say(json.loads(cached.read_text(encoding="utf-8"))["rows"][0])
    say({"result": result})


def writer(stream: TextIO) -> Callable[[dict], None]:
    """What writes each document as a line of JSON on a stream, at once."""
    return lambda document: print(json.dumps(document), file=stream, flush=True)


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        cell, seed, folder, root = sys.argv[1:]
        walk(Cell.parse(cell), int(seed), Path(folder), Path(root), writer(lines))
    except FedReproError as failure:
        sys.exit(f"error: {failure}")
