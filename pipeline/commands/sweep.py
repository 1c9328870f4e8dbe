"""`fedrepro sweep CELL mu=0.01,0.1`: train a cell with each value of a hyper-parameter, outside of git."""

import contextlib
import os

from pipeline.cells import arithmetic
from pipeline.cells.checks import check_environment, runnable
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import read
from pipeline.commands import run
from pipeline.commands.extra_seeds import mean, partition_stage
from pipeline.errors import ParamError
from pipeline.schema import RATE, Cell, Swept, shorten


def main(name: str, assignment: str, jobs: int | None = None) -> int:
    """Train and print the cell's accuracy with each value; returns the exit code.

    assignment: `mu=0.001,0.01,0.1`, a hyper-parameter of the method or `learning_rate`
    """
    base, (key, values) = Cell.parse(name), _parse(assignment)
    swept = [Swept.of(base, ((key, value),)) for value in values]
    arithmetic.adopt(Experiment.of(base).scenario.arithmetic)  # before torch is imported
    check_environment()
    for cell in swept:
        runnable(Experiment.of(cell))  # ParamError for a name or a value that the method has not
    if code := run.main([partition_stage(base)], jobs):
        return code
    if jobs:
        os.environ["FEDREPRO_WORKERS"] = str(jobs)
    from pipeline.cells.training import train_cell  # with torch: seconds

    results = {f"{key} {value}": train_cell(cell) for value, cell in zip(values, swept)}
    if (committed := base.folder() / "result.json").exists():
        results["in the table"] = read(committed)
    print(f"{base}, {results[f'{key} {values[0]}']['headline']} accuracy")
    for label, result in results.items():
        print(f"  {label:<20} {mean(result)}")
    print(f"  written to {shorten(swept[0].folder().parent)}")
    return 0


def _parse(text: str) -> tuple[str, list]:
    """`mu=0.001,0.01` -> ("mu", [0.001, 0.01]); ParamError for what is not NAME=VALUE,VALUE."""
    name, _, listed = text.partition("=")
    values = [*map(_value, listed.split(","))]
    if not name.isidentifier() or "" in values or len(set(values)) < len(values):
        raise ParamError(f"sweep {text!r:.80}: expected NAME=VALUE,VALUE, such as {RATE}=0.01,0.1")
    return name, values


def _value(text: str) -> int | float | bool | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text, text)
