"""The overview and the papers' pages: from the committed results, and from a small repository."""

import base64
import hashlib
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from html_tree import folded, read
from reporting import BALANCED, small_repository, write_run
from repository import edit

from pipeline.errors import FedReproError, ParamError
from pipeline.report import render
from pipeline.report.verdicts import Chip
from pipeline.schema import ROOT, papers

PAPERS = papers()
CHIPS = {chip.name.lower(): chip for chip in Chip}


@pytest.fixture(scope="module")
def site(files):
    return {name: read(files[name].read_text(encoding="utf-8")) for name in ("index", *PAPERS)}


def counted(page, tally):
    """{chip: number} of a row of counts."""
    numbers = {}
    for key in tally.all(kind="k"):
        number = re.match(r"\d+", (key.attributes.get("aria-label") or key.text()).strip())
        numbers[key.classes[1]] = int(number[0])
    return numbers


def claims(page):
    """{id: class of its verdict} of the rows of a paper's page."""
    rows = [*page.all("details", "c")]
    rows += [
        row for fold in page.all("details") if fold.attributes.get("id") == "open" for row in fold.all("li")
    ]
    return {row.attributes["id"]: next(kind for kind in row.classes if kind in CHIPS) for row in rows}


def noted(page):
    """The elements that hold notes of paper.yaml, whose length is theirs."""
    folds = [fold for fold in page.all("details") if fold.attributes.get("id") == "deviations"]
    return [element for fold in folds for element in [fold, *fold.all()]]


def test_pages_are_short(files, site, capsys):
    sizes = {}
    for name, page in site.items():
        notes = noted(page)
        sizes[name] = (
            page.words(folded(page)),
            page.words(),
            page.words(notes.__contains__),
            len(files[name].read_bytes()),
        )
    with capsys.disabled():
        print("\npage        words seen, all, without deviations; kB")
        for name, (seen, every, rest, size) in sizes.items():
            print(f"{name:10} {seen:6} {every:6} {rest:6} {size / 1000:6.0f}")
    assert sizes["index"][0] < 400
    for name in PAPERS:
        seen, _, rest, size = sizes[name]
        assert seen < 900 and rest < 6000 and size < 500_000, name


def test_every_page_counts_the_same(site):
    total = Counter()
    for name in PAPERS:
        page = site[name]
        rows = Counter(claims(page).values())
        [tally] = [element for element in page.all("p", "tally") if "data-filter" in element.attributes]
        assert counted(page, tally) == rows
        squares = Counter(
            square.classes[1]
            for square in site["index"].all("a", "q")
            if square.attributes["href"].startswith(f"{name}.html#")
        )
        assert squares == rows
        total += rows
    first = next(site["index"].all("p", "tally"))
    assert counted(site["index"], first) == total


def test_a_shortened_run_opens_the_page_alone_and_without_printed_numbers(site):
    for page in (site[name] for name in PAPERS):
        charts = [*page.all("table", "dots")]
        if short := [*page.all(kind="short")]:
            assert len(short) == len(charts) and not any([*chart.all(kind="at")] for chart in charts)


def panes(page):
    return {pane.attributes["id"]: pane for pane in page.all(kind="pane")}


def names(pane):
    return [row.one("th").text().strip() for body in pane.all("tbody") for row in body.all("tr")]


def test_numbers_link_to_results_and_the_average_comes_first(site):
    for name in PAPERS:
        links = [link.attributes["href"] for link in site[name].all("a", "m")]
        assert links and all((ROOT / link.removeprefix("../")).is_file() for link in links)
    tables = panes(site["fedlsa"])
    assert len(names(tables["table2"])) == 9 and "FedLSA" in names(tables["table2-tuned"])
    table = panes(site["fedlsa"])["table2"].one("table")
    heads = [head.text().strip() for head in list(table.one("thead").all("tr"))[-1].all("th")]
    assert heads[:4] == ["method", "Avg", "locally trained", "CALTECH"]
    [row] = [row for row in table.one("tbody").all("tr") if "proposed" in row.classes]
    first, second = [*row.all("td")][:2]
    assert "other" not in first.classes and "other" in second.classes
    assert float(first.one("a").text()) < float(second.one("a").text())


@pytest.mark.parametrize("name", PAPERS)
def test_every_hyper_parameter_has_its_source(site, name):
    [fold] = [fold for fold in site[name].all("details") if fold.attributes.get("id") == "values"]
    rows = [
        [cell.text().strip() for cell in row.children if not isinstance(cell, str)] for row in fold.all("tr")
    ]
    numbers = {
        row.attributes["id"]
        for fold in site[name].all("details")
        for row in fold.all("tr")
        if re.fullmatch(r"R\d+", row.attributes.get("id", ""))
    }
    cited = {number for row in rows for number in re.findall(r"\bR\d+\b", row[3])}
    assert len(rows) > 30 and cited and cited <= numbers
    assert name != "fedlsa" or ["server_lr", "0.01", "FedLSA"] in [row[:3] for row in rows]


EVIL = "<script>alert(1)</script><img src=x onerror='alert(1)'>\"&{"


@pytest.fixture
def small(tmp_path):
    root = small_repository(tmp_path)
    for method, measures in BALANCED.items():
        write_run(root, f"balanced/{method}", measures | {"pre.average": [41.0, 43.0]})
        write_run(root, f"mini/{method}", measures)
    (root / "papers/fedcrl/claims.csv").write_text(
        "id,claim,left,right,expected,where,slip,title\n"
        "C1,Ours is above FedAvg,table=1|column=Avg|method=Ours,table=1|column=Avg|method=FedAvg,>0,Table 1,,"
        '"Ours, first"\n'
        "C2,the curves look good,,,text,Fig. 3,,\n"
    )
    return root


def change(root, paper="fedcrl", **keys):
    edit(root / "papers" / paper / "paper.yaml", lambda document: document.update(keys))


def test_markup_in_texts_is_text(small):
    change(
        small,
        headline=EVIL.replace("{", ""),
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
        page = read((small / f"reports/{name}.html").read_text(encoding="utf-8"))
        assert len([*page.all("script")]) == 1 and not [*page.all("img")]
        assert not [key for element in page.all() for key in element.attributes if key.startswith("on")]
        assert "<img src=x" in page.text()


def test_the_browser_runs_no_other_script(small):
    render(root=small)
    text = (small / "reports/fedcrl.html").read_text(encoding="utf-8")
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and "default-src 'none'" in text
    assert not re.search(r"<[^>]+ on\w+=", text.partition("<script>")[0])


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"why": ["{nobody average}"]}, "why"),
        ({"why": ["one"] * 6}, "why"),
        ({"why": ["word " * 40]}, "why"),
        ({"headline": "{fedavg nothing}"}, "headline"),
        ({"main": ["C9"]}, "main"),
    ],
)
def test_a_wrong_text_names_file_and_key(small, keys, named):
    change(small, **keys)
    with pytest.raises(ParamError, match=f"papers/fedcrl/paper.yaml.*{named}"):
        render(root=small)


def test_a_result_that_cannot_be_used_is_named_after_all_is_written(small):
    path = small / "papers/fedcrl/runs/balanced/ours/result.json"
    path.write_text(path.read_text().replace("66.5", "99.5"))
    with pytest.raises(FedReproError, match="papers/fedcrl/runs/balanced/ours/result.json"):
        render(root=small)
    page = read((small / "reports/fedcrl.html").read_text(encoding="utf-8"))
    assert "99.50" not in page.text() and "runs/balanced/ours/result.json" in page.text()
    assert (small / "reports/index.html").is_file()


def test_the_same_results_give_the_same_bytes(small, tmp_path):
    """Here, and in a process whose sets have another order."""
    code = (
        "import sys; from pathlib import Path; from pipeline.report import render\n"
        "render(root=Path(sys.argv[1]), out=Path(sys.argv[2]))"
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
