"""What a run measured, by name: from its result, its curve, its costs, and the points that a figure shows.

    average, clean.AVG, ...  a measure of result.json
    rounds.10-100.average    mean over the evaluated rounds 10 to 100 of a column of history.csv
    changes.average          how unsteady a curve is: root mean square of the change from one evaluated round,
                             round 1 first, to the next
    run.traffic              kB that a client sends and receives in a round, at four bytes a scalar
    run.memory               peak memory in MB, of the device where it has its own, else of the process
    run.seconds              wall time of a round
    figure1.vectors          of a figure's kept points, which are those of the first seed: of margins the mean
                             over the classes of `clients`, `mean` or `vectors`; of an embedding `silhouette`;
                             of a sphere `uniformity`
"""
import re
from pathlib import Path

import numpy as np

from pipeline.cells.results import history, lower_is_better
from pipeline.report2 import embedding, geometry
from pipeline.schema import ROOT, Cell

COSTS = {"run.traffic": "kB", "run.memory": "MB", "run.seconds": "s"}
_ROUNDS = re.compile(r"rounds\.(\d+)-(\d+)\.(.+)")
_FIGURE = re.compile(r"(figure[\w-]*)\.(clients|mean|vectors|silhouette|uniformity)")


def numbers(cell: Cell, result: dict, measure: str, root: Path = ROOT) -> dict[int, float]:
    """{seed: number} of one measure of a finished cell, seeds in order; empty where there is no such
    number."""
    seeds = result["seeds"]
    if found := _FIGURE.fullmatch(measure):
        value = _kept(found[1], found[2], cell, root)
        return {} if value is None else {min(seeds): value}
    if measure in COSTS:
        return dict(sorted(zip(seeds, _costs(result, measure))))
    if measure.startswith(("rounds.", "changes.")):
        return _of_curve(cell, measure, root)
    return dict(sorted(zip(seeds, result["measures"].get(measure, []))))


def scale(measure: str) -> str:
    """The other scale on which differences are checked: logit of percentages, ln of spreads, losses and
    costs; empty for the rest."""
    if lower_is_better(measure) or measure.startswith("changes."):
        return "ln"
    return "" if _FIGURE.fullmatch(measure) or measure.startswith("method.") else "logit"


def in_points(measure: str) -> bool:
    """Whether a difference is one of percent points."""
    return not (_FIGURE.fullmatch(measure) or measure in COSTS or measure.rpartition(".")[2] == "loss")


def _costs(result: dict, measure: str) -> list[float]:
    if measure == "run.traffic":
        return [result["traffic"]["bytes"] / 1000] * len(result["seeds"])
    if measure == "run.seconds":
        return [seconds / result["rounds"] for seconds in result["seconds"]]
    memory = result.get("memory") or {}
    known = (memory.get(name) or [None] for name in ("device_mb", "process_mb"))
    return next((found for found in known if None not in found), [])


def _of_curve(cell: Cell, measure: str, root: Path) -> dict[int, float]:
    window = _ROUNDS.fullmatch(measure)
    column = window[3] if window else measure.partition(".")[2]
    table = history(cell, root)
    if column not in table:
        return {}
    table = table[table["round"] > 0].dropna(subset=[column]).sort_values("round")
    if not window:
        return {int(seed): float(np.sqrt((rows[column].diff().dropna() ** 2).mean()))
                for seed, rows in table.groupby("seed") if len(rows) > 1}
    table = table[table["round"].between(int(window[1]), int(window[2]))]
    return {int(seed): float(mean) for seed, mean in table.groupby("seed")[column].mean().items()}


def _kept(figure: str, statistic: str, cell: Cell, root: Path) -> float | None:
    if statistic == "silhouette":
        kept = embedding.read(figure, cell, root)
        return kept.silhouette if kept else None
    if statistic == "uniformity":
        points = geometry.read("sphere", figure, cell, root)
        return None if points is None else uniformity(points[["x", "y", "z"]].to_numpy())
    table = geometry.read("margins", figure, cell, root)
    return None if table is None or table[statistic].isna().all() else float(table[statistic].mean())


def uniformity(points: np.ndarray) -> float:
    """ln of the mean of exp(-2 |u - v|^2) over all pairs of directions u, v of points (n, d); Wang and Isola
    (2020). Lower: more uniform."""
    u = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    apart = np.maximum(2 - 2 * u @ u.T, 0.0)[np.triu_indices(len(u), 1)]
    return float(np.log(np.exp(-2 * apart).mean()))
