"""Write a paper's tables as LaTeX, one file a table: measured numbers with the published ones below them.

A file compiles by itself and inside a paper by `\\input`. Of a table that is wider than a page the columns
are put below one another; tall ones go over several floats.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from pipeline.report.page import Page, Tab
from pipeline.report.published import Panel, Row, Value, columns, merge_heads

# Points of an article's A4 page in two columns: of one column, of the text, and of its height less a caption.
COLUMN, TEXT, HEIGHT = 220.0, 450.0, 480.0
# Points of a letter in \footnotesize, at most on average, of a line, and between columns.
LETTER, LINE, GAP = 4.9, 10.0, 6.0
# Letters of a heading's line.
HEADING = 12
ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    '"': "''",
    "`": "{`}",
    "±": r"$\pm$",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "✓": r"\checkmark{}",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\rightarrow$",
    "²": "$^2$",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
    "\u00a0": "~",
}
# Letters beyond ASCII that the fonts of every installation can set.
PLAIN = re.compile(r"[ -~À-ÅÇ-ÏÑ-ÖØ-Ýß-åç-ïñ-öø-ýÿ]")


def tex(text: str) -> str:
    """Escaped, in one line; a character that plain fonts lack is written as its number."""
    return "".join(map(_character, unicodedata.normalize("NFC", " ".join(text.split()))))


def _character(c: str) -> str:
    if c in ESCAPES or PLAIN.fullmatch(c):
        return ESCAPES.get(c, c)
    kind, _, name = unicodedata.name(c, "").rpartition(" LETTER ")
    name = name.lower().replace("lamda", "lambda").removeprefix("final ")
    # LaTeX has no capitals of Greek letters that look like Latin ones, and no omicron.
    if kind == "GREEK SMALL" and c != "ο" or c in "ΓΔΘΛΞΠΣΥΦΨΩ":
        return f"$\\{name if kind == 'GREEK SMALL' else name.title()}$"
    return f"(U+{ord(c):04X})"


# -- what a table says ---------------------------------------------------------------------------------------


def caption(tab: Tab) -> list[str]:
    """What has to be known of a table's numbers, in short sentences."""
    return [
        f"{tab.title}.",
        f"{tab.seeds} seed{'' if tab.seeds == '1' else 's'}.",
        *([f"{tab.done} numbers measured."] if tab.done else []),
        *(["Not a setting of the paper."] if tab.additional else []),
        *([f"Models {tab.line}."] if tab.line.endswith("training") else []),
        *([f"Other rows: as in {tab.rest}."] if tab.rest else []),
    ]


def legend(tab: Tab) -> str:
    values = [value for panel in tab.panels for row in panel.rows for value in row.values if value.mean]
    spread = r" $\pm$ standard deviation" if any(value.spread for value in values) else ""
    printed = "; in parentheses: printed" if any(value.published for value in values) else ""
    marked = "; bold: best, underlined: second" if any(value.mark for value in values) else ""
    return f"Measured mean{spread}{printed}{marked}."


# -- in parts that fit a page --------------------------------------------------------------------------------


def _broken(text: str, most: int = HEADING) -> list[str]:
    """A heading in lines of at most so many letters, where its words allow it."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + len(word) < most:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _stub_width(panel: Panel) -> float:
    texts = [panel.stub, *(row.stub for row in panel.rows)]
    return sum(max(map(len, column)) * LETTER + GAP for column in zip(*texts))


def _column_widths(panel: Panel) -> list[float]:
    widths = []
    for i, heads in enumerate(columns(panel.heads)):
        values = [row.values[i] for row in panel.rows]
        letters = [len(line) for line in _broken(heads[-1])]
        letters += [len(v.mean) + len(v.spread) + bool(v.spread) for v in values]
        widths.append(max(*letters, *(len(v.published) + 2 for v in values)) * LETTER + GAP)
    return widths


def fitting(panel: Panel) -> Iterator[Panel]:
    """A panel in as few parts as fit a page: side by side columns first, then rows."""
    widths, stub = _column_widths(panel), _stub_width(panel)
    edges, width = [0], stub
    for i, one in enumerate(widths):
        if width + one > TEXT and i > edges[-1]:
            edges, width = [*edges, i], stub
        width += one
    heads = columns(panel.heads)
    for a, b in pairwise([*edges, len(widths)]):
        rows = [replace(row, values=row.values[a:b]) for row in panel.rows]
        most = max(1, int((HEIGHT - 6 * LINE) / (LINE * max(map(_lines, rows)) + 2)))
        for first in range(0, len(rows), most):
            yield replace(panel, heads=merge_heads(heads[a:b]), rows=rows[first : first + most])


def _lines(row: Row) -> int:
    """Two where printed numbers stand below measured ones."""
    return 1 + any(value.mean and value.published for value in row.values)


def _height(panel: Panel) -> float:
    return (4 + sum(map(_lines, panel.rows)) + 2 * len(panel.heads)) * LINE + 2 * len(panel.rows)


# -- as text -------------------------------------------------------------------------------------------------


def _measured(value: Value) -> str:
    form = {"best": r"\textbf{%s}", "second": r"\underline{%s}"}.get(value.mark, "%s")
    spread = rf"{{\scriptsize$\pm${tex(value.spread)}}}" if value.spread else ""
    return form % tex(value.mean) + spread if value.mean else ""


def _printed(value: Value) -> str:
    return rf"{{\scriptsize({tex(value.published)})}}" if value.mean and value.published else ""


def _head(text: str, most: int = HEADING) -> str:
    lines = _broken(text, most)
    stacked = r"\\".join(map(tex, lines))
    return rf"\shortstack{{{stacked}}}" if len(lines) > 1 else stacked


def _heads(panel: Panel) -> Iterator[str]:
    """Header rows; lines under those that several columns share."""
    stub = len(panel.stub)
    for row in panel.heads[:-1]:
        at, rules, cells = stub + 1, "", [""] * stub
        for head in row:
            rules += rf"\cmidrule(lr){{{at}-{at + head.span - 1}}}" if head.text and head.span > 1 else ""
            cells.append(rf"\multicolumn{{{head.span}}}{{c}}{{{_head(head.text, HEADING * head.span)}}}")
            at += head.span
        yield " & ".join(cells) + rf" \\ {rules}"
    yield " & ".join([*map(tex, panel.stub), *(_head(head.text) for head in panel.heads[-1])]) + r" \\"


def _tabular(panel: Panel) -> str:
    title = [rf"\textit{{{tex(panel.title)}}}\\[2pt]"] if panel.title else []
    form = "l" + "c" * (len(panel.stub) - 1) + "r" * len(panel.rows[0].values)
    body = [r"\toprule", *_heads(panel), r"\midrule"]
    for row in panel.rows:
        lines = [[*map(tex, row.stub), *map(_measured, row.values)]]
        if _lines(row) > 1:
            lines.append([""] * len(row.stub) + [*map(_printed, row.values)])
        body += [r"\midrule"] * row.mean
        body.append(" \\\\\n".join(map(" & ".join, lines)) + r" \\[2pt]")
    begin, end = rf"\begin{{tabular}}{{{form}}}", r"\bottomrule\end{tabular}\par}"
    return "\n".join([r"{\footnotesize", *title, begin, *body, end])


def table(tab: Tab, paper: str) -> str:
    """A table as a file.

    tab    the table
    paper  name of the paper
    """
    floats: list[list[Panel]] = []
    for part in (part for panel in tab.panels for part in fitting(panel)):
        if not floats or sum(map(_height, floats[-1])) + _height(part) > HEIGHT:
            floats.append([])
        floats[-1].append(part)
    words = f"{tex(' '.join([f'{paper},', *caption(tab)]))} {legend(tab)}"
    label = re.sub(r"[^a-z0-9]+", "-", f"{paper}-{tab.key}".lower())
    titles = [rf"\caption{{{words}}}\label{{tab:{label}}}\smallskip"]
    titles += [rf"Table~\ref{{tab:{label}}}, continued\par\smallskip"] * (len(floats) - 1)
    body = [_float(parts, title) for parts, title in zip(floats, titles)]
    packages = "booktabs" + ",amssymb" * any("checkmark" in text for text in body)
    first = rf"% Needs \usepackage{{{packages}}}. Compiles alone, and inside a paper by \input."
    # Before \begin{document} of a paper has run, the file begins, and at \alone ends, a document.
    guard = [
        r"\expandafter\ifx\csname @nodocument\endcsname\relax \let\alone\relax \else",
        rf"\documentclass[twocolumn,a4paper]{{article}} \usepackage{{{packages}}}",
        r"\begin{document} \def\alone{\end{document}} \fi",
    ]
    return "\n".join([first, *guard, *body, r"\alone", ""])


def _float(parts: list[Panel], title: str) -> str:
    width = max(_stub_width(part) + sum(_column_widths(part)) for part in parts)
    kind = "table" if width <= COLUMN else "table*"
    begin = rf"\begin{{{kind}}}[tp]\centering\setlength{{\tabcolsep}}{{{GAP / 2:g}pt}}"
    return "\n".join([begin, title, "\n\\medskip\n".join(map(_tabular, parts)), rf"\end{{{kind}}}"])


def files(page: Page) -> dict[str, str]:
    """{path under reports/: text} of a paper's measured tables."""
    return {f"tables/{page.key}-{tab.key}.tex": table(tab, page.name) for tab in page.tabs if tab.panels}
