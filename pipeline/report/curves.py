"""Curves of methods over rounds: mean and range over the seeds, names and inks that figures share."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from pipeline.report import figures as draw
from pipeline.report.figures import Ink
from pipeline.report.study import Study
from pipeline.report.words import pretty
from pipeline.schema import MINIATURE, Cell

# Points of a line, at most: more are not seen in a figure of this width.
MOST_POINTS = 61
# Share of the rounds from which on all of a curve is drawn: the steep beginning would flatten the rest.
START = 0.15


def label(study: Study, method: str) -> str:
    """A method's name in a figure."""
    return pretty(study.label(method))


def method_inks(study: Study, names: Iterable[str]) -> dict[str, Ink]:
    """An ink for every method of the paper, by its place in paper.yaml and so alike in all figures; then for
    other names in their order."""
    methods = [label(study, method) for method in study.paper.methods]
    return draw.inks([*methods, *names], study.name)


def finished_methods(study: Study, scenario: str) -> list[Cell]:
    """The finished cells of a scenario in the first of the paper's grids, or miniature, that has some."""
    grids = [grid.methods for grid in study.paper.grids.values() if scenario in grid.scenarios]
    if study.paper.miniature and scenario == MINIATURE:
        grids = [study.paper.miniature.methods]
    for methods in grids:
        finished = list(study.finished([scenario], methods))
        if finished:
            return finished
    return []


def trailing_mean(values: pd.Series, window: int) -> pd.Series:
    """s_t = mean(y_max(1,t-window+1) .. y_t) of a series by round, at the rounds that it has (FedCRL Fig. 3).

    values  a number per round; rounds that were not evaluated are absent
    window  rounds of a mean; 1: the series as it is, else round 0, before training, is left out
    """
    if window == 1:
        return values
    values = values[values.index > 0]
    every = values.reindex(range(1, values.index.max() + 1)) if len(values) else values
    return every.rolling(window, min_periods=1).mean()[values.index]


def over_seeds(history: pd.DataFrame, measure: str, window: int = 1) -> pd.DataFrame:
    """Columns x, mean, low, high over the seeds, by round, of a measure that is smoothed seed by seed."""
    rows = history.dropna(subset=[measure]).set_index("round")
    smooth = pd.concat([trailing_mean(seed[measure], window) for _, seed in rows.groupby("seed")])
    table = smooth.groupby("round").agg(["mean", "min", "max"]).reset_index()
    chosen = np.unique(np.linspace(0, len(table) - 1, min(len(table), MOST_POINTS)).astype(int))
    return table.set_axis(["x", "mean", "low", "high"], axis=1).iloc[chosen]


def entering(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Curves from where they enter the range that all keep after the first rounds (START of them): the axis
    shows what distinguishes them."""
    late = [table[table["x"] >= START * table["x"].max()] for table in tables.values()]
    low = min(table["low"].min() for table in late)
    high = max(table["high"].max() for table in late)
    curves = {}
    for name, table in tables.items():
        outside = np.flatnonzero(~table["mean"].between(low, high))
        first = outside[-1] + 1 if len(outside) else 0
        curve = table.iloc[first:]
        curves[name] = curve.assign(low=curve["low"].clip(low, high), high=curve["high"].clip(low, high))
    return curves
