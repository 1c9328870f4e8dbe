"""Figures of measured numbers, over rounds, against a number, in pairs and as mean ranks, and of how data is
dealt to the clients."""
import math
import textwrap
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from pipeline.report.ranks import Ranks
from pipeline.report.svg import FAINT, INK, LINES, PIXELS, STYLE, legend, svg
from pipeline.report.words import measure_words

DASHES = ["-", (0, (5, 1.6)), (0, (1.4, 1.4))]   # tells lines apart once the colours repeat
TITLE = 54  # letters in a line of a panel's title; more would run into the legend
POINTS = 101                                     # rounds of a line that a page carries at most
CROWDED = 16  # ranks on a line: of more, not all have their number
MOST_BANDS = 8                                   # with more lines, the bands of the seeds hide one another


# -- measures over rounds ------------------------------------------------------------------------------------

def trailing_mean(values: pd.Series, window: int) -> pd.Series:
    """s_t = mean(y_max(1,t-window+1) .. y_t) of a series over rounds, at the rounds that it has (FedCRL Fig.
    3).

    Rounds that were not evaluated count as absent; round 0, before training, is left out where anything is
    averaged.
    """
    if window == 1:
        return values
    values = values[values.index > 0]
    every = values.reindex(range(1, values.index.max() + 1)) if len(values) else values
    return every.rolling(window, min_periods=1).mean()[values.index]


def over_seeds(history: pd.DataFrame, measure: str, window: int = 1) -> pd.DataFrame:
    """Columns mean, min, max over the seeds, by round, of a measure that is smoothed seed by seed."""
    known = history.dropna(subset=[measure]).set_index("round")
    smooth = [trailing_mean(seed[measure], window) for _, seed in known.groupby("seed")]
    return pd.concat(smooth or [known[measure]]).groupby("round").agg(["mean", "min", "max"])


def curves_size(columns: int, rows: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of curves."""
    return (730, 336) if columns == rows == 1 else (160 + 400 * columns, 40 + 250 * rows)


def curves(columns: dict[str, dict[str, pd.DataFrame]], measures: list[str], window: int = 1) -> str:
    """Measures (down) over rounds, one column of panels per scenario: a line per method (mean over seeds)
    and, for a few methods, the range of the seeds; as SVG text.

    columns: title -> method's label -> history.csv of the cell. The loss has its own unit, all else is in
    percent.
    """
    labels = list(dict.fromkeys(label for histories in columns.values() for label in histories))
    width, height = curves_size(len(columns), len(measures))
    with rc_context(STYLE):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        grid = figure.subplots(len(measures), len(columns), squeeze=False, sharex="col", sharey="row")
        for (row, measure), (column, title) in product(enumerate(measures), enumerate(columns)):
            axes = grid[row, column]
            for label, history in columns[title].items():
                if measure == "loss" and (measure not in history or history[measure].isna().all()):
                    continue  # its steps descend no single loss
                _line(
                    axes,
                    over_seeds(history, measure, window),
                    labels.index(label),
                    label,
                    len(labels) <= MOST_BANDS,
                )
            _dress(
                axes,
                title if row == 0 else "",
                _unit(measure, alone=sum(name != "loss" for name in measures) == 1),
                left=column == 0,
                bottom=row == len(measures) - 1,
            )
        legend(figure, grid.flat)
        return svg(figure)


def curve_data(
    columns: dict[str, dict[str, pd.DataFrame]], measures: list[str], window: int = 1
) -> list[dict]:
    """The panels of `curves` as numbers for the page's own chart: title, unit, and {label: [[round, mean,
    least, most], ...]} over the seeds, of at most POINTS rounds."""
    panels = []
    for measure, (title, histories) in product(measures, columns.items()):
        unit = _unit(measure, alone=sum(name != "loss" for name in measures) == 1)
        tables = {label: over_seeds(history, measure, window) for label, history in histories.items()
                  if measure in history and history[measure].notna().any()}
        panels.append({"title": title, "unit": unit, "x": "round", "lines": {
            label: thinned(table.reset_index()[["round", "mean", "min", "max"]])
            for label, table in tables.items()}})
    return panels


def thinned(rows: pd.DataFrame) -> list[list[float]]:
    """At most POINTS rows, evenly chosen, with the first and the last; two decimals."""
    at = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), POINTS)).astype(int))
    return [[int(x), *(round(value, 2) for value in values)]
            for x, *values in rows.iloc[at].itertuples(index=False)]


def _line(axes, rounds: pd.DataFrame, i: int, label: str, band: bool) -> None:
    colour = list(LINES)[i % len(LINES)]
    axes.plot(
        rounds.index,
        rounds["mean"],
        color=colour,
        label=label,
        linewidth=1.7,
        gid=f"line-{_place(axes)}-{i}",
        linestyle=DASHES[i // len(LINES) % len(DASHES)],
        marker="o" if len(rounds) <= 31 else "",
        markersize=2.6,
    )
    if band:
        axes.fill_between(rounds.index, rounds["min"], rounds["max"], color=colour, alpha=0.16, linewidth=0)


def _place(axes) -> int:
    return axes.figure.axes.index(axes)


def _unit(measure: str, alone: bool) -> str:
    """What an axis shows; which accuracy, where a figure has several."""
    return (
        "training loss" if measure == "loss" else "accuracy, %" if alone else f"{measure_words(measure)}, %"
    )


def _dress(axes, title: str, unit: str, left: bool, bottom: bool) -> None:
    axes.set_title(textwrap.fill(title, TITLE), loc="left", fontsize=9.5)
    axes.set_ylabel(unit if left else "")
    axes.set_xlabel("round" if bottom else "")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
    axes.tick_params(length=3)
    axes.margins(x=0.015)


# -- measures against a number -------------------------------------------------------------------------------

def sweep_size(panels: int, rows: int, labels: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of sweeps with its legend below."""
    return 20 + 360 * panels, 60 + 240 * rows + 18 * labels


def sweep(panels: dict[str, dict[str, dict[str, pd.DataFrame]]]) -> str:
    """Measures against a number: one column of panels per number, one row per measure, a line per label; as
    SVG text.

    panels: number's name -> measure's words -> label -> columns x, mean, std (NaN for one seed), by x. Bars:
    +- std over the seeds.
    """
    labels = list(
        dict.fromkeys(label for rows in panels.values() for lines in rows.values() for label in lines)
    )
    rows = max(len(measures) for measures in panels.values())
    width, height = sweep_size(len(panels), rows, len(labels))
    with rc_context(STYLE):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        grid = figure.subplots(rows, len(panels), squeeze=False, sharex="col", sharey="row")
        for column, (name, measures) in enumerate(panels.items()):
            for row, (words, lines) in enumerate(measures.items()):
                axes = grid[row, column]
                for label, table in lines.items():
                    _sweep_line(axes, table, labels.index(label), label)
                _number_axis(axes, sorted({x for table in lines.values() for x in table["x"]}))
                axes.set_ylabel(words if column == 0 else "")
                axes.set_xlabel(name if row == rows - 1 else "")
                axes.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
                axes.tick_params(length=3)
        legend(figure, grid.flat, below=True)
        return svg(figure)


def sweep_data(panels: dict[str, dict[str, dict[str, pd.DataFrame]]]) -> list[dict]:
    """The panels of `sweep` as numbers, as `curve_data` gives them: [[x, mean, mean - std, mean + std],
    ...]."""
    def rows(table: pd.DataFrame) -> list[list[float]]:
        return [[x, round(mean, 2), round(mean - std, 2), round(mean + std, 2)]
                for x, mean, std in table[["x", "mean", "std"]].fillna(0).itertuples(index=False)]
    return [{"title": "", "unit": words, "x": name, "lines": {label: rows(lines[label]) for label in lines}}
            for name, measures in panels.items() for words, lines in measures.items()]


def _sweep_line(axes, table: pd.DataFrame, i: int, label: str) -> None:
    colour = list(LINES)[i % len(LINES)]
    axes.plot(
        table["x"],
        table["mean"],
        color=colour,
        label=label,
        linewidth=1.7,
        marker="o",
        markersize=4,
        gid=f"sweep-{_place(axes)}-{i}",
        linestyle=DASHES[i // len(LINES) % len(DASHES)],
    )
    axes.errorbar(
        table["x"],
        table["mean"],
        yerr=table["std"].fillna(0),
        color=colour,
        fmt="none",
        capsize=2.5,
        linewidth=1,
    )


def _number_axis(axes, numbers: list[float]) -> None:
    """A tick at every number, with words where there is room for them; a logarithmic axis where they span
    more than a power of ten."""
    place: Callable[[float], float] = float
    if numbers[0] > 0 and numbers[-1] / numbers[0] > 10:
        axes.set_xscale("log")
        place = math.log10
    room, last = (place(numbers[-1]) - place(numbers[0])) / 9, -math.inf
    words = []
    for number in numbers:
        free = place(number) - last >= room
        words.append(f"{number:g}" if free else "")
        last = place(number) if free else last
    axes.set_xticks(numbers, words)
    axes.xaxis.set_minor_locator(NullLocator())


# -- two measures, and data ----------------------------------------------------------------------------------

def pairs_size(panels: int, rows: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of pairs."""
    return 270 + 260 * panels, 70 + 20 * rows


def pairs(panels: dict[str, pd.DataFrame], words: list[str]) -> str:
    """Two numbers a row on one axis, a panel each, as SVG text.

    panels: title -> row's label -> columns first (ring), second (disc). words: what they are.
    """
    labels = list(dict.fromkeys(label for table in panels.values() for label in table.index))
    width, height = pairs_size(len(panels), len(labels))
    ring = {"markerfacecolor": "none", "color": list(LINES)[7], "label": words[0]}
    disc = {"color": list(LINES)[1], "label": words[1]}
    with rc_context(STYLE):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)
        for i, (axes, (title, table)) in enumerate(zip(grid.flat, panels.items())):
            place = [labels.index(label) for label in table.index]
            axes.hlines(place, table["first"], table["second"], color=FAINT, linewidth=1)
            axes.plot(table["first"], place, linestyle="", marker="o", gid=f"first-{i}", **ring)
            axes.plot(table["second"], place, linestyle="", marker="o", gid=f"second-{i}", **disc)
            axes.set_title(textwrap.fill(title, TITLE - 16), loc="left", fontsize=9.5)
            axes.set_yticks(range(len(labels)), labels)
            axes.set_ylim(len(labels) - 0.5, -0.5)
            axes.set_xlabel("accuracy, %")
            axes.grid(axis="x", color=FAINT, linewidth=0.5, alpha=0.6)
            axes.tick_params(length=3)
        legend(figure, list(figure.axes))
        return svg(figure)


def dealt_size(panels: dict[str, pd.DataFrame]) -> tuple[int, int]:
    """Pixels (width, height) of a figure of images per class and client."""
    clients, classes = (max(table.shape[i] for table in panels.values()) for i in (0, 1))
    return 90 + len(panels) * (60 + 30 * clients), 80 + 26 * classes


def dealt(panels: dict[str, pd.DataFrame]) -> str:
    """A disc per class and client with an area by its number of images, as SVG text.

    panels: title -> a row per client, a column per class.
    """
    width, height = dealt_size(panels)
    with rc_context(STYLE):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        grid = figure.subplots(1, len(panels), squeeze=False)
        for i, (axes, (title, table)) in enumerate(zip(grid.flat, panels.items())):
            client, label = np.indices(table.shape)
            areas = 240 * table.to_numpy().ravel() / max(table.max(axis=None), 1)
            axes.scatter(
                client.ravel(), label.ravel(), s=areas, color=list(LINES)[0], linewidths=0, gid=f"dealt-{i}"
            )
            axes.set(xlim=(-0.6, len(table) - 0.4), ylim=(-0.6, len(table.columns) - 0.4))
            axes.set_xticks(range(len(table)), table.index.map(str), rotation=0 if len(table) < 7 else 90)
            axes.set_yticks(range(len(table.columns)), table.columns)
            axes.set_title(textwrap.fill(title, TITLE - 20), loc="left", fontsize=9.5)
            axes.set_xlabel("client")
            axes.set_ylabel("class" if i == 0 else "")
            axes.tick_params(length=3)
        return svg(figure)


# -- corruptions ---------------------------------------------------------------------------------------------

def corruptions_size() -> tuple[int, int]:
    """Pixels (width, height) of a figure of accuracy by corruption."""
    return 800, 400


def corruptions(tables: dict[str, pd.DataFrame]) -> str:
    """Accuracy by severity (left) and by corruption, the hardest above (right), a line or a sign per method;
    as SVG text.

    tables: method -> columns corruption, severity, images, accuracy in percent.
    """
    width, height = corruptions_size()
    names = _pooled(pd.concat(tables.values()), "corruption").sort_values().index     # the hardest first
    with rc_context(STYLE):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        left, right = figure.subplots(1, 2)
        for i, (label, table) in enumerate(tables.items()):
            severity, kind = (_pooled(table, column) for column in ("severity", "corruption"))
            line: dict[str, Any] = {"color": list(LINES)[i % len(LINES)], "marker": "osD^v"[i % 5],
                                    "markersize": 4.5, "label": label}
            left.plot(severity.index, severity, linewidth=1.7, gid=f"severity-{i}", **line)
            right.plot(kind.reindex(names), range(len(names)), linestyle="", gid=f"corruption-{i}", **line)
        left.set(xlabel="severity", ylabel="accuracy, %")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set(xlabel="accuracy, %", ylim=(len(names) - 0.5, -0.5))
        right.set_yticks(range(len(names)), names.str.replace("_", " "))
        for axes, along in ((left, "y"), (right, "both")):
            axes.grid(axis=along, color=FAINT, linewidth=0.5, alpha=0.6)
            axes.tick_params(length=3)
        legend(figure, [right], below=True)
        return svg(figure)


def _pooled(table: pd.DataFrame, column: str) -> pd.Series:
    """The accuracy over all images of each value of a column."""
    right = table["accuracy"] * table["images"]
    return right.groupby(table[column]).sum() / table["images"].groupby(table[column]).sum()


# -- mean ranks ----------------------------------------------------------------------------------------------

def critical_difference_size(methods: int, groups: int) -> tuple[int, int]:
    """Pixels (width, height) of a critical-difference picture."""
    return 730, 82 + 17 * ((methods + 1) // 2) + 9 * groups


def critical_difference(ranks: Ranks) -> str:
    """Mean ranks on a line, names to both sides below it, bars under the line where groups may be drawn, as
    SVG text (Demsar 2006)."""
    names, places, k = list(ranks.means), list(ranks.means.values()), len(ranks.means)
    groups = ranks.groups if ranks.bars else []
    width, height = critical_difference_size(k, len(groups))
    with rc_context(STYLE):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS))
        axes = figure.add_axes((0.28, 0, 0.44, 1))
        axes.set(xlim=(1, k), ylim=(height, 0))
        axes.set_axis_off()
        line: dict[str, Any] = {"color": INK, "linewidth": 1, "clip_on": False}
        axes.plot([1, k], [58, 58], **line)
        for rank in range(1, k + 1):
            axes.plot([rank, rank], [54, 58], **line)
            if k <= CROWDED or rank in (1, k) or (rank % 5 == 0 and rank < k - 1):
                axes.text(rank, 51, str(rank), ha="center", va="bottom")
        axes.plot([1, 1 + ranks.distance], [24, 24], marker="|", gid="distance", **line)
        words = f"critical difference {ranks.distance:.2f}"
        axes.text(1 + ranks.distance / 2, 19, words, ha="center", va="bottom")
        for i, group in enumerate(groups):
            ends = [ranks.means[group[0]], ranks.means[group[-1]]]
            bar: dict[str, Any] = {"color": list(LINES)[1], "linewidth": 4, "solid_capstyle": "round",
                                   "clip_on": False}
            axes.plot(ends, [66 + 9 * i] * 2, gid=f"group-{i}", **bar)
        half = (k + 1) // 2
        for i, (name, place) in enumerate(zip(names, places)):
            left, row, gap = i < half, i if i < half else k - 1 - i, 0.01 + (k - 1) * 0.02
            y, edge = 74 + 9 * len(groups) + 17 * row, 1 - gap if left else k + gap
            axes.plot([place, place, edge], [58, y, y], gid=f"rank-{i}", **line | {"linewidth": 0.8})
            words = f"{name}  {place:.2f} " if left else f" {place:.2f}  {name}"
            axes.text(edge, y, words, ha="right" if left else "left", va="center")
        return svg(figure)
