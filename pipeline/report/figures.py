"""Plot lines, dots, point clouds and matrices by matplotlib as small SVGs, with titles and legends in HTML.

Colours are CSS variables of reports/templates/style.css, for light and dark; there are no fonts and no ids.
What belongs to a series has `data-key`, its name, and may have a <title> with its numbers: for hover a script
marks those of a key `.lit` and `.panels` `.dimmed`.
"""

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Circle, PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

# The colours of the style sheet, and what matplotlib draws in their place.
COLOURS = ["accent", "ink", "mute", "line", "bg"]
COLOURS += [f"line-{i}" for i in range(1, 7)] + [f"dot-{i}" for i in range(1, 6)]
PAINT = {name: f"#fe{i:02x}01" for i, name in enumerate(COLOURS)}
NAMES = {paint: f"var(--{name})" for name, paint in PAINT.items()} | {PAINT["ink"]: "currentColor"}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedrepro",
    "font.size": 11,
    "text.color": PAINT["ink"],
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), PAINT["mute"]),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), PAINT["line"]),
    "axes.axisbelow": True,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left", "path.simplify"), False),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0),
    "lines.solid_capstyle": "butt",
    "text.parse_math": False,  # a $ in a label is a dollar sign
}
# Units of the SVG in an inch, so that each is a pixel of the page.
INCH = 72
# Of more lines than these no ranges are drawn, as they would hide one another.
MOST_BANDS = 6
# Points of a cloud: more make the page heavy and show nothing new.
MOST_DOTS = 600
# Width of a letter in pixels, on average.
LETTER = 5.9
# Letters of a label; what is longer is cut.
LONGEST = 40
# Shades of a square in a matrix.
LEVELS = 8
DASHES: list[Any] = ["-", (0, (5, 1.6)), (0, (1.4, 1.4))]
# The strokes of a mark, from and to in units of its reach.
STROKES: dict[str, list] = {
    **dict.fromkeys("●○■", [((0, 0), (0, 0))]),
    "×": [((-1, -1), (1, 1)), ((-1, 1), (1, -1))],
    "–": [((-1.3, 0), (1.3, 0))],
    "|": [((0, -1.3), (0, 1.3))],
}


@dataclass(frozen=True)
class Ink:
    """How a series is drawn: name of its variable, dashes (0 to 2), mark (a key of STROKES), and weight."""

    colour: str
    dash: int = 0
    mark: str = "●"
    bold: bool = False


Inks = Mapping[str, Ink]
Tables = Mapping[str, pd.DataFrame]
Names = Sequence[str]


@dataclass(frozen=True)
class Panel:
    """A drawing, or with an address `src` an image of this size, which `words` describe."""

    title: str
    width: float
    svg: Markup = Markup()
    note: str = ""
    src: str = ""
    height: int = 0
    words: str = ""


@dataclass(frozen=True)
class Picture:
    """Panels side by side; legend: where they do not name their series themselves. Without panels there is
    nothing to show."""

    panels: Sequence[Panel] = ()
    caption: str = ""
    legend: Inks = field(default_factory=dict)


class Canvas:
    """Axes with margins in pixels (left, right, below, above), which become a panel."""

    def __init__(self, size: Sequence[float], margins: Sequence[float], title: str = "", note: str = ""):
        self.size = size
        self.margins = margins
        self.title = title
        self.note = note
        # (name, numbers) of every series; a gid names the place in this list.
        self.series: list[tuple[str, str]] = []
        width, height = size
        left, right, below, above = margins
        self.figure = Figure((width / INCH, height / INCH), dpi=INCH)
        inner_width = (width - left - right) / width
        inner_height = (height - below - above) / height
        self.axes = self.figure.add_axes((left / width, below / height, inner_width, inner_height))
        self.figure.patch.set_visible(False)
        self.axes.patch.set_visible(False)

    def of(self, name: str, numbers: str = "") -> str:
        """The gid of what belongs to a series; `numbers` show under the pointer."""
        self.series.append((name, numbers))
        return f"series-{len(self.series) - 1}"

    def panel(self, words: str) -> Panel:
        """The drawing; words: the text alternative."""
        for artist in self.axes.get_children():
            artist.set_clip_on(False)
        target = io.StringIO()
        self.figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = re.sub(r' xmlns(:xlink)?="[^"]*"|xlink:', "", target.getvalue())
        tree = ElementTree.fromstring(text[text.index("<svg") :])
        box = f"0 0 {self.size[0]:g} {self.size[1]:g}"
        root = ElementTree.Element("svg", {"viewBox": box, "role": "img", "aria-label": words})
        root.extend(_lean(tree, self.series))
        svg = Markup(ElementTree.tostring(root, encoding="unicode"))
        return Panel(self.title, self.size[0], svg, self.note)


def _lean(node: ElementTree.Element, series: Sequence[tuple[str, str]]) -> list[ElementTree.Element]:
    """What a page needs of a node: groups of series alone, tenths of a pixel, variables for colours."""
    inside = [part for child in node for part in _lean(child, series)]
    kind, _, place = node.get("id", "").partition("-")
    if node.tag not in ("g", "path", "text") or (node.tag == "g" and kind != "series"):
        return [] if node.tag in ("defs", "metadata") else inside
    style = dict(item.split(": ", 1) for item in node.get("style", "").rstrip("; ").split("; ") if item)
    for name, default in (("font-family", ""), ("stroke-linejoin", ""), ("stroke-linecap", "butt")):
        if default in ("", style.get(name)):
            style.pop(name, None)
    if style.get("font-size") == "11px":
        del style["font-size"]
    numbers = {name: node.get(name, "") for name in ("x", "y", "d", "transform") if node.get(name)}
    attributes = {name: _tenths(text) for name, text in numbers.items() if not text.startswith("rotate(-0 ")}
    if style:
        attributes["style"] = ";".join(f"{name}:{NAMES.get(value, value)}" for name, value in style.items())
    part = ElementTree.Element(node.tag, attributes)
    if kind == "series":
        name, words = series[int(place)]
        part.attrib = {"data-key": name}
        if words:
            ElementTree.SubElement(part, "title").text = words
    part.text = node.text if node.tag == "text" else None
    part.extend(inside)
    return [part]


def _tenths(text: str) -> str:
    """Numbers of an attribute with one decimal; a path without the letters that go without saying."""
    text = re.sub(r"-?\d+\.\d+", lambda number: f"{round(float(number[0]), 1):g}", " ".join(text.split()))
    text = re.sub(r"M (\S+) (\S+) L \1 \2(?= M|$)", r"M\1 \2h0", text)
    text = re.sub(r" ?([MLz]) ?", r"\1", text)
    # behind a curve, numbers without a letter would be one more curve
    return (text if "C" in text else text.replace("L", " ")).replace(" -", "-")


def inks(names: Iterable[str], proposed: str, baseline: str = "FedAvg") -> dict[str, Ink]:
    """An ink for every name; the paper's method and the baseline have theirs on every picture."""
    rest = [name for name in dict.fromkeys(names) if name not in (proposed, baseline)]
    free = {name: Ink(f"line-{i % 6 + 1}", i // 6 % 3) for i, name in enumerate(rest)}
    return {proposed: Ink("accent", bold=True), baseline: Ink("ink")} | free


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def dots(
    canvas: Canvas, gid: str, x: Any, y: Any, ink: Ink, size: float, alpha: float = 1, reach: float = 0
) -> None:
    """All marks of a series as one path of short strokes, few bytes.

    gid    from `canvas.of`
    x, y   places, in data units
    size   of a mark, in pixels
    reach  of a stroke, in data units
    """
    places = np.column_stack([x, y]).astype(float)
    ends = places[:, None, None] + reach * np.array(STROKES[ink.mark], float)
    outline = Outline(ends.reshape(-1, 2), [Outline.MOVETO, Outline.LINETO] * (ends.size // 4))
    cap: Any = "projecting" if ink.mark == "■" else "round"
    width = size if ink.mark in "●○■" else round(size / 3, 1)
    layers = [(PAINT[ink.colour], width)]
    if ink.mark == "○":
        # The background over its middle makes a dot a ring.
        layers.append((PAINT["bg"], width - 3))
    for colour, thick in layers:
        style: dict[str, Any] = {"edgecolor": colour, "linewidth": thick, "capstyle": cap, "gid": gid}
        canvas.axes.add_patch(PathPatch(outline, fill=False, alpha=alpha, zorder=3, **style))


# -- lines over a number -------------------------------------------------------------------------------------


@rc_context(STYLE)
def lines(title: str, unit: str, over: str, tables: Tables, ink: Inks, sweep: bool = False) -> Panel:
    """A line per series with its name at its end, and ranges where there are few lines.

    unit    what y is
    over    what x is
    tables  name -> columns x, mean, low, high
    ink     name -> how its line is drawn
    sweep   whether x has few numbers: a dot and a bar at each
    """
    right = 18 + LETTER * max(len(_short(name)) for name in tables)
    # As wide as a telephone, if names are short enough.
    width = min(max(390 - right, 220), 300) + right
    canvas = Canvas((width, max(230, 14 * len(tables) + 60)), (40, right, 34, 20), title)
    for name, table in tables.items():
        _line(canvas, name, table, ink[name], sweep, len(tables) <= MOST_BANDS)
    axes = canvas.axes
    axes.margins(x=0.02)
    if sweep:
        _ticks_at(axes, sorted({x for table in tables.values() for x in table["x"]}))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    dress(axes, over, unit, "y")
    name_lines(canvas, tables, ink)
    return canvas.panel(f"{title}: {unit} over {over} of {', '.join(tables)}")


def _line(canvas: Canvas, name: str, table: pd.DataFrame, ink: Ink, sweep: bool, band: bool) -> None:
    last = table.iloc[-1]
    x = table["x"].to_numpy(float)
    paint = PAINT[ink.colour]
    spread = f" [{last['low']:.1f}, {last['high']:.1f}]" if last["high"] > last["low"] else ""
    gid = canvas.of(name, f"{name}: {last['mean']:.1f}{spread} at {last['x']:g}")
    canvas.axes.plot(
        x,
        table["mean"],
        color=paint,
        ls=DASHES[ink.dash],
        lw=2.4 if ink.bold else 1.5,
        zorder=3 if ink.bold else 2,
        gid=gid,
    )
    if sweep:
        dots(canvas, canvas.of(name), x, table["mean"], ink, 7)
        canvas.axes.vlines(x, table["low"], table["high"], color=paint, lw=1, gid=canvas.of(name))
    elif band and (table["high"] > table["low"]).any():
        around = np.concatenate([x, x[::-1]])
        edge = np.concatenate([table["low"], table["high"][::-1]])
        canvas.axes.fill(around, edge, color=paint, alpha=0.13, lw=0, gid=canvas.of(name))


def _ticks_at(axes: Any, numbers: list[float]) -> None:
    """A tick at every number, words where there is room; a logarithmic axis over more than a power of ten."""
    if numbers[0] > 0 and numbers[-1] / numbers[0] > 10:
        axes.set_xscale("log")
    places = np.log10(numbers) if axes.get_xscale() == "log" else np.array(numbers)
    room = (places[-1] - places[0]) / 8
    last_with_words = -math.inf
    words = []
    for place, number in zip(places, numbers, strict=True):
        if place - last_with_words >= room:
            words.append(f"{number:g}")
            last_with_words = place
        else:
            words.append("")
    axes.set_xticks(numbers, words)
    axes.xaxis.set_minor_locator(NullLocator())


def dress(axes: Any, below: str, unit: str, grid: str) -> None:
    """Words and grid of the axes.

    below  what x is
    unit   what y is, above the axis
    grid   the axis whose ticks have lines: `x` or `y`
    """
    axes.set_xlabel(below, labelpad=3)
    axes.annotate(unit, (0, 1), (-36, 9), "axes fraction", "offset points", color=PAINT["mute"])
    axes.grid(axis=grid, lw=0.7)
    axes.spines["bottom"].set_visible(grid == "y")


def name_lines(canvas: Canvas, tables: Tables, ink: Inks) -> None:
    """The name of every line at its end, moved up or down where two would overlap."""
    canvas.axes.autoscale_view()
    to_pixels = canvas.axes.transData
    from_pixels = to_pixels.inverted()
    ends = {name: to_pixels.transform(table[["x", "mean"]].iloc[-1]) for name, table in tables.items()}
    order = sorted(ends, key=lambda name: ends[name][1])
    edge = canvas.size[0] - canvas.margins[1]
    heights = spread([ends[name][1] for name in order], 13, 8, canvas.size[1] - 24)
    for name, y in zip(order, heights, strict=True):
        line_end, lead_end, (x, middle) = from_pixels.transform(
            np.vstack([ends[name], (edge + 11, y), (edge + 14, y)])
        )
        style: dict[str, Any] = {"color": PAINT[ink[name].colour], "gid": canvas.of(name)}
        lead = np.stack([line_end, lead_end])
        canvas.axes.plot(*lead.T, lw=0.6, scalex=False, scaley=False, zorder=1, **style)
        weight = "bold" if ink[name].bold else "normal"
        canvas.axes.text(x, middle, _short(name), va="center_baseline", fontweight=weight, **style)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> np.ndarray:
    """Ascending places near ascending wanted ones, from low to high, `gap` or more between neighbours."""
    offset = gap * np.arange(len(wanted))
    free = np.clip(wanted - offset, low, max(high - offset[-1], low))
    return offset + (np.maximum.accumulate(free) + np.minimum.accumulate(free[::-1])[::-1]) / 2


# -- dots ----------------------------------------------------------------------------------------------------


@rc_context(STYLE)
def rows(title: str, unit: str, table: pd.DataFrame, ink: Inks, proposed: str = "", note: str = "") -> Panel:
    """A row per name of the index with a mark per column on one axis; the number itself where there is one.

    unit      what the numbers are
    table     rows by name; NaN has no mark
    ink       column -> how its marks are drawn
    proposed  the row in the accent's colour
    note      below the title
    """
    single = len(table.columns) == 1
    numbers = table.to_numpy(float)
    left = 14 + LETTER * max(len(_short(str(name))) for name in table.index)
    # One column leaves room for its numbers at the right.
    across = 132 if single else 190
    right = 48 if single else 12
    canvas = Canvas((left + across + right, 40 + 19 * len(table)), (left, right, 36, 4), title, note)
    axes = canvas.axes
    most = np.nanmax(numbers)
    log = single and most > 8 * numbers[numbers > 0].min(initial=most)

    if not single:
        axes.hlines(range(len(table)), table.min(axis=1), table.max(axis=1), color=PAINT["line"], lw=2)
    for column in table:
        column_values = table[column][table[column] > 0] if log else table[column].dropna()
        places = table.index.get_indexer(column_values.index)
        accented = (column_values.index == proposed) & single
        for style, chosen in ((ink[str(column)], ~accented), (Ink("accent"), accented)):
            if chosen.any():
                gid = canvas.of(str(column), str(column))
                dots(canvas, gid, column_values[chosen], places[chosen], style, 9)

    words = [_digits(number, numbers) for number in numbers[:, 0]] if single else []
    for texts, edge, shift in ((table.index, 0, -8), (words, 1, right)):
        for place, text in enumerate(texts):
            weight: dict[str, Any] = {}
            if table.index[place] == proposed:
                weight = {"color": PAINT["accent"], "fontweight": "bold"}
            axes.annotate(
                _short(str(text)),
                xy=(edge, place),
                xytext=(shift, 0),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                ha="right",
                va="center_baseline",
                **weight,
            )
    axes.set(ylim=(len(table) - 0.5, -0.5), yticks=[])
    few_ticks(axes, numbers, log)
    dress(axes, unit, "", "x")
    return canvas.panel(f"{title}: {unit} of {', '.join(map(str, table.index))}")


def _digits(number: float, among: np.ndarray) -> str:
    """With no or one decimal if all are so, else with three digits (53.4; 0.0210); a dash for NaN."""
    if np.isnan(number):
        return "—"
    for decimals in (0, 1):
        if number >= 100 or np.allclose(among, among.round(decimals), equal_nan=True):
            return f"{number:,.{decimals}f}"
    return f"{number:#.3g}" if number else "0"


def few_ticks(axes: Any, values: np.ndarray, log: bool) -> None:
    """About four ticks; on a logarithmic axis at 1, 2 and 5 times powers of ten, or at powers alone.

    values: the numbers that the axis shows
    """
    if not log:
        axes.margins(x=0.06)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=bool(np.nanmax(values) - np.nanmin(values) > 2)))
        return
    powers = math.log10(np.nanmax(values) / values[values > 0].min())
    steps: tuple[int, ...] = (1,)
    for denser in ((1, 3), (1, 2, 5)):
        if powers * len(denser) < 5:
            steps = denser
    axes.set_xscale("log")
    axes.margins(x=0.05)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(lambda tick, _: f"{tick:,g}")
    axes.xaxis.set_minor_locator(NullLocator())


# -- clouds and squares --------------------------------------------------------------------------------------


def label_inks(labels: Iterable[str]) -> dict[str, Ink]:
    """An ink for every class: five colours, then further marks."""
    return {name: Ink(f"dot-{i % 5 + 1}", mark="●×–|"[i // 5 % 4]) for i, name in enumerate(labels)}


@rc_context(STYLE)
def cloud(title: str, note: str, table: pd.DataFrame, ink: Inks, sphere: bool = False) -> Panel:
    """Points by label, at most MOST_DOTS, evenly taken; on the unit sphere seen along z, those behind faint.

    table   columns x, y, label, and z for a sphere
    ink     label -> how its points are drawn
    sphere  whether the points are directions, else they fill the square
    """
    taken = np.linspace(0, len(table) - 1, min(len(table), MOST_DOTS)).round().astype(int)
    points = table.iloc[np.unique(taken)]
    canvas = Canvas((244, 244), (2, 2, 2, 2), title, note)
    places = points[["x", "y"]].to_numpy(float)
    if sphere:
        # A few points may reach beyond the sphere; the rarest are cut off.
        reach = max(1.0, float(np.quantile(np.abs(places), 0.995)))
        places = places / reach
        canvas.axes.add_patch(Circle((0, 0), 1 / reach, fill=False, edgecolor=PAINT["line"], lw=1.5))
    else:
        places = places - (places.min(0) + places.max(0)) / 2
        places = places / max(np.abs(places).max(), 1e-9)

    labels = points["label"].astype(str)
    behind = points["z"].to_numpy() < 0 if sphere else np.zeros(len(points), bool)
    # Those behind first, so that those in front cover them.
    for chosen, alpha in ((behind, 0.28), (~behind, 0.85)):
        for label in ink:
            shown = (labels == label).to_numpy() & chosen
            if shown.any():
                x, y = places[shown].T
                dots(canvas, canvas.of(label, label), x, y, ink[label], 4.6, alpha, 0.015)
    canvas.axes.set(xlim=(-1.04, 1.04), ylim=(-1.04, 1.04))
    canvas.axes.set_axis_off()
    return canvas.panel(f"{title}: {len(points)} points of {len(ink)} classes")


@rc_context(STYLE)
def squares(title: str, note: str, values: np.ndarray, across: Names, down: Names, unit: str) -> Panel:
    """A matrix of squares, the fuller the larger the number: positive line-1, negative accent.

    values  (rows, columns)
    across  names of the columns; empty: they have none
    down    names of the rows; empty: they have none
    unit    words below
    """
    rows, columns = values.shape
    left = 8 + LETTER * max((len(name) for name in down), default=0)
    side = max(100 / rows, 3)
    below: float = 4
    turned = False
    if across:
        side = 22
        longest = LETTER * max(map(len, across))
        turned = longest > side
        below = 30 + longest if turned else 36
    size = (left + side * columns + 4, below + 4 + side * rows)
    canvas = Canvas(size, (left, 4, below, 4), title, note)

    most = max(np.abs(values).max(), 1e-9)
    levels = np.ceil(np.abs(values) / most * LEVELS - 1e-9) * np.sign(values)
    corners = 0.48 * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]])
    # All squares of one level are one path.
    for level in np.unique(levels):
        if not level:
            continue
        outlines = np.argwhere(levels == level)[:, None, ::-1] + corners
        codes = [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY] * len(outlines)
        outline = Outline(outlines.reshape(-1, 2), codes)
        colour = PAINT["line-1" if level > 0 else "accent"]
        alpha = round(abs(level) / LEVELS, 2)
        canvas.axes.add_patch(PathPatch(outline, facecolor=colour, alpha=alpha, lw=0))

    canvas.axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), xlabel=unit)
    canvas.axes.set_xticks(range(len(across)), across, rotation=90 if turned else 0)
    canvas.axes.set_yticks(range(len(down)), down)
    canvas.axes.spines["bottom"].set_visible(False)
    return canvas.panel(f"{title}: {rows} by {columns} numbers {note}")
