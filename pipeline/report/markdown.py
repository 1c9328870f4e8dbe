"""Markdown pages: overview, a summary of each paper, and the generated blocks of README.md."""

import hashlib
import re
from functools import cache
from itertools import accumulate
from urllib.parse import quote

import jinja2

from pipeline.errors import FedReproError
from pipeline.report.latex import caption
from pipeline.report.page import Page, Tab
from pipeline.report.published import Value
from pipeline.report.study import result_file
from pipeline.report.templates import templates

# What Markdown, its tables, mathematics in it or HTML would read as markup.
SPECIAL = re.compile(r"([\\`*_|<>\[\]~$&#])")

# A block of README.md that is written.
BLOCK = re.compile(r"(<!-- (\w+): written by `fedrepro report` -->\n).*?(<!-- end -->)", re.DOTALL)
# The paper whose first setting and main claim the README shows.
EXAMPLE = "fedlsa"

# Numbers in a summary's tables, at most: a summary is read in one go, the page has all tables.
NUMBERS = 340
# Claims behind the main ones, at most.
CLAIMS = 20


class Raw(str):
    """Text that is Markdown already."""


def escape(text: object) -> str:
    """In one line and without markup; Raw stays as it is."""
    return text if isinstance(text, Raw) else SPECIAL.sub(r"\\\1", re.sub(r"\s*[\n\r]\s*", " ", str(text)))


def number(value: Value, leads: bool = True) -> Raw:
    """`**71.23**† ±0.41 (70.90)`: measured, which leads to the run, its marks, and printed."""
    if not value.mean:
        return Raw("")
    mean = f"[{value.mean}](../{result_file(value.cell)})" if value.cell and leads else value.mean
    mean = {"best": "**{}**", "second": "*{}*"}.get(value.mark, "{}").format(mean) + value.signs
    spread = f"±{value.spread}" if value.spread else ""
    printed = f"({escape(value.published)})" if value.published else ""
    return Raw(" ".join(filter(None, [mean, spread, escape(value.ends), printed])))


def link(address: str) -> Raw:
    """An address as the target of a link."""
    return Raw(quote(address, safe=":/?&=%+,;@-._~"))


def code(text: str) -> Raw:
    """A block of code, in a fence that is longer than any in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return Raw(f"{fence}\n{text}\n{fence}")


@cache
def environment() -> jinja2.Environment:
    """Of the Markdown templates; every expression is escaped."""
    made = templates(finalize=escape, keep_trailing_newline=True)
    made.filters.update(caption=caption, number=number, code=code, link=link, raw=Raw)
    return made


def fill(template: str, **context: object) -> str:
    """A page in Markdown from reports/templates/<template>.j2."""
    return environment().get_template(f"{template}.j2").render(context)


def paper(page: Page) -> str:
    """A paper's summary: headline, main claims, numbers, verdicts; what is too long for it is left to the
    page and the LaTeX files."""
    numbers = [_numbers(tab) for tab in page.tabs]
    shown = max(1, sum(so_far <= NUMBERS for so_far in accumulate(numbers)))
    others = [verdict for verdict in page.measured if verdict not in page.main]
    return fill("paper.md", page=page, tabs=page.tabs[:shown], more=page.tabs[shown:], claims=others[:CLAIMS])


def _numbers(tab: Tab) -> int:
    """How many positions a table has."""
    return sum(len(row.values) for row in tab.panel.rows)


# -- README.md -----------------------------------------------------------------------------------------------


def blocks_digest(text: str) -> str:
    """SHA-256 of the generated blocks of a README's text."""
    blocks = [block.group() for block in BLOCK.finditer(text)]
    return hashlib.sha256("\n".join(blocks).encode()).hexdigest()


def readme(text: str, pages: dict[str, Page]) -> str:
    """The README's text with its blocks written from the pages; FedReproError where a block is missing."""
    view = {"page": pages[EXAMPLE], "pages": pages.values()}
    blocks = {name: fill(f"readme-{name}.md", **view) for name in ("result", "status")}
    missing = blocks.keys() - {name for _, name, _ in BLOCK.findall(text)}
    if missing:
        raise FedReproError(f"README.md: the block {min(missing)!r} is missing")
    return BLOCK.sub(lambda block: f"{block[1]}{blocks.get(block[2], '')}{block[3]}", text)
