"""Figures as SVG that read on light and on dark ground: colours are CSS variables, text stays text."""
import io
import textwrap
from itertools import product

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator, NullLocator

from pipeline.report.ranks import Ranks
from pipeline.report.words import measure_words

INK, FAINT = "#24303c", "#b9c1ca"
NIGHT = {INK: "#dfe4ea", FAINT: "#4a545f"}       # what each colour becomes on dark ground
LINES = {"#1f5fa8": "#7fb4ee", "#c2501c": "#f29a6b", "#23743c": "#6fc98a", "#8a3a8f": "#d594da", "#8b6508": "#e0bd55",
         "#0f7480": "#62ccd8", "#a8284b": "#f08aa5", "#59636e": "#aab4be"}
DASHES = ["-", (0, (5, 1.6)), (0, (1.4, 1.4))]   # tells lines apart once the colours repeat
POINTS = {"#0072b2": "#56b4e9", "#d55e00": "#f0822d", "#009e73": "#2cc79b", "#b5528f": "#de9cc6", "#2b2b2b": "#f2e36a"}
SHAPES = {                                       # strokes of a point (from, to) in units of REACH, and the legend's marker;
    "o": [((0, 0), (0, 0))],                     # they tell labels apart once the colours repeat
    "x": [((-1, -1), (1, 1)), ((-1, 1), (1, -1))],
    "_": [((-1.3, 0), (1.3, 0))],
    "|": [((0, -1.3), (0, 1.3))],
}
REACH = 0.013                                    # of half a panel's width
TITLE = 54                                       # letters in a line above a panel of curves; more would run into the legend
MOST_POINTS = 2000                               # drawn per panel
MOST_BANDS = 8                                   # with more lines the ranges of the seeds hide one another
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "fedrepro", "font.family": "sans-serif", "font.size": 9.5,
         "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": FAINT,
         "axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "normal"}
PIXELS = 96                                      # per inch, as a browser has it


# -- measures over rounds --------------------------------------------------------------------------------------------

def trailing_mean(values: pd.Series, window: int) -> pd.Series:
    """s_t = mean(y_max(1,t-window+1) .. y_t) of a series over rounds, at the rounds that it has (FedCRL Fig. 3).

    Rounds that were not evaluated count as absent; round 0, before training, is left out where anything is averaged.
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
    """Measures (down) over rounds, one column of panels per scenario: a line per method (mean over seeds) and,
    for a few methods, the range of the seeds; as SVG text.

    columns: title -> method's label -> history.csv of the cell. The loss has its own unit, all else is in percent.
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
                    continue                          # its steps descend no single loss
                _line(axes, over_seeds(history, measure, window), labels.index(label), label, len(labels) <= MOST_BANDS)
            _dress(axes, title if row == 0 else "", _unit(measure, alone=sum(name != "loss" for name in measures) == 1),
                   left=column == 0, bottom=row == len(measures) - 1)
        _legend(figure, grid.flat)
        return _svg(figure)


def _line(axes, rounds: pd.DataFrame, i: int, label: str, band: bool) -> None:
    colour = list(LINES)[i % len(LINES)]
    axes.plot(rounds.index, rounds["mean"], color=colour, label=label, linewidth=1.7, gid=f"line-{_place(axes)}-{i}",
              linestyle=DASHES[i // len(LINES) % len(DASHES)], marker="o" if len(rounds) <= 31 else "", markersize=2.6)
    if band:
        axes.fill_between(rounds.index, rounds["min"], rounds["max"], color=colour, alpha=0.16, linewidth=0)


def _place(axes) -> int:
    return axes.figure.axes.index(axes)


def _unit(measure: str, alone: bool) -> str:
    """What an axis shows; which accuracy, where a figure has several."""
    return "training loss" if measure == "loss" else "accuracy, %" if alone else f"{measure_words(measure)}, %"


def _dress(axes, title: str, unit: str, left: bool, bottom: bool) -> None:
    axes.set_title(textwrap.fill(title, TITLE), loc="left", fontsize=9.5)
    axes.set_ylabel(unit if left else "")
    axes.set_xlabel("round" if bottom else "")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
    axes.tick_params(length=3)
    axes.margins(x=0.015)


def _legend(figure: Figure, panels) -> None:
    """Beside the plot, in the order of the last values of the first panel that has the line, to read like the ends of the lines."""
    found = {}
    for panel, axes in enumerate(panels):
        for line in (line for line in axes.get_lines() if not line.get_label().startswith("_")):       # not the caps of error bars
            found.setdefault(line.get_label(), (panel, -line.get_ydata()[-1], line))
    order = sorted(found.values(), key=lambda place: place[:2])
    legend = figure.legend([line for *_, line in order], [line.get_label() for *_, line in order], loc="outside right upper", frameon=False,
                           handlelength=3)
    for line in (line for line in legend.legend_handles if line.get_linestyle() != "None"):
        line.set_marker("")                           # it would hide the gaps that tell dashes apart


# -- measures against a number ---------------------------------------------------------------------------------------

def sweep_size(panels: int, rows: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of sweeps."""
    return 200 + 360 * panels, 50 + 240 * rows


def sweep(panels: dict[str, dict[str, dict[str, pd.DataFrame]]]) -> str:
    """Measures against a number: one column of panels per number, one row per measure, a line per label; as SVG text.

    panels: number's name -> measure's words -> label -> columns x, mean, std (NaN for one seed), by x. Bars: +- std over the seeds.
    """
    labels = list(dict.fromkeys(label for rows in panels.values() for lines in rows.values() for label in lines))
    rows = max(len(measures) for measures in panels.values())
    width, height = sweep_size(len(panels), rows)
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
        _legend(figure, grid.flat)
        return _svg(figure)


def _sweep_line(axes, table: pd.DataFrame, i: int, label: str) -> None:
    colour = list(LINES)[i % len(LINES)]
    axes.plot(table["x"], table["mean"], color=colour, label=label, linewidth=1.7, marker="o", markersize=4, gid=f"sweep-{_place(axes)}-{i}",
              linestyle=DASHES[i // len(LINES) % len(DASHES)])
    axes.errorbar(table["x"], table["mean"], yerr=table["std"].fillna(0), color=colour, fmt="none", capsize=2.5, linewidth=1)


def _number_axis(axes, numbers: list[float]) -> None:
    """A tick at every number; a logarithmic axis where they span more than a power of ten."""
    if numbers[0] > 0 and numbers[-1] / numbers[0] > 10:
        axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{x:g}" for x in numbers])
    axes.xaxis.set_minor_locator(NullLocator())


# -- two measures, and data --------------------------------------------------------------------------------------

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
        _legend(figure, list(figure.axes))
        return _svg(figure)


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
            axes.scatter(client.ravel(), label.ravel(), s=areas, color=list(LINES)[0], linewidths=0, gid=f"dealt-{i}")
            axes.set(xlim=(-0.6, len(table) - 0.4), ylim=(-0.6, len(table.columns) - 0.4))
            axes.set_xticks(range(len(table)), table.index.map(str), rotation=0 if len(table) < 7 else 90)
            axes.set_yticks(range(len(table.columns)), table.columns)
            axes.set_title(textwrap.fill(title, TITLE - 20), loc="left", fontsize=9.5)
            axes.set_xlabel("client")
            axes.set_ylabel("class" if i == 0 else "")
            axes.tick_params(length=3)
        return _svg(figure)


# -- how class means lie ---------------------------------------------------------------------------------------------------

def margins_size(panels: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of margins."""
    return 190 + 300 * panels, 300


def margins(panels: dict[str, pd.DataFrame]) -> str:
    """Margin per class, one panel per method with a scale of its own: ring, the best client's; disc, that of the means over clients;
    diamond, that of what the server sends, where there is such a thing.

    panels: title -> columns label, clients, mean, vectors.
    """
    shown = ["clients", "mean", "vectors"]
    ring, disc, diamond = (list(LINES)[i] for i in (7, 1, 0))
    width, height = margins_size(len(panels))
    with rc_context(STYLE):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        for i, (axes, (title, table)) in enumerate(zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items())):
            place = np.arange(len(table))
            axes.vlines(place, table[shown].min(axis=1), table[shown].max(axis=1), color=FAINT, linewidth=1)
            axes.plot(place, table["clients"], linestyle="", marker="o", markerfacecolor="none", color=ring, label="best client", gid=f"clients-{i}")
            axes.plot(place, table["mean"], linestyle="", marker="o", color=disc, label="mean over clients", gid=f"mean-{i}")
            if (there := table["vectors"].notna()).any():
                axes.plot(place[there], table["vectors"][there], linestyle="", marker="D", markersize=5, color=diamond, label="sent by the server",
                          gid=f"vectors-{i}")
            axes.set_title(title, loc="left", fontsize=9.5)
            axes.set_xticks(place, [str(label) for label in table["label"]])
            axes.set_xlabel("class")
            axes.set_ylabel("margin" if i == 0 else "")
            axes.set_ylim(0, 1.1 * table[shown].max(axis=None))
            axes.tick_params(length=3)
        _legend(figure, list(figure.axes))
        return _svg(figure)


def matrices_size(rows: int, columns: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of matrices."""
    return 60 + 190 * columns, 30 + 200 * rows


def matrices(rows: dict[str, dict[str, np.ndarray]]) -> str:
    """Square matrices of numbers from -1 to 1 with the mean of their diagonal: positive blue, negative orange, the fuller the larger.

    rows: row's name -> column's name -> (C, C).
    """
    most = max(len(found) for found in rows.values())
    width, height = matrices_size(len(rows), most)
    with rc_context(STYLE | {"axes.spines.top": True, "axes.spines.right": True}):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        grid = figure.subplots(len(rows), most, squeeze=False)
        for place, (line, (row, found)) in enumerate(zip(grid, rows.items())):
            for axes in line[len(found):]:
                axes.set_axis_off()
            for i, (axes, (column, values)) in enumerate(zip(line, found.items())):
                for u, v in np.argwhere(np.abs(values) >= 0.005):
                    axes.add_patch(Rectangle((v - 0.5, u - 0.5), 1, 1, linewidth=0, facecolor=list(LINES)[0 if values[u, v] > 0 else 1],
                                             alpha=float(min(abs(values[u, v]), 1))))
                axes.set(xlim=(-0.5, len(values) - 0.5), ylim=(len(values) - 0.5, -0.5), xticks=[], yticks=[], aspect="equal")
                axes.set_title(column if place == 0 else "", loc="left", fontsize=9.5)
                axes.set_xlabel(f"diagonal {np.diag(values).mean():.2f}")
                axes.set_ylabel(row if i == 0 else "")
        return _svg(figure)


# -- representations in the plane --------------------------------------------------------------------------------------

def points_size(panels: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of point clouds."""
    return 60 + 340 * panels, 370


def points(panels: dict[str, pd.DataFrame]) -> str:
    """Point clouds side by side, coloured by label, as SVG text.

    panels: title -> columns x, y, label; at most MOST_POINTS rows of each, evenly taken, are drawn.
    """
    labels = sorted({label for table in panels.values() for label in table["label"]})
    width, height = points_size(len(panels))
    with rc_context(STYLE | {"axes.spines.top": True, "axes.spines.right": True}):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        for axes, (title, table) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items()):
            _scatter(axes, table, labels)
            axes.set_title(title, loc="left", fontsize=9.5)
        _label_legend(figure, labels)
        return _svg(figure)


def transfers_size(rows: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of one client's features on two domains."""
    return 700, 10 + 340 * rows


def transfers(rows: dict[str, dict[str, tuple[pd.DataFrame, str]]]) -> str:
    """Point clouds of two domains beside each other, coloured by label, with words below each, as SVG text.

    rows: row's name -> panel's title -> (columns x, y, label; the words).
    """
    labels = sorted({label for panels in rows.values() for table, _ in panels.values() for label in table["label"]})
    width, height = transfers_size(len(rows))
    with rc_context(STYLE | {"axes.spines.top": True, "axes.spines.right": True}):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        for line, (row, panels) in zip(figure.subplots(len(rows), 2, squeeze=False), rows.items()):
            for axes, (title, (table, words)) in zip(line, panels.items()):
                _scatter(axes, table, labels)
                axes.set_title(title, loc="left", fontsize=9.5)
                axes.set_xlabel(words)
            line[0].set_ylabel(row)
        _label_legend(figure, labels)
        return _svg(figure)


def _scatter(axes, table: pd.DataFrame, labels: list) -> None:
    """At most MOST_POINTS rows, evenly taken."""
    shown = table.iloc[np.unique(np.linspace(0, len(table) - 1, min(len(table), MOST_POINTS)).round().astype(int))]
    for label, (x, y) in _clouds(shown):
        axes.add_patch(_cloud(x, y, labels.index(label)))
    axes.set(xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), xticks=[], yticks=[], aspect="equal")


def sphere(panels: dict[str, pd.DataFrame]) -> str:
    """Points around the unit sphere seen along z, coloured by label, those behind faint, as SVG text.

    panels: title -> columns x, y, z, label; at most MOST_POINTS rows of each, evenly taken, are drawn.
    """
    labels = sorted({label for table in panels.values() for label in table["label"]})
    width, height = points_size(len(panels))
    with rc_context(STYLE | {"axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.spines.bottom": False}):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        for axes, (title, table) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items()):
            shown = table.iloc[np.unique(np.linspace(0, len(table) - 1, min(len(table), MOST_POINTS)).round().astype(int))]
            reach = max(1.06, float(np.hypot(shown["x"], shown["y"]).quantile(0.99)))
            axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=FAINT, linewidth=1))
            for behind in (True, False):
                for label in labels:
                    here = shown[(shown["label"] == label) & ((shown["z"] < 0) == behind)]
                    if len(here):
                        cloud = _cloud(here["x"].to_numpy(), here["y"].to_numpy(), labels.index(label))
                        cloud.set_alpha(0.25 if behind else 0.85)
                        axes.add_patch(cloud)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
            axes.set_title(title, loc="left", fontsize=9.5)
        _label_legend(figure, labels)
        return _svg(figure)


def _label_legend(figure: Figure, labels: list) -> None:
    handles = [Line2D([], [], linestyle="", marker=_shape(i), color=_point_colour(i), markersize=5) for i in range(len(labels))]
    figure.legend(handles, [str(label) for label in labels], title="label", loc="outside right upper", frameon=False,
                  handletextpad=0.1, ncols=1 + (len(labels) - 1) // 16)


def _clouds(table: pd.DataFrame):
    """(label, (x, y)) with the whole table centred and scaled to [-1, 1]."""
    place = table[["x", "y"]].to_numpy(float)
    middle = (place.min(0) + place.max(0)) / 2
    place = (place - middle) / max(np.abs(place - middle).max(), 1e-9)
    for label in sorted(table["label"].unique()):
        yield label, place[(table["label"] == label).to_numpy()].T


def _cloud(x: np.ndarray, y: np.ndarray, i: int) -> PathPatch:
    """All points of a label as one path of short strokes: a tenth of the bytes of a marker each."""
    strokes = REACH * np.array(SHAPES[_shape(i)], float)                         # (strokes, 2 ends, 2)
    ends = np.stack([x, y], 1)[:, None, None] + strokes                          # (points, strokes, 2 ends, 2)
    outline = Outline(ends.reshape(-1, 2), [Outline.MOVETO, Outline.LINETO] * (len(x) * len(strokes)))
    outline.should_simplify = False                                              # it would drop strokes of no length
    width = 3.2 if _shape(i) == "o" else 1.1
    return PathPatch(outline, fill=False, edgecolor=_point_colour(i), linewidth=width, capstyle="round", alpha=0.85, gid=f"label-{i}")


def _point_colour(i: int) -> str:
    return list(POINTS)[i % len(POINTS)]


def _shape(i: int) -> str:
    return list(SHAPES)[i // len(POINTS) % len(SHAPES)]


# -- mean ranks --------------------------------------------------------------------------------------------------

def critical_difference_size(methods: int, groups: int) -> tuple[int, int]:
    """Pixels (width, height) of a critical-difference picture."""
    return 730, 82 + 17 * ((methods + 1) // 2) + 9 * groups


def critical_difference(ranks: Ranks) -> str:
    """Mean ranks on a line, names to both sides below it, bars under the line where groups may be drawn, as SVG text
    (Demsar 2006)."""
    names, places, k = list(ranks.means), list(ranks.means.values()), len(ranks.means)
    groups = ranks.groups if ranks.bars else []
    width, height = critical_difference_size(k, len(groups))
    with rc_context(STYLE):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS))
        axes = figure.add_axes((0.28, 0, 0.44, 1))
        axes.set(xlim=(1, k), ylim=(height, 0))
        axes.set_axis_off()
        line = {"color": INK, "linewidth": 1, "clip_on": False}
        axes.plot([1, k], [58, 58], **line)
        for rank in range(1, k + 1):
            axes.plot([rank, rank], [54, 58], **line)
            axes.text(rank, 51, str(rank), ha="center", va="bottom")
        axes.plot([1, 1 + ranks.distance], [24, 24], marker="|", gid="distance", **line)
        words = f"critical difference {ranks.distance:.3f}"
        axes.text(1 + ranks.distance / 2, 19, words, ha="center", va="bottom")
        for i, group in enumerate(groups):
            ends = [ranks.means[group[0]], ranks.means[group[-1]]]
            bar = {"color": list(LINES)[1], "linewidth": 4, "solid_capstyle": "round", "clip_on": False}
            axes.plot(ends, [66 + 9 * i] * 2, gid=f"group-{i}", **bar)
        half = (k + 1) // 2
        for i, (name, place) in enumerate(zip(names, places)):
            left, row, gap = i < half, i if i < half else k - 1 - i, 0.01 + (k - 1) * 0.02
            y, edge = 74 + 9 * len(groups) + 17 * row, 1 - gap if left else k + gap
            axes.plot([place, place, edge], [58, y, y], gid=f"rank-{i}", **line | {"linewidth": 0.8})
            words = f"{name}  {place:.2f} " if left else f" {place:.2f}  {name}"
            axes.text(edge, y, words, ha="right" if left else "left", va="center")
        return _svg(figure)


# -- one file for day and night ------------------------------------------------------------------------------------------

def _svg(figure: Figure) -> str:
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    night = {INK: NIGHT[INK]} | {day: dark for day, dark in (NIGHT | LINES | POINTS).items() if day in text}
    day = "".join(f"--c{i}: {colour}; " for i, colour in enumerate(night))
    dark = "".join(f"--c{i}: {colour}; " for i, colour in enumerate(night.values()))
    for i, colour in enumerate(night):
        text = text.replace(f"{colour}", f"var(--c{i})")
    style = f"<style>:root {{ {day}}} @media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }} text {{ fill: var(--c0); }}</style>"
    head, tag, rest = text.partition("<defs>")
    return _without_trailing_spaces(f"{head}{style}\n {tag}{rest}")


def _without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
