"""Which pictures a paper's page has: its figures, from its own scenarios and from the miniature, then ours.

`figures(study)` gives them in order; `curves(study, scenario, cells)` the accuracy over rounds of any cells.
Both are HTML with SVG inside, to be placed in a page whose style has `figures.CSS`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from pipeline.cells.results import summarise
from pipeline.errors import FedReproError
from pipeline.report2 import figures as draw
from pipeline.report2 import geometry
from pipeline.report2.study import Study
from pipeline.report2.words import measure_words
from pipeline.schema import COMPUTED, MINIATURE, MINIATURES, PICTURE, Cell, Figure, shorten

SMOOTH = 3  # rounds in the mean that has to reach the target
FEW = 8  # clients, from which on accuracy against size shows anything


@dataclass(frozen=True)
class Drawing:
    """HTML of the panels, and a caption."""

    svg: Markup
    caption: str = ""


@dataclass(frozen=True)
class FigureView:
    """A figure of the paper or one of ours: from the paper's scenarios (`svg`, empty where nothing is measured)
    and from the miniature (None likewise)."""

    key: str
    number: str
    heading: str  # Figure 5; Ours
    title: str
    svg: Markup
    caption: str
    miniature: Drawing | None
    command: str = ""  # what runs the figure's cells that are missing; empty where it has all

    @property
    def ours(self) -> bool:
        return self.heading == OURS


OURS = "Ours"
Drawer = Callable[[Study, str, Figure, list[str]], Drawing | None]


def figures(study: Study) -> list[FigureView]:
    """The paper's figures that are drawn at all, in its order, then pictures of ours that show something."""
    views = [_view(study, key, figure) for key, figure in study.paper.figures.items() if figure.kind]
    return views + [
        view for key, (title, drawer) in EXTRA.items() if (view := _extra(study, key, title, drawer))
    ]


def _view(study: Study, key: str, figure: Figure) -> FigureView:
    drawer = KINDS[figure.kind or ""]
    shown = drawer(study, key, figure, figure.scenarios) or Drawing(Markup())
    printed = any(letter.isdigit() for letter in figure.number)  # the paper's supplement has R1 and R2
    return FigureView(
        key,
        figure.number,
        f"Figure {figure.number}" if printed else OURS,
        figure.title.removesuffix(" (not in the paper)"),
        shown.svg,
        shown.caption,
        drawer(study, key, figure, [MINIATURE]),
        _command(study, key, figure),
    )


def _extra(
    study: Study, key: str, title: str, drawer: Callable[[Study, str], Drawing | None]
) -> FigureView | None:
    scenario = _main(study)
    shown = drawer(study, scenario) if scenario else None
    mini = drawer(study, MINIATURE) if MINIATURE in study.runs else None
    if not (shown or mini):
        return None
    there = shown or Drawing(Markup())
    where = f" on {study.title(scenario)}" if shown and scenario else ""
    return FigureView(key, "", OURS, title + where, there.svg, there.caption, mini)


def _main(study: Study) -> str:
    """The first scenario of the paper's grids of which most methods of its grid have run, no miniature."""
    counts = {
        scenario: len(_methods(study, scenario)) for scenario in study.runs if scenario not in MINIATURES
    }
    return max(counts, key=lambda scenario: counts[scenario], default="")


def _methods(study: Study, scenario: str) -> list[Cell]:
    """The finished cells of a scenario in the first of the paper's grids that has some."""
    grids = [grid for grid in study.paper.grids.values() if scenario in grid.scenarios] or [
        study.paper.miniature
    ]
    cells = (list(study.finished([scenario], grid.methods)) for grid in grids if grid)
    return next(filter(None, cells), [])


def _command(study: Study, key: str, figure: Figure) -> str:
    """`fedrepro run 'papers/fedcrl/dvc.yaml:main@cifar10-dir-01-*'`, for scenarios with a planned cell missing."""
    again = f"; python -m stages.figures {study.key}" if figure.kind in (*COMPUTED, PICTURE) else ""
    if figure.kind in ("clients", PICTURE):  # of the data alone
        made = {
            scenario: _counts(study, scenario)
            if figure.kind == "clients"
            else geometry.picture_path(study.key, key, scenario, study.root)
            for scenario in figure.scenarios
        }
        lacking = [scenario for scenario, path in made.items() if not path.exists()]
        stages = " ".join(f"papers/{study.key}/dvc.yaml:partition@{scenario}" for scenario in lacking)
        return f"fedrepro run {stages}{again}" if lacking else ""
    missing = [
        cell
        for grid in study.paper.grids.values()
        for scenario in figure.scenarios
        for method in grid.methods
        if scenario in grid.scenarios and method in (figure.methods or grid.methods)
        if (cell := study.cell(scenario, method)) not in study.results
    ]
    if missing:
        stages = " ".join(
            dict.fromkeys(f"'{cell.stage(study.paper).removesuffix(cell.method)}*'" for cell in missing)
        )
        return f"fedrepro run {stages}{again}"
    cells = study.finished(figure.scenarios, figure.methods) if again else ()
    return again[2:] if any(not geometry.table_path(key, cell, study.root).exists() for cell in cells) else ""


def _prefix(*parts: str) -> str:
    return re.sub(r"[^\w-]", "", "-".join(parts))


def _inks(study: Study, names: Iterable[str]) -> dict[str, draw.Ink]:
    """Of methods by their place in paper.yaml, so that they look alike in all figures; of others in their order."""
    methods = [study.label(method) for method in study.paper.methods]
    return draw.inks([*methods, *(name for name in names if name not in methods)], study.name)


def _measure_words(measure: str) -> str:
    return "training loss" if measure == "loss" else f"{measure_words(measure)} accuracy, %"


# -- measures over rounds ------------------------------------------------------------------------------------


def curves(study: Study, scenario: str, cells: Iterable[Cell]) -> Markup:
    """Accuracy over rounds of these cells of a scenario, mean over seeds; empty without cells."""
    cells = list(cells)
    if not cells:
        return Markup()
    measure = study.results[cells[0]]["headline"]
    return draw.panels([_curve_panel(study, f"{study.key}-{scenario}", "", measure, cells, 1)])


def _curves(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    runs = {
        scenario: cells
        for scenario in scenarios
        if (cells := list(study.finished([scenario], figure.methods)))
    }
    if not runs:
        return None
    measures = figure.measures or [study.results[next(iter(runs.values()))[0]]["headline"]]
    drawn = [
        _curve_panel(
            study,
            _prefix(study.key, key, scenario, measure),
            study.title(scenario),
            measure,
            cells,
            figure.window,
        )
        for measure in measures
        for scenario, cells in runs.items()
    ]
    smooth = f", trailing mean of {figure.window} rounds" if figure.window > 1 else ""
    return Drawing(draw.panels(drawn), f"Mean over seeds{smooth}. Shaded: range of the seeds.")


def _curve_panel(
    study: Study, prefix: str, title: str, measure: str, cells: list[Cell], window: int
) -> draw.Panel:
    tables = {}
    for cell in cells:
        history = study.history(cell)
        known = measure in history and history[measure].notna().any()
        if not known and measure != "loss":  # the steps of some methods descend no single loss
            path = shorten(cell.folder(study.root) / "history.csv")
            raise FedReproError(f"{path}: the column {measure!r} is missing or empty")
        if known:
            tables[study.label(cell.method)] = draw.over_seeds(history, measure, window)
    return draw.lines(_prefix(prefix), title, _measure_words(measure), "round", tables, _inks(study, tables))


# -- measures against a number -------------------------------------------------------------------------------


def _sweep(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    cells = list(study.finished(scenarios, figure.methods))
    measures = figure.measures or [study.results[cells[0]]["headline"]] if cells else []
    drawn = []
    for measure in measures:
        for over in figure.over:
            if tables := _sweep_lines(study, over, measure, cells, figure):
                prefix, symbol = _prefix(study.key, key, scenarios[0], over, measure), over.rpartition(".")[2]
                symbol = "lambda" if symbol == "lam" else symbol
                unit, ink = _measure_words(measure), _inks(study, tables)
                drawn.append(draw.lines(prefix, symbol, unit, symbol, tables, ink, marks=True))
    return Drawing(draw.panels(drawn), "Mean over seeds; bars: standard deviation.") if drawn else None


def _sweep_lines(
    study: Study, over: str, measure: str, cells: list[Cell], figure: Figure
) -> dict[str, pd.DataFrame]:
    """name -> columns x, mean, low, high by x, of lines with two points or more.

    A number of the scenario gives a line per method, one of the method a line per scenario, in which all else stays
    as in the figure's first method.
    """
    points: dict[str, list] = {}
    for cell in cells:
        result, of_scenario = study.results[cell], "." in over
        if of_scenario:
            number = _number(asdict(study.paper.scenarios[cell.scenario]), over)
        else:
            number = result["hyper"].get(over) if _varies_only(over, cell, figure, study.results) else None
        if isinstance(number, (int, float)) and result["measures"].get(measure):
            name = study.label(cell.method) if of_scenario else study.title(cell.scenario)
            mean, std = (summary := summarise(result["measures"][measure])).mean, summary.std or 0.0
            points.setdefault(name, []).append((float(number), mean, mean - std, mean + std))
    tables = {name: pd.DataFrame(rows, columns=["x", "mean", "low", "high"]) for name, rows in points.items()}
    tables = {name: table.drop_duplicates("x").sort_values("x") for name, table in tables.items()}
    return {name: table for name, table in tables.items() if len(table) > 1}


def _number(values: Any, over: str) -> Any:
    for key in over.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _varies_only(over: str, cell: Cell, figure: Figure, results: Mapping[Cell, dict]) -> bool:
    """Whether the cell's other hyper-parameters are those of the figure's first method in the same scenario."""
    first = results.get(Cell(cell.paper, cell.scenario, figure.methods[0])) if figure.methods else None
    mine, base = results[cell]["hyper"], first["hyper"] if first else {}
    return all(mine.get(key) == base.get(key) for key in mine.keys() | base.keys() if key != over)


# -- rows of dots, data --------------------------------------------------------------------------------------


def _pairs(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    names = [measure_words(measure) for measure in figure.measures]
    ink = dict(zip(names, (draw.Ink("mute", mark="ring"), draw.Ink("line-1"))))
    drawn = []
    for scenario in scenarios:
        values = {}
        for cell in study.finished([scenario], figure.methods):
            measured = study.results[cell]["measures"]
            if all(measured.get(measure) for measure in figure.measures):
                values[study.label(cell.method)] = [
                    summarise(measured[measure]).mean for measure in figure.measures
                ]
        if values:
            table = pd.DataFrame.from_dict(values, orient="index", columns=names)
            prefix = _prefix(study.key, key, scenario)
            drawn.append(draw.rows(prefix, study.title(scenario), "accuracy, %", table, ink, study.name))
    return Drawing(draw.panels(drawn, ink), "Mean over seeds.") if drawn else None


def _counts(study: Study, scenario: str) -> Path:
    return study.root / "papers" / study.key / "runs" / scenario / "clients.csv"


def _dealt(path: Path) -> pd.DataFrame | None:
    """clients.csv of a partition: a row per client, columns domain, train, test and a count per class; None
    where it was not made."""
    if not path.exists():
        return None
    try:
        table = pd.read_csv(path, index_col="client")
        counts = table.drop(columns=["domain"]).astype(int)
        return table[["domain"]].join(counts)[["domain", "train", "test", *counts.columns[2:]]]
    except (ValueError, KeyError) as error:
        raise FedReproError(f"{shorten(path)}: not the images per class and client: {error}") from None


def _clients(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    drawn = []
    for scenario in scenarios:
        if (table := _dealt(_counts(study, scenario))) is not None:
            counts, title = table.iloc[:, 3:].T, study.title(scenario)
            across, down = [str(name) for name in counts.columns], [str(name) for name in counts.index]
            prefix = _prefix(study.key, key, scenario)
            drawn.append(draw.squares(prefix, title, "", counts.to_numpy(float), across, down, "client"))
    return Drawing(draw.panels(drawn), "Training images per class and client, by area.") if drawn else None


def _images(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    """One scenario's: the miniature, or the first of the figure's whose picture is there."""
    for scenario in scenarios:
        if (path := geometry.picture_path(study.key, key, scenario, study.root)).exists():
            title, (width, height) = (
                study.title(scenario),
                geometry.picture_size(path, f"python -m stages.figures {study.key}"),
            )
            source = f"../{path.relative_to(study.root).as_posix()}"
            alt = f"Example images of {title}, a row per domain, a column per class"
            image = Markup('<img src="{}" alt="{}" width="{}" height="{}" loading="lazy">')
            caption = f"{title}: the first training image of every class; a row per domain."
            return Drawing(
                Markup('<div class="panels">{}</div>').format(image.format(source, alt, width, height)),
                caption,
            )
    return None


# -- of representations --------------------------------------------------------------------------------------


def _tables(study: Study, key: str, figure: Figure, scenarios: list[str]) -> dict[Cell, pd.DataFrame]:
    """What is kept of the figure's cells that have a result."""
    cells = study.finished(scenarios, figure.methods)
    read = {cell: geometry.read(figure.kind or "", key, cell, study.root) for cell in cells}
    return {cell: table for cell, table in read.items() if table is not None}


def _titles(study: Study, cells: Iterable[Cell]) -> dict[Cell, str]:
    """Method of every cell, with its scenario where there are several."""
    cells = list(cells)
    several = len({cell.scenario for cell in cells}) > 1
    return {
        cell: study.label(cell.method) + (f", {study.title(cell.scenario)}" if several else "")
        for cell in cells
    }


def _margins(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    ink = {
        "best client": draw.Ink("mute", mark="ring"),
        "mean over clients": draw.Ink("line-1"),
        "sent by the server": draw.Ink("own", mark="D"),
    }
    tables, drawn = _tables(study, key, figure, scenarios), []
    for cell, title in _titles(study, tables).items():
        table = tables[cell].set_index("label").set_axis(list(ink), axis=1).dropna(axis=1, how="all")
        means = ", ".join(f"{name} {mean:.3f}" for name, mean in table.mean().items())
        panel = draw.rows(_prefix(study.key, key, str(cell)), title, "margin of the class", table, ink)
        drawn.append(draw.Panel(panel.svg, title, f"mean: {means}", panel.width))
    caption = "L2 distance from a class's prototype to the nearest other; a scale per panel."
    return Drawing(draw.panels(drawn, ink), caption) if drawn else None


def _matrices(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    tables, drawn = _tables(study, key, figure, scenarios), []
    for cell, title in _titles(study, tables).items():
        for (client, images), square in tables[cell].groupby(["client", "images"], sort=False):
            values = square.pivot(index="row", columns="column", values="value").to_numpy()
            note, prefix = (
                f"diagonal {np.diag(values).mean():.2f}",
                _prefix(study.key, key, str(cell), client, images),
            )
            head = f"{title}: " if len(tables) > 1 else ""
            drawn.append(draw.squares(prefix, f"{head}{client}, {images} images", note, values))
    caption = "Correlation of a client's logits with the mean logits of all, by class; blue: positive, orange: negative."
    return Drawing(draw.panels(drawn), caption) if drawn else None


def _classes(tables: Iterable[pd.DataFrame]) -> dict[str, draw.Ink]:
    names = {label for table in tables for label in table["label"]}
    return draw.label_inks(str(name) for name in sorted(names))


def _clouds(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    """Of kinds embedding and sphere."""
    tables, sphere = _tables(study, key, figure, scenarios), figure.kind == "sphere"
    if not tables:
        return None
    ink, drawn = _classes(tables.values()), []
    for cell, title in _titles(study, tables).items():
        note = "" if sphere else f"silhouette {tables[cell].attrs['silhouette']:.3f}"
        drawn.append(draw.cloud(_prefix(study.key, key, str(cell)), title, note, tables[cell], ink, sphere))
    of = f"{max(map(len, tables.values())):,} test images"
    caption = (
        f"Direction and length of representations of {of}; circle: mean length; faint: behind."
        if sphere
        else f"t-SNE of representations of {of}; silhouette: cosine, of the representations, −1 to 1."
    )
    return Drawing(draw.panels(drawn, ink), caption)


def _transfer(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    tables = _tables(study, key, figure, scenarios)
    if not tables:
        return None
    ink, drawn = _classes(tables.values()), []
    for cell, title in _titles(study, tables).items():
        parts = tables[cell].groupby(["client", "domain"], sort=False)  # the client's own domain comes first
        for kind, ((client, domain), points) in zip(("intra", "inter"), parts, strict=True):
            note = f"{100 * points['right'].mean():.1f} % of these right"
            if measured := study.results[cell]["measures"].get(f"{kind}.{client}"):
                note += f"; {kind}-domain accuracy {summarise(measured).mean:.1f} %"
            prefix = _prefix(study.key, key, str(cell), kind)
            drawn.append(draw.cloud(prefix, f"{title}: {client} → {domain}", note, points, ink))
    caption = (
        "t-SNE of one client's features, first seed, on its own domain and on another; one t-SNE per panel."
    )
    return Drawing(draw.panels(drawn, ink), caption)


def _corruptions(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Drawing | None:
    tables = _tables(study, key, figure, scenarios)
    if not tables:
        return None
    titles = _titles(study, tables)
    severities = {titles[cell]: _pooled(table, "severity") for cell, table in tables.items()}
    kinds = pd.DataFrame({titles[cell]: _pooled(table, "corruption") for cell, table in tables.items()})
    kinds = kinds.loc[kinds.mean(axis=1).sort_values().index].rename(
        index=lambda name: name.replace("_", " ")
    )
    lines = {
        name: pd.DataFrame({"x": line.index, "mean": line, "low": line, "high": line}).reset_index(drop=True)
        for name, line in severities.items()
    }
    ink, prefix = _inks(study, titles.values()), _prefix(study.key, key, scenarios[0])
    drawn = [
        draw.lines(f"{prefix}-severity", "By severity", "accuracy, %", "severity", lines, ink, marks=True),
        draw.rows(f"{prefix}-kind", "By corruption, the hardest first", "accuracy, %", kinds, ink),
    ]
    images = max(table["images"].sum() for table in tables.values())
    where = " and ".join(dict.fromkeys(study.title(cell.scenario) for cell in tables))
    caption = f"{where}: {images:,} test images, each with one corruption; mean over clients, first seed."
    return Drawing(draw.panels(drawn, {name: ink[name] for name in lines}), caption)


def _pooled(table: pd.DataFrame, column: str) -> pd.Series:
    """The accuracy over all images of each value of a column."""
    right = table["accuracy"] * table["images"]
    return right.groupby(table[column]).sum() / table["images"].groupby(table[column]).sum()


# -- ours ----------------------------------------------------------------------------------------------------


def _cost(study: Study, scenario: str) -> Drawing | None:
    """Rounds and MB to a target accuracy, seconds a round and peak memory of every method, each where it
    differs. The target: what FedAvg, or else the least accurate method, reports."""
    cells = _methods(study, scenario)
    means = {
        cell: summarise(study.results[cell]["measures"][study.results[cell]["headline"]]).mean
        for cell in cells
    }
    if len(cells) < 2:
        return None
    averaging = [cell for cell in cells if study.label(cell.method) == "FedAvg"]
    target = means[averaging[0]] if averaging else min(means.values())
    table = pd.DataFrame({cell: _spent(study, cell, target) for cell in cells}).T.astype(float)
    table.index = pd.Index([study.label(cell.method) for cell in cells])
    drawn = []
    units = {
        f"Rounds to {target:.1f} %": ("rounds", 0),
        f"Sent to {target:.1f} %": ("MB per client, both ways", 1),
        "Time": ("seconds a round", 2),
        "Peak memory": ("MB", 0),
    }
    ink = draw.Ink("ink")
    for (title, (unit, digits)), column in zip(units.items(), table, strict=True):
        values = table[column].dropna()
        if len(values) < 2 or values.max() < 1.2 * max(values.min(), 1e-9):
            continue
        log, part = values.max() > 8 * values.min() > 0, table[[column]].sort_values(column)
        digits = digits if values.min() >= 10**-digits or digits > 2 else 3
        prefix = _prefix(study.key, "cost", scenario, column)
        drawn.append(draw.rows(prefix, title, unit, part, {column: ink}, study.name, log, digits))
    caption = f"Rounds and bytes: until the mean of {SMOOTH} rounds reaches {target:.1f} %, mean over seeds."
    return Drawing(draw.panels(drawn), caption) if drawn else None


def _spent(study: Study, cell: Cell, target: float) -> dict[str, float]:
    """rounds and MB to the target (NaN: not reached), seconds of a round, MB of memory (of the device where known)."""
    result, history = study.results[cell], study.history(cell)
    curve = history[history["round"] > 0].groupby("round")[result["headline"]].mean().dropna()
    reached = curve.rolling(SMOOTH, min_periods=1).mean() >= target
    rounds = float(reached.idxmax()) if reached.any() else np.nan
    memory = result.get("memory") or {}
    known = ([mb for mb in memory.get(kind) or [] if mb is not None] for kind in ("device_mb", "process_mb"))
    return {
        "rounds": rounds,
        "sent": rounds * result["traffic"]["bytes"] / 1e6,
        "seconds": float(np.mean(result["seconds"])) / result["rounds"],
        "memory": float(max(next(filter(None, known), [np.nan]))),
    }


def _sizes(study: Study, scenario: str) -> Drawing | None:
    """A client's accuracy against its training images: the paper's method and FedAvg, first seed's partition."""
    counts = _dealt(_counts(study, scenario))
    if counts is None or len(counts) < FEW or counts["train"].nunique() < FEW // 2:
        return None
    tables, ranks = {}, []
    for cell in _methods(study, scenario):
        name, accuracy = study.label(cell.method), study.results[cell]["clients"][0]
        table = pd.DataFrame({"x": counts["train"].to_numpy(), "y": accuracy}).dropna().astype(float)
        if name in (study.name, "FedAvg") and table["y"].nunique() > len(table) / 2:
            tables[name] = table
            ranks.append(f"{name} {table['x'].corr(table['y'], method='spearman'):+.2f}".replace("-", "−"))
    if not tables:
        return None
    ink = {name: ink for name, ink in _inks(study, tables).items() if name in tables}
    prefix, up = _prefix(study.key, "sizes", scenario), "accuracy of a client, %"
    drawn = draw.scatter(prefix, "", "training images of the client", up, tables, ink)
    return Drawing(draw.panels([drawn], ink), f"First seed. Spearman's rank correlation: {', '.join(ranks)}.")


def _signals(study: Study, scenario: str) -> Drawing | None:
    """What the paper's own method records of itself over rounds, such as a number of clusters."""
    own = [cell for cell in _methods(study, scenario) if study.label(cell.method).startswith(study.name)]
    histories = {study.label(cell.method): study.history(cell) for cell in own}
    columns = dict.fromkeys(
        name for table in histories.values() for name in table if name.startswith("method.")
    )
    drawn = []
    for column in columns:
        tables = {
            name: draw.over_seeds(table, column)
            for name, table in histories.items()
            if column in table and table[column].nunique() > 1
        }
        if tables:
            words, prefix = (
                column.removeprefix("method.").replace("_", " "),
                _prefix(study.key, scenario, column),
            )
            words = words.replace(".", ", ")
            drawn.append(draw.lines(prefix, words.capitalize(), "", "round", tables, _inks(study, tables)))
    return Drawing(draw.panels(drawn), "Mean over seeds; shaded: their range.") if drawn else None


KINDS: dict[str, Drawer] = {
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
EXTRA = {
    "cost": ("What a method costs", _cost),
    "sizes": ("Accuracy against a client's number of images", _sizes),
    "signals": ("What the method records of itself", _signals),
}
