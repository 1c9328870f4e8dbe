"""The README and the Markdown summaries: short, whole tables, and texts of papers that stay text."""

import re

import pytest
from markdown_it import MarkdownIt
from repository import edit

from pipeline.cells.results import Summary, collect
from pipeline.errors import FedReproError
from pipeline.report import latex, markdown
from pipeline.report.citations import citation
from pipeline.report.page import Overview, Page
from pipeline.report.published import Value
from pipeline.report.study import Study
from pipeline.schema import ROOT, Cell, papers

README = (ROOT / "README.md").read_text(encoding="utf-8")
PARSER = MarkdownIt("commonmark").enable("table")


@pytest.fixture(scope="module")
def texts(pages):
    made = {name: markdown.paper(one) for name, one in pages.items()}
    index = markdown.fill("index.md", view=Overview(pages.values()), cite=citation(ROOT))
    return made | {"index": index}


@pytest.fixture
def small(measured):
    """A paper whose texts hold what Markdown would read as markup."""

    def change(paper):
        paper["title"] = "A | B <b>x</b> *y* [z](https://a.b) $m$ & `c`\n\n# D"
        paper["methods"]["ours"]["label"] = "Ours|<img src=x onerror=y>_1_"
        paper["links"] = {"code": "https://a.b/c) [x](https://d.e"}

    edit(measured / "papers/fedcrl/paper.yaml", change)
    path = measured / "papers/fedcrl/published/table1.csv"
    path.write_text(path.read_text().replace(",Ours,", ",Ours|<img src=x onerror=y>_1_,"))
    return measured


def tables(text):
    """Every table as rows of texts, as a reader of Markdown sees it."""
    every, row = [], None
    for token in PARSER.parse(text):
        if token.type == "table_open":
            every.append([])
        elif token.type == "tr_open":
            row = []
            every[-1].append(row)
        elif token.type == "tr_close":
            row = None
        elif token.type == "inline" and row is not None:
            row.append("".join(child.content for child in token.children or () if child.type == "text"))
    return every


@pytest.mark.parametrize("name", papers())
def test_every_row_of_a_table_is_read_as_one(texts, pages, name):
    read = tables(texts[name])
    lines = [line for line in texts[name].splitlines() if line.startswith("|") and "---" not in line]
    assert sum(map(len, read)) == len(lines)
    assert all(len({*map(len, table)}) == 1 for table in read)
    text = "".join(text for table in read for row in table for text in row)
    for tab in pages[name].tabs:
        values = [v for row in tab.panel.rows for v in row.values if v.mean and not v.other]
        whole = all(v.mean in text and v.published in text for v in values)
        later = tab is not pages[name].tabs[0] and f"{name}-{tab.key}.tex" in texts[name]
        assert values
        assert whole or later


@pytest.mark.parametrize("name", papers())
def test_verdicts_are_those_of_the_page(texts, pages, name):
    # The main claims come before those of shortened runs.
    rows = {row[0]: row for table in reversed(tables(texts[name])) for row in table if len(row) == 5}
    words = {key: one.words for key, one in pages[name].findings.rows.items()}
    for one in pages[name].main:
        stale = "†" if one.point is not None and pages[name].findings.rows[one.claim.id].own_stale else ""
        measured = " ".join(filter(None, [one.text(one.point) or "—", one.interval, stale]))
        verdict = f"not run; {words[one.claim.id]}" if one.shortened else words[one.claim.id]
        assert rows[one.claim.id][2:] == [measured, one.text(one.printed) or "—", verdict]
    for one in pages[name].measured[: markdown.CLAIMS]:
        assert rows[one.claim.id][4] == words[one.claim.id]


def test_the_overview_counts_as_the_pages_do_and_links_lead_to_files(texts, pages):
    [heads, *rows] = next(table for table in tables(texts["index"]) if table[0][-1] == "cells")
    for row, page in zip(rows, Overview(pages.values()).pages):
        numbers = {chip.value: n for chip, n in page.counts.items()}
        numbers |= {f"shortened: {chip.value}": n for chip, n in page.short_counts.items()}
        assert [int(text or 0) for text in row[1:-1]] == [numbers[head] for head in heads[1:-1]]
        assert row[-1] == f"{page.done} of {page.planned}"
    made = {name for one in pages.values() for name in latex.files(one)}
    made |= {f"{name}.md" for name in [*pages, "index", "across"]} | {
        "measured.csv",
        "findings.csv",
        "tables",
    }
    for text in texts.values():
        targets = [target for target in re.findall(r"\]\(([^)]*)\)", text) if "://" not in target]
        assert targets
        for target in targets:
            assert target in made or (ROOT / "reports" / target).resolve().is_file(), target


def test_markup_in_texts_is_text(small):
    text = markdown.paper(Page(Study.of("fedcrl", collect(small), small)))
    html = PARSER.render(text)
    tags = {tag for tag in re.findall(r"<(\w+)", html)}
    assert tags <= set("h1 h2 h3 p strong em a table thead tbody tr th td ul li pre code".split())
    assert "<h1>D" not in html
    targets = re.findall(r'href="([^"]*)"', html)
    assert "https://d.e" not in targets
    assert "https://a.b" not in targets
    assert "Ours|&lt;img src=x onerror=y&gt;_1_" in html


def test_a_text_in_a_template_is_escaped_without_a_filter():
    template = markdown.environment().from_string("{{ text }}")
    assert template.render(text="*a* | <b>") == r"\*a\* \| \<b\>"


def test_a_number_with_its_print():
    value = Value(
        "measured", number=Summary(71.23, 0.41, 5), published="2|θ|", mark="best", cell=Cell("x", "y", "z")
    )
    file = "../papers/x/runs/y/z/result.json"
    assert markdown.number(value) == rf"**[71.23]({file})** ±0.41 (2\|θ\|)"
    assert markdown.number(value, leads=False) == r"**71.23** ±0.41 (2\|θ\|)"
    assert markdown.number(Value("missing", published="2")) == ""


def test_the_readmes_numbers_are_todays(pages):
    assert markdown.readme(README, pages) == README


def test_a_missing_block_of_the_readme_is_named(pages):
    with pytest.raises(FedReproError, match="README.md: the block 'status'"):
        markdown.readme(README.replace("<!-- status", "<!-- others"), pages)
