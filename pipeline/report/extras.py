"""Figures that no schema describes: costs, signals, teachers, and what a paper's files draw and write.

A picture of its figures.py becomes an image, in which no script of an SVG runs. A section of its
templates/*.md is Markdown whose HTML appears as text; Jinja fills in the results in a sandbox.
"""

import base64
import io
import re
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean

import jinja2
import jinja2.sandbox
import numpy as np
import pandas as pd
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib import pyplot as plt
from matplotlib.figure import Figure as Drawn

from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import model_copies
from pipeline.cells.results import ROUNDED, summarise
from pipeline.errors import DAMAGED, ParamError, cause
from pipeline.report import figures as draw
from pipeline.report.figures import Ink, Panel, Picture
from pipeline.report.measures import numbers
from pipeline.report.study import Study
from pipeline.report.templates import fixed
from pipeline.report.words import pretty
from pipeline.schema import MINIATURE, Cell, Figure, load_module, shorten, visible

# points of a line at most
ROUNDS = 61
# of the rounds, from which on all of a curve is drawn
START = 0.15
# of the methods, whose reported accuracy lies below the target
SHARE = 0.25
# rounds, from which on the round of a target distinguishes methods
ENOUGH = 15
LEARNS = re.compile(r"method\.learns\.(\d+)\.(\d+)")
SVG = {"svg.hashsalt": "fedrepro", "svg.fonttype": "none"}


def label(study: Study, method: str) -> str:
    """A method in a figure."""
    return pretty(study.label(method))


def method_inks(study: Study, names: Iterable[str]) -> dict[str, Ink]:
    """Of methods by their place in paper.yaml, alike in all figures; of other names in their order."""
    return draw.inks([*(label(study, method) for method in study.paper.methods), *names], study.name)


def finished_methods(study: Study, scenario: str) -> list[Cell]:
    """The finished cells of a scenario in the first of the paper's grids, or miniature, that has some."""
    grids = [grid.methods for grid in study.paper.grids.values() if scenario in grid.scenarios]
    if study.paper.miniature and scenario == MINIATURE:
        grids = [study.paper.miniature.methods]
    return next(filter(None, (list(study.finished([scenario], methods)) for methods in grids)), [])


def trailing_mean(values: pd.Series, window: int) -> pd.Series:
    """s_t = mean(y_max(1,t-window+1) .. y_t) of a series by round, at the rounds that it has (FedCRL Fig. 3).

    Rounds that were not evaluated are absent; round 0, before training, is left out of a mean.
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
    chosen = np.unique(np.linspace(0, len(table) - 1, min(len(table), ROUNDS)).astype(int))
    return table.set_axis(["x", "mean", "low", "high"], axis=1).iloc[chosen]


def entering(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Curves from where they enter the range that all keep after the first rounds (START of them): the axis
    shows what distinguishes them."""
    late = [table[table["x"] >= START * table["x"].max()] for table in tables.values()]
    low, high = min(table["low"].min() for table in late), max(table["high"].max() for table in late)
    curves = {}
    for name, table in tables.items():
        outside = np.flatnonzero(~table["mean"].between(low, high))
        curve = table.iloc[outside[-1] + 1 if len(outside) else 0 :]
        curves[name] = curve.assign(low=curve["low"].clip(low, high), high=curve["high"].clip(low, high))
    return curves


def _cost(study: Study, scenario: str) -> Picture:
    """Rounds and MB to a target accuracy, seconds a round, peak memory of each method, where these differ."""
    labels = {cell: label(study, cell.method) for cell in finished_methods(study, scenario)}
    names = {c: name for c, name in labels.items() if name == study.name or not name.startswith(study.name)}
    if len(names) < 3:
        return Picture()
    results = [study.results[cell] for cell in names]
    target = int(np.quantile([fmean(result["measures"][result["headline"]]) for result in results], SHARE))
    units = {
        "seconds": ("Time", "seconds a round"),
        "memory": ("Peak memory", "MB"),
        "copies": ("Models of a client", "in its memory while it trains"),
    }
    caption = ""
    if results[0]["rounds"] >= ENOUGH:
        sent = f"Sent to {target} %", "MB per client, both ways"
        units = {"rounds": (f"Rounds to {target} %", "rounds"), "sent": sent} | units
        caption = f"Three in four methods report {target} % or more; a dash: a seed does not reach it."
    table = pd.DataFrame([spent(study, cell, target) for cell in names], list(names.values()))
    panels = [
        draw.rows(*words, table[[name]].sort_values(name, kind="stable"), {name: Ink("ink")}, study.name)
        for name, words in units.items()
        if table[name].max() > 1.2 * table[name].min()
    ]
    return Picture(panels, caption)


def spent(study: Study, cell: Cell, target: float) -> dict[str, float]:
    """seconds a round, MB of memory, models of a client, rounds and MB to the target, mean over seeds
    (memory: the largest); NaN where that is unknown or a seed does not reach the target."""
    result = study.results[cell]
    costs = {name: [*numbers(cell, result, f"run.{name}").values()] for name in ("seconds", "memory")}
    table = study.history(cell)
    table = table[(table["round"] > 0) & (table[result["headline"]] >= target - ROUNDED)]
    rounds = table.groupby("seed")["round"].min().reindex(result["seeds"]).mean(skipna=False)
    return {
        "seconds": fmean(costs["seconds"]),
        "memory": max(costs["memory"], default=np.nan),
        "copies": float(model_copies(Experiment.of(cell, study.root)) or np.nan),
        "rounds": rounds,
        "sent": rounds * result["traffic"]["bytes"] / 1e6,
    }


def _signals(study: Study, scenario: str) -> Picture:
    """What the paper's method records of itself over rounds, such as a number of clusters."""
    methods = finished_methods(study, scenario)
    rows = [cell for cell in methods if study.label(cell.method).startswith(study.name)]
    histories = {label(study, cell.method): study.history(cell) for cell in rows}
    panels = []
    names = [name for table in histories.values() for name in table if name.startswith("method.")]
    for column in [name for name in dict.fromkeys(names) if ".learns." not in name]:
        tables = {
            name: over_seeds(table, column)
            for name, table in histories.items()
            if column in table and table[column].nunique() > 1
        }
        if tables:
            words = pretty(column.removeprefix("method.").replace(".", ", "))
            panels.append(draw.lines(words, "", "round", tables, method_inks(study, tables)))
    return Picture(panels, "Mean over seeds; shaded: their range.")


def _teachers(study: Study, scenario: str) -> Picture:
    """Who learns from whom (RAHFL Eq. 12) in the first and in the second half of the rounds, where the
    columns method.learns.<client>.<teacher> record it."""
    panels, methods = [], finished_methods(study, scenario)
    for cell in [cell for cell in methods if label(study, cell.method) == study.name]:
        table = study.history(cell)
        pairs = {name: (int(at[1]), int(at[2])) for name in table if (at := LEARNS.fullmatch(str(name)))}
        table = table.dropna(subset=[*pairs])
        late = table["round"] > study.results[cell]["rounds"] / 2
        for words, rows in (("first half", table[~late]), ("second half", table[late])):
            if pairs and len(rows):
                names = [str(k) for k in range(1 + max(map(max, pairs.values())))]
                shares = np.zeros((len(names), len(names)))
                for name, pair in pairs.items():
                    shares[pair] = rows[name].mean()
                panels.append(draw.squares(words, "", shares, names, names, "teacher"))
    return Picture(
        panels, "Share of rounds in which a client (row) learns from another (column), over seeds."
    )


EXTRA: dict[str, tuple[str, Callable[[Study, str], Picture]]] = {
    "cost": ("What a method costs", _cost),
    "signals": ("What the method records", _signals),
    "teachers": ("Who learns from whom", _teachers),
}


# -- a paper's figures.py and templates/ ---------------------------------------------------------------------


def drawn(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """What a function of figures.py draws of the finished cells of these scenarios."""
    cells = list(study.finished(scenarios, figure.methods))
    if not cells or not figure.function:
        return Picture()
    file = study.root / "papers" / study.key / "figures.py"
    module = load_module(f"papers.{study.key}.figures", file)
    try:
        with plt.rc_context(SVG):  # type: ignore[arg-type]  # of literals
            plt.switch_backend("svg")
            text = _svg(getattr(module, figure.function)(_numbers(study, cells), _rounds(study, cells)))
    except (Exception, SystemExit) as error:
        raise ParamError(f"{shorten(file)}: {figure.function}: {cause(error)}") from error
    src = f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}"
    return Picture([Panel("", 0, src=src, words=figure.title)])


def _numbers(study: Study, cells: list[Cell]) -> pd.DataFrame:
    """The reported measures, a row for every seed."""
    rows = [
        (cell.scenario, label(study, cell.method), seed, name, value)
        for cell in cells
        for name, values in study.results[cell]["measures"].items()
        for seed, value in zip(study.results[cell]["seeds"], values)
    ]
    return pd.DataFrame(rows, columns=["scenario", "method", "seed", "measure", "value"])


def _rounds(study: Study, cells: list[Cell]) -> pd.DataFrame:
    """history.csv of all cells, behind `scenario` and `method`."""
    return pd.concat(
        study.history(cell).assign(scenario=cell.scenario, method=label(study, cell.method)) for cell in cells
    )


def _svg(picture: object) -> str:
    """The text of an SVG, or of a figure of matplotlib."""
    if isinstance(picture, Drawn):
        target = io.StringIO()
        picture.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(picture)
        return target.getvalue()
    if isinstance(picture, str) and "<svg" in picture:
        return picture
    raise TypeError("returned neither a figure of matplotlib nor the text of an SVG")


def sections(study: Study) -> Iterator[tuple[str, Markup]]:
    """(title, HTML) of every templates/*.md in the order of the names; the title is the name in words.

    The templates see `results`, {scenario: {method: {measure: Summary}}} of the finished cells. ParamError
    names the file that cannot be filled in.
    """
    results: dict[str, dict] = {scenario: {} for scenario in study.paper.scenarios}
    for cell, result in study.results.items():
        numbers = {name: summarise(values) for name, values in result["measures"].items()}
        results.setdefault(cell.scenario, {})[cell.method] = numbers
    jinja = jinja2.sandbox.ImmutableSandboxedEnvironment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    jinja.filters["fixed"] = fixed
    markdown = MarkdownIt("js-default").disable("image")
    for path in visible(study.root / "papers" / study.key, "templates/*.md"):
        if path.is_symlink():
            raise ParamError(f"{shorten(path)}: a link; put the template itself there")
        try:
            text = jinja.from_string(path.read_text(encoding="utf-8")).render(results=results)
        except (jinja2.TemplateError, *DAMAGED) as error:
            raise ParamError(f"{shorten(path)}: {cause(error)}") from None
        title = path.stem.replace("-", " ").replace("_", " ")
        yield title[:1].upper() + title[1:], Markup(markdown.render(text))
