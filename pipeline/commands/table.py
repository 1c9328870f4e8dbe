"""`fedrepro export results`: every measured number of every seed and round as one tidy table.

A row has one number, with the paper, scenario, method, seed, round and measure that it is of.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipeline import files
from pipeline.cells.documents import Result
from pipeline.cells.results import STATE, survey
from pipeline.cells.results import history as history_of
from pipeline.errors import ParamError
from pipeline.schema import ROOT, Cell, load_paper

COLUMNS = ["paper", "scenario", "method", "seed", "round", "measure", "value", "hook"]
# Columns of history.csv that are no measures.
NO_MEASURES = ("seed", "round", STATE, "participants")
# How the names of measures begin that are not of the models before or after local training.
WITHOUT_HOOK = ("loss", "method.", "unseen.")
# Prefixes of measures: of the models before local training in the round, and after it.
HOOKS = ("pre", "post")


def export(
    wanted: Sequence[str] = (), csv: str | None = None, parquet: str | None = None, root: Path = ROOT
) -> int:
    """Write the table as CSV, as Parquet, or both.

    wanted   keys of papers; empty: all
    csv      file to write; None: none
    parquet  file to write; None: none
    root     folder of the repository

    Returns the exit code. Raises ParamError for an unknown paper, or without a file. Results that cannot be
    read are named on standard error and left out.
    """
    if not csv and not parquet:
        raise ParamError("export results: name a file: --csv results.csv or --parquet results.parquet")
    for name in wanted:
        load_paper(name, root)  # ParamError for an unknown one
    results, problems = survey(root)
    for problem in problems.values():
        print(f"left out: {problem}", file=sys.stderr)

    chosen = {cell: result for cell, result in results.items() if not wanted or cell.paper in wanted}
    table = tidy(chosen, root)
    if csv:
        files.write_text(Path(csv), table.to_csv(index=False, lineterminator="\n"))
    if parquet:
        files.write_bytes(Path(parquet), table.to_parquet(index=False, engine="pyarrow"))
    where = " and ".join(name for name in (csv, parquet) if name)
    print(f"{where}: {len(table):,} numbers of {len(chosen)} cells; columns {', '.join(COLUMNS)}")
    return 0


def tidy(results: dict[Cell, Result], root: Path = ROOT) -> pd.DataFrame:
    """A row for each number of each history.csv, with COLUMNS.

    `value` is in percent, except for losses and for what methods report of themselves (`method.`). `hook`
    says which models were scored, those before (`pre`) or after (`post`) local training; it is empty for a
    number that is of neither.

    results  cell -> its result
    root     folder of the repository
    """
    parts = [_of_cell(cell, results[cell], root) for cell in sorted(results, key=str)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def _of_cell(cell: Cell, result: Result, root: Path) -> pd.DataFrame:
    """The rows of one cell, with COLUMNS."""
    wide = history_of(cell, root)
    names = [name for name in wide if name not in NO_MEASURES]
    table = wide.melt(["seed", "round"], names, var_name="measure", value_name="value").dropna(subset="value")
    measures = {}
    hooks = {}
    for name in names:
        measures[name], hooks[name] = _measure_and_hook(name, result["hook"])
    table["hook"] = table["measure"].map(hooks)
    table["measure"] = table["measure"].map(measures)
    return table.assign(paper=cell.paper, scenario=cell.scenario, method=cell.method)[COLUMNS]


def _measure_and_hook(name: str, headline: str) -> tuple[str, str]:
    """Split the name of a column: `post.average` -> ("average", "post").

    name      of the column in history.csv
    headline  the hook that the scenario's tables score, which a name without prefix is of
    """
    prefix, _, rest = name.partition(".")
    if prefix in HOOKS:
        return rest, prefix
    if name.startswith(WITHOUT_HOOK):
        return name, ""
    return name, headline
