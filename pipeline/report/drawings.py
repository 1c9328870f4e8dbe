"""Choose and draw the figures of a paper's page: those that the paper has, then additional ones.

`figures(study)` gives them in order; `curves(study, cells)` the accuracy over rounds of any cells.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from statistics import fmean

import numpy as np
import pandas as pd

from pipeline.cells.results import summarise
from pipeline.data.pictures import examples_path, size
from pipeline.data.reading import reading
from pipeline.errors import FedReproError
from pipeline.report import figures as draw
from pipeline.report import geometry
from pipeline.report.extras import EXTRA, drawn, entering, finished_methods, label, method_inks, over_seeds
from pipeline.report.figures import Ink, Panel, Picture
from pipeline.report.study import Study
from pipeline.report.words import measure_words, pretty
from pipeline.schema import MINIATURE, MINIATURES, Cell, Figure, shorten

OURS = "Ours"
Stored = dict[str, tuple[Cell, pd.DataFrame]]
ELSEWHERE = " (not in the paper)"  # how the title of a figure of ours ends in paper.yaml


@dataclass(frozen=True)
class FigureView:
    """A figure of the paper, or one of ours, from the paper's scenarios and from the miniature."""

    key: str
    # Figure 5; OURS
    heading: str
    title: str
    picture: Picture
    miniature: Picture


def figures(study: Study) -> list[FigureView]:
    """The paper's figures that are drawn at all, in its order, then those of ours that show something."""
    views: list[FigureView] = []
    for key, figure in study.paper.figures.items():
        if figure.kind or figure.function:
            drawer = KINDS[figure.kind] if figure.kind else drawn
            # A function may need what the paper's scenarios alone measure.
            miniature = drawer(study, key, figure, [MINIATURE]) if figure.kind else Picture()
            # Nothing where another figure has the same.
            miniature = Picture() if miniature in [view.miniature for view in views] else miniature
            printed = any(letter.isdigit() for letter in figure.number)  # also R1, R2 of a supplement
            heading = f"Figure {figure.number}" if printed else OURS
            title = figure.title.removesuffix(ELSEWHERE)
            picture = drawer(study, key, figure, figure.scenarios)
            views.append(FigureView(key, heading, title, picture, miniature))
    return views + list(_ours(study))


def _ours(study: Study) -> Iterator[FigureView]:
    """Pictures that no paper has: of the setting with most runs of one grid, and of the miniature."""
    seeds = {
        name: sum(len(study.results[cell]["seeds"]) for cell in finished_methods(study, name))
        for name in study.runs
        if name not in MINIATURES
    }
    main = max(seeds, key=lambda name: seeds[name], default="")
    for key, (title, drawer) in EXTRA.items():
        picture = drawer(study, main) if main else Picture()
        miniature = drawer(study, MINIATURE)
        if picture.panels or miniature.panels:
            where = f": {study.title(main)}" if picture.panels else ""
            yield FigureView(key, OURS, title + where, picture, miniature)


def _title(study: Study, scenario: str) -> str:
    return "" if scenario == MINIATURE else study.title(scenario)


def _unit(measure: str) -> str:
    return "training loss" if measure == "loss" else f"accuracy, % ({measure_words(measure)})"


# -- measures over rounds and against a number ---------------------------------------------------------------


def curves(study: Study, cells: list[Cell]) -> Picture:
    """Accuracy over rounds of these cells of a scenario, mean over seeds; empty without cells."""
    headlines = [study.results[cell]["headline"] for cell in cells[:1]]
    return Picture([_curve(study, "", headline, cells, 1) for headline in headlines])


def _curves(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    runs = {name: list(study.finished([name], figure.methods)) for name in scenarios}
    first = [cell for cells in runs.values() for cell in cells][:1]
    measures = figure.measures or [study.results[cell]["headline"] for cell in first]
    panels = [
        _curve(study, _title(study, name), measure, cells, figure.window)
        for measure in measures
        for name, cells in runs.items()
        if cells
    ]
    smooth = f", trailing mean of {figure.window} rounds" if figure.window > 1 else ""
    return Picture(panels, f"Mean over seeds{smooth}; shaded: their range.")


def _curve(study: Study, title: str, measure: str, cells: list[Cell], window: int) -> Panel:
    tables = {}
    for cell in cells:
        history = study.history(cell)
        if measure in history and history[measure].notna().any():
            tables[label(study, cell.method)] = over_seeds(history, measure, window)
        elif measure != "loss":  # the steps of some methods descend no single loss
            path = shorten(cell.folder(study.root) / "history.csv")
            raise FedReproError(f"{path}: the column {measure!r} is missing or empty")
    return draw.lines(title, _unit(measure), "round", entering(tables), method_inks(study, tables))


def _sweep(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    cells = list(study.finished(scenarios, figure.methods))
    measures, panels = figure.measures or [study.results[cell]["headline"] for cell in cells[:1]], []
    for measure, over in ((measure, over) for measure in measures for over in figure.over):
        if tables := sweep_lines(study, over, measure, cells, figure):
            name = pretty(over.rpartition(".")[2].replace("lam", "lambda"))
            ink = method_inks(study, tables) if "." in over else draw.inks(["", *tables], "")
            panels.append(draw.lines("", _unit(measure), name, tables, ink, True))
    return Picture(panels, "Mean over seeds; bars: standard deviation.")


def sweep_lines(study: Study, over: str, measure: str, cells: list[Cell], figure: Figure) -> draw.Tables:
    """name -> columns x, mean, low, high by x, of lines with two points or more.

    A number of the scenario gives a line per method; one of the method a line per scenario, in which all else
    stays as in the figure's first method.
    """
    points: dict[str, list] = {}
    for cell in cells:
        result, number = study.results[cell], None
        if "." in over:
            number, name = asdict(study.paper.scenarios[cell.scenario]), label(study, cell.method)
            for key in over.split("."):
                number = number.get(key) if isinstance(number, dict) else None
        else:
            name = study.title(cell.scenario).partition(" (")[0].partition(", ")[0]
            first = study.results.get(study.cell(cell.scenario, next(iter(figure.methods), "")))
            mine, base = result["hyper"], first["hyper"] if first else {}
            if all(mine.get(key) == base.get(key) for key in mine.keys() | base.keys() if key != over):
                number = mine.get(over)
        if isinstance(number, (int, float)) and result["measures"].get(measure):
            summary = summarise(result["measures"][measure])
            mean, std = summary.mean, summary.std or 0.0
            points.setdefault(name, []).append((float(number), mean, mean - std, mean + std))
    tables = {name: pd.DataFrame(rows, columns=["x", "mean", "low", "high"]) for name, rows in points.items()}
    tables = {name: table.drop_duplicates("x").sort_values("x") for name, table in tables.items()}
    return {name: table for name, table in tables.items() if len(table) > 1}


# -- two measures, data --------------------------------------------------------------------------------------


def _pairs(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    ink = dict(zip(map(measure_words, figure.measures), (Ink("mute", mark="○"), Ink("line-1"))))
    panels = []
    for scenario in scenarios:
        values = {}
        for cell in study.finished([scenario], figure.methods):
            numbers = [study.results[cell]["measures"].get(measure) for measure in figure.measures]
            if all(numbers):
                values[label(study, cell.method)] = [fmean(number) for number in numbers if number]
        if values:
            table = pd.DataFrame.from_dict(values, orient="index", columns=list(ink))
            panels.append(draw.rows(_title(study, scenario), "accuracy, %", table, ink, study.name))
    return Picture(panels, "Mean over seeds.", ink)


def _clients(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    panels = []
    for scenario in scenarios:
        path = study.root / "papers" / study.key / "runs" / scenario / "clients.csv"
        if path.exists():
            with reading(path):
                counts = pd.read_csv(path, index_col="client").drop(columns=["domain", "train", "test"])
                table = counts.astype(int).T
            across, down = ([pretty(str(name)) for name in axis] for axis in (table.columns, table.index))
            title = _title(study, scenario)
            panels.append(draw.squares(title, "", table.to_numpy(float), across, down, "client"))
    return Picture(panels, "Training images per class and client, the fuller the more.")


def _images(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """One scenario's: the miniature, or the first of the figure's whose picture is there."""
    for scenario in scenarios:
        path = examples_path(study.key, key, scenario, study.root)
        if path.exists():
            caption = f"{study.title(scenario)}: the first training image of each class, a row per domain."
            width, height = size(path, f"python -m stages.figures {study.key}")
            # its address is relative to reports/
            src = f"../{path.relative_to(study.root).as_posix()}"
            return Picture([Panel("", width, src=src, height=height, words=caption)], caption)
    return Picture()


# -- of representations --------------------------------------------------------------------------------------


def _tables(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Stored:
    """Method, with its scenario if there are several -> the cell and what is stored of it for the figure."""
    cells = study.finished(scenarios, figure.methods)
    tables = {cell: geometry.read(figure.kind or "", key, cell, study.root) for cell in cells}
    stored = [(cell, table) for cell, table in tables.items() if table is not None]
    several = len({cell.scenario for cell, _ in stored}) > 1
    return {
        label(study, cell.method) + f", {study.title(cell.scenario)}" * several: (cell, table)
        for cell, table in stored
    }


def _margins(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    names = "largest of a client's classes", "mean over clients", "sent by the server"
    ink = dict(zip(names, (Ink("mute", mark="○"), Ink("line-1"), Ink("accent", mark="■"))))
    panels = []
    for title, (_, stored) in _tables(study, key, figure, scenarios).items():
        table = stored.set_index("label").set_axis(list(ink), axis=1).dropna(axis=1, how="all")
        note = "mean " + ", ".join(f"{ink[name].mark} {mean:.3f}" for name, mean in table.mean().items())
        panels.append(draw.rows(title, "margin, by class", table, ink, note=note))
    return Picture(
        panels, "L2 distance of a class's prototype to the nearest other; one scale per panel.", ink
    )


def _matrices(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    tables, panels = _tables(study, key, figure, scenarios), []
    for title, (_, table) in tables.items():
        for (client, images), square in table.groupby(["client", "images"], sort=False):
            values = square.pivot(index="row", columns="column", values="value").to_numpy()
            head = f"{f'{title}, ' * (len(tables) > 1)}{client}, {images} images"
            panels.append(draw.squares(head, f"diagonal {np.diag(values).mean():.2f}", values, (), (), ""))
    caption = (
        "Correlation of a client's logits with the mean logits, by class. Blue: positive; orange: negative."
    )
    return Picture(panels, caption)


def _classes(tables: Iterable[tuple[Cell, pd.DataFrame]]) -> dict[str, Ink]:
    return draw.label_inks(map(str, sorted({label for _, table in tables for label in table["label"]})))


def _clouds(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """Of the kinds embedding and sphere."""
    tables, panels = _tables(study, key, figure, scenarios), []
    ink, sphere = _classes(tables.values()), figure.kind == "sphere"
    for title, (_, table) in tables.items():
        note = ", ".join(f"{name} {value:.3f}" for name, value in table.attrs.items())
        panels.append(draw.cloud(title, note, table, ink, sphere))
    images = f"{max([len(table) for _, table in tables.values()], default=0):,} test images"
    caption = f"t-SNE of the representations of {images}; silhouette: cosine, before t-SNE, −1 to 1."
    if sphere:
        caption = f"Direction and length of representations of {images}; circle: mean length; pale: behind."
    return Picture(panels, caption, ink)


def _transfer(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    tables, panels = _tables(study, key, figure, scenarios), []
    ink = _classes(tables.values())
    for title, (cell, table) in tables.items():
        parts = table.groupby(["client", "domain"], sort=False)  # that of the client comes first
        for kind, ((client, domain), points) in zip(("intra", "inter"), parts, strict=True):
            note = f"{100 * points['right'].mean():.1f} % of these right"
            if measured := study.results[cell]["measures"].get(f"{kind}.{client}"):
                note += f"; {kind}-domain accuracy {fmean(measured):.1f} %"
            panels.append(draw.cloud(f"{title}: {client} → {domain}", note, points, ink))
    caption = "One client's features, first seed, on its domain and on another; a t-SNE per panel."
    return Picture(panels, caption, ink)


def _corruptions(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    tables = {title: table for title, (_, table) in _tables(study, key, figure, scenarios).items()}
    if not tables:
        return Picture()
    kinds = pd.DataFrame({title: pooled(table, "corruption") for title, table in tables.items()})
    kinds = kinds.loc[kinds.mean(axis=1).sort_values().index].rename(lambda kind: kind.replace("_", " "))
    means = {title: pooled(table, "severity") for title, table in tables.items()}
    lines = {
        title: pd.DataFrame({"x": mean.index, "mean": mean, "low": mean, "high": mean})
        for title, mean in means.items()
    }
    ink = {name: ink for name, ink in method_inks(study, tables).items() if name in tables}
    panels = [
        draw.lines("By severity", "accuracy, %", "severity", lines, ink, True),
        draw.rows("By corruption, the hardest first", "accuracy, %", kinds, ink),
    ]
    images = max(table["images"].sum() for table in tables.values())
    caption = f"{images:,} test images, each with one corruption; mean over clients, first seed."
    return Picture(panels, caption, ink)


def pooled(table: pd.DataFrame, column: str) -> pd.Series:
    """The accuracy over all images of each value of a column."""
    right = table["accuracy"] * table["images"]
    return right.groupby(table[column]).sum() / table["images"].groupby(table[column]).sum()


KINDS: dict[str, Callable[[Study, str, Figure, list[str]], Picture]] = {
    "curves": _curves,
    "sweep": _sweep,
    "embedding": _clouds,
    "sphere": _clouds,
    "margins": _margins,
    "matrix": _matrices,
    "transfer": _transfer,
    "corruptions": _corruptions,
    "pairs": _pairs,
    "clients": _clients,
    "images": _images,
}
