"""Points on two axes that a page draws itself as SVG: measured against published, and accuracy against cost.

Positions are worked out here, in pixels of the drawing; reports/templates/parts.html.j2 writes them down.
"""
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.report.findings import accuracies
from pipeline.report.hues import Key, keys
from pipeline.report.tables import TableView

LEFT, TOP, SIDE = 36, 24, 274                     # pixels: the square between the axes
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)


@dataclass(frozen=True)
class Dot:
    """One number, and the words that a pointer or an arrow key reads off it."""
    x: float
    y: float
    key: int                                      # of its method in `keys`
    words: str
    other: bool = False                           # from another setting than the paper's


@dataclass(frozen=True)
class Scatter:
    name: str
    across: str                                   # what the axes show
    up: str
    dots: list[Dot]
    keys: list[Key]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    diagonal: bool = False
    front: list[Dot] = field(default_factory=list)      # that no other is better than in both, by x

    @property
    def named(self) -> list[Dot]:
        """Dots of the front with room for their names."""
        found: list[Dot] = []
        for dot in sorted(self.front, key=lambda dot: dot.y):
            if all(abs(dot.y - other.y) > 13 or abs(dot.x - other.x) > 110 for other in found):
                found.append(dot)
        return found

    @property
    def others(self) -> bool:
        return any(dot.other for dot in self.dots)


def against_print(tables: Sequence[TableView], again: Iterable[str], own: str) -> Scatter | None:
    """Every measured accuracy against the published one, each run once; None where nothing is measured.

    again: tables that measure in other settings than the paper's.
    """
    again, seen = set(again), set()
    found: list[tuple[str, float, float, str, bool]] = []
    for table in sorted(tables, key=lambda table: table.key in again):
        shown = {id(value) for _, value in accuracies(table)}
        for panel in table.panels:
            for row in panel.rows:
                for value, column in zip(row.values, panel.columns):
                    source = value.cell, value.measure
                    if id(value) not in shown or value.printed is None or source in seen:
                        continue
                    seen.add(source)
                    words = (f"{row.name}, {column} ({table.heading}): measured {value.mean}, published "
                             f"{value.published}, {value.apart}")
                    name = row.name.partition(" (")[0]
                    found.append((name, value.printed, value.shown, words, table.key in again))
    if not found:
        return None
    low, high, step = _span([number for _, x, y, *_ in found for number in (x, y)])
    known = keys((name for name, *_ in found), own)
    at = {key.name: i for i, key in enumerate(known)}
    dots = [Dot(_place(x, low, high), _flip(_place(y, low, high)), at[name], words, other)
            for name, x, y, words, other in found]
    ticks = _ticks(low, high, step)
    return Scatter("Measured against published accuracy", "published, %", "measured, %", dots, known,
                   [(_place(v, low, high), text) for v, text in ticks],
                   [(_flip(_place(v, low, high)), text) for v, text in ticks], diagonal=True)


def against_cost(name: str, cost: str, found: Sequence[tuple[str, float, float, str]], own: str) -> Scatter:
    """Accuracy over a cost on a logarithmic axis, with the methods that none beats in both.

    found: (method, cost, accuracy, words).
    """
    low, high, step = _span([y for _, _, y, _ in found])
    first = math.log10(min(x for _, x, _, _ in found))
    last = max(math.log10(max(x for _, x, _, _ in found)), first + 0.1)
    pad = 0.06 * (last - first)
    first, last = first - pad, last + pad
    known = keys((method for method, *_ in found), own)
    at = {key.name: i for i, key in enumerate(known)}
    dots = [Dot(_place(math.log10(x), first, last), _flip(_place(y, low, high)), at[method], words)
            for method, x, y, words in found]
    powers = [(factor * 10.0 ** power) for power in range(math.floor(first), math.ceil(last) + 1)
              for factor in ((1, 2, 5) if last - first < 2 else (1,))]
    inside = [number for number in powers if first <= math.log10(number) <= last]
    return Scatter(name, cost, "accuracy, %", dots, known,
                   [(_place(math.log10(number), first, last), f"{number:,g}") for number in inside],
                   [(_flip(_place(v, low, high)), text) for v, text in _ticks(low, high, step)],
                   front=[dots[i] for i in front([(x, y) for _, x, y, _ in found])])


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points (cost, accuracy) that no other beats in both, cheapest first."""
    found: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not found or points[i][1] > points[found[-1]][1]:
            found.append(i)
    return found


def along(value: float, span: float) -> float:
    """The place of a difference on the claims' scale, whose ends are `span` points to both sides of 0."""
    return round(230 + 120 * max(-1.0, min(1.0, value / span)), 1)


def _span(numbers: Sequence[float]) -> tuple[float, float, float]:
    """(low, high, step) of an axis with four to eight ticks around numbers."""
    low, high = min(numbers), max(numbers)
    step = next((step for step in STEPS if (high - low) / step <= 6), STEPS[-1])
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return low, max(high, low + step), step


def _ticks(low: float, high: float, step: float) -> list[tuple[float, str]]:
    return [(low + i * step, f"{low + i * step:g}") for i in range(round((high - low) / step) + 1)]


def _place(value: float, low: float, high: float) -> float:
    return round(LEFT + (value - low) / (high - low) * SIDE, 1)


def _flip(place: float) -> float:
    """From a place across to the same place up."""
    return round(TOP + SIDE + LEFT - place, 1)
