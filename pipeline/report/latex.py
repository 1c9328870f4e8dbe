"""Tables as LaTeX, one file a table: measured numbers with the printed ones.

A file compiles by itself and inside a paper by `\\input`. It fits a page of two columns in a type of 7 pt at
least: a table takes a smaller type first, then its columns are put below one another; tall ones go over
several floats.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from pipeline.report.page import Grid, Line, Number, Page, Tab
from pipeline.report.published import columns, merge_heads

# Command of a size, its points, its line spacing, and its letters' width over that of 10 pt, scaled.
SIZES = (
    ("\\normalsize", 10, 12.0, 1.0),
    ("\\small", 9, 11.0, 1.03),
    ("\\footnotesize", 8, 9.5, 1.07),
    ("\\scriptsize", 7, 8.0, 1.14),
)
# Of spreads and printed numbers.
SMALLEST = SIZES[-1]
# Points of an article's A4 page in two columns: of one column, of the text, and of its height less a caption.
COLUMN, TEXT, HEIGHT = 220.0, 450.0, 480.0
# Points between two columns, and between two methods.
GAP, ROOM = 6.0, 2.0
# Letters of a heading's line.
HEADING = 12
# Points of Computer Modern at 10 pt; bold letters are wider by so much.
NARROW = dict.fromkeys(" .,:;'!|ijl", 2.9) | dict.fromkeys("()[]frstI-/", 3.9) | dict.fromkeys("mMW±", 8.6)
BOLD = 1.15
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
# Greek letters by their names in Unicode; LaTeX has no capitals of those that look like Latin ones.
CAPITALS = set("ΓΔΘΛΞΠΣΥΦΨΩ")
# Letters beyond ASCII that the fonts of every installation can set.
PLAIN = re.compile(r"[ -~À-ÅÇ-ÏÑ-ÖØ-Ýß-åç-ïñ-öø-ýÿ]")


def tex(text: str) -> str:
    """Escaped, in one line; a character that plain fonts lack is shown by its number."""
    return "".join(map(_character, unicodedata.normalize("NFC", " ".join(text.split()))))


def _character(c: str) -> str:
    if c in ESCAPES or PLAIN.fullmatch(c):
        return ESCAPES.get(c, c)
    kind, _, name = unicodedata.name(c, "").rpartition(" LETTER ")
    if kind == "GREEK SMALL" or c in CAPITALS:
        name = name.lower().replace("lamda", "lambda").removeprefix("final ")
        return (
            f"$\\{name.title() if c in CAPITALS else name}$"
            if name.isalpha() and c != "ο"
            else f"${name[:1]}$"
        )
    return f"(U+{ord(c):04X})"


# -- what a table says ---------------------------------------------------------------------------------------


def caption(tab: Tab) -> list[str]:
    """What has to be known of a table's numbers, in short sentences."""
    return [
        f"{tab.title}.",
        f"{tab.seeds} seed{'' if tab.seeds == '1' else 's'}.",
        *([f"{tab.done} numbers measured."] if tab.done else []),
        *(["Not a setting of the paper."] if tab.beside else []),
        *([f"Models {tab.line}."] if tab.line.endswith("training") else []),
        *([f"Other rows: as in {tab.rest}."] if tab.rest else []),
    ]


def legend(tab: Tab) -> str:
    numbers = [number for grid in tab.grids for line in grid.lines for number in line.numbers]
    spread = r" $\pm$ standard deviation" if any(number.spread for number in numbers) else ""
    printed = "; in parentheses: printed" if any(number.printed for number in numbers) else ""
    marked = "; bold: best, underlined: second" if any(number.mark for number in numbers) else ""
    return f"Measured mean{spread}{printed}{marked}."


# -- how much room it takes ----------------------------------------------------------------------------------


def _wide(text: str, size=SIZES[0]) -> float:
    """Points that a text takes in a line."""
    plain = sum(NARROW.get(c, 7.3 if c.isupper() else 5.1) for c in text)
    return plain * size[1] / 10 * size[3]


def _broken(text: str, most: int = HEADING) -> list[str]:
    """A heading in lines of at most so many letters, where its words allow it."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + len(word) < most:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


@dataclass(frozen=True)
class Piece:
    """A part of a table that is set in one type size; widths in points."""

    grid: Grid
    size: tuple[str, int, float, float] = SIZES[0]

    @property
    def stub(self) -> float:
        texts = [self.grid.stub, *(line.stub for line in self.grid.lines)]
        return sum(max(_wide(text, self.size) for text in column) + GAP for column in zip(*texts))

    @property
    def heads(self) -> list[list[str]]:
        return columns(self.grid.heads)

    def column(self, i: int) -> float:
        numbers = [line.numbers[i] for line in self.grid.lines]
        spreads = (_wide(f"±{n.spread}" * bool(n.spread), SMALLEST) for n in numbers)
        measured = (BOLD * _wide(n.mean, self.size) + spread for n, spread in zip(numbers, spreads))
        return max(*measured, *(_wide(f"({n.printed})", SMALLEST) for n in numbers)) + GAP

    @property
    def width(self) -> float:
        columns = [self.column(i) for i in range(len(self.heads))]
        # a heading that is wider than its columns widens the last of them, as in LaTeX
        for row in self.grid.heads[::-1]:
            at = 0
            for head in row:
                lines = _broken(head.text, HEADING * head.span)
                wanted = max(_wide(part, self.size) for part in lines) + GAP
                columns[at + head.span - 1] += max(0.0, wanted - sum(columns[at : at + head.span]))
                at += head.span
        return self.stub + sum(columns)

    @property
    def height(self) -> float:
        lines = sum(max(len(_broken(head.text)) for head in row) for row in self.grid.heads)
        rows = sum(1 + _paired(line) for line in self.grid.lines)
        return (lines + rows + bool(self.grid.title)) * self.size[2] + ROOM * len(self.grid.lines) + 12

    def part(self, chosen: range) -> "Piece":
        """With some of its columns."""
        lines = [replace(line, numbers=[line.numbers[i] for i in chosen]) for line in self.grid.lines]
        return replace(
            self, grid=replace(self.grid, heads=merge_heads([self.heads[i] for i in chosen]), lines=lines)
        )


def fitting(grid: Grid) -> Iterator[Piece]:
    """A grid in the largest type in which it is as wide as a page at most; else in as few parts as possible,
    tall ones in parts of equally many rows."""
    sized = [Piece(grid, size) for size in SIZES]
    piece = next((one for one in sized if one.width <= TEXT), sized[2])
    parted = list(_parts(piece))
    pieces = next((some for some in parted if all(one.width <= TEXT for one in some)), parted[-1])
    for one in pieces:
        parts = -int(-one.height // HEIGHT)
        edges = [round(len(one.grid.lines) * k / parts) for k in range(parts + 1)]
        for a, b in pairwise(edges):
            yield replace(one, grid=replace(one.grid, lines=one.grid.lines[a:b]))


def _parts(piece: Piece) -> Iterator[list[Piece]]:
    """Its columns in one part, in two and so on: between groups of columns, then in equal parts; at last one
    by one, however wide."""
    n = len(piece.heads)
    groups = list(accumulate((head.span for head in piece.grid.heads[0]), initial=0))
    for parts in range(1, n + 1):
        even = [round(n * k / parts) for k in range(parts + 1)]
        for edges in (sorted({min(groups, key=lambda at: abs(at - edge)) for edge in even}), even):
            if len(edges) == parts + 1:
                yield [piece.part(range(a, b)) for a, b in pairwise(edges)]


# -- as text -------------------------------------------------------------------------------------------------


def _paired(line: Line) -> bool:
    """Whether printed numbers stand below measured ones."""
    return any(n.mean for n in line.numbers) and any(n.printed for n in line.numbers)


def _measured(n: Number) -> str:
    form = {"best": r"\textbf{%s}", "second": r"\underline{%s}"}.get(n.mark, "%s")
    spread = rf"{{\scriptsize$\pm${tex(n.spread)}}}" if n.spread else ""
    return form % tex(n.mean) + spread if n.mean else ""


def _printed(n: Number) -> str:
    return rf"{{\scriptsize({tex(n.printed)})}}" if n.printed else ""


def _head(text: str, most: int = HEADING) -> str:
    lines = _broken(text, most)
    stacked = r"\\".join(map(tex, lines))
    return rf"\shortstack{{{stacked}}}" if len(lines) > 1 else stacked


def _heads(grid: Grid) -> Iterator[str]:
    """Header rows; lines under those that several columns share."""
    stub = len(grid.stub)
    for row in grid.heads[:-1]:
        at, rules, joined = stub + 1, "", any(head.span > 1 for head in row)
        for head in row:
            rules += rf"\cmidrule(lr){{{at}-{at + head.span - 1}}}" if head.text and joined else ""
            at += head.span
        heads = [
            rf"\multicolumn{{{head.span}}}{{c}}{{{_head(head.text, HEADING * head.span)}}}" for head in row
        ]
        yield " & ".join([*[""] * stub, *heads]) + rf" \\ {rules}"
    yield " & ".join([*map(tex, grid.stub), *(_head(head.text) for head in grid.heads[-1])]) + r" \\"


def _rows(grid: Grid) -> Iterator[str]:
    for line in grid.lines:
        if line.mean:
            yield r"\midrule"
        forms = (_measured, _printed) if any(n.mean for n in line.numbers) else (_printed,)
        stubs = [map(tex, line.stub), [""] * len(line.stub)]
        rows = [[*stub, *map(form, line.numbers)] for stub, form in zip(stubs, forms)]
        if not any(rows[-1]):
            rows.pop()
        yield " \\\\\n".join(" & ".join(row) for row in rows) + rf" \\[{ROOM:g}pt]"


def _tabular(piece: Piece) -> str:
    grid = piece.grid
    title = [rf"\textit{{{tex(grid.title)}}}\\[2pt]"] if grid.title else []
    form = "l" + "c" * (len(grid.stub) - 1) + "r" * len(grid.lines[0].numbers)
    begin, end = rf"\begin{{tabular}}{{{form}}}", r"\end{tabular}"
    body = [r"\toprule", *_heads(grid), r"\midrule", *_rows(grid), r"\bottomrule"]
    return "\n".join([rf"{{{piece.size[0]}", *title, begin, *body, rf"{end}\par}}"])


def table(tab: Tab, paper: str) -> str:
    """A table as a file of its own.

    tab    the table
    paper  name of the paper
    """
    floats: list[list[Piece]] = []
    for piece in (piece for grid in tab.grids for piece in fitting(grid)):
        if not floats or sum(one.height for one in floats[-1]) + piece.height > HEIGHT:
            floats.append([])
        floats[-1].append(piece)
    words = f"{tex(' '.join([f'{paper},', *caption(tab)]))} {legend(tab)}"
    label = re.sub(r"[^a-z0-9]+", "-", f"{paper}-{tab.key}".lower())
    body = [_float(pieces, words, label, i) for i, pieces in enumerate(floats)]
    packages = "booktabs" + ",amssymb" * any("checkmark" in text for text in body)
    first = rf"% Needs \usepackage{{{packages}}}. Compiles alone, and inside a paper by \input."
    return "\n".join([first, *_guard(packages), *body, r"\alone", ""])


def _guard(packages: str) -> list[str]:
    """Before \\begin{document} of a paper has run, the file begins, and at \\alone ends, its own document."""
    return [
        r"\expandafter\ifx\csname @nodocument\endcsname\relax \let\alone\relax \else",
        rf"\documentclass[twocolumn,a4paper]{{article}} \usepackage{{{packages}}}",
        r"\begin{document} \def\alone{\end{document}} \fi",
    ]


def _float(pieces: list[Piece], words: str, label: str, i: int) -> str:
    narrow = all(piece.width <= COLUMN for piece in pieces)
    kind = "table" if narrow else "table*"
    title = (
        rf"\caption{{{words}}}\label{{tab:{label}}}\smallskip"
        if not i
        else rf"Table~\ref{{tab:{label}}}, continued\par\smallskip"
    )
    begin = rf"\begin{{{kind}}}[tp]\centering\setlength{{\tabcolsep}}{{{GAP / 2:g}pt}}"
    return "\n".join([begin, title, "\n\\medskip\n".join(map(_tabular, pieces)), rf"\end{{{kind}}}"])


def files(page: Page) -> dict[str, str]:
    """{path under reports/: text} of a paper's measured tables."""
    return {f"tables/{page.key}-{tab.key}.tex": table(tab, page.name) for tab in page.tabs if tab.grids}
