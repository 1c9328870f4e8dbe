"""Figures of the geometry of representations and logits: margins, cross-correlations, points in the plane and
on the sphere."""
import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, PathPatch, Rectangle
from matplotlib.path import Path as Outline

from pipeline.report.svg import FAINT, LINES, PIXELS, POINTS, STYLE, legend, svg

SHAPES = {  # strokes of a point (from, to) in units of REACH, and the legend's marker;
    "o": [((0, 0), (0, 0))],                     # they tell labels apart once the colours repeat
    "x": [((-1, -1), (1, 1)), ((-1, 1), (1, -1))],
    "_": [((-1.3, 0), (1.3, 0))],
    "|": [((0, -1.3), (0, 1.3))],
}
REACH = 0.013                                    # of half a panel's width
MOST_POINTS = 2000                               # drawn per panel


# -- how class means lie -------------------------------------------------------------------------------------

def margins_size(panels: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of margins."""
    return 190 + 300 * panels, 300


def margins(panels: dict[str, pd.DataFrame]) -> str:
    """Margin per class, one panel per method with a scale of its own: ring, the largest of a client's own;
    disc, that of the means over clients; diamond, that of the vectors that the server sends, where it sends
    any.

    panels: title -> columns label, clients, mean, vectors.
    """
    shown = ["clients", "mean", "vectors"]
    ring, disc, diamond = (list(LINES)[i] for i in (7, 1, 0))
    width, height = margins_size(len(panels))
    with rc_context(STYLE):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        for i, (axes, (title, table)) in enumerate(
            zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items())
        ):
            place = np.arange(len(table))
            axes.vlines(place, table[shown].min(axis=1), table[shown].max(axis=1), color=FAINT, linewidth=1)
            axes.plot(
                place,
                table["clients"],
                linestyle="",
                marker="o",
                markerfacecolor="none",
                color=ring,
                label="largest of the clients' own",
                gid=f"clients-{i}",
            )
            axes.plot(
                place,
                table["mean"],
                linestyle="",
                marker="o",
                color=disc,
                label="mean over clients",
                gid=f"mean-{i}",
            )
            if (there := table["vectors"].notna()).any():
                axes.plot(
                    place[there],
                    table["vectors"][there],
                    linestyle="",
                    marker="D",
                    markersize=5,
                    color=diamond,
                    label="sent by the server",
                    gid=f"vectors-{i}",
                )
            axes.set_title(title, loc="left", fontsize=9.5)
            axes.set_xticks(place, [str(label) for label in table["label"]])
            axes.set_xlabel("class")
            axes.set_ylabel("margin" if i == 0 else "")
            axes.set_ylim(0, 1.1 * table[shown].max(axis=None))
            axes.tick_params(length=3)
        legend(figure, list(figure.axes))
        return svg(figure)


def matrices_size(rows: int, columns: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of matrices."""
    return 60 + 190 * columns, 30 + 200 * rows


def matrices(rows: dict[str, dict[str, np.ndarray]]) -> str:
    """Square matrices of numbers from -1 to 1 with the mean of their diagonal: positive blue, negative
    orange, the fuller the larger.

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
                    axes.add_patch(
                        Rectangle(
                            (v - 0.5, u - 0.5),
                            1,
                            1,
                            linewidth=0,
                            facecolor=list(LINES)[0 if values[u, v] > 0 else 1],
                            alpha=float(min(abs(values[u, v]), 1)),
                        )
                    )
                axes.set(
                    xlim=(-0.5, len(values) - 0.5),
                    ylim=(len(values) - 0.5, -0.5),
                    xticks=[],
                    yticks=[],
                    aspect="equal",
                )
                axes.set_title(column if place == 0 else "", loc="left", fontsize=9.5)
                axes.set_xlabel(f"diagonal {np.diag(values).mean():.2f}")
                axes.set_ylabel(row if i == 0 else "")
        return svg(figure)


# -- representations in the plane ----------------------------------------------------------------------------

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
        return svg(figure)


def transfers_size(rows: int) -> tuple[int, int]:
    """Pixels (width, height) of a figure of one client's features on two domains."""
    return 700, 10 + 340 * rows


def transfers(rows: dict[str, dict[str, tuple[pd.DataFrame, str]]]) -> str:
    """Point clouds of two domains side by side, coloured by label, with a caption below each, as SVG text.

    rows: row's name -> panel's title -> (columns x, y, label; the words).
    """
    labels = sorted(
        {label for panels in rows.values() for table, _ in panels.values() for label in table["label"]}
    )
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
        return svg(figure)


def _scatter(axes, table: pd.DataFrame, labels: list) -> None:
    """At most MOST_POINTS rows, evenly taken."""
    shown = table.iloc[
        np.unique(np.linspace(0, len(table) - 1, min(len(table), MOST_POINTS)).round().astype(int))
    ]
    for label, (x, y) in _clouds(shown):
        axes.add_patch(_cloud(x, y, labels.index(label)))
    axes.set(xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), xticks=[], yticks=[], aspect="equal")


def sphere(panels: dict[str, pd.DataFrame]) -> str:
    """Points around the unit sphere seen along z, coloured by label, those behind faint, as SVG text.

    panels: title -> columns x, y, z, label; at most MOST_POINTS rows of each, evenly taken, are drawn.
    """
    labels = sorted({label for table in panels.values() for label in table["label"]})
    width, height = points_size(len(panels))
    with rc_context(
        STYLE
        | {
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.spines.left": False,
            "axes.spines.bottom": False,
        }
    ):
        figure = Figure(figsize=(width / PIXELS, height / PIXELS), layout="constrained")
        for axes, (title, table) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items()):
            shown = table.iloc[
                np.unique(np.linspace(0, len(table) - 1, min(len(table), MOST_POINTS)).round().astype(int))
            ]
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
        return svg(figure)


def _label_legend(figure: Figure, labels: list) -> None:
    handles = [
        Line2D([], [], linestyle="", marker=_shape(i), color=_point_colour(i), markersize=5)
        for i in range(len(labels))
    ]
    figure.legend(
        handles,
        [str(label) for label in labels],
        title="label",
        loc="outside right upper",
        frameon=False,
        handletextpad=0.1,
        ncols=1 + (len(labels) - 1) // 16,
    )


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
    ends = np.stack([x, y], 1)[:, None, None] + strokes  # (points, strokes, 2 ends, 2)
    outline = Outline(ends.reshape(-1, 2), [Outline.MOVETO, Outline.LINETO] * (len(x) * len(strokes)))
    outline.should_simplify = False  # it would drop strokes of no length
    width = 3.2 if _shape(i) == "o" else 1.1
    return PathPatch(
        outline,
        fill=False,
        edgecolor=_point_colour(i),
        linewidth=width,
        capstyle="round",
        alpha=0.85,
        gid=f"label-{i}",
    )


def _point_colour(i: int) -> str:
    return list(POINTS)[i % len(POINTS)]


def _shape(i: int) -> str:
    return list(SHAPES)[i // len(POINTS) % len(SHAPES)]
