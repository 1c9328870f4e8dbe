"""The overview and the papers' pages: from the committed results, and from a small repository."""

import base64
import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from html import unescape
from html.parser import HTMLParser

import pytest
from repository import edit

from pipeline.errors import ParamError
from pipeline.report.verdicts import Chip
from pipeline.report.writing import render
from pipeline.schema import ROOT, Cell, papers
from pipeline.schema import visible as files_in

PAPERS = papers()
VOID = {"br", "img", "input", "link", "meta", "hr"}


class Reader(HTMLParser):
    """Counts the elements of a page and the names of their attributes; every element must be closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes = [], Counter(), Counter()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        self.open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes.update(name for name, _ in attributes)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parts(pattern, html):
    return re.findall(pattern, html, re.S)


def words(html):
    """Running text, pictures left out."""
    html = re.sub(r"</?(a|b|i|u|em|small|span|code|strong)\b[^>]*>", "", html)
    return unescape(re.sub(r"<(script|style|head|svg)\b.*?</\1>|<[^>]+>", " ", html, flags=re.S)).split()


def visible(html):
    """What a reader sees before opening a fold or another tab."""
    first, *panes = re.split(
        r'(?=<div class="pane")', re.sub("</summary>.*?</details>", "</summary>", html, flags=re.S)
    )
    later = [re.sub(r'^.*?(?=<input type="radio"|</section>)', "", pane, flags=re.S) for pane in panes[1:]]
    return "".join([first, *panes[:1], *later])


def counts(html):
    """{class of a verdict: number} of a row of counts."""
    return Counter({chip: int(n) for chip, n in parts(r'<span class="k (\w+)"[^>]*>(\d+)', html)})


@pytest.fixture(scope="module")
def site(files):
    return {name: files[name].read_text(encoding="utf-8") for name in ("index", "across", *PAPERS)}


def test_pages_are_whole(site):
    for html in site.values():
        assert Reader(html).tags["script"] == 1
    assert "None" not in words(site["across"])


def test_every_page_counts_the_same(site):
    total = Counter()
    for name in PAPERS:
        claims = parts(r'<details class="c (\w+)" id=', site[name])
        claims += parts(r'<li id="[^"]+" class="(\w+)">', site[name])
        [tally] = parts('<p class="tally" data-filter>(.*?)</p>', site[name])
        squares = parts(rf'<a class="q (\w+)" href="{name}.html#', site["index"])
        shortened = parts(rf'<a class="q (\w+) shortened" href="{name}.html#', site["index"])
        assert claims.count("shortened") == len(shortened)
        claims = [claim for claim in claims if claim != "shortened"]
        assert counts(tally) == Counter(claims) == Counter(squares)
        total += Counter(claims)
    assert counts(parts('<p class="tally">(.*?)</p>', site["index"])[0]) == total


def test_verdicts_of_shortened_runs_count_as_such(site, pages):
    for name in PAPERS:
        page = pages[name]
        assert sum(page.counts.values()) + sum(page.short_counts.values()) == len(page.claims)
        if sum(page.short_counts.values()):
            [tally] = parts('<span class="short">in shortened runs:</span>(.*?)</p>', site[name])[-1:]
            assert counts(tally) == {chip.name.lower(): n for chip, n in page.short_counts.items() if n}


def test_what_speaks_against_a_paper_is_listed_on_the_overview(site, pages):
    against = [one for page in pages.values() for one in page.against]
    [table] = parts('<table class="list against">(.*?)</table>', site["index"])
    assert table.count("<tr>") == 1 + len(against)
    assert against
    assert {one.against.chip for one in against} <= {Chip.FAILS, Chip.CONTRADICTED}


def test_every_result_is_reached_from_a_page(site):
    """No comparison that stored results allow is missing."""
    linked = {link for html in site.values() for link in parts('href="../(papers/[^"]+)"', html)}
    stored = [
        *files_in(ROOT, "papers/*/runs/*/*/result.json"),
        *files_in(ROOT, "papers/*/tuning/*/*/result.json"),
    ]
    assert {path.relative_to(ROOT).as_posix() for path in stored} <= linked


def test_no_unit_is_said_twice(site):
    for html in site.values():
        assert not re.search(r"\bseeds?\.? seeds?\b", " ".join(words(html)))


def test_a_command_for_further_seeds_names_none_that_the_table_has(pages):
    for page in pages.values():
        cell, seeds = re.fullmatch(r"fedrepro run (\S+) --seeds ([\d,]+)", page.command).groups()
        scenario = page.paper.scenarios[Cell.parse(cell).scenario]
        assert not {*map(int, seeds.split(","))} & {*scenario.seeds}


def test_a_shortened_run_opens_the_page_alone_and_without_printed_numbers(site):
    for name in PAPERS:
        charts = parts('<table class="dots">.*?</table>', site[name])
        if short := site[name].count('class="v short"'):
            assert short == len(charts)
            assert 'class="at"' not in "".join(charts)


def test_numbers_link_to_results_and_the_average_comes_first(site, pages):
    for name in PAPERS:
        links = parts('<a class="m" href="../([^"]+)"', site[name])
        assert links
        assert all((ROOT / link).is_file() for link in links)
    tabs = {tab.key: tab.panel for tab in pages["fedlsa"].tabs}
    assert len(tabs["table2"].rows) == 9
    assert "FedLSA" in {row.name for row in tabs["table2-tuned"].rows}
    assert [texts[-1] for texts in tabs["table2"].levels][:3] == ["Avg", "locally trained", "CALTECH"]
    [(first, second)] = [row.values[:2] for row in tabs["table2"].rows if row.name == "FedLSA"]
    assert second.other
    assert not first.other
    assert first.number.mean < second.number.mean


EVIL = "<script>alert(1)</script><img src=x onerror='alert(1)'>\"&{"


@pytest.fixture
def small(measured):
    (measured / "papers/fedcrl/claims.csv").write_text(
        "id,claim,left,right,expected,where,slip,title\n"
        "C1,Ours is above FedAvg,table=1|column=Avg|method=Ours,table=1|column=Avg|method=FedAvg,>0,Table 1,,"
        '"Ours, first"\n'
        "C2,the curves look good,,,text,Fig. 3,,\n"
    )
    return measured


def change(root, **keys):
    edit(root / "papers/fedcrl/paper.yaml", lambda document: document.update(keys))


def test_markup_in_texts_is_text_and_the_browser_runs_one_script(small):
    change(
        small,
        findings={"answers": [{"question": EVIL, "claim": "C1"}]},
        title=EVIL,
        why=[EVIL.replace("{", "")],
        main=["C1"],
        titles={"balanced": EVIL, "skewed": EVIL},
        notes={"balanced": EVIL.replace("{", "")},
        authors=EVIL,
    )
    claims_file = small / "papers/fedcrl/claims.csv"
    claims_file.write_text(claims_file.read_text().replace("Ours, first", EVIL.replace('"', '""')))
    render(root=small)
    for name in ("index", "fedcrl"):
        html = (small / f"reports/{name}.html").read_text(encoding="utf-8")
        page = Reader(html)
        assert page.tags["script"] == 1
        assert not page.tags["img"]
        assert not [name for name in page.attributes if name.startswith("on")]
        assert "<img src=x" in " ".join(words(html))
        script = html.partition("<script>")[2].partition("</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in html
        assert "default-src 'none'" in html


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"why": ["{nobody average}"]}, "why"),
        ({"why": ["one"] * 6}, "why"),
        ({"why": ["word " * 40]}, "why"),
        ({"findings": {"answers": [{"question": "Is it?", "claim": "C9"}]}}, "findings.answers"),
        ({"findings": {"same_network": {"fedavg": "nobody"}}}, "findings.same_network"),
        ({"findings": {"looks": {"nowhere": [3]}}}, "findings.looks"),
        ({"main": ["C9"]}, "main"),
    ],
)
def test_a_wrong_text_names_file_and_key(small, keys, named):
    change(small, **keys)
    with pytest.raises(ParamError, match=f"papers/fedcrl/paper.yaml.*{named}"):
        render(root=small)


def test_the_same_results_give_the_same_bytes(small, tmp_path):
    """Here, and in a process whose sets have another order and whose pages are drawn by forks of it."""
    code = (
        "import sys; from pathlib import Path; from pipeline.report.writing import render\n"
        "render(root=Path(sys.argv[1]), out=Path(sys.argv[2]), workers=3)"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    there, here = tmp_path / "there", tmp_path / "here"
    subprocess.run([sys.executable, "-c", code, small, there], check=True, env=environment)
    render(root=small, out=here)
    outputs = [
        {path.relative_to(out): path.read_bytes() for path in out.rglob("*.*")} for out in (there, here)
    ]
    assert outputs[0] == outputs[1]
    names = {str(path) for path in outputs[0]}
    assert {f"{name}.{kind}" for name in ("index", "across", *PAPERS) for kind in ("html", "md")} <= names


def test_a_page_that_stays_as_it_is_is_not_touched(measured):
    """Nor what another paper has left in reports/."""
    theirs = measured / "reports/tables/other-table1.tex"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    written = render(["fedcrl"], root=measured)
    before = {path: path.stat().st_mtime_ns for path in [*written, theirs]}
    render(["fedcrl"], root=measured)
    assert {path: path.stat().st_mtime_ns for path in before} == before
