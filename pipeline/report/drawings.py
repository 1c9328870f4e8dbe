"""Choose and draw the figures of a paper's page: first those of the paper, then additional ones.

`figures(study)` gives them in order; `curves(study, cells)` gives the accuracy over rounds of any cells. Each
kind of figure in paper.yaml has a function, see KINDS at the end. The arguments of such a function are

study      the paper's results
key        of the figure in paper.yaml
figure     as paper.yaml describes it
scenarios  whose runs are drawn

and it returns a picture, without panels if nothing of it has run.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cells.results import summarise
from pipeline.data.pictures import examples_path, size
from pipeline.data.reading import reading
from pipeline.errors import FedReproError
from pipeline.report import figures as draw
from pipeline.report import geometry
from pipeline.report.additional import ADDITIONAL
from pipeline.report.curves import entering, finished_methods, label, method_inks, over_seeds
from pipeline.report.figures import Ink, Panel, Picture
from pipeline.report.paper_files import drawn
from pipeline.report.study import Study
from pipeline.report.words import measure_words, pretty
from pipeline.schema import MINIATURE, MINIATURES, Cell, Figure, shorten

# Heading of a figure that the paper does not have.
OURS = "Ours"
# How the title of such a figure ends in paper.yaml; the page leaves it out.
ELSEWHERE = " (not in the paper)"
# Points from which on a swept number has a line.
FEWEST_POINTS = 2
# Title of a panel -> (cell, its stored table).
Stored = dict[str, tuple[Cell, pd.DataFrame]]


@dataclass(frozen=True)
class FigureView:
    """A figure of the paper, or one of ours.

    key        of the figure in paper.yaml, or of an additional one
    heading    `Figure 5`, or OURS
    title      what it shows
    picture    of the paper's scenarios
    miniature  the same of the miniature; without panels if another figure shows it already
    """

    key: str
    heading: str
    title: str
    picture: Picture
    miniature: Picture


def figures(study: Study) -> list[FigureView]:
    """The paper's figures that are drawn, in its order, then additional ones that show something.

    study  of the paper
    """
    views: list[FigureView] = []
    for key, figure in study.paper.figures.items():
        miniature = Picture()
        if figure.kind:
            draw_kind = KINDS[figure.kind]
            picture = draw_kind(study, key, figure, figure.scenarios)
            miniature = draw_kind(study, key, figure, [MINIATURE])
            if any(miniature == view.miniature for view in views):
                miniature = Picture()
        elif figure.function:
            # The miniature is not drawn: a function may need what only the paper's scenarios measure.
            picture = drawn(study, key, figure, figure.scenarios)
        else:
            continue

        # A figure of the paper has a number, R1 and R2 of a supplement too.
        printed = any(letter.isdigit() for letter in figure.number)
        heading = f"Figure {figure.number}" if printed else OURS
        title = figure.title.removesuffix(ELSEWHERE)
        views.append(FigureView(key, heading, title, picture, miniature))
    return views + list(_ours(study))


def _ours(study: Study) -> Iterator[FigureView]:
    """Figures that no paper has: of the scenario with the most trained seeds, and of the miniature."""
    main = max(
        (scenario for scenario in study.runs if scenario not in MINIATURES),
        key=lambda scenario: _trained_seeds(study, scenario),
        default="",
    )
    for key, (title, draw_additional) in ADDITIONAL.items():
        picture = draw_additional(study, main) if main else Picture()
        miniature = draw_additional(study, MINIATURE)
        if picture.panels or miniature.panels:
            where = f": {study.title(main)}" if picture.panels else ""
            yield FigureView(key, OURS, title + where, picture, miniature)


def _trained_seeds(study: Study, scenario: str) -> int:
    """Number of trained seeds of a scenario, over the methods of one grid."""
    return sum(len(study.results[cell]["seeds"]) for cell in finished_methods(study, scenario))


def _title(study: Study, scenario: str) -> str:
    """The title of a panel: that of its scenario; empty for the miniature, which is drawn alone."""
    return "" if scenario == MINIATURE else study.title(scenario)


def _unit(measure: str) -> str:
    """The label of an axis with a measure."""
    return "training loss" if measure == "loss" else f"accuracy, % ({measure_words(measure)})"


# -- measures over rounds and against a number ---------------------------------------------------------------


def curves(study: Study, cells: list[Cell]) -> Picture:
    """Accuracy over rounds, a line for each cell, the mean over its seeds; no panels without cells.

    study  of the paper
    cells  of one scenario, which have run
    """
    if not cells:
        return Picture([])
    headline = study.results[cells[0]]["headline"]
    return Picture([_curve(study, "", headline, cells, 1)])


def _curves(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """Measures over rounds, a panel for each measure and scenario."""
    panels = []
    for measure in _measures(study, figure, scenarios):
        for scenario in scenarios:
            cells = list(study.finished([scenario], figure.methods))
            if cells:
                panels.append(_curve(study, _title(study, scenario), measure, cells, figure.window))
    smooth = f", trailing mean of {figure.window} rounds" if figure.window > 1 else ""
    return Picture(panels, f"Mean over seeds{smooth}; shaded: their range.")


def _measures(study: Study, figure: Figure, scenarios: list[str]) -> list[str]:
    """The measures of a figure, else the main one of its first cell that has run; none without such a
    cell."""
    if figure.measures:
        return figure.measures
    first = next(study.finished(scenarios, figure.methods), None)
    return [study.results[first]["headline"]] if first else []


def _curve(study: Study, title: str, measure: str, cells: list[Cell], window: int) -> Panel:
    """A panel with a measure over rounds, a line for each cell.

    window  rounds of the trailing mean; 1: none

    Raises FedReproError for a history without the measure.
    """
    tables = {}
    for cell in cells:
        history = study.history(cell)
        if measure in history and history[measure].notna().any():
            tables[label(study, cell.method)] = over_seeds(history, measure, window)
        elif measure != "loss":  # some methods minimise no single loss, and record none
            path = shorten(cell.folder(study.root) / "history.csv")
            raise FedReproError(f"{path}: the column {measure!r} is missing or empty")
    return draw.lines(title, _unit(measure), "round", entering(tables), method_inks(study, tables))


def _sweep(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """Measures against a number that is swept, a panel for each measure and number."""
    cells = list(study.finished(scenarios, figure.methods))
    panels = []
    for measure, over in product(_measures(study, figure, scenarios), figure.over):
        tables = sweep_lines(study, over, measure, cells, figure)
        if tables:
            name = pretty(over.rpartition(".")[2].replace("lam", "lambda"))
            ink = method_inks(study, tables) if "." in over else draw.inks(["", *tables], "")
            panels.append(draw.lines("", _unit(measure), name, tables, ink, True))
    return Picture(panels, "Mean over seeds; bars: standard deviation.")


def sweep_lines(study: Study, over: str, measure: str, cells: list[Cell], figure: Figure) -> draw.Tables:
    """The lines of a sweep: name -> columns x, mean, low, high, sorted by x.

    Lines of fewer than FEWEST_POINTS points are left out; low and high are one standard deviation from the
    mean.

    study    of the paper
    over     key of the number that is swept. A number of the scenario, `partition.beta`, gives a line for
             each method. One of the method, `alpha`, gives a line for each scenario, from the cells whose
             other hyper-parameters are those of the figure's first method
    measure  on the y axis
    cells    that have run
    figure   as paper.yaml describes it
    """
    # Name of a line -> (x, mean, low, high) of its points.
    points: dict[str, list] = {}
    for cell in cells:
        if "." in over:
            name = label(study, cell.method)
            number = _of_scenario(study, cell, over)
        else:
            name = study.title(cell.scenario).partition(" (")[0].partition(", ")[0]
            number = _of_method(study, cell, over, next(iter(figure.methods), ""))
        values = study.results[cell]["measures"].get(measure)
        if isinstance(number, (int, float)) and values:
            summary = summarise(values)
            mean = summary.mean
            std = summary.std or 0.0
            points.setdefault(name, []).append((float(number), mean, mean - std, mean + std))

    lines = {}
    for name, rows in points.items():
        table = pd.DataFrame(rows, columns=["x", "mean", "low", "high"])
        table = table.drop_duplicates("x").sort_values("x")
        if len(table) >= FEWEST_POINTS:
            lines[name] = table
    return lines


def _of_scenario(study: Study, cell: Cell, key: str) -> Any:
    """The value of a cell's scenario at a key such as `partition.beta`; None if there is none."""
    value: Any = asdict(study.paper.scenarios[cell.scenario])
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _of_method(study: Study, cell: Cell, key: str, first_method: str) -> Any:
    """A hyper-parameter of a finished cell; None if another hyper-parameter is not that of the first method.

    key           of the hyper-parameter
    first_method  of the figure
    """
    hyper = study.results[cell]["hyper"]
    first = study.results.get(study.cell(cell.scenario, first_method))
    base = first["hyper"] if first else {}
    others = (hyper.keys() | base.keys()) - {key}
    if any(hyper.get(other) != base.get(other) for other in others):
        return None
    return hyper.get(key)


# -- two measures, data --------------------------------------------------------------------------------------


def _pairs(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """Two measures side by side, a row for each method."""
    names = map(measure_words, figure.measures)
    ink = dict(zip(names, (Ink("mute", mark="○"), Ink("line-1"))))
    panels = []
    for scenario in scenarios:
        values = {}
        for cell in study.finished([scenario], figure.methods):
            by_seed = [study.results[cell]["measures"].get(measure) for measure in figure.measures]
            if all(by_seed):
                values[label(study, cell.method)] = [fmean(numbers) for numbers in by_seed if numbers]
        if values:
            table = pd.DataFrame.from_dict(values, orient="index", columns=list(ink))
            panels.append(draw.rows(_title(study, scenario), "accuracy, %", table, ink, study.name))
    return Picture(panels, "Mean over seeds.", ink)


def _clients(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """Numbers of training images by class and client."""
    panels = []
    for scenario in scenarios:
        path = study.root / "papers" / study.key / "runs" / scenario / "clients.csv"
        if path.exists():
            with reading(path):
                counts = pd.read_csv(path, index_col="client").drop(columns=["domain", "train", "test"])
                table = counts.astype(int).T
            clients = [pretty(str(name)) for name in table.columns]
            classes = [pretty(str(name)) for name in table.index]
            title = _title(study, scenario)
            panels.append(draw.squares(title, "", table.to_numpy(float), clients, classes, "client"))
    return Picture(panels, "Training images per class and client, the fuller the more.")


def _images(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """Example images of the first scenario whose picture was stored."""
    for scenario in scenarios:
        path = examples_path(study.key, key, scenario, study.root)
        if path.exists():
            caption = f"{study.title(scenario)}: the first training image of each class, a row per domain."
            width, height = size(path, f"python -m stages.figures {study.key}")
            # Addresses are relative to reports/, where the pages are.
            src = f"../{path.relative_to(study.root).as_posix()}"
            return Picture([Panel("", width, src=src, height=height, words=caption)], caption)
    return Picture()


# -- of representations --------------------------------------------------------------------------------------


def _tables(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Stored:
    """The stored tables of a figure; titles are the methods, with their scenarios if there are several."""
    stored = []
    for cell in study.finished(scenarios, figure.methods):
        table = geometry.read(figure.kind or "", key, cell, study.root)
        if table is not None:
            stored.append((cell, table))
    several = len({cell.scenario for cell, _ in stored}) > 1
    tables = {}
    for cell, table in stored:
        title = label(study, cell.method)
        if several:
            title += f", {study.title(cell.scenario)}"
        tables[title] = (cell, table)
    return tables


def _margins(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """Margins of class prototypes, a panel for each method."""
    ink = {
        "largest of a client's classes": Ink("mute", mark="○"),
        "mean over clients": Ink("line-1"),
        "sent by the server": Ink("accent", mark="■"),
    }
    panels = []
    for title, (_, stored) in _tables(study, key, figure, scenarios).items():
        table = stored.set_index("label").set_axis(list(ink), axis=1).dropna(axis=1, how="all")
        note = "mean " + ", ".join(f"{ink[name].mark} {mean:.3f}" for name, mean in table.mean().items())
        panels.append(draw.rows(title, "margin, by class", table, ink, note=note))
    return Picture(
        panels, "L2 distance of a class's prototype to the nearest other; one scale per panel.", ink
    )


def _matrices(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """Cross-correlations of logits, a square for each method, client and kind of images."""
    tables = _tables(study, key, figure, scenarios)
    panels = []
    for title, (_, table) in tables.items():
        start = f"{title}, " if len(tables) > 1 else ""
        for (client, images), square in table.groupby(["client", "images"], sort=False):
            values = square.pivot(index="row", columns="column", values="value").to_numpy()
            head = f"{start}{client}, {images} images"
            panels.append(draw.squares(head, f"diagonal {np.diag(values).mean():.2f}", values, (), (), ""))
    caption = (
        "Correlation of a client's logits with the mean logits, by class. Blue: positive; orange: negative."
    )
    return Picture(panels, caption)


def _classes(tables: Iterable[tuple[Cell, pd.DataFrame]]) -> dict[str, Ink]:
    """Class label -> the ink that its points have in all panels."""
    labels = set[Any]()
    for _, table in tables:
        labels.update(table["label"])
    return draw.label_inks(map(str, sorted(labels)))


def _clouds(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """Points of representations, a panel for each method; of the kinds `embedding` and `sphere`."""
    tables = _tables(study, key, figure, scenarios)
    ink = _classes(tables.values())
    sphere = figure.kind == "sphere"
    panels = []
    for title, (_, table) in tables.items():
        note = ", ".join(f"{name} {value:.3f}" for name, value in table.attrs.items())
        panels.append(draw.cloud(title, note, table, ink, sphere))
    most = max((len(table) for _, table in tables.values()), default=0)
    images = f"{most:,} test images"
    caption = f"t-SNE of the representations of {images}; silhouette: cosine, before t-SNE, −1 to 1."
    if sphere:
        caption = f"Direction and length of representations of {images}; circle: mean length; pale: behind."
    return Picture(panels, caption, ink)


def _transfer(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """One client's features on its own domain and on another one, two panels for each method."""
    tables = _tables(study, key, figure, scenarios)
    ink = _classes(tables.values())
    panels = []
    for title, (cell, table) in tables.items():
        parts = table.groupby(["client", "domain"], sort=False)  # that of the client comes first
        for kind, ((client, domain), points) in zip(("intra", "inter"), parts, strict=True):
            note = f"{100 * points['right'].mean():.1f} % of these right"
            accuracies = study.results[cell]["measures"].get(f"{kind}.{client}")
            if accuracies:
                note += f"; {kind}-domain accuracy {fmean(accuracies):.1f} %"
            panels.append(draw.cloud(f"{title}: {client} → {domain}", note, points, ink))
    caption = "One client's features, first seed, on its domain and on another; a t-SNE per panel."
    return Picture(panels, caption, ink)


def _corruptions(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """Accuracy on corrupted images: by severity, and by corruption, the hardest first."""
    tables = {title: table for title, (_, table) in _tables(study, key, figure, scenarios).items()}
    if not tables:
        return Picture()
    kinds = pd.DataFrame({title: pooled(table, "corruption") for title, table in tables.items()})
    kinds = kinds.loc[kinds.mean(axis=1).sort_values().index].rename(lambda kind: kind.replace("_", " "))
    lines = {}
    for title, table in tables.items():
        mean = pooled(table, "severity")
        lines[title] = pd.DataFrame({"x": mean.index, "mean": mean, "low": mean, "high": mean})
    ink = {name: ink for name, ink in method_inks(study, tables).items() if name in tables}
    panels = [
        draw.lines("By severity", "accuracy, %", "severity", lines, ink, True),
        draw.rows("By corruption, the hardest first", "accuracy, %", kinds, ink),
    ]
    images = max(table["images"].sum() for table in tables.values())
    caption = f"{images:,} test images, each with one corruption; mean over clients, first seed."
    return Picture(panels, caption, ink)


def pooled(table: pd.DataFrame, column: str) -> pd.Series:
    """The accuracy over all images with the same value in a column.

    table   columns accuracy, images (their number), and `column`
    column  such as `severity`

    Returns value -> accuracy in percent.
    """
    right = table["accuracy"] * table["images"]
    return right.groupby(table[column]).sum() / table["images"].groupby(table[column]).sum()


# Kind of a figure in paper.yaml -> the function that draws it.
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
