"""`fedrepro run CELL --seeds 7,8` and `fedrepro sweep CELL mu=0.1,1`: train cells with other seeds or values.

Their files go to papers/<paper>/extra-seeds and papers/<paper>/sweeps, which git ignores. No table changes.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline import arithmetic
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import read, summarise
from pipeline.commands import run
from pipeline.errors import FedReproError, ParamError
from pipeline.schema import RATE, ROOT, Cell, Whole, check, load_paper, shorten
from pipeline.schema.cell import ExtraSeeds, Swept, Variant
from pipeline.schema.paper import scenario_key
from pipeline.training.checks import check_environment, runnable


def extra_seeds(names: Sequence[str], text: str, jobs: int | None = None) -> int:
    """Train cells with other seeds; returns the exit code.

    names  cells, or scenarios with all their cells
    text   the seeds, such as `7,8`
    jobs   number of processes; None: one for each core

    Raises ParamError for an unknown name, or for a text that is no list of seeds.
    """
    seeds = parse_seeds(text)
    chosen = [*dict.fromkeys(cell for name in names for cell in run.named(name))]
    if not chosen:
        raise ParamError("--seeds: name a cell (fedlsa/mini/fedavg) or a scenario (fedlsa/mini)")
    code = _bring(chosen, jobs)
    if code:
        return code
    from pipeline.training.trainer import train_cell  # with torch: seconds

    places = {}
    for cell in chosen:
        extra = ExtraSeeds(cell.paper, cell.scenario, cell.method, seeds)
        if (cell.paper, extra.partition) not in places:
            places[cell.paper, extra.partition] = deal_extra(extra)
        by_seed = _by_seed(train_cell(extra))
        rows = {f"seed {seed}": {seed: value} for seed, value in by_seed.items()}
        _print(cell, rows | {"yours": by_seed}, extra)
    print(
        f"To have them in the tables: add the seeds to `seeds` of {', '.join(places.values())}, then\n"
        f"`fedrepro run {chosen[0]}`; a seed that was trained here is not trained again"
    )
    return 0


def sweep(name: str, assignment: str, jobs: int | None = None) -> int:
    """Train a cell with each value of a hyper-parameter; returns the exit code.

    name        of the cell
    assignment  `mu=0.001,0.01,0.1`, a hyper-parameter of the method or `learning_rate`
    jobs        number of processes; None: one for each core

    Raises ParamError for an unknown cell, or for a value that the method does not accept.
    """
    base = Cell.parse(name)
    key, values = _parse_values(assignment)
    swept = {f"{key} {value}": Swept.of(base, ((key, value),)) for value in values}
    code = _bring(swept.values(), jobs)
    if code:
        return code
    from pipeline.training.trainer import train_cell  # with torch: seconds

    rows = {label: _by_seed(train_cell(cell)) for label, cell in swept.items()}
    _print(base, rows, next(iter(swept.values())))
    return 0


def train(cells: Sequence[ExtraSeeds | Variant], jobs: int | None = None) -> list[Result]:
    """Train cells with seeds or values of a user; returns their results, in this order.

    cells  with these seeds or values
    jobs   number of processes; None: one for each core

    Raises FedReproError if their data cannot be made, and ParamError for a value that the method does not
    accept.
    """
    if not cells:
        return []
    if _bring([cell.base for cell in cells], jobs):
        raise FedReproError("the data or partitions of these cells could not be made: see above")
    for cell in cells:
        runnable(Experiment.of(cell))  # ParamError for a value that the method has not
    from pipeline.training.trainer import train_cell  # with torch: seconds

    # Cells with the same seeds of a scenario share their partition.
    by_partition = {(cell.paper, cell.partition, cell.seeds): cell for cell in cells}
    for cell in by_partition.values():
        deal_extra(cell)
    return [train_cell(cell) for cell in cells]


def deal_extra(cell: ExtraSeeds | Variant) -> str:
    """Draw the partition for a user's seeds; returns the place of the scenario's `seeds` in paper.yaml."""
    from stages.partition import deal

    base = cell.base
    scenario = load_paper(base.paper).scenarios[base.scenario]
    where = f"papers/{base.paper}/paper.yaml: {scenario_key(base.scenario)}"
    folder = ROOT / "papers" / base.paper / "partitions" / cell.partition
    deal(replace(scenario, seeds=list(cell.seeds)), where, folder, f"{base.paper}/{base.scenario}")
    return where


def _bring(cells: Iterable[Cell], jobs: int | None) -> int:
    """Check the cells, then make their data and partitions; returns the exit code.

    To be called before torch is imported, since it sets how torch computes.
    """
    kinds = {Experiment.of(cell).scenario.arithmetic for cell in cells}
    if len(kinds) > 1:
        raise ParamError("--seeds: the cells differ in `arithmetic`: name those of one kind at a time")
    arithmetic.adopt(*kinds)
    check_environment()
    for cell in cells:
        runnable(Experiment.of(cell))  # ParamError for a name or a value that the method has not
    if jobs:
        os.environ["FEDREPRO_WORKERS"] = str(jobs)
    with contextlib.chdir(ROOT):  # names of stages are relative to it
        return run.main([*dict.fromkeys(map(run.partition_stage, cells))], jobs)


def _by_seed(result: Result, measure: str = "") -> dict[int, float]:
    """seed -> a measure of a result, by default its main one."""
    return dict(zip(result["seeds"], result["measures"][measure or result["headline"]]))


def _print(base: Cell, rows: dict[str, dict[int, float]], trained: Cell) -> None:
    """Print a line for each row, and one for the result in git.

    base     the cell
    rows     name of a row -> seed -> accuracy in percent
    trained  the cell into whose folder the results were written
    """
    print(f"{base}, accuracy")
    committed = base.folder() / "result.json"
    if committed.exists():
        result = read(committed)
        measure = Experiment.of(base).scenario.evaluation.measure
        if measure in result["measures"]:  # else it is of other test sets
            rows = rows | {"in the table": _by_seed(result, measure)}
    for label, by_seed in rows.items():
        print(f"  {label:<20} {summarise([*by_seed.values()])} (seeds {', '.join(map(str, by_seed))})")
    print(f"  written to {shorten(trained.folder())}")


# -- what a user types ---------------------------------------------------------------------------------------


def parse_seeds(text: str) -> tuple[int, ...]:
    """`7,8` -> (7, 8); ParamError unless these are different whole numbers."""
    seeds: list[int] = []
    with contextlib.suppress(ValueError):
        seeds = check(list[Whole], [*map(int, text.split(","))], "--seeds")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ParamError(f"--seeds {text!r:.80}: must be different whole numbers, such as 7,8")
    return tuple(seeds)


def _parse_values(text: str) -> tuple[str, list]:
    """`mu=0.001,0.01` -> ("mu", [0.001, 0.01]); ParamError for what is not NAME=VALUE,VALUE."""
    name, _, listed = text.partition("=")
    values = [*map(parse_value, listed.split(","))]
    if not name.isidentifier() or "" in values or len(set(values)) < len(values):
        raise ParamError(f"sweep {text!r:.80}: expected NAME=VALUE,VALUE, such as {RATE}=0.01,0.1")
    return name, values


def parse_value(text: str) -> int | float | bool | str:
    """`0.1` -> 0.1, `true` -> True; a text that is neither a number nor true or false stays a text."""
    with contextlib.suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, (int, float)):
            return value
    return text
