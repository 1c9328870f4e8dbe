"""The three output formats: for each a Jinja environment with its own escaping and its own form of a table
position."""
import re
from functools import cache, partial
from typing import Any

import jinja2

from pipeline.report.judgement import MEANINGS, ordinal
from pipeline.report.panels import Value
from pipeline.report.scatter import along
from pipeline.report.told import numbers, value_words
from pipeline.report.words import address, measure_words, signed
from pipeline.schema import ROOT

TEMPLATES = ROOT / "reports" / "templates"
FORMATS = ("md", "html", "tex")
DASH = "—"                                       # planned, but not run
WIDE = 8                                         # a table with more columns shows published below measured


class Raw(str):
    """Text that is already in the output format."""


def one_line(text) -> str:
    """Text without ends of lines, which would end a paragraph, a heading or the row of a table."""
    return re.sub(r"\s*[\n\r]\s*", " ", str(text))


def join(escape, separator: str, texts: list[str]) -> Raw:
    """Neighbouring positions of a table row."""
    return Raw(separator.join(escape(text) for text in texts))


def _marks(row) -> str:
    return " ".join(filter(None, (row.note, "R" if row.told else "")))


# -- LaTeX ---------------------------------------------------------------------------------------------------

_TEX = {
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
    "*": "{*}",
    "±": r"$\pm$",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "·": r"\textperiodcentered{}",
    "×": r"$\times$",
    "✓": r"\checkmark{}",
    "Δ": r"$\Delta$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\rightarrow$",
    "²": r"\textsuperscript{2}",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "Ω": r"$\Omega$",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
    "∞": r"$\infty$",
    "ℓ": r"$\ell$",
    "\u00a0": "~",
    "\u2009": r"\,",
}
_TEX |= {
    letter: f"${name}$"
    for letter, name in {
        "α": r"\alpha",
        "β": r"\beta",
        "γ": r"\gamma",
        "ε": r"\epsilon",
        "η": r"\eta",
        "θ": r"\theta",
        "λ": r"\lambda",
        "μ": r"\mu",
        "ξ": r"\xi",
        "π": r"\pi",
        "φ": r"\phi",
        "σ": r"\sigma",
        "τ": r"\tau",
        "ω": r"\omega",
    }.items()
}


LACKING = "ĦħĸĿŀŉŦŧſ"  # letters of Latin-1 and Latin Extended-A that T1 has not


def tex(text) -> str:
    """Escape for LaTeX; a character that the fonts of a plain installation lack is shown by its number."""
    if isinstance(text, Raw):
        return text
    return "".join(
        _TEX.get(c) or (f"(U+{ord(c):04X})" if ord(c) >= 0x180 or c in LACKING else c) for c in one_line(text)
    )


def tex_measured(value: Value) -> Raw:
    """`\\textbf{71.23} ± 0.41`, the spread small; a dash where a run is missing."""
    if value.state == "text":
        return Raw(tex(value.text))
    if value.state == "quoted":
        return Raw(rf"\published{{{tex(value.published)}}}")
    if value.state == "excluded":
        return Raw(rf"{{\scriptsize {tex(value.text)}}}")
    if value.state != "measured":
        return Raw(("!" if value.problem else "---") if value.state == "missing" else "")
    mean = {"best": r"\textbf{%s}", "second": r"\underline{%s}"}.get(value.mark, "%s") % tex(value.mean)
    signs = "".join(rf"\textsuperscript{{{tex(sign.text)}}}" for sign in value.signs)
    return Raw(mean + signs + (rf"{{\scriptsize$\,\pm\,{value.spread}$}}" if value.spread else ""))


def tex_published(value: Value) -> Raw:
    """The published number, and behind it how far the measured one lies from it."""
    apart = rf" {{\tiny {tex(value.apart)}}}" if value.apart else ""
    return Raw(rf"\published{{{tex(value.published)}{apart}}}" if value.published else "")


def tex_row(row) -> Raw:
    """The stub of a row, in front of its numbers, with the letter of its footnote and the mark of its
    readings."""
    first = Raw(tex(row.stub[0]) + (rf"\textsuperscript{{{_marks(row)}}}" if _marks(row) else ""))
    return join(tex, " & ", [first, *row.stub[1:]])


def tex_rules(panel, depth: int) -> Raw:
    """\\cmidrule under each merged header cell of a header row; the stub columns come first."""
    at, rules = len(panel.stub) + 1, []
    for head in panel.heads[depth]:
        if head.span > 1 or len(panel.heads[depth]) > 1:
            rules.append(rf"\cmidrule(lr){{{at}-{at + head.span - 1}}}")
        at += head.span
    return Raw("".join(rules))


def tex_breakable(text: str) -> Raw:
    """A long name that may break after its punctuation."""
    return Raw(re.sub(r"(?<=[/:@-])", r"\\allowbreak{}", tex(text)))


# -- Markdown ------------------------------------------------------------------------------------------------

def markdown(text) -> str:
    """Escape what Markdown, its tables and embedded HTML would read as markup."""
    return text if isinstance(text, Raw) else re.sub(r"([\\`*_|<>\[\]~])", r"\\\1", one_line(text))


def markdown_value(value: Value) -> Raw:
    """`**71.23** ± 0.41 (70.90, +0.33)`: measured, in parentheses published and the difference; a dash where
    a run is missing."""
    published = (
        f"({', '.join(filter(None, (markdown(value.published), value.apart)))})" if value.published else ""
    )
    if value.state == "text":
        measured = markdown(value.text)
    elif value.state == "excluded":
        measured = f"*{markdown(value.text)}*"
    elif value.state == "measured":
        mean = f"[{value.mean}](../{value.file})" if value.file else value.mean
        mean = {"best": "**{}**", "second": "<ins>{}</ins>"}.get(value.mark, "{}").format(mean)
        signs = "".join(markdown(sign.text) for sign in value.signs)
        mean += f"<sup>{signs}</sup>" if signs else ""
        measured = f"{mean} ± {value.spread}" if value.spread else mean
    else:
        measured = ("**!**" if value.problem else DASH) if value.state == "missing" else ""
    return Raw(" ".join(filter(None, (measured, published))))


def markdown_row(row) -> Raw:
    """The stub of a row, in front of its numbers, with the letter of its footnote and the mark of its
    readings."""
    first = Raw(markdown(row.stub[0]) + (f" <sup>{_marks(row)}</sup>" if _marks(row) else ""))
    return join(markdown, " | ", [first, *row.stub[1:]])


def markdown_code(text: str, bar: str = "\\|") -> Raw:
    """As code, between more backticks than it holds itself; a table would end a cell at a bare `|`, outside
    of one it is to be copied as it is."""
    text = one_line(text).replace("|", bar)
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    room = " " if "`" in text else ""
    return Raw(f"{fence}{room}{text}{room}{fence}")


FILTERS = {
    "tex": {
        "measured": tex_measured,
        "published": tex_published,
        "rules": tex_rules,
        "breakable": tex_breakable,
        "cells": partial(join, tex, " & "),
        "row": tex_row,
        "raw": Raw,
    },
    "md": {
        "value": markdown_value,
        "code": markdown_code,
        "row": markdown_row,
        "cells": partial(join, markdown, " | "),
        "raw": Raw,
    },
}


# -- environments --------------------------------------------------------------------------------------------

@cache
def environment(kind: str) -> jinja2.Environment:
    """The Jinja environment of `md`, `html` or `tex`. HTML escapes by autoescape, the others every
    expression."""
    options: dict[str, dict[str, Any]] = {
        "html": {"autoescape": True},
        "md": {"finalize": markdown},
        "tex": {
            "finalize": tex,
            "block_start_string": "<%",
            "block_end_string": "%>",
            "variable_start_string": "<<",
            "variable_end_string": ">>",
            "comment_start_string": "<#",
            "comment_end_string": "#>",
        },
    }
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options[kind],
    )
    made.filters.update(
        FILTERS.get(kind, {}), ordinal=ordinal, measure=measure_words, words=value_words, numbers=numbers
    )
    made.filters.update(address=address, along=along, signed=signed)
    made.globals.update(WIDE=WIDE, DASH=DASH, MEANINGS=MEANINGS)
    return made


def fill(template: str, kind: str, **context) -> str:
    """Render reports/templates/<template>.<kind>.j2."""
    return environment(kind).get_template(f"{template}.{kind}.j2").render(**context)
