"""`fedrepro run CELL --seeds 7,8`: train with extra seeds and compare to git's mean, left unchanged."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.cells import arithmetic
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import read, summarise
from pipeline.errors import ParamError, unknown
from pipeline.schema import MINIATURES, ROOT, Cell, ExtraSeeds, load_paper, planned, shorten


def parse(text: str) -> tuple[int, ...]:
    """`7,8` -> (7, 8); ParamError for what is not different whole numbers."""
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise ParamError(f"--seeds {text!r:.80}: must be whole numbers, such as 7,8")
    seeds = tuple(map(int, parts))
    if len(set(seeds)) < len(seeds) or max(seeds) >= 2**31:
        raise ParamError(f"--seeds {text!r:.80}: must be different numbers below 2147483648")
    return seeds


def named(name: str) -> list[Cell]:
    """The cell of that name, or the cells of a scenario, paper/scenario; ParamError for an unknown name."""
    if name.count("/") != 1:
        cell = Cell.parse(name)
        Experiment.of(cell)
        return [cell]
    key, scenario = name.split("/")
    load_paper(key)
    every = planned(key)
    if not (some := [cell for cell in every if cell.scenario == scenario]):
        known = {cell.scenario for cell in every}
        raise ParamError(f"papers/{key}/paper.yaml: grids: {unknown('scenario', scenario, known)}")
    return some


def cells(names: Sequence[str]) -> list[Cell]:
    """The cells that are named, of a scenario all; ParamError for a paper, a stage or an unknown name."""
    chosen = [cell for name in names for cell in named(name)]
    if not chosen:
        raise ParamError("--seeds: name a cell (fedlsa/mini/fedavg) or a scenario (fedlsa/mini)")
    return list(dict.fromkeys(chosen))


def partition_stage(cell: Cell) -> str:
    """The stage that brings a cell's data and deals them to its clients."""
    name = "" if cell.scenario in MINIATURES else f"grids/dvc.yaml:partition@{cell.scenario}"
    return f"papers/{cell.paper}/{name or 'dvc.yaml:partition-mini'}"


def train(chosen: Sequence[Cell], seeds: tuple[int, ...]) -> None:
    """Train each cell with these seeds, and print each number with the committed mean.

    Its files go to papers/<paper>/extra-seeds/<scenario>/<method>, which git ignores.
    """
    kinds = {Experiment.of(cell).scenario.arithmetic for cell in chosen}
    if len(kinds) > 1:
        raise ParamError("--seeds: the cells differ in `arithmetic`: name those of one kind at a time")
    arithmetic.adopt(*kinds)  # before torch is imported
    from pipeline.cells.training import train_cell
    from stages.partition import deal

    dealt: set[Path] = set()
    for cell in chosen:
        extra = ExtraSeeds(cell.paper, cell.scenario, cell.method, seeds)
        folder = ROOT / "papers" / extra.paper / "partitions" / extra.partition
        if folder not in dealt:
            scenario = load_paper(cell.paper).scenarios[cell.scenario]
            deal(replace(scenario, seeds=list(seeds)), _where(cell), folder, f"{cell.paper}/{cell.scenario}")
            dealt.add(folder)
        print("\n".join(summary(extra, train_cell(extra))), flush=True)
    print(
        f"To have them in the tables: add the seeds to `seeds` of {_where(chosen[0])}, then\n"
        f"`fedrepro run {chosen[0]}`; a seed that was trained here is not trained again"
    )


def summary(cell: ExtraSeeds, result: dict) -> list[str]:
    """The lines for one cell: each seed, their mean, and the mean that git has."""
    headline = result["headline"]
    lines = [f"{cell}, {headline} accuracy"]
    for seed, value in zip(cell.seeds, result["measures"][headline]):
        lines.append(f"  seed {seed:<8}{value:6.2f} %")
    lines.append(f"  {'yours':<13}{mean(result)}")
    base = Cell(cell.paper, cell.scenario, cell.method)
    if (committed := base.folder() / "result.json").exists():
        lines.append(f"  {'in the table':<13}{mean(read(committed))}")
    return [*lines, f"  written to {shorten(cell.folder())}"]


def mean(result: dict) -> str:
    """`57.20 ± 0.31 % (seeds 0, 1)`."""
    number = summarise(result["measures"][result["headline"]])
    spread = "" if number.std is None else f" ± {number.std:.2f}"
    return f"{number.mean:6.2f}{spread} % (seeds {', '.join(map(str, result['seeds']))})"


def _where(cell: Cell) -> str:
    if cell.scenario in MINIATURES:
        return f"papers/{cell.paper}/paper.yaml: miniature.scenario"
    return f"papers/{cell.paper}/paper.yaml: scenarios.{cell.scenario}"
