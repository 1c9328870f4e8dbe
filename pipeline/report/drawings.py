"""Which figures a page shows, of the paper's own scenarios and of the miniature, with the words beside them."""
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from pipeline.errors import FedReproError
from pipeline.params import MINIATURE, ROOT, Cell, Figure, Paper, shorten
from pipeline.report import embedding, figures
from pipeline.report.words import scenario_title
from pipeline.results import history


@dataclass(frozen=True)
class Drawing:
    """One SVG: where it goes, from reports/, how large it is, and what a reader without it must know."""
    path: str
    alt: str
    caption: str
    size: tuple[int, int]
    draw: Callable[[], str]


@dataclass(frozen=True)
class FigureView:
    """A figure of the paper: drawn from its own scenarios, from the miniature, or not yet."""
    key: str
    number: str
    title: str
    drawing: Drawing | None
    miniature: Drawing | None

    @property
    def heading(self) -> str:
        return f"Figure {self.number}"


def figure_views(key: str, paper: Paper, results: dict[Cell, dict], root: Path = ROOT) -> list[FigureView]:
    """The paper's figures that can be drawn, in its order."""
    draw = {"curves": _curves, "embedding": _embedding}
    return [FigureView(name, figure.number, figure.title,
                       draw[figure.kind](key, name, figure, figure.scenarios, paper, results, root),
                       draw[figure.kind](key, name, figure, [MINIATURE], paper, results, root))
            for name, figure in paper.figures.items() if figure.kind]


def _path(key: str, name: str, scenarios: list[str]) -> str:
    return f"figures/{key}-{name}{'-' + MINIATURE if scenarios == [MINIATURE] else ''}.svg"


# -- measures over rounds --------------------------------------------------------------------------------------------

def _curves(key, name, figure: Figure, scenarios, paper, results, root) -> Drawing | None:
    runs = {scenario: [cell for method in figure.methods or paper.methods if (cell := Cell(key, scenario, method)) in results]
            for scenario in scenarios}
    runs = {scenario: found for scenario, found in runs.items() if found}
    if not runs:
        return None
    measures = figure.measures or [results[next(iter(runs.values()))[0]]["headline"]]
    smoothed = f" Smoothed: trailing mean of {figure.window} rounds, of fewer at the beginning." if figure.window > 1 else ""
    return curves_of(_path(key, name, scenarios), runs, measures, paper, root, figure.window,
                     f"Measured {' and '.join(_measure_words(m) for m in measures)} over rounds.{smoothed}")


def curves_of(path: str, runs: dict[str, list[Cell]], measures: list[str], paper: Paper, root: Path, window: int, caption: str) -> Drawing:
    """Curves of the given runs of each scenario, a line per method."""
    methods = {cell.method for found in runs.values() for cell in found}
    band = " Shaded: the range of the seeds." if len(methods) <= figures.MOST_BANDS else ""
    titles = {scenario: scenario_title(paper, scenario) for scenario in runs}
    lossless = " Methods that descend no single loss (pFedMe, Per-FedAvg) have no line there." if "loss" in measures else ""
    return Drawing(path, f"Measured {' and '.join(_measure_words(m) for m in measures)} over rounds, one line per method: "
                   + "; ".join(titles.values()),
                   f"{caption} Mean over seeds.{band}{lossless}", figures.curves_size(len(runs), len(measures)),
                   partial(_draw_curves, {titles[scenario]: found for scenario, found in runs.items()}, measures, paper, root, window))


def _draw_curves(runs: dict[str, list[Cell]], measures: list[str], paper: Paper, root: Path, window: int) -> str:
    tables = {title: {paper.label(cell.method): _history(cell, measures, root) for cell in found} for title, found in runs.items()}
    return figures.curves(tables, measures, window)


def _history(cell: Cell, measures: list[str], root: Path) -> pd.DataFrame:
    table = history(cell, root)
    for measure in measures:
        if measure != "loss" and (measure not in table or table[measure].isna().all()):
            raise FedReproError(f"{shorten(cell.folder(root) / 'history.csv')}: the column {measure!r} is missing or empty")
    return table


def _measure_words(measure: str) -> str:
    return {"loss": "training loss", "weighted": "accuracy (weighted by test size)"}.get(measure, f"accuracy ({measure})")


# -- representations in the plane --------------------------------------------------------------------------------------

def _embedding(key, name, figure: Figure, scenarios, paper, results, root) -> Drawing | None:
    cells = [cell for cell in embedding.cells(key, paper, figure) if cell.scenario in scenarios and cell in results]
    found = {cell: kept for cell in cells if (kept := embedding.read(name, cell, root))}
    if not found:
        return None
    several = len({cell.scenario for cell in found}) > 1
    titles = {cell: paper.label(cell.method) + (f", {scenario_title(paper, cell.scenario)}" if several else "") for cell in found}
    facts = "; ".join(f"{titles[cell]} {kept.silhouette:.3f}" for cell, kept in found.items())
    clients = max(kept.points["client"].nunique() for kept in found.values())
    images = max(len(kept.points) for kept in found.values())
    drawn = f", {figures.MOST_POINTS:,} of them drawn" if images > figures.MOST_POINTS else ""
    caption = (f"t-SNE of the representations of {images:,} test images{drawn}, of {clients} clients; "
               f"colour and shape by label. Cosine silhouette of the representations themselves by label, −1 to 1: {facts}.")
    panels = {f"{titles[cell]}: silhouette {kept.silhouette:.3f}": kept.points for cell, kept in found.items()}
    return Drawing(_path(key, name, scenarios), f"t-SNE of representations, one panel per method: {', '.join(titles.values())}", caption,
                   figures.points_size(len(panels)), partial(figures.points, panels))
