"""One way to draw: every panel is a small SVG by matplotlib, its titles and legends are HTML around it.

Colours are CSS variables (`CSS` defines them for light and dark ground), text is text in the page's own font.
A line, a mark or a label of a series has `data-key`, its name, which the page's script can use for hover, and
a <title> with its numbers. No ids but those of markers, prefixed by the panel; the same bytes on every machine.
"""

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Circle, PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator, NullLocator

# name of a CSS variable -> (light, dark); matplotlib draws with the light one, which is replaced by the variable
INKS = {"own": ("#c4500c", "#f28a4b"), "ink": ("#14202b", "#e8ecef"), "mute": ("#5b6671", "#a2adb7")}
INKS |= {"line": ("#dcd9d0", "#2c343c"), "pub": ("#8a6410", "#dcb95f")}
LINES = {
    "line-1": ("#1f5fa8", "#7fb4ee"),
    "line-2": ("#23743c", "#6fc98a"),
    "line-3": ("#8a3a8f", "#d594da"),
    "line-4": ("#9a7205", "#e0bd55"),
    "line-5": ("#0f7480", "#62ccd8"),
    "line-6": ("#a8284b", "#f08aa5"),
}
DOTS = {
    "dot-1": ("#0072b2", "#56b4e9"),
    "dot-2": ("#d55e00", "#f0822d"),
    "dot-3": ("#009e73", "#2cc79b"),
    "dot-4": ("#b5528f", "#de9cc6"),
    "dot-5": ("#2b2b2b", "#f2e36a"),
}
LIGHT = {name: light for name, (light, _) in (INKS | LINES | DOTS).items()}
DASHES: list[Any] = ["-", (0, (5, 1.6)), (0, (1.4, 1.4))]  # tell lines apart once the colours repeat
CSS = (
    ":root{"
    + "".join(f"--{name}:light-dark({light},{dark});" for name, (light, dark) in (LINES | DOTS).items())
    + "}.panels{display:flex;flex-wrap:wrap;gap:18px 28px;align-items:flex-start}.panel{margin:0;max-width:100%}"
    ".panel figcaption{font-size:14px;line-height:1.3;margin:0 0 4px}.panel figcaption b{font-weight:650}"
    ".panel figcaption small{display:block}.panel svg{display:block;width:100%;height:auto;overflow:visible}"
    ".panel svg *{stroke-linejoin:round}.panel svg text{fill:currentColor}"
    ".panel svg [data-key]{transition:opacity .12s}.dimmed [data-key]:not(.lit){opacity:.12}"
    ".legend{font-size:13px;color:var(--mute);margin:0 0 8px}.legend span{margin-right:14px;white-space:nowrap}"
    ".panels img{max-width:100%;height:auto}"
)
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedrepro",
    "font.size": 11,
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["mute"],
    "xtick.color": LIGHT["mute"],
    "ytick.color": LIGHT["mute"],
    "axes.edgecolor": LIGHT["line"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.parse_math": False,  # a $ in a label is a dollar sign
    "path.simplify": False,
}
INCH = 72  # pixels, so that a unit of the SVG is a pixel of the page
POINTS = 81  # of a line at most
MOST_BANDS = 6  # with more lines, the ranges of the seeds hide one another
MOST_DOTS = 700  # of a cloud
LETTER = 5.9  # pixels, on average, of a letter of a label
ROW = 19  # pixels from one row of dots to the next
MARKS = {"o": "●", "x": "×", "_": "–", "|": "|", "D": "◆", "ring": "○", "s": "■", "^": "▲", "v": "▼"}


@dataclass(frozen=True)
class Ink:
    """How a series is drawn: a CSS variable, its dashes, and the mark of its points."""

    colour: str
    dash: int = 0
    mark: str = "o"
    wide: bool = False


@dataclass(frozen=True)
class Panel:
    """One SVG with its heading."""

    svg: str
    title: str = ""
    note: str = ""
    width: int = 420

    @property
    def html(self) -> str:
        """A <figure>."""
        small = f"<small>{escape(self.note)}</small>" if self.note else ""
        head = f"<figcaption><b>{escape(self.title)}</b>{small}</figcaption>" if self.title or small else ""
        return f'<figure class="panel" style="width:{self.width}px">{head}{self.svg}</figure>'


def panels(drawn: Iterable[Panel], legend: Mapping[str, Ink] | None = None) -> Markup:
    """Panels side by side, with a legend above where the panels do not name their series themselves."""
    words = "".join(
        f'<span data-key="{escape(name)}"><b style="color:var(--{ink.colour})">{MARKS[ink.mark]}</b> {escape(name)}</span>'
        for name, ink in (legend or {}).items()
    )
    above = f'<p class="legend">{words}</p>' if words else ""
    return Markup(f'{above}<div class="panels">{"".join(panel.html for panel in drawn)}</div>')


def inks(names: Iterable[str], own: str, baseline: str = "FedAvg") -> dict[str, Ink]:
    """An ink for every name; the paper's own method and the baseline have theirs on every picture."""
    fixed = {own: Ink("own", wide=True), baseline: Ink("ink")}
    rest = [name for name in dict.fromkeys(names) if name not in fixed]
    free = {name: Ink(list(LINES)[i % 6], i // 6 % 3, list(MARKS)[i // 6 % 3]) for i, name in enumerate(rest)}
    return fixed | free


# -- from matplotlib to the page ----------------------------------------------------------------------------


class Canvas:
    """A matplotlib figure of one pair of axes with margins in pixels, which becomes an SVG of the page."""

    def __init__(
        self, width: float, height: float, left: float, right: float, below: float, above: float = 8
    ):
        self.figure, self.titles = Figure((width / INCH, height / INCH), dpi=INCH), {}
        box = (
            left / width,
            below / height,
            (width - left - right) / width,
            (height - below - above) / height,
        )
        self.axes = self.figure.add_axes(box)
        self.axes.patch.set_visible(False)
        self.figure.patch.set_visible(False)
        self.size = width, height

    def name(self, key: str, title: str = "") -> str:
        """The gid of what belongs to the series `key`; `title` shows under the pointer."""
        self.titles[gid := f"k{len(self.titles)}"] = (key, title)
        return gid

    def svg(self, prefix: str, label: str) -> str:
        """The drawing as text. prefix: of its ids, unique in a page; label: its text alternative."""
        for artist in self.axes.get_children():
            artist.set_clip_on(False)
        target = io.StringIO()
        self.figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        body = target.getvalue().partition("</metadata>")[2] or target.getvalue().partition(">")[2]
        body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.S)
        body = _smaller(body.rpartition("</svg>")[0], prefix, self.titles)
        width, height = self.size
        head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'
        return f"{head}{body}</svg>"


def _smaller(body: str, prefix: str, titles: Mapping[str, tuple[str, str]]) -> str:
    """Without comments, unused ids and fonts, with one decimal in coordinates and variables for colours."""
    body = re.sub(r"<!--.*?-->|<clipPath.*?</clipPath>| clip-path=\"[^\"]*\"", "", body, flags=re.S)

    def keyed(match: re.Match) -> str:
        key, title = titles[match[1]]
        return f'<g data-key="{escape(key)}">' + (f"<title>{escape(title)}</title>" if title else "")

    body = re.sub(r'<g id="(k\d+)">', keyed, body)
    body = re.sub(r' id="(?!m[0-9a-f]{8,}")[^"]*"', "", body)
    body = re.sub(r'( id="|xlink:href="#)(m[0-9a-f]{8})[0-9a-f]*"', rf'\1{prefix}-\2"', body)
    body = body.replace("xlink:href", "href").replace(" translate(0 0)", "")
    body = re.sub(r"font: (?:\d+ )?([\d.]+)px [^;\"]*", r"font-size:\1px", body)
    body = re.sub(r"-?\d+\.\d{2,}", lambda number: f"{round(float(number[0]), 1):g}", body)
    for name, light in LIGHT.items():
        body = body.replace(light, f"var(--{name})")
    body = body.replace("fill: var(--ink)", "fill: currentColor")
    body = re.sub(r"stroke-linejoin: \w+;? ?|; (?=\")| transform=\"rotate\(-?0 [^\"]*\"", "", body)
    return re.sub(r"\s*\n\s*", " ", re.sub(r">\s+<", "><", body)).replace(" />", "/>").strip()


def _short(text: str, most: int = 34) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# -- lines over a number -------------------------------------------------------------------------------------


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
    """Columns x, mean, low, high over the seeds by round of a measure that is smoothed seed by seed."""
    rows = history.dropna(subset=[measure]).set_index("round")
    smooth = [trailing_mean(seed[measure], window) for _, seed in rows.groupby("seed")]
    table = pd.concat(smooth or [rows[measure]]).groupby("round").agg(["mean", "min", "max"])
    table = table.reset_index().set_axis(["x", "mean", "low", "high"], axis=1)
    return table.iloc[np.unique(np.linspace(0, len(table) - 1, min(len(table), POINTS)).astype(int))]


def lines(
    prefix: str,
    title: str,
    unit: str,
    over: str,
    tables: Mapping[str, pd.DataFrame],
    ink: Mapping[str, Ink],
    marks: bool = False,
) -> Panel:
    """A line per series with its name at its end, and the range or spread where there are few.

    tables: name -> columns x, mean, low, high. over: what x is. marks: a dot at every x, bars instead of bands.
    """
    right = 16 + LETTER * max(len(_short(name)) for name in tables)
    height = max(230, 14 * len(tables) + 60)
    canvas = Canvas(42 + 250 + right, height, 42, right, 34, 18)
    axes = canvas.axes
    with rc_context(STYLE):
        for name, table in tables.items():
            _line(canvas, name, table, ink[name], marks, len(tables) <= MOST_BANDS)
        axes.margins(x=0.02)
        if marks:
            _ticks_at(axes, sorted({x for table in tables.values() for x in table["x"]}))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        _dress(axes, over, unit)
        _names(canvas, tables, ink)
        drawn = canvas.svg(prefix, f"{title}: {unit} over {over} of {', '.join(tables)}")
    return Panel(drawn, title, width=round(canvas.size[0]))


def _line(canvas: Canvas, name: str, table: pd.DataFrame, ink: Ink, marks: bool, band: bool) -> None:
    colour, last = LIGHT[ink.colour], table.iloc[-1]
    spread = f" [{last['low']:.1f}, {last['high']:.1f}]" if last["high"] > last["low"] else ""
    gid = canvas.name(name, f"{name}: {last['mean']:.2f}{spread} at {last['x']:g}")
    style: dict[str, Any] = {"marker": ink.mark, "markersize": 4.5} if marks else {}
    canvas.axes.plot(
        table["x"],
        table["mean"],
        color=colour,
        gid=gid,
        linewidth=2.4 if ink.wide else 1.5,
        linestyle=DASHES[ink.dash],
        zorder=3 if ink.wide else 2,
        **style,
    )
    if marks:
        canvas.axes.vlines(
            table["x"], table["low"], table["high"], color=colour, linewidth=1, gid=canvas.name(name)
        )
    elif band and (table["high"] > table["low"]).any():
        area = {"color": colour, "alpha": 0.13, "linewidth": 0, "gid": canvas.name(name)}
        canvas.axes.fill_between(table["x"], table["low"], table["high"], **area)


def _ticks_at(axes, numbers: list[float]) -> None:
    """A tick at every number, with words where there is room; a logarithmic axis over more than a power of ten."""
    place = float
    if numbers[0] > 0 and numbers[-1] / numbers[0] > 10:
        axes.set_xscale("log")
        place = math.log10
    room, last, words = (place(numbers[-1]) - place(numbers[0])) / 8, -math.inf, []
    for number in numbers:
        free = place(number) - last >= room
        words.append(f"{number:g}" if free else "")
        last = place(number) if free else last
    axes.set_xticks(numbers, words)
    axes.xaxis.set_minor_locator(NullLocator())


def _dress(axes, below: str, unit: str, grid: str = "y") -> None:
    axes.set_xlabel(below, labelpad=3)
    axes.annotate(
        unit, (0, 1), (-36 if grid == "y" else 0, 6), "axes fraction", "offset points", color=LIGHT["mute"]
    )
    axes.grid(axis=grid, color=LIGHT["line"], linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)


def _names(canvas: Canvas, tables: Mapping[str, pd.DataFrame], ink: Mapping[str, Ink]) -> None:
    """The name of every line beside its end, moved up or down where two would overlap."""
    axes, at = canvas.axes, max(table["x"].iloc[-1] for table in tables.values())
    ends = {name: (table["x"].iloc[-1], table["mean"].iloc[-1]) for name, table in tables.items()}
    to_pixels, height = axes.transData, canvas.size[1]
    order = sorted(ends, key=lambda name: ends[name][1])
    wanted = [to_pixels.transform(ends[name])[1] for name in order]
    places = spread(wanted, 13.0, 8.0, height - 12)
    edge = to_pixels.transform((at, 0))[0]
    for name, y in zip(order, places, strict=True):
        x, mean = ends[name]
        colour = LIGHT[ink[name].colour]
        start = to_pixels.transform((x, mean))
        path = to_pixels.inverted().transform([start, (edge + 10, y)])
        axes.plot(
            *path.T, color=colour, linewidth=0.6, gid=canvas.name(name), scalex=False, scaley=False, zorder=1
        )
        weight = {"fontweight": "bold"} if ink[name].wide else {}
        words = to_pixels.inverted().transform((edge + 13, y))
        axes.text(
            *words,
            _short(name),
            color=colour,
            va="center_baseline",
            fontsize=11,
            gid=canvas.name(name),
            **weight,
        )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places as near to the ascending wanted ones as `gap` between neighbours, `low` and `high` allow."""
    blocks: list[list[float]] = []  # [sum of wanted minus own offset, count] of runs that touch
    for place in wanted:
        blocks.append([place, 1])
        while (
            len(blocks) > 1
            and blocks[-2][0] / blocks[-2][1] + blocks[-2][1] * gap > blocks[-1][0] / blocks[-1][1]
        ):
            total, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total - count * gap * blocks[-1][1], blocks[-1][1] + count]
    places = [total / count + i * gap for total, count in blocks for i in range(int(count))]
    places = [min(place, high - gap * (len(places) - 1 - i)) for i, place in enumerate(places)]
    return [max(place, low + gap * i) for i, place in enumerate(places)]


# -- dots ----------------------------------------------------------------------------------------------------


def rows(
    prefix: str,
    title: str,
    unit: str,
    table: pd.DataFrame,
    ink: Mapping[str, Ink],
    own: str = "",
    log: bool = False,
    digits: int = 1,
) -> Panel:
    """A row per name with a mark per column on one axis; the number itself where there is one column.

    table: index the rows' names, columns the series; NaN is no mark. own: the row in the accent's colour.
    """
    one = len(table.columns) == 1
    left = 12 + LETTER * max(len(_short(str(name))) for name in table.index)
    canvas = Canvas(left + 200 + (58 if one else 12), 44 + ROW * len(table), left, 58 if one else 12, 34)
    axes, places = canvas.axes, np.arange(len(table))
    with rc_context(STYLE):
        if not one:
            axes.hlines(places, table.min(axis=1), table.max(axis=1), color=LIGHT["line"], linewidth=1.5)
        for column in table:
            _marks(canvas, str(column), table[column], ink, own if one else "")
        for place, name in zip(places, table.index, strict=True):
            style: dict[str, Any] = {"color": LIGHT["own"], "fontweight": "bold"} if name == own else {}
            where = (0, place), (-8, 0), axes.get_yaxis_transform(), "offset points"
            axes.annotate(_short(str(name)), *where, ha="right", va="center_baseline", fontsize=11, **style)
            if one:
                value = table.iloc[place, 0]
                words = "not reached" if np.isnan(value) else f"{value:,.{digits}f}"
                where = (1, place), (56, 0), axes.get_yaxis_transform(), "offset points"
                axes.annotate(words, *where, ha="right", va="center_baseline", fontsize=11)
        axes.set(ylim=(len(table) - 0.5, -0.5), yticks=[], xscale="log" if log else "linear")
        _few_ticks(axes, table.to_numpy(float), log)
        _dress(axes, unit, "", "x")
        drawn = canvas.svg(prefix, f"{title}: {unit}, by {', '.join(map(str, table.index))}")
    return Panel(drawn, title, width=round(canvas.size[0]))


def _few_ticks(axes, values: np.ndarray, log: bool) -> None:
    """At most five ticks; on a logarithmic axis at 1, 2 and 5 times powers of ten, or at powers alone."""
    if not log:
        axes.xaxis.set_major_locator(MaxNLocator(4))
        return
    first, last = np.log10([np.nanmin(values), np.nanmax(values)])
    first, last = first - 0.06 * max(last - first, 0.3), last + 0.06 * max(last - first, 0.3)
    steps = next(
        steps for steps in ((1, 2, 5), (1, 3), (1,)) if (last - first) * len(steps) < 6 or steps == (1,)
    )
    ticks = [step * 10.0**power for power in range(math.floor(first), math.ceil(last) + 1) for step in steps]
    axes.set_xlim(10**first, 10**last)
    shown = [tick for tick in ticks if first <= math.log10(tick) <= last]
    axes.set_xticks(shown, [f"{tick:,g}" for tick in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def _marks(canvas: Canvas, name: str, values: pd.Series, ink: Mapping[str, Ink], own: str) -> None:
    """The marks of a series, one of them (`own`) in the accent's colour."""
    style, there = ink[name], values.notna().to_numpy()
    for accent in (False, True):
        here = there & ((values.index == own) == accent)
        if not here.any():
            continue
        colour = LIGHT["own" if accent else style.colour]
        shape: dict[str, Any] = {"marker": "o", "markerfacecolor": "none"} if style.mark == "ring" else {}
        shape = shape or {"marker": style.mark, "markeredgewidth": 1.6 if style.mark in "x_|" else 0.0}
        gid = canvas.name(name, name)
        size = 6.5 if style.mark == "D" else 8
        canvas.axes.plot(
            values[here], np.flatnonzero(here), linestyle="", color=colour, markersize=size, gid=gid, **shape
        )


def scatter(
    prefix: str, title: str, across: str, up: str, tables: Mapping[str, pd.DataFrame], ink: Mapping[str, Ink]
) -> Panel:
    """A mark per point and series. tables: name -> columns x, y."""
    canvas = Canvas(420, 250, 42, 12, 34, 18)
    with rc_context(STYLE):
        for name, table in tables.items():
            style, gid = ink[name], canvas.name(name, name)
            shape: dict[str, Any] = {"marker": style.mark, "markersize": 7, "alpha": 0.8, "linestyle": ""}
            canvas.axes.plot(
                table["x"], table["y"], color=LIGHT[style.colour], gid=gid, markeredgewidth=0, **shape
            )
        numbers = np.concatenate([table["x"].to_numpy(float) for table in tables.values()])
        log = numbers.max() > 10 * max(numbers.min(), 1)
        canvas.axes.set_xscale("log" if log else "linear")
        _few_ticks(canvas.axes, np.maximum(numbers, 1), log)
        canvas.axes.yaxis.set_major_locator(MaxNLocator(5))
        _dress(canvas.axes, across, up)
        drawn = canvas.svg(prefix, f"{title}: {up} against {across} of {', '.join(tables)}")
    return Panel(drawn, title, width=420)


# -- clouds and squares --------------------------------------------------------------------------------------

STROKES = {  # of a point, from and to, in units of REACH
    "o": [((0, 0), (0, 0))],
    "x": [((-1, -1), (1, 1)), ((-1, 1), (1, -1))],
    "_": [((-1.3, 0), (1.3, 0))],
    "|": [((0, -1.3), (0, 1.3))],
}
REACH = 0.015  # of half a panel's width


def label_inks(labels: Iterable[str]) -> dict[str, Ink]:
    """An ink for every class: five colours, then further shapes."""
    names = list(labels)
    return {name: Ink(list(DOTS)[i % 5], mark=list(STROKES)[i // 5 % 4]) for i, name in enumerate(names)}


def cloud(
    prefix: str, title: str, note: str, table: pd.DataFrame, ink: Mapping[str, Ink], sphere: bool = False
) -> Panel:
    """Points by label, at most MOST_DOTS, evenly taken; on a sphere seen along z, those behind faint.

    table: columns x, y, label, and z for a sphere, whose radius is 1.
    """
    taken = np.linspace(0, len(table) - 1, min(len(table), MOST_DOTS)).round().astype(int)
    shown, canvas = table.iloc[np.unique(taken)], Canvas(300, 300, 2, 2, 2, 2)
    with rc_context(STYLE):
        places = shown[["x", "y"]].to_numpy(float)
        if sphere:
            places = places / max(1.0, float(np.quantile(np.abs(places), 0.995)))
            canvas.axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=LIGHT["line"], linewidth=1.5))
        else:
            middle = (places.min(0) + places.max(0)) / 2
            places = (places - middle) / max(np.abs(places - middle).max(), 1e-9)
        behind = shown["z"].to_numpy() < 0 if sphere else np.zeros(len(shown), bool)
        for label in ink:
            for faint in (True, False):
                here = (shown["label"].astype(str) == label).to_numpy() & (behind == faint)
                if here.any():
                    _cloud(canvas, label, places[here], ink[label], 0.28 if faint else 0.85)
        canvas.axes.set(xlim=(-1.04, 1.04), ylim=(-1.04, 1.04), xticks=[], yticks=[])
        for side in ("left", "bottom"):
            canvas.axes.spines[side].set_visible(False)
        drawn = canvas.svg(prefix, f"{title}: {len(shown)} points of {len(ink)} classes")
    return Panel(drawn, title, note, 300)


def _cloud(canvas: Canvas, label: str, places: np.ndarray, ink: Ink, alpha: float) -> None:
    """All points of a label as one path of short strokes: a tenth of the bytes of a marker each."""
    strokes = REACH * np.array(STROKES[ink.mark], float)
    ends = (places[:, None, None] + strokes).reshape(-1, 2)
    outline = Outline(ends, [Outline.MOVETO, Outline.LINETO] * (len(ends) // 2))
    width = 4.6 if ink.mark == "o" else 1.4
    style: dict[str, Any] = {"edgecolor": LIGHT[ink.colour], "linewidth": width, "capstyle": "round"}
    canvas.axes.add_patch(PathPatch(outline, fill=False, alpha=alpha, gid=canvas.name(label, label), **style))


def squares(
    prefix: str,
    title: str,
    note: str,
    values: np.ndarray,
    across: Sequence[str] = (),
    down: Sequence[str] = (),
    unit: str = "",
) -> Panel:
    """A square per number of a matrix with an area by its size: positive line-1, negative own (Hinton).

    across, down: names of columns and rows; unit: words below.
    """
    left = 8 + LETTER * max((len(name) for name in down), default=0)
    side = 22 if across else max(200 / len(values), 3)
    below = 34 if unit else 22 if across else 4
    width, height = left + side * values.shape[1] + 4, below + 4 + side * len(values)
    canvas, most = Canvas(width, height, left, 4, below, 4), max(np.abs(values).max(), 1e-9)
    with rc_context(STYLE):
        for sign, colour in ((1, "line-1"), (-1, "own")):
            here = np.argwhere(sign * values / most > 0.002)
            half = 0.47 * np.sqrt(np.abs(values[tuple(here.T)]) / most)[:, None, None]
            corners = here[:, None, ::-1] + half * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]])
            codes = [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY] * len(here)
            if len(here):
                outline = Outline(corners.reshape(-1, 2), codes)
                canvas.axes.add_patch(PathPatch(outline, facecolor=LIGHT[colour], linewidth=0))
        shape = values.shape
        canvas.axes.set(xlim=(-0.5, shape[1] - 0.5), ylim=(shape[0] - 0.5, -0.5), xlabel=unit)
        canvas.axes.set_xticks(range(len(across)), across)
        canvas.axes.set_yticks(range(len(down)), down)
        drawn = canvas.svg(prefix, f"{title}: {shape[0]} x {shape[1]} numbers")
    return Panel(drawn, title, note, round(width))
