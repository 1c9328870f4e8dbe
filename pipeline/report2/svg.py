"""One SVG that reads on light and on dark ground: colours are CSS variables, text stays text."""
import io
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

INK, FAINT = "#24303c", "#b9c1ca"
NIGHT = {INK: "#dfe4ea", FAINT: "#4a545f"}       # what each colour becomes on dark ground
LINES = {
    "#1f5fa8": "#7fb4ee",
    "#c2501c": "#f29a6b",
    "#23743c": "#6fc98a",
    "#8a3a8f": "#d594da",
    "#8b6508": "#e0bd55",
    "#0f7480": "#62ccd8",
    "#a8284b": "#f08aa5",
    "#59636e": "#aab4be",
}
POINTS = {
    "#0072b2": "#56b4e9",
    "#d55e00": "#f0822d",
    "#009e73": "#2cc79b",
    "#b5528f": "#de9cc6",
    "#2b2b2b": "#f2e36a",
}
STYLE: dict[Any, Any] = {                        # matplotlib types the keys as literals
    "svg.fonttype": "none", "svg.hashsalt": "fedrepro", "font.family": "sans-serif", "font.size": 9.5,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.edgecolor": FAINT, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titleweight": "normal", "text.parse_math": False,      # a $ in a label is a dollar sign
}
PIXELS = 96                                      # per inch, as a browser has it


def svg(figure: Figure) -> str:
    """The figure as text, the same on every machine."""
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    night = {INK: NIGHT[INK]} | {day: dark for day, dark in (NIGHT | LINES | POINTS).items() if day in text}
    day = "".join(f"--c{i}: {colour}; " for i, colour in enumerate(night))
    dark = "".join(f"--c{i}: {colour}; " for i, colour in enumerate(night.values()))
    for i, colour in enumerate(night):
        text = text.replace(f"{colour}", f"var(--c{i})")
    dark_rule = f"@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}"
    style = f"<style>:root {{ {day}}} {dark_rule} text {{ fill: var(--c0); }}</style>"
    head, tag, rest = text.partition("<defs>")
    return _without_trailing_spaces(f"{head}{style}\n {tag}{rest}")


def _without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def legend(figure: Figure, panels, below: bool = False) -> None:
    """Put a legend at the side of the plot or below it, in the order in which the lines end in the first
    panel that has them."""
    found: dict[str, tuple[int, float, Line2D]] = {}
    for panel, axes in enumerate(panels):
        # This skips the caps of error bars.
        for line in (line for line in axes.get_lines() if not line.get_label().startswith("_")):
            found.setdefault(line.get_label(), (panel, -line.get_ydata()[-1], line))
    order = sorted(found, key=lambda label: found[label][:2])
    legend = figure.legend([found[label][2] for label in order], order, frameon=False, handlelength=3,
                           loc="outside lower left" if below else "outside right upper")
    for line in legend.legend_handles:
        if isinstance(line, Line2D) and line.get_linestyle() != "None":
            line.set_marker("")  # a marker would hide the gaps that distinguish the dashes
