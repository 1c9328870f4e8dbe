"""Which figures a page shows, of the paper's own scenarios and of the miniature, with their captions."""
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells.results import summarise
from pipeline.errors import FedReproError
from pipeline.report import clouds, embedding, figures, geometry
from pipeline.report.hues import Key, keys
from pipeline.report.pictures import Picture, examples_of, examples_path
from pipeline.report.study import Study
from pipeline.report.words import measure_words
from pipeline.schema import COMPUTED, MINIATURE, PICTURE, Cell, Figure, shorten


@dataclass(frozen=True)
class Drawing:
    """One SVG: its path from reports/, its size, and its text alternative."""
    path: str
    alt: str
    caption: str
    size: tuple[int, int]
    draw: Callable[[], str]
    numbers: Callable[[], list[dict]] | None = None   # its panels, for the page's own chart
    keys: tuple[Key, ...] = ()                        # colours of the lines there

    @property
    def data(self) -> dict:
        """What the page's script draws."""
        keys = {key.name: [key.hue, key.shape] for key in self.keys}
        return {"keys": keys, "panels": self.numbers() if self.numbers else []}


@dataclass(frozen=True)
class FigureView:
    """A figure of the paper: drawn from its own scenarios, from the miniature, or not yet."""
    key: str
    number: str
    title: str
    drawing: Drawing | Picture | None
    miniature: Drawing | Picture | None
    command: str  # runs the figure's own cells that are missing; empty where it has all

    @property
    def heading(self) -> str:
        """`Figure 5`, `Figure R1` of a supplement; a figure that the paper does not have is lettered alone
        and has a name of ours."""
        printed = any(letter.isdigit() for letter in self.number)
        return f"Figure {self.number}" if printed else f"Further figure {self.number}"


def figure_views(study: Study) -> list[FigureView]:
    """The paper's figures that can be drawn, in its order."""
    draw = {
        "curves": _curves,
        "sweep": _sweep,
        "embedding": _embedding,
        "sphere": _sphere,
        "margins": _margins,
        "matrix": _matrices,
        "transfer": _transfer,
        "corruptions": _corruptions,
        "pairs": _pairs,
        "clients": _clients,
        "images": _images,
    }
    return [FigureView(name, figure.number, figure.title,
                       draw[figure.kind](study, name, figure, figure.scenarios),
                       draw[figure.kind](study, name, figure, [MINIATURE]),
                       _command(study, name, figure))
            for name, figure in study.paper.figures.items() if figure.kind]


def _command(study: Study, name: str, figure: Figure) -> str:
    """`fedrepro run 'papers/fedcrl/dvc.yaml:main@cifar10-dir-01-*'`, for the scenarios of which a planned
    cell is missing."""
    key, again = study.key, _KEPT.get(figure.kind or "", "").format(key=study.key)
    if figure.kind in ("clients", "images"):          # of the data alone
        made = {scenario: _counts(study, scenario) if figure.kind == "clients" else
                examples_path(key, name, scenario, study.root) for scenario in figure.scenarios}
        lacking = [
            f"papers/{key}/dvc.yaml:partition@{scenario}"
            for scenario, path in made.items()
            if not path.exists()
        ]
        return f"fedrepro run {' '.join(lacking)}{again}" if lacking else ""
    missing = [
        cell
        for grid in study.paper.grids.values()
        for scenario in figure.scenarios
        for method in grid.methods
        if scenario in grid.scenarios
        and method in (figure.methods or grid.methods)
        and (cell := study.cell(scenario, method)) not in study.results
    ]
    if missing:
        return run_command(study, missing) + again
    undone = figure.kind in _KEPT and any(not embedding.kept(name, cell, study.root).exists()
                                          for cell in study.finished(figure.scenarios, figure.methods))
    return f"python -m stages.figures {key}" if undone else ""


def run_command(study: Study, cells: list[Cell]) -> str:
    """What runs the scenarios of these cells."""
    stages = dict.fromkeys(f"'{cell.stage(study.paper).removesuffix(cell.method)}*'" for cell in cells)
    return f"fedrepro run {' '.join(stages)}"


# Kinds that are computed from representations or images and kept in git.
_KEPT = dict.fromkeys((*COMPUTED, PICTURE), "; python -m stages.figures {key}")


def _path(study: Study, name: str, scenarios: list[str]) -> str:
    return f"figures/{study.key}-{name}{'-' + MINIATURE if scenarios == [MINIATURE] else ''}.svg"


# -- measures over rounds ------------------------------------------------------------------------------------

def _curves(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    runs = {
        scenario: found
        for scenario in scenarios
        if (found := list(study.finished([scenario], figure.methods)))
    }
    if not runs:
        return None
    measures = figure.measures or [study.results[next(iter(runs.values()))[0]]["headline"]]
    smoothed = (
        f" Smoothed: trailing mean of {figure.window} rounds, of fewer at the beginning."
        if figure.window > 1
        else ""
    )
    return curves_of(study, _path(study, name, scenarios), runs, measures, figure.window,
                     f"Measured {' and '.join(_measure_words(m) for m in measures)} over rounds.{smoothed}")


def curves_of(
    study: Study, path: str, runs: dict[str, list[Cell]], measures: list[str], window: int, caption: str
) -> Drawing:
    """Curves of the given runs of each scenario, a line per method."""
    methods = {cell.method for found in runs.values() for cell in found}
    band = " Shaded: the range of the seeds." if len(methods) <= figures.MOST_BANDS else ""
    titles = {scenario: study.title(scenario) for scenario in runs}
    tables = partial(_tables, study, {titles[scenario]: found for scenario, found in runs.items()}, measures)
    return Drawing(
        path,
        f"Measured {' and '.join(_measure_words(m) for m in measures)} over rounds, one line per method: "
        + "; ".join(titles.values()),
        f"{caption} Mean over seeds.{band}",
        figures.curves_size(len(runs), len(measures)),
        lambda: figures.curves(tables(), measures, window),
        lambda: figures.curve_data(tables(), measures, window),
        _keys(study, (study.label(cell.method) for found in runs.values() for cell in found)),
    )


def _tables(
    study: Study, runs: dict[str, list[Cell]], measures: list[str]
) -> dict[str, dict[str, pd.DataFrame]]:
    return {
        title: {study.label(cell.method): _history(study, cell, measures) for cell in found}
        for title, found in runs.items()
    }


def _keys(study: Study, labels: Iterable[str]) -> tuple[Key, ...]:
    return tuple(keys(labels, study.name))


def _history(study: Study, cell: Cell, measures: list[str]) -> pd.DataFrame:
    table = study.history(cell)
    for measure in measures:
        if measure != "loss" and (measure not in table or table[measure].isna().all()):
            raise FedReproError(
                f"{shorten(cell.folder(study.root) / 'history.csv')}: the column {measure!r} is missing or "
                "empty"
            )
    return table


def _measure_words(measure: str) -> str:
    return "training loss" if measure == "loss" else f"accuracy ({measure_words(measure)})"


# -- measures against a number -------------------------------------------------------------------------------

def _sweep(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    cells = list(study.finished(scenarios, figure.methods))
    measures = figure.measures or [study.results[cells[0]]["headline"]] if cells else []
    panels = {
        over: {
            _measure_words(measure): lines
            for measure in measures
            if (lines := _lines(study, over, measure, cells, figure))
        }
        for over in figure.over
    }
    panels = {_symbol(over): rows for over, rows in panels.items() if rows}
    if not panels:
        return None
    what = " and ".join(_measure_words(measure) for measure in measures)
    numbers = " and ".join(panels)
    labels = _keys(study, (label for rows in panels.values() for lines in rows.values() for label in lines))
    return Drawing(
        _path(study, name, scenarios),
        f"Measured {what} against {numbers}",
        f"Measured {what} against {numbers}. Mean over seeds; bars or shading: standard deviation over "
        "seeds. Points that were not run are not there.",
        figures.sweep_size(len(panels), len(measures), len(labels)),
        partial(figures.sweep, panels),
        partial(figures.sweep_data, panels),
        labels,
    )


def _lines(
    study: Study, over: str, measure: str, cells: list[Cell], figure: Figure
) -> dict[str, pd.DataFrame]:
    """label -> x, mean, std by x, of lines with two points or more.

    A number of the scenario gives a line per method, one of the method a line per scenario, in which all else
    stays as in the figure's first method.
    """
    found: dict[str, list] = {}
    for cell in cells:
        result, of_scenario = study.results[cell], "." in over
        values, hyper = asdict(study.paper.scenarios[cell.scenario]), result["hyper"]
        number = _number(values, over) if of_scenario else hyper.get(over)
        if not of_scenario and not _varies_only(over, cell, figure, study.results):
            number = None
        if isinstance(number, (int, float)) and result["measures"].get(measure):
            label = study.label(cell.method) if of_scenario else study.title(cell.scenario)
            summary = summarise(result["measures"][measure])
            found.setdefault(label, []).append((float(number), summary.mean, summary.std))
    tables = {
        label: pd.DataFrame(points, columns=["x", "mean", "std"])
        .drop_duplicates("x")
        .astype(float)
        .sort_values("x")
        for label, points in found.items()
    }
    return {label: table for label, table in tables.items() if len(table) > 1}


def _symbol(over: str) -> str:
    """The number's own name; `lambda` is a word of Python, so that it is `lam` in code."""
    name = over.rpartition(".")[2]
    return "lambda" if name == "lam" else name


def _number(values: dict, over: str):
    found: Any = values
    for key in over.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _varies_only(over: str, cell: Cell, figure: Figure, results) -> bool:
    """Whether the cell's other hyper-parameters are those of the figure's first method in the same
    scenario."""
    first = results.get(Cell(cell.paper, cell.scenario, figure.methods[0])) if figure.methods else None
    mine, base = results[cell]["hyper"], first["hyper"] if first else {}
    return all(mine.get(key) == base.get(key) for key in mine.keys() | base.keys() if key != over)


# -- two measures side by side --------------------------------------------------------------------------

def _pairs(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    panels = {study.title(scenario): table for scenario in scenarios
              if (table := _pair(study, scenario, figure)) is not None}
    if not panels:
        return None
    first, second = (measure_words(measure) for measure in figure.measures)
    return Drawing(_path(study, name, scenarios),
                   f"Measured accuracy of every method, {first} and {second}: {'; '.join(panels)}",
                   f"Measured accuracy of every method: ring, {first}; disc, {second}. Mean over seeds.",
                   figures.pairs_size(len(panels), max(map(len, panels.values()))),
                   partial(figures.pairs, panels, [first, second]))


def _pair(study: Study, scenario: str, figure: Figure) -> pd.DataFrame | None:
    """Columns first, second by method, of the methods that have both measures; None where none has."""
    found = {}
    for cell in study.finished([scenario], figure.methods):
        measured = study.results[cell]["measures"]
        if all(measured.get(measure) for measure in figure.measures):
            found[study.label(cell.method)] = [
                summarise(measured[measure]).mean for measure in figure.measures
            ]
    return pd.DataFrame.from_dict(found, orient="index", columns=["first", "second"]) if found else None


# -- data ----------------------------------------------------------------------------------------------------

def _counts(study: Study, scenario: str) -> Path:
    return study.root / "papers" / study.key / "runs" / scenario / "clients.csv"


def _clients(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    panels = {study.title(scenario): table for scenario in scenarios
              if (table := _dealt(_counts(study, scenario))) is not None}
    if not panels:
        return None
    return Drawing(_path(study, name, scenarios), f"Images per class and client: {'; '.join(panels)}",
                   "Training images per class and client; the area of a disc is their number.",
                   figures.dealt_size(panels), partial(figures.dealt, panels))


def _dealt(path: Path) -> pd.DataFrame | None:
    """Training images, a row per client and a column per class; None where the partition was not made."""
    if not path.exists():
        return None
    try:
        table = pd.read_csv(path, index_col="client")
        return table.drop(columns=["domain", "train", "test"]).astype(int)
    except (ValueError, KeyError) as error:
        raise FedReproError(f"{shorten(path)}: not the images per class and client: {error}") from None


def _images(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Picture | None:
    """One scenario's: the miniature, or the first of the figure's whose picture is kept."""
    found = [
        examples_of(study.key, name, scenario, study.title(scenario), study.root) for scenario in scenarios
    ]
    return next(filter(None, found), None)


# -- how class means lie -------------------------------------------------------------------------------------

def _kept(
    kind: str, study: Study, name: str, figure: Figure, scenarios: list[str]
) -> dict[Cell, pd.DataFrame]:
    """What is kept of the figure's cells that have a result."""
    cells = study.finished(scenarios, figure.methods)
    return {
        cell: table for cell in cells if (table := geometry.read(kind, name, cell, study.root)) is not None
    }


def _margins(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    found = _kept("margins", study, name, figure, scenarios)
    if not found:
        return None
    titles = _titles(found, study)
    sent = any(table["vectors"].notna().any() for table in found.values())
    facts = "; ".join(f"{titles[cell]} {_margin_facts(table)}" for cell, table in found.items())
    diamond = ", diamond: the vectors that the server sends per class (prototypes, anchors)" if sent else ""
    caption = (
        "Margin of a class: the L2 distance from its prototype to the nearest other. A client's prototypes "
        "are the class means of its training images under its locally trained model; ring: the client with "
        f"the largest margin, disc: the means over clients{diamond}. "
        "Every panel has a scale of its own. "
        f"Mean over classes: {facts}."
    )
    return Drawing(
        _path(study, name, scenarios),
        f"Margins between class means, one panel per method: {', '.join(titles.values())}",
        caption,
        clouds.margins_size(len(found)),
        partial(clouds.margins, {titles[cell]: table for cell, table in found.items()}),
    )


def _margin_facts(table: pd.DataFrame) -> str:
    marks = {"ring": "clients", "disc": "mean", "diamond": "vectors"}
    return ", ".join(
        f"{mark} {table[column].mean():.3f}" for mark, column in marks.items() if table[column].notna().any()
    )


def _matrices(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    found = _kept("matrix", study, name, figure, scenarios)
    if not found:
        return None
    titles = _titles(found, study)
    rows = {f"{titles[cell]}: {client}" if len(found) > 1 else client:
            {f"{images} images": square.pivot(index="row", columns="column", values="value").to_numpy()
             for images, square in one.groupby("images", sort=False)}
            for cell, table in found.items() for client, one in table.groupby("client", sort=False)}
    most = max(len(row) for row in rows.values())
    where = "the same public images" + (
        " (left) and on the private images of the client's own domain (right)" if most > 1 else ""
    )
    return Drawing(
        _path(study, name, scenarios),
        f"Cross-correlation matrices of logits, a row per client: {', '.join(rows)}",
        "Cross-correlation of each client's logits with the mean logits of all clients, by class, on "
        f"{where}, with the mean of "
        "the diagonal: blue positive, orange negative, the fuller the larger. Method: "
        f"{', '.join(titles.values())}.",
        clouds.matrices_size(len(rows), most),
        partial(clouds.matrices, rows),
    )


def _titles(found, study: Study) -> dict[Cell, str]:
    """Method of every cell, with its scenario where there are several."""
    several = len({cell.scenario for cell in found}) > 1
    return {
        cell: study.label(cell.method) + (f", {study.title(cell.scenario)}" if several else "")
        for cell in found
    }


# -- representations in the plane ----------------------------------------------------------------------------

def _embedding(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    cells = study.finished(scenarios, figure.methods)
    found = {cell: kept for cell in cells if (kept := embedding.read(name, cell, study.root))}
    if not found:
        return None
    titles = _titles(found, study)
    facts = "; ".join(f"{titles[cell]} {kept.silhouette:.3f}" for cell, kept in found.items())
    clients = max(kept.points["client"].nunique() for kept in found.values())
    images = max(len(kept.points) for kept in found.values())
    drawn = f", {clouds.MOST_POINTS:,} of them drawn" if images > clouds.MOST_POINTS else ""
    caption = (
        f"t-SNE of the representations of {images:,} test images{drawn}, of {clients} clients; "
        "colour and shape by label. Cosine silhouette of the representations themselves by label, −1 to 1: "
        f"{facts}."
    )
    panels = {
        f"{titles[cell]}: silhouette {kept.silhouette:.3f}": kept.points for cell, kept in found.items()
    }
    return Drawing(
        _path(study, name, scenarios),
        f"t-SNE of representations, one panel per method: {', '.join(titles.values())}",
        caption,
        clouds.points_size(len(panels)),
        partial(clouds.points, panels),
    )


def _sphere(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    found = _kept("sphere", study, name, figure, scenarios)
    if not found:
        return None
    titles = _titles(found, study)
    caption = (
        f"Representations of {max(map(len, found.values())):,} test images by direction and length, seen "
        "from the front; the circle is the "
        "sphere of the mean length, faint points lie behind. The direction is that of the three strongest "
        f"singular vectors.{_uniformities(study, name, titles)}"
    )
    panels = {titles[cell]: table for cell, table in found.items()}
    return Drawing(
        _path(study, name, scenarios),
        f"Representations on the unit sphere, one panel per method: {', '.join(titles.values())}",
        caption,
        clouds.points_size(len(panels)),
        partial(clouds.sphere, panels),
    )


def _uniformities(study: Study, name: str, titles: dict[Cell, str]) -> str:
    measured = {title: geometry.kept_uniformity(name, cell, study.root) for cell, title in titles.items()}
    facts = "; ".join(f"{title} {value:.3f}" for title, value in measured.items() if value is not None)
    return facts and (" Uniformity of the representations in all their dimensions (Wang and Isola 2020; "
                      f"lower is more uniform): {facts}.")


def _transfer(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    found = _kept("transfer", study, name, figure, scenarios)
    if not found:
        return None
    titles = _titles(found, study)
    rows = {titles[cell]: dict(_transfer_panels(table, study.results[cell])) for cell, table in found.items()}
    images = max(len(points) for row in rows.values() for points, _ in row.values())
    caption = (
        f"t-SNE of the features that one client's model, of the first seed, makes of test images, {images:,} "
        "at most of a domain: "
        "its own (left) and another one (right); every panel is a t-SNE of its own, colour and shape by "
        "label. Below it how many of "
        "these images that model labels rightly, and the accuracy of the tables, mean over seeds: "
        "inter-domain is the mean over all "
        "other domains."
    )
    return Drawing(
        _path(study, name, scenarios),
        f"t-SNE of one client's features on two domains, a row per method: {', '.join(rows)}",
        caption,
        clouds.transfers_size(len(rows)),
        partial(clouds.transfers, rows),
    )


def _transfer_panels(table: pd.DataFrame, result: dict) -> Iterator[tuple[str, tuple[pd.DataFrame, str]]]:
    """(`M → U`, (its points, the words below)): the client's own domain comes first in the table."""
    for kind, ((client, domain), points) in zip(
        ("intra", "inter"), table.groupby(["client", "domain"], sort=False), strict=True
    ):
        words = f"{100 * points['right'].mean():.1f} % of these images right"
        if measured := result["measures"].get(f"{kind}.{client}"):
            words += f"\n{kind}-domain accuracy {summarise(measured).mean:.2f} %"
        yield f"{client} → {domain}", (points, words)


# -- accuracy by corruption ----------------------------------------------------------------------------------

def _corruptions(study: Study, name: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    found = _kept("corruptions", study, name, figure, scenarios)
    if not found:
        return None
    titles = _titles(found, study)
    tables = {titles[cell]: table for cell, table in found.items()}
    images = max(table["images"].sum() for table in tables.values())
    least = min(table.groupby("corruption")["images"].sum().min() for table in tables.values())
    real = dict.fromkeys(cell.scenario for cell in found if cell.scenario != MINIATURE)
    caption = (
        "".join(f"{study.title(scenario)}. " for scenario in real)
        + f"Accuracy on {images:,} test images, each with one corruption at one severity; mean over clients, "
        "first seed, models after the last round. Left by severity, right by corruption, of which each has "
        f"{least} images or more."
    )
    return Drawing(
        _path(study, name, scenarios),
        f"Accuracy by severity and by corruption, of {', '.join(tables)}",
        caption,
        figures.corruptions_size(),
        partial(figures.corruptions, tables),
    )
