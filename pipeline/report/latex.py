r"""Write a paper's tables as LaTeX, a file for each: measured numbers, and the published ones below them.

A file is for \input in a document. A table that is wider than the page is scaled down to its width.
"""

import re

import pandas as pd

from pipeline.report.page import Page, Tab
from pipeline.report.published import Panel, Value
from pipeline.report.words import GREEK

# First line of each file: what the document has to load.
PACKAGES = "% Needs \\usepackage{amssymb,booktabs,graphicx}.\n"
# Character -> how LaTeX prints it.
ESCAPES: dict[str, str | int | None] = {
    **{letter: rf"\{letter}" for letter in "{}$&#%_"},
    "\\": r"\textbackslash{}",
    "[": "{[}",  # no option of the end of a row
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "✓": r"\checkmark{}",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "°": r"$^{\circ}$",
    "†": r"$^{\dagger}$",
    **{letter: rf"$\{name.title() if letter.isupper() else name}$" for name, letter in GREEK.items()},
}
# Scales a table down to the width of the page if it is wider.
FIT = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{"


def tex(text: str) -> str:
    """A text with LaTeX's special characters escaped, in one line."""
    return " ".join(text.split()).translate(str.maketrans(ESCAPES))


def caption(tab: Tab) -> list[str]:
    """The caption of a table: its title and what has to be known of its numbers, in short sentences."""
    sentences = [f"{tab.title}.", f"{tab.seeds}."]
    if tab.done:
        sentences.append(f"{tab.done} numbers measured.")
    if tab.additional:
        sentences.append("Not a setting of the paper.")
    if tab.line.endswith("training"):
        sentences.append(f"Models {tab.line}.")
    if tab.rest:
        sentences.append(f"Other rows: as in {tab.rest}.")
    if tab.said:
        sentences.append(tab.said)
    return sentences


def _measured(value: Value) -> str:
    """A measured number with its marks, spread and interval; empty if nothing was measured."""
    if not value.mean:
        return ""
    number = tex(value.mean)
    if value.mark == "best":
        number = rf"\textbf{{{number}}}"
    elif value.mark == "second":
        number = rf"\underline{{{number}}}"
    number += tex(value.signs)
    if value.spread:
        number += rf"{{\scriptsize$\pm${tex(value.spread)}}}"
    if value.ends:
        number += rf" {{\scriptsize {tex(value.ends)}}}"
    return number


def _tabular(panel: Panel) -> str:
    """The tabular of a panel: each row, and below it its printed numbers, if there are some."""
    lines = []
    for row in panel.rows:
        lines.append([*map(tex, row.stub), *map(_measured, row.values)])
        printed = [value.published if value.mean else "" for value in row.values]
        if any(printed):
            texts = [rf"{{\scriptsize({tex(text)})}}" if text else "" for text in printed]
            lines.append([""] * len(row.stub) + texts)

    # The headings of the stub stand in the lowest row of the header.
    above = [""] * (len(panel.heads) - 1)
    heads = [*([*above, name] for name in panel.stub), *panel.levels]
    levels = [list(map(tex, texts)) for texts in zip(*heads, strict=True)]
    table = pd.DataFrame(lines, columns=levels if len(levels) > 1 else levels[0])
    form = "l" * len(panel.stub) + "r" * len(panel.rows[0].values)
    return table.style.hide(axis="index").to_latex(column_format=form, hrules=True, multicol_align="c")


def table(tab: Tab, paper: str) -> str:
    """The content of a table's file.

    tab    the table
    paper  name of the paper
    """
    sentences = [*caption(tab), "Measured mean ± standard deviation, (printed).", *tab.footnotes]
    words = tex(" ".join([f"{paper},", *sentences]))
    label = re.sub(r"[^a-z0-9]+", "-", f"{paper}-{tab.key}".lower())
    title = rf"\caption{{{words}}}\label{{tab:{label}}}"
    head = rf"\par\textit{{{tex(tab.panel.title)}}}\par" if tab.panel.title else ""
    body = f"{title}{head}\n{FIT}%\n{_tabular(tab.panel)}}}"
    return f"{PACKAGES}\\begin{{table*}}[tp]\\centering\\footnotesize\n{body}\n\\end{{table*}}\n"


def files(page: Page) -> dict[str, str]:
    """Path under reports/ -> content, of the files of a paper's measured tables."""
    return {f"tables/{page.key}-{tab.key}.tex": table(tab, page.name) for tab in page.tabs}
