"""Figures as SVG that read on light and on dark ground: colours are CSS variables, text stays text."""
import io

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, FAINT = "#24303c", "#b9c1ca"
NIGHT = {INK: "#dfe4ea", FAINT: "#4a545f"}       # what each colour becomes on dark ground
LINES = {"#1f5fa8": "#7fb4ee", "#c2501c": "#f29a6b", "#23743c": "#6fc98a", "#8a3a8f": "#d594da", "#8b6508": "#e0bd55",
         "#0f7480": "#62ccd8", "#a8284b": "#f08aa5", "#59636e": "#aab4be"}
DASHES = ["-", (0, (5, 1.6)), (0, (1.4, 1.4))]   # tells lines apart once the colours repeat
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "fedrepro", "font.family": "sans-serif", "font.size": 9.5,
         "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": FAINT,
         "axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "normal"}


def curves(histories: dict[str, pd.DataFrame], measure: str, title: str) -> str:
    """Accuracy over rounds: a line per method (mean over seeds) and the range of its seeds, as SVG text.

    histories: label -> history.csv of the cell; `measure` is the column drawn, in percent.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.5), layout="constrained")
        axes = figure.add_subplot()
        for i, (label, history) in enumerate(histories.items()):
            rounds = history.dropna(subset=[measure]).groupby("round")[measure].agg(["mean", "min", "max"])
            colour = list(LINES)[i % len(LINES)]
            axes.plot(rounds.index, rounds["mean"], color=colour, label=label, linewidth=1.7, gid=f"line-{i}",
                      linestyle=DASHES[i // len(LINES) % len(DASHES)], marker="o", markersize=2.6)
            axes.fill_between(rounds.index, rounds["min"], rounds["max"], color=colour, alpha=0.16, linewidth=0)
        axes.set_xlabel("round")
        axes.set_ylabel("accuracy, %")
        axes.set_title(title, loc="left", fontsize=9.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
        axes.tick_params(length=3)
        axes.margins(x=0.015)
        _legend(figure, axes)
        return _svg(figure)


def _legend(figure: Figure, axes) -> None:
    """Beside the plot, in the order of the last values, so that it reads like the ends of the lines."""
    lines = sorted(axes.get_lines(), key=lambda line: line.get_ydata()[-1], reverse=True)
    figure.legend(lines, [line.get_label() for line in lines], loc="outside right upper", frameon=False, handlelength=2.2)


def _svg(figure: Figure) -> str:
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    night = NIGHT | LINES
    day = "".join(f"--c{i}: {colour}; " for i, colour in enumerate(night))
    dark = "".join(f"--c{i}: {colour}; " for i, colour in enumerate(night.values()))
    for i, colour in enumerate(night):
        text = text.replace(f"{colour}", f"var(--c{i})")
    style = f"<style>:root {{ {day}}} @media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }} text {{ fill: var(--c0); }}</style>"
    head, tag, rest = text.partition("<defs>")
    return _without_trailing_spaces(f"{head}{style}\n {tag}{rest}")


def _without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
