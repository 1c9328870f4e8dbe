"""Reports and results: what was measured, what was published, and that neither passes for the other."""
import csv
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from reporting import BALANCED, PAPER, PUBLISHED, SCENARIO, check_tex, unlinked, write_run, write_sheet
from repository import edit

from pipeline.cells import results
from pipeline.cells.results import Problem, Summary
from pipeline.errors import FedReproError, ParamError
from pipeline.report import contact_sheet, pictures, render
from pipeline.report.claims import parse_expected
from pipeline.report.communication import worst_tenth
from pipeline.report.context import page
from pipeline.report.figures import over_seeds, trailing_mean
from pipeline.report.formats import markdown, markdown_code, tex
from pipeline.report.judgement import variants
from pipeline.report.panels import Value, compare, mark, merge_heads, rank
from pipeline.report.published import printed_number, read_published
from pipeline.report.shape import combination
from pipeline.report.study import Study, studies
from pipeline.report.tables import table_view
from pipeline.report.words import (
    bytes_words,
    measure_words,
    method_label,
    method_words,
    minus,
    pretty,
    setting_words,
    split_setting,
)
from pipeline.schema import ROOT, Cell, load_paper, papers
from pipeline.sealing import seal

PAPERS = papers()

class Cells(HTMLParser):
    """Every td as [(class of the span or link, text)], and the tags that were opened and not closed."""
    VOID = {"meta", "link", "img", "br"}

    def __init__(self, html):
        super().__init__()
        self.open, self.cells, self.heads = [], [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "td":
            self.cells.append({})
        if tag == "th":
            self.heads.append(attributes.get("scope"))
        if tag not in self.VOID:
            self.open.append((tag, attributes.get("class") or ""))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        kinds = [c for _, names in self.open for c in names.split()]
        if any(tag == "td" for tag, _ in self.open) and "vh" not in kinds:
            kind = next((k for k in ("apart", "published", "empty", "std", "measured") if k in kinds), "text")
            tag = self.open[-1][0]
            if data.strip():
                self.cells[-1][kind + {"b": " best", "u": " second"}.get(tag, "")] = data.strip()


def cells_of(root, name="fedcrl"):
    return Cells((root / "reports" / f"{name}.html").read_text(encoding="utf-8")).cells


def view(root, table):
    return table_view(table, Study.of("fedcrl", results.collect(root), root))


# -- results -------------------------------------------------------------------------------------------------

def test_seal_survives_a_file_and_shows_every_change():
    document = seal({"b": {2: [1.5], 10: "ä"}, "a": 1})
    again = json.loads(json.dumps(document))
    assert seal(again)["self"] == document["self"]
    assert seal({**again, "a": 2})["self"] != document["self"]
    with pytest.raises(ValueError):
        seal({"a": float("nan")})


def test_tidy_has_mean_and_sample_deviation_and_none_for_one_seed(root):
    write_run(root, "mini/fedavg", {"average": [60.0, 62.0]})
    write_run(root, "mini/ours", {"average": [70.0]})
    table = results.tidy(results.collect(root))
    assert list(table.columns) == results.COLUMNS
    assert table["mean"].tolist() == [61.0, 70.0]
    assert table["std"][0] == pytest.approx(2 ** 0.5) and table["std"].isna()[1]
    assert table["seeds"].tolist() == [2, 1]


OURS = "papers/fedcrl/runs/balanced/ours"


def _rewrite(path, change):
    """Change a result and seal it again, as another version would have written it."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(seal(document)))


DAMAGES = {
    "cut": (
        lambda path: path.write_text(path.read_text()[:400]),
        "ours/result.json: not whole JSON, perhaps cut short",
    ),
    "altered": (
        lambda path: path.write_text(path.read_text().replace("66.5", "96.5", 1)),
        "ours/result.json: 'self' is not the hash of the rest",
    ),
    "older": (
        lambda path: _rewrite(path, lambda d: d.pop("clients")),
        "ours/result.json: the key 'clients' is missing; another version of FedRepro",
    ),
    "typed": (
        lambda path: _rewrite(path, lambda d: d.update(seeds=2)),
        "ours/result.json: seeds: expected a list, found 2; another version",
    ),
    "renamed": (
        lambda path: _rewrite(path, lambda d: d.update(method="fedavg")),
        "ours/result.json: 'cell' is 'fedcrl/balanced/ours', which paper, scenario and method are not",
    ),
    "clients": (
        lambda path: _rewrite(path, lambda d: d["clients"][0].pop()),
        "ours/result.json: clients: not the same number for every seed",
    ),
    "holdings": (
        lambda path: _rewrite(path, lambda d: d.update(holdings={"images": [[5, 6, 7]] * 2})),
        "ours/result.json: the key 'holdings.classes' is missing",
    ),
    "holdings of others": (
        lambda path: _rewrite(
            path, lambda d: d.update(holdings=dict.fromkeys(("images", "classes"), [[5]] * 2))
        ),
        "ours/result.json: holdings: not a number for every client",
    ),
    "by class": (
        lambda path: _rewrite(path, lambda d: d.update(by_class=[[50.0, 101.0]] * 2)),
        "ours/result.json: by_class[0][1]: must be at most 100",
    ),
    "emptied": (
        lambda path: _rewrite(path, lambda d: d.update(versions={})),
        "ours/result.json: the key 'versions.torch' is missing",
    ),
    "out of range": (
        lambda path: _rewrite(path, lambda d: d["measures"].update(average=[1.18e21, 66.5])),
        "ours/result.json: measures.average[0]: must be at most 100, found 1.18e+21",
    ),
    "negative": (
        lambda path: _rewrite(path, lambda d: d.update(seconds=[-1.0, 1.0])),
        "ours/result.json: seconds[0]: must be at least 0, found -1.0",
    ),
    "huge": (
        lambda path: _rewrite(path, lambda d: d["traffic"].update(up=10**400)),
        "ours/result.json: traffic.up: must be finite, found 1000",
    ),
    "traffic of a seed lost": (
        lambda path: _rewrite(path, lambda d: d.update(traffic_of_seeds={k: [1] for k in d["traffic"]})),
        "ours/result.json: 1 values of 'bytes' for 2 seeds",
    ),
    "traffic in part": (
        lambda path: _rewrite(path, lambda d: d.update(traffic_of_seeds={"up": [1, 2], "down": [1, 2]})),
        "ours/result.json: the key 'traffic_of_seeds.bytes' is missing",
    ),
    "without headline": (
        lambda path: _rewrite(path, lambda d: d.update(headline="averag")),
        "ours/result.json: measures: unknown headline 'averag' (nearest: 'average')",
    ),
    "seeds": (
        lambda path: _rewrite(path, lambda d: d.update(seeds=[0])),
        "ours/result.json: 2 values of 'M' for 1 seeds",
    ),
    "history cut": (
        lambda path: _lines(path.parent / "history.csv", lambda lines: lines[:4]),
        "ours/history.csv: no row of seed 1, although result.json has 2 rounds",
    ),
    "history altered": (
        lambda path: _swap(path.parent / "history.csv", "66.5", "69.5"),
        "ours/history.csv: the last rounds of seed 0 give average 69.5",
    ),
    "another mean": (
        lambda path: _rewrite(path, lambda d: d["last5"].update(average=[66.5, 66.5])),
        "ours/history.csv: the last rounds of seed 0 give average 33.25",
    ),
    "history with a short line": (
        lambda path: _swap(path.parent / "history.csv", "0,1,1.0,", "0,1,"),
        "ours/history.csv:3: not as many fields as the header has",
    ),
    "history without a round": (
        lambda path: _lines(path.parent / "history.csv", lambda lines: [*lines[:2], *lines[3:]]),
        "ours/history.csv: seed 0 lacks rounds, or has some twice",
    ),
    "history without rows": (
        lambda path: _lines(path.parent / "history.csv", lambda lines: lines[:1]),
        "ours/history.csv: no row of seed 0",
    ),
    "history with another seed": (
        lambda path: _lines(path.parent / "history.csv", lambda lines: [*lines, f"7{lines[-1][1:]}"]),
        "ours/history.csv: rows of seed 7, which result.json does not have",
    ),
    "history without a column": (
        lambda path: _swap(path.parent / "history.csv", "average", "averag"),
        "ours/history.csv: the column 'average' is missing",
    ),
    "history in words": (
        lambda path: _swap(path.parent / "history.csv", "66.5", "7x.1"),
        "ours/history.csv:4: average: '7x.1' is not a number",
    ),
    "history out of range": (
        lambda path: _swap(path.parent / "history.csv", "66.5", "166.5"),
        "ours/history.csv:4: average: 166.5 is not between 0 and 100",
    ),
    "history gone": (lambda path: (path.parent / "history.csv").unlink(), "ours/history.csv: no such file"),
    "metrics cut": (
        lambda path: _metrics(path, '{"accuracy": '),
        "metrics/balanced/ours.json: not the metrics of a cell",
    ),
    "metrics altered": (
        lambda path: _metrics(path, '{"accuracy": 99.0}'),
        "metrics/balanced/ours.json: accuracy 99.0 is not that of result.json",
    ),
}


def _lines(path, change):
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def _swap(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def _metrics(path, text):
    folder = path.parents[3] / "metrics" / "balanced"
    folder.mkdir(parents=True)
    (folder / "ours.json").write_text(text)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_cannot_be_used_is_named_and_the_rest_is_rendered(measured, name):
    damage, message = DAMAGES[name]
    damage(measured / OURS / "result.json")
    with pytest.raises(FedReproError) as raised:
        render(["fedcrl"], measured)
    assert message in str(raised.value)
    html, text = ((measured / f"reports/fedcrl.{kind}").read_text() for kind in ("html", "md"))
    assert (
        '<span class="measured empty broken" title="not shown: ' in html
        and "80.50" not in html.partition('id="tables"')[2]
    )
    assert "| Ours | **!** (45.55)" in text and "71.00" in text
    for page_text in (html, (measured / "reports/index.html").read_text()):
        assert message.replace("'", "&#39;") in page_text
    assert 'id="ours"' not in (measured / "reports/runs/fedcrl/balanced.html").read_text()
    # the miniature
    assert (measured / "reports/fedcrl.tex").exists() and "66.50" in (
        measured / "reports/fedcrl.tex"
    ).read_text()


def test_a_result_of_an_unknown_method_or_scenario_is_named(measured):
    runs = measured / "papers/fedcrl/runs"
    shutil.copytree(runs / "balanced/ours", runs / "balanced/fedporx")
    shutil.copytree(runs / "balanced/ours", runs / "balancd/ours")
    found, problems = results.survey(measured)
    assert len(found) == 4 and [problem.cell for problem in problems] == [
        Cell("fedcrl", "balancd", "ours"),
        Cell("fedcrl", "balanced", "fedporx"),
    ]
    assert "balancd/ours/result.json: unknown scenario 'balancd' (nearest: 'balanced')" in problems[0].text
    assert "fedporx/result.json: unknown method 'fedporx' (nearest: 'fedprox')" in problems[1].text
    with pytest.raises(
        FedReproError, match="2 problems, which reports/index.html lists; the first: .*balancd"
    ):
        render(["fedcrl"], measured)
    assert "80.50" in (measured / "reports/fedcrl.md").read_text()


def test_the_command_ends_with_2_after_it_has_rendered_the_rest(measured):
    (measured / OURS / "result.json").write_text("{")
    script = (
        "from pathlib import Path; from pipeline import report; from stages._stage import stage; "
        f"stage(lambda: report.render(root=Path({str(measured)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (
        done.returncode == 2
        and len(done.stderr.splitlines()) == 1
        and "ours/result.json: not whole JSON" in done.stderr
    )
    assert all((measured / f"reports/{name}.html").exists() for name in (*PAPERS, "index"))


def test_a_figure_that_cannot_be_drawn_leaves_the_others(measured):
    for method in ("ours", "fedavg"):                 # the miniature alone has what the figure asks for
        path = measured / f"papers/fedcrl/runs/mini/{method}/history.csv"
        header, *lines = path.read_text().splitlines()
        path.write_text("\n".join([f"{header},other", *(f"{line},1.0" for line in lines)]) + "\n")
    edit(
        measured / "papers/fedcrl/paper.yaml",
        lambda paper: paper["figures"]["figure3"].update(measures=["other"]),
    )
    with pytest.raises(FedReproError, match="'other'"):
        render(["fedcrl"], measured)
    html = (measured / "reports/fedcrl.html").read_text()
    assert "Not drawn: " in html and "71.00" in html
    mini = (measured / "reports/runs/fedcrl/miniature.html").read_text()
    assert 'src="../../figures/fedcrl-figure3-mini.svg"' in mini


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"self": "x"}'])
def test_broken_result_is_refused(measured, content):
    path = measured / "papers/fedcrl/runs/balanced/ours/result.json"
    path.write_text(content)
    with pytest.raises(FedReproError, match="ours/result.json"):
        results.collect(measured)


def test_result_in_another_cells_folder_is_refused(measured):
    runs = measured / "papers/fedcrl/runs/balanced"
    shutil.copytree(runs / "ours", runs / "fedprox")
    with pytest.raises(FedReproError, match="fedcrl/balanced/fedprox"):
        results.collect(measured)


def test_history_of_a_cell(measured):
    table = results.history(Cell("fedcrl", "mini", "ours"), measured)
    assert table[table["round"] == 2]["average"].tolist() == [66.5, 66.5]
    with pytest.raises(FedReproError, match="history.csv"):
        results.history(Cell("fedcrl", "mini", "nobody"), measured)


# -- measured beside published -------------------------------------------------------------------------------

def test_measured_stands_beside_published(measured):
    render(["fedcrl"], measured)
    cells = cells_of(measured)
    assert {"measured second": "71.00", "std": "± 1.41", "published": "41.11", "apart": "+29.89"} in cells
    assert {"measured best": "80.50", "std": "± 0.71", "published": "45.55", "apart": "+34.95"} in cells
    assert ("<ins>[71.00](../papers/fedcrl/runs/balanced/fedavg/result.json)</ins> ± 1.41 (41.11, +29.89)"
            in (measured / "reports/fedcrl.md").read_text())
    text = (measured / "reports/fedcrl.tex").read_text()
    assert (
        r"\underline{71.00}{\scriptsize$\,\pm\,1.41$}" in text and r"\published{41.11 {\tiny +29.89}}" in text
    )


def test_no_difference_to_a_garbled_number_or_of_a_difference(measured):
    path = measured / "papers/fedcrl/published/table2.csv"
    path.write_text(path.read_text().replace("Acc.,Ours,33.07,,", "Acc.,Ours,3.07,,likely=33.07"))
    values = {row.name: row.values for row in view(measured, "table2").panels[0].rows}
    assert (
        values["Ours"][0].published == "3.07"
        and values["Ours"][0].apart == ""
        and values["FedAvg"][0].apart == "+19.43"
    )
    assert view(measured, "table1").panels[0].rows[2].values[-1].apart == ""


def test_a_cell_that_has_not_run_is_empty(measured):
    render(["fedcrl"], measured)
    assert {"empty": "—", "published": "43.33"} in cells_of(measured)
    assert (
        "| FedProx <sup>R</sup> | — (43.33) | — (44.44) | — (+2.22) |"
        in (measured / "reports/fedcrl.md").read_text()
    )


def test_without_results_no_number_is_shown_as_measured(root):
    render(root=root)
    for name in PAPERS:
        cells = cells_of(root, name)
        assert sum("published" in cell for cell in cells) == sum(len(rows) for rows in PUBLISHED.values())
        assert not [cell for cell in cells if any(kind.startswith(("measured", "std")) for kind in cell)]
        tables = (
            (root / "reports" / f"{name}.md")
            .read_text()
            .partition("### Table 1")[2]
            .partition("### Reading by reading")[0]
        )
        in_cells = [
            position
            for line in tables.splitlines()
            if line.startswith("| ")
            for position in line.split(" | ")[1:]
        ]
        assert not [text for text in in_cells if re.search(r"\d", re.sub(r"\([^)]*\)", "", text))]
        body = (root / "reports" / f"{name}.tex").read_text()
        rows = [
            line
            for line in body.splitlines()
            if "&" in line and not line.startswith((r"\published", "method", "dataset", "&"))
        ]
        assert rows and not [row for row in rows if re.search(r"& [\d+-]+\.", row)]


def test_the_page_says_how_to_run_what_is_missing(root):
    render(["fedcrl"], root)
    html = (root / "reports/fedcrl.html").read_text()
    command = "fedrepro run fedcrl/balanced/fedavg"
    assert (
        f"One cell: <code>{command}</code>" in html
        and f'<span class="measured empty" title="not run: {command}">—</span>' in html
    )
    whole = "fedrepro status fedcrl --stages &#39;table 1&#39; | xargs -r fedrepro run"
    assert f"<code>{whole}</code>" in html and "dvc repro" not in html
    assert html.count("published settings") == 1
    assert "<strong>Table 1</strong>: waits for three cells <span" in html


def test_what_waits_says_how_long_it_takes(root):
    render(["fedcrl"], root, hours=lambda cell: 0.5 if cell.method == "ours" else 3.0)
    html = (root / "reports/fedcrl.html").read_text()
    assert "<strong>Table 1</strong>: waits for three cells, about 6.5 hours <span" in html
    assert "Nothing is measured at the paper&#39;s own settings yet: six cells, about 13 hours" in html


def test_delta_is_measured_minus_measured_baseline(measured):
    panel = view(measured, "table1").panels[0]
    deltas = {row.name: row.values[-1] for row in panel.rows}
    assert [head.text for head in panel.heads[-1]] == ["M", "Avg", "Δ"]
    assert deltas["Ours"].mean == "+5.50" and deltas["Ours"].published == "+4.44"
    assert deltas["FedProx"].state == "missing" and deltas["FedAvg"].state == "outside"


def test_delta_is_of_the_printed_column_where_one_of_ours_stands_behind_it(measured):
    edit(measured / "papers/fedcrl/paper.yaml",
         lambda paper: paper["tables"]["table1"].update(also={"local": "post.average"}))
    for name, local in (("ours", 90.0), ("fedavg", 10.0)):
        write_run(measured, f"balanced/{name}", BALANCED[name] | {"post.average": [local] * 2})
    panel = view(measured, "table1").panels[0]
    assert "local" in [head.text for head in panel.heads[-1]]
    at = [head.text for head in panel.heads[-1]].index("Δ")
    assert {row.name: row.values[at].mean for row in panel.rows}["Ours"] == "+5.50"


def test_what_a_run_costs_stands_beside_the_printed_formula(measured):
    path = measured / "papers/fedcrl/paper.yaml"
    document = yaml.safe_load(path.read_text())
    document["tables"]["table1"] |= {
        "columns": {"Avg": "average", "Cost": "run.traffic"}, "also": {"Time of a round": "run.seconds"},
        "blocks": {"even,public=a|Digits": {"scenario": "balanced", "measure": ""},
                   "even,public=a|Digits|FedAvg": {"scenario": "balanced", "only": ["Cost"]}}}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    published = measured / "papers/fedcrl/published/table1.csv"
    head, *lines = published.read_text().splitlines()
    costs = [
        line.replace(",M,", ",Cost,").replace("41.11", "2|theta|").replace("45.55", "2|theta|")
        for line in lines
        if ",M," in line
    ]
    rows = [
        line for method in ("FedAvg", "FedProx", "Ours") for line in [*lines, *costs] if f",{method}," in line
    ]
    published.write_text("\n".join([head, *rows]) + "\n")
    [panel] = view(measured, "table1").panels
    assert panel.columns == ["M", "Avg", "Cost, kB", "Δ", "Time of a round, s"]
    of = {row.name: dict(zip(panel.columns, row.values)) for row in panel.rows}
    assert (
        of["Ours"]["Cost, kB"].mean,
        of["Ours"]["Cost, kB"].published,
        of["Ours"]["Time of a round, s"].mean,
    ) == ("12.00", "2|theta|", "0.75")
    assert (
        of["Ours"]["Δ"].state == "outside"
        and of["FedAvg"]["Cost, kB"].mean == "12.00"
        and of["FedAvg"]["Avg"].state == "outside"
        and of["Ours"]["Avg"].mean == "66.50"
    )


def test_lower_is_better_for_the_spread_over_clients(measured):
    rows = {row.name: row.values for row in view(measured, "table2").panels[0].rows}
    assert [value.mark for value in rows["Ours"][:2]] == ["best", "best"]
    assert [value.mark for value in rows["FedAvg"][:2]] == ["second", "second"]
    assert rows["Ours"][1].mean == "4.50" and rows["FedAvg"][1].mean == "9.00"


def test_averaged_row_waits_for_every_method_and_takes_no_mark(measured):
    def averaged():
        return view(measured, "table2").panels[0].rows[-1].values
    assert [value.state for value in averaged()] == ["missing"] * 4
    write_run(measured, "balanced/fedprox", {"weighted": [90.0], "clients_std": [0.0]})
    assert [value.mean for value in averaged()] == ["65.33", "4.50", "", ""]
    assert {value.mark for value in averaged()} == {""} and not any(value.signs for value in averaged())


def test_averaged_row_is_over_the_methods_that_the_paper_prints(measured):
    path = measured / "papers/fedcrl/published/table2.csv"
    lines = [
        line
        for line in path.read_text().splitlines(keepends=True)
        if not ("practical" in line and "FedProx" in line)
    ]
    path.write_text("".join(lines))
    write_run(measured, "balanced/fedprox", {"weighted": [90.0], "clients_std": [0.0]})
    assert [value.mean for value in view(measured, "table2").panels[0].rows[-1].values[:2]] == [
        "53.00",
        "6.75",
    ]


def signs(root, table="table2"):
    return {row.name: ["".join(sign.text for sign in value.signs) for value in row.values]
            for panel in view(root, table).panels for row in panel.rows}


def test_rank_marks_and_arrows_wait_for_every_method_of_the_column(measured):
    assert set(sum(signs(measured).values(), [])) == {""} and view(measured, "table2").legend == ""
    write_run(measured, "balanced/fedprox", {"weighted": [90.0], "clients_std": [0.0]})
    found = signs(measured)
    assert [found[name][:2] for name in ("FedProx", "Ours", "FedAvg")] == [
        ["*↑", "*↑"],
        ["†↓", "†"],
        ["‡↓", "‡↓"],
    ]
    assert [texts[2:] for texts in found.values()] == [["", ""]] * 4
    assert view(measured, "table2").legend == (
        "*, †, ‡: best, second and third measured number of a column; ↑, ↓: better, worse than the "
        "measured “Averaged” of the column; for the standard deviation over clients lower is better."
    )
    assert set(sum(signs(measured, "table1").values(), [])) == {""}


def test_plus_and_minus_compare_with_the_default_setting(measured):
    write_run(measured, "skewed/ours", {"weighted": [60.0], "clients_std": [6.0]})
    assert signs(measured)["Ours"] == ["", "", "+", "−"] and signs(measured)["FedAvg"] == [""] * 4
    render(["fedcrl"], measured)
    html = (measured / "reports/fedcrl.html").read_text()
    assert '<span class="sign better">+</span>' in html and "in the default setting" in html
    assert "60.00<sup>+</sup> (53.07, +6.93)" in unlinked((measured / "reports/fedcrl.md").read_text())
    assert r"60.00\textsuperscript{+}" in (measured / "reports/fedcrl.tex").read_text()


@pytest.mark.parametrize("lower, shown", [(False, ["", "‡", "†", "*"]), (True, ["*", "*", "†", "‡"])])
def test_ranks_share_a_mark_where_equal(lower, shown):
    values = [
        Value("measured", Summary(mean, None, 1))
        for mean in ((1.001, 1.002, 3.0, 4.0) if lower else (1.0, 2.0, 3.0, 4.0))
    ]
    rank([*values, Value("missing")], lower)
    assert ["".join(sign.text for sign in value.signs) for value in values] == shown


def test_no_arrow_between_numbers_that_are_equal_as_shown():
    value, other = (Value("measured", Summary(mean, None, 1)) for mean in (1.001, 1.002))
    compare(value, other, False, "↑↓")
    compare(value, Value("missing"), False, "↑↓")
    assert not value.signs


def test_a_remark_is_a_footnote_of_its_row(measured):
    render(["fedcrl"], measured)
    html = (measured / "reports/fedcrl.html").read_text()
    assert (
        html.count('href="#table2-a"') == 1
        and '<p class="run" id="table2-a"><sup>a</sup> not credible: 5_000 &amp; more</p>' in html
    )
    assert "| FedProx <sup>a R</sup> | —" in (measured / "reports/fedcrl.md").read_text()
    assert r"FedProx\textsuperscript{a R} & ---" in (measured / "reports/fedcrl.tex").read_text()


def test_a_remark_on_a_row_that_is_not_printed_is_refused(root):
    path = root / "papers/fedcrl/paper.yaml"
    path.write_text(path.read_text().replace("FedProx: 'not", "FedPorx: 'not"))
    with pytest.raises(
        ParamError, match="tables.table2.remarks: unknown printed method 'FedPorx' .nearest: 'FedProx'"
    ):
        page(Study.of("fedcrl", {}, root))


@pytest.mark.parametrize("means, lower, marks", [
    ([1.0, 3.0, 2.0], False, ["", "best", "second"]),
    ([1.0, 3.0, 2.0], True, ["best", "", "second"]),
    ([3.0, 3.0, 2.0, 2.0, 1.0], False, ["best", "best", "second", "second", ""]),
    ([3.001, 3.002, 1.0], False, ["best", "best", "second"]),         # equal as shown
    ([3.0], False, [""]),                                             # alone it is no comparison
    ([], False, []),
])
def test_marks(means, lower, marks):
    values = [Value("measured", Summary(mean, None, 1), published="99.99") for mean in means]
    mark([*values, Value("missing", published="100.00")], lower)
    assert [value.mark for value in values] == marks


# -- the shape of the paper's tables -------------------------------------------------------------------------

def test_header_rows_are_merged_by_group():
    heads = merge_heads([["A", "x", "1"], ["A", "x", "2"], ["A", "y", "1"], ["B", "y", "1"]])
    assert [[(head.text, head.span) for head in row] for row in heads] == [
        [("A", 3), ("B", 1)], [("x", 2), ("y", 1), ("y", 1)], [("1", 1), ("2", 1), ("1", 1), ("1", 1)]]


def test_shared_setting_goes_to_the_caption_and_differing_ones_to_the_header(root):
    assert view(root, "table1").about == "Digits, even, public = a"
    heads = view(root, "table2").panels[0].heads
    assert [head.text for head in heads[0]] == ["practical (β = 0.1, N = 20)", "pathological (N = 20)"]
    assert view(root, "table3").panels[0].stub == ["dataset"]


def test_check_marks_for_components(root):
    rows = [
        ("even,public=a", "Digits", "Avg", f"Ours[hfl={a},dcl={b},rate={r}]", "1.0")
        for a, b, r in ((0, 0, 1), (1, 0, 2), (1, 1, 2))
    ]
    with (root / "papers/fedcrl/published/table1.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["paper", "table", "setting", "dataset", "column", "method", "value", "std", "note"])
        writer.writerows(["fedcrl", "1", *row, "", ""] for row in rows)
    panel = view(root, "table1").panels[0]
    assert panel.stub == ["method", "HFL", "DCL", "rate"]
    assert [row.stub for row in panel.rows] == [
        ["none, rate 1", "", "", "1"], ["HFL alone, rate 2", "✓", "", "2"],
        ["Ours, complete, rate 2", "✓", "✓", "2"]]


@pytest.mark.parametrize("options, name", [
    ("00", "none"), ("10", "separability alone"), ("11", "FedLSA, complete")])
def test_an_ablations_row_has_a_name(options, name):
    assert combination("FedLSA", dict(zip(("sep", "com"), options)), {}) == name


@pytest.mark.parametrize("name", PAPERS)
def test_every_published_number_of_the_papers_is_shown_once(name):
    study = Study(name, paper := load_paper(name))
    for key, table in paper.tables.items():
        shown = table_view(key, study)
        found = sorted(
            value.published
            for panel in shown.panels
            for row in panel.rows
            for value in row.values
            if value.published
        )
        rows = [row for row in read_published(name, table)
                if key not in variants(paper) or table.block(row["setting"], row["dataset"], row["method"])]
        assert rows and found == sorted(minus(row["value"]) for row in rows), key
        assert all(
            len(row.values) == panel.width and len(row.stub) == len(panel.stub)
            for panel in shown.panels
            for row in panel.rows
        )
        assert shown.measured == 0


def test_missing_or_wrong_published_table_is_named(root):
    path = root / "papers/fedcrl/published/table1.csv"
    path.write_text("paper,table\n1,2\n")
    with pytest.raises(ParamError, match="table1.csv.*'setting'"):
        page(Study.of("fedcrl", {}, root))
    path.unlink()
    with pytest.raises(ParamError, match="table1.csv: no such file"):
        page(Study.of("fedcrl", {}, root))


@pytest.mark.parametrize("old, new, message", [
    ("42.22", "7x.1", ":3: value: '7x.1' is not a number"),
    ("42.22", "O7.1", ":3: value: 'O7.1' is not a number"),
    ("42.22", "nan", None),                           # a name
    ("42.22,,", "42.22,,likely=4.5.6", ":3: note: '4.5.6' is not a number"),
    ("42.22,,", "42.22,x,", ":3: std: 'x' is not a number"),
    ("fedcrl,1,", "fedccl,1,", ":2: paper: 'fedccl' is not 'fedcrl'"),
    ("42.22,", "42.22", ":3: 8 fields, the columns are 9"),
    ("42.22", "42.22\0", ":3: holds the control character U.0000"),
    ("42.22", "\udcff", ":3: not UTF-8: byte 0xff"),
    ("42.22", "4" * 200_000, ":3: field larger than field limit"),
    ("Avg,FedAvg", "M,FedAvg", ":3: even,public=a, Digits, M, FedAvg stands in line 2 already")])
def test_a_published_value_that_is_none_is_named(root, old, new, message):
    path = root / "papers/fedcrl/published/table1.csv"
    content = path.read_bytes().replace(old.encode(), new.encode("utf-8", "surrogateescape"), 1)
    path.write_bytes(content)
    table = load_paper("fedcrl", root).tables["table1"]
    if message:
        with pytest.raises(ParamError, match=f"papers/fedcrl/published/table1.csv{message}"):
            read_published("fedcrl", table, root)
    else:
        assert printed_number(read_published("fedcrl", table, root)[1]) is None
    for empty in ("", "\n"):
        path.write_text(empty)
        with pytest.raises(ParamError, match="table1.csv: is empty, the columns must be paper,table"):
            read_published("fedcrl", table, root)


def test_a_dollar_or_a_line_break_in_a_label_is_text(measured):
    def change(paper):
        paper["methods"]["ours"]["label"], paper["title"] = "$\\frac{$ x^", "one\n\ntwo"

    edit(measured / "papers/fedcrl/paper.yaml", change)
    render(["fedcrl"], measured)
    assert "$\\frac{$" in (measured / "reports/figures/fedcrl-mini.svg").read_text()
    assert "one two" in (measured / "reports/fedcrl.tex").read_text()
    check_tex((measured / "reports/fedcrl.tex").read_text())


def test_curves_of_a_cut_history_are_refused(measured):
    found = results.collect(measured)
    _lines(measured / OURS / "history.csv", lambda lines: lines[:1])
    with pytest.raises(FedReproError, match="ours/history.csv: no row of seed 0"):
        results.curves(found, measured)


def test_a_study_has_what_is_asked_of_its_paper_and_papers_come_in_their_order(measured):
    write_run(measured, "mini/fedprox", BALANCED["ours"])  # which params.yaml does not ask for
    write_run(measured, "mini/fedavg", BALANCED["fedavg"], paper="rahfl")
    path = measured / "papers/fedccl/paper.yaml"
    path.write_text(path.read_text().replace("order: 1\n", "order: 9\n"))
    found = studies(results.collect(measured), measured, [Problem("cut", Cell("rahfl", "mini", "ours"))])
    assert list(found) == ["fcclplus", "fedlsa", "rahfl", "fedcrl", "fedccl"]
    assert {scenario: [cell.method for cell in runs] for scenario, runs in found["fedcrl"].runs.items()} == {
        "mini": ["fedavg", "ours"], "balanced": ["fedavg", "ours"]}
    assert list(found["rahfl"].results) == [Cell("rahfl", "mini", "fedavg")] and not found["fedcrl"].problems
    assert found["rahfl"].problems == {Cell("rahfl", "mini", "ours"): "cut"}


# -- readings ------------------------------------------------------------------------------------------------

@pytest.fixture
def told(measured):
    """The same, with a reading of the paper, a source, a column beside the printed ones and one for the
    hook."""
    document = yaml.safe_load((measured / "papers/fedcrl/paper.yaml").read_text())
    document["tables"]["table2"] |= {"also": {"plain": "average"}, "hook": True}
    document |= {
        "readings": [
            {
                "paper": "Eq. 2: 50% & more",
                "run": "the half_of it",
                "why": "own choice: cheaper",
                "option": "half: false",
            }
        ],
        "sources": {
            "settings": {"training.rounds": {"paper": "Table I"}},
            "methods": {"fedprox": {"mu": {"code": "a/b"}}},
        },
    }
    document["methods"]["fedprox"]["mu"] = 0.5
    (measured / "papers/fedcrl/paper.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    load_paper.cache_clear()
    return measured


def test_readings_stand_beside_the_tables_and_whole_under_deviations(told):
    render(["fedcrl"], told)
    html, text, body = ((told / f"reports/fedcrl.{kind}").read_text() for kind in ("html", "md", "tex"))
    table = html.partition('id="table2"')[2].partition("</section>")[0]
    assert (
        '<a href="#readings" title="R1: the half_of it; R2: a new optimiser for every client in every round, '
        'and for every phase of it; R3: the full mu / 2 before the squared distance" aria-label="Readings of '
        'FedProx">R</a>' in table
    )
    assert (
        '<dt>all of them</dt><dd><a href="#R1">R1</a> the half_of it.</dd>' in table
        and '</dd>\n<dt>FedProx</dt><dd><a href="#R2">R2</a> a new optimiser for every client in every '
            'round, and for every phase of it; <a href="#R3">R3</a> the full mu / 2 before the squared '
            'distance.</dd>'
        in table
    )
    assert (
        html.count('<tr id="R1"><th scope="row">Eq. 2: 50% &amp; more <span class="id">R1</span></th>') == 1
    )
    assert "(#reading-by-reading): all of them R1; FedAvg R2; FedProx R2, R3.\n" in text
    assert (
        "| R1 | Eq. 2: 50% & more | the half\\_of it | own choice: cheaper | `half: false` | all methods |"
        in text
    )
    assert (
        "| the scenarios | `training.rounds` | 2 | Table I |\n| FedProx | `mu` | 0.5 | released code: a/b |"
        in text
    )
    assert r"\item[R1] \published{Eq. 2:\allowbreak{} 50\% \& more} \textbf{Run:} the half\_of it." in body
    assert body.count("{") == body.count("}")


def test_a_run_page_has_all_readings_of_its_cells_and_every_value(told):
    path = told / "papers/fedcrl/runs/balanced/fedprox/result.json"
    write_run(told, "balanced/fedprox", BALANCED["ours"])
    render(["fedcrl"], told)
    page_of = told / "reports/runs/fedcrl/balanced.html"
    text = page_of.read_text().partition('id="fedprox"')[2]
    assert (
        "<li>Eq. 2: 50% &amp; more. <strong>Run:</strong> the half_of it. <strong>Why:</strong> own choice: "
        "cheaper. " in text
    )
    assert (
        "This result does not record the defaults" in text
        and "<dt>training.rounds</dt><dd>2 (Table I)</dd>" in page_of.read_text()
    )
    _rewrite(
        path, lambda document: document.update(hyper={"mu": 0.5}, resolved={"mu": 0.5, "legacy_scale": 0.01})
    )
    render(["fedcrl"], told)
    text = page_of.read_text().partition('id="fedprox"')[2]
    assert (
        "<dt>mu = 0.5</dt><dd>released code: a/b</dd>" in text
        and "<dt>legacy_scale = 0.01</dt>" in text
        and "does not record" not in text
    )


def test_a_column_beside_the_printed_ones_and_one_for_the_hook(told):
    shown = view(told, "table2")
    assert shown.panels[0].stub == ["method", "scored"] and [row.stub for row in shown.panels[0].rows] == [
        # as run, else as it would be
        ["FedAvg", "after, before"], ["FedProx", "before"], ["Ours", "after"], ["Averaged", ""]]
    assert [head.text for head in shown.panels[0].heads[-1]] == ["Acc.", "Std.", "plain"] * 2
    fedavg = shown.panels[0].rows[0].values
    assert (fedavg[2].mean, fedavg[2].published, fedavg[5].state) == ("61.00", "", "missing")
    before = view(told, "table1")
    assert shown.measured == 4 and before.panels[0].stub == ["method"]  # what is not printed does not count
    assert (
        "scored: before or after a round's local training; plain: average, which the paper does not print."
        in shown.legend
    )


# -- the rest of the page ------------------------------------------------------------------------------------

def test_a_table_that_measures_nothing_that_is_printed_is_one_line(measured):
    later = {key: value for key, value in PAPER["tables"]["table1"].items() if key != "blocks"}
    paper = PAPER | {"tables": PAPER["tables"] | {"table1-later": later}}
    (measured / "papers/fedcrl/paper.yaml").write_text(yaml.safe_dump(paper, sort_keys=False))
    load_paper.cache_clear()
    with pytest.raises(ParamError, match="fedcrl/paper.yaml: tables.table1-later: none of its blocks"):
        view(measured, "table1-later")


@pytest.mark.parametrize("kind", ["md", "tex"])
def test_measured_tables_come_first_and_the_miniature_last(measured, kind):
    blocks = {"even,public=a|Digits": {"scenario": "new"}}
    later = PAPER["tables"]["table1"] | {"title": "Later", "blocks": blocks}
    paper = PAPER | {"scenarios": PAPER["scenarios"] | {"new": SCENARIO},
                     "tables": {"later": later} | PAPER["tables"]}
    (measured / "papers/fedcrl/paper.yaml").write_text(yaml.safe_dump(paper, sort_keys=False))
    load_paper.cache_clear()
    render(["fedcrl"], measured)
    text = (measured / f"reports/fedcrl.{kind}").read_text()
    places = [text.index(words) for words in ("Measured tables", "Domains", "Label skew", "Waiting", "Later",
                                              "How it was done", "Sizes", "Deviations from", "Miniature: ")]
    assert places == sorted(places)


def test_a_commit_is_a_link_where_the_address_of_the_repository_is_known(measured):
    path, commit = measured / "reports/runs/fedcrl/balanced.html", "c" * 40
    (measured / "CITATION.cff").write_text("title: FedRepro\n")
    render(["fedcrl"], measured)
    assert f"<dd>{commit} with" in path.read_text() and "/commit/" not in path.read_text()
    (measured / "CITATION.cff").write_text("title: FedRepro\nrepository-code: https://example.org/fedrepro/\n")
    render(["fedcrl"], measured)
    assert f'<a href="https://example.org/fedrepro/commit/{commit}">{commit} with' in path.read_text()


def test_the_miniature_with_the_facts_of_its_runs(measured):
    render(["fedcrl"], measured)
    text = unlinked((measured / "reports/fedcrl.md").read_text())
    assert (
        "| Ours | **66.50** ± 0.00 | **55.50** ± 0.71 | **4.50** ± 0.71 | **80.50** ± 0.71 | after | 2 | "
        "0, 1 |" in text
    )
    svg = (measured / "reports/figures/fedcrl-mini.svg").read_text()
    assert svg.count('id="line-') == 2 and "prefers-color-scheme: dark" in svg
    mini = (measured / "reports/runs/fedcrl/miniature.html").read_text()
    assert 'src="../../figures/fedcrl-mini.svg"' in mini and "Not comparable with the paper" in mini


def test_a_scenario_beside_the_tables_has_one_of_its_own_and_counts_for_none_of_the_papers(measured):
    grids = PAPER["grids"] | {"short": {"scenarios": ["cut"], "methods": ["fedavg", "ours"]}}
    (measured / "papers/fedcrl/paper.yaml").write_text(
        yaml.safe_dump(
            PAPER
            | {
                "scenarios": PAPER["scenarios"] | {"cut": SCENARIO},
                "grids": grids,
                "beside": ["cut"],
                "titles": {"cut": "Cut_down & small"},
                "notes": {"cut": "2 of 500 rounds"},
            },
            sort_keys=False,
        )
    )
    write_run(measured, "cut/ours", {name: [12.25, 12.75] for name in BALANCED["ours"]})
    load_paper.cache_clear()
    shown = page(Study.of("fedcrl", results.collect(measured), measured))
    assert (shown.done, shown.planned) == (2, 6) and (shown.beside[0].done, shown.beside[0].planned) == (1, 2)
    render(["fedcrl"], measured)
    tables, cut, rest = re.split(
        r"\n## Additional runs, outside the paper's tables|\n## How it was done",
        unlinked((measured / "reports/fedcrl.md").read_text()),
    )
    assert "### Cut\\_down & small\n\n2 of 500 rounds. digits: every second image.\n" in cut
    assert "Not everything has run: `fedrepro run 'papers/fedcrl/dvc.yaml:short@cut-*'`" in cut
    assert (
        "| FedAvg <sup>R</sup> | — | — | — | — |  |  |  |" in cut
        and "| Ours | 12.50 ± 0.35 |" in cut
        and "31.07" not in cut
    )
    assert "12.50" not in tables and "12.50" not in rest.partition("## Communication")[0]
    assert "Cut" in (measured / "reports/fedcrl.tex").read_text()
    assert 'src="figures/fedcrl-cut.svg"' in (measured / "reports/fedcrl.html").read_text()
    for kind in ("index.md", "index.html", "fedcrl.tex"):
        assert "1 of 2 of the additional runs" in (measured / "reports" / kind).read_text(), kind


def test_methods_that_end_where_they_began_are_named(measured):
    write_run(measured, "mini/ours", BALANCED["ours"] | {"average": [4.0, 5.9]})  # from 0 in round 0
    assert (
        page(Study.of("fedcrl", results.collect(measured), measured)).mini.note
        == "Less than 5 points above round 0: Ours."
    )
    render(["fedcrl"], measured)
    for name in ("fedcrl.md", "runs/fedcrl/miniature.html", "fedcrl.tex"):
        assert "Less than 5 points above round 0: Ours." in (measured / f"reports/{name}").read_text(), name
    write_run(measured, "mini/ours", BALANCED["ours"] | {"average": [4.0, 6.0]})
    assert page(Study.of("fedcrl", results.collect(measured), measured)).mini.note == ""
    history = measured / "papers/fedcrl/runs/mini/ours/history.csv"
    rounds = pd.read_csv(history)
    rounds.loc[rounds["round"] == 0, "average"] = 7.0
    rounds.to_csv(history, index=False)
    assert (
        page(Study.of("fedcrl", results.collect(measured), measured)).mini.note
        == "Lower than round 0 in the end: Ours."
    )


def test_a_table_says_which_of_its_numbers_were_computed_otherwise(measured):
    """Another executor, precision or device rounds differently; without a difference nothing is said."""
    def pages(**changed):
        found = results.collect(measured)
        for result in found.values():
            result |= {"executor": "sequential", "precision": "fp32"}
        found[Cell.parse("fedcrl/balanced/ours")] |= changed
        found[Cell.parse("fedcrl/mini/ours")] |= changed
        text = page(Study.of("fedcrl", found, measured))
        return text.tables[0].note, text.mini.note
    assert pages() == ("", "")
    said = (
        "Not all was computed alike, and training amplifies rounding: Ours ({}): {}; "
        "the others: sequential, fp32, cpu."
    )
    assert pages(executor="stacked") == tuple(
        said.format(scenario, "stacked, fp32, cpu") for scenario in ("balanced", "mini")
    )
    assert pages(device="NVIDIA H200")[0] == said.format("balanced", "sequential, fp32, NVIDIA H200")


@pytest.mark.parametrize("average, shown", [([60.0, 62.0], 0), ([55.0, 56.0], 1)])
def test_an_average_that_is_a_groups_mean_is_shown_once(average, shown, measured):
    for method in ("fedavg", "ours"):
        write_run(measured, f"mini/{method}",
                  {"average": average, "clean.AVG": [60.0, 62.0], "corrupted.AVG": [50.0, 50.0]})
    heads = page(Study.of("fedcrl", results.collect(measured), measured)).mini.panel.columns
    assert [head for head in heads if head.endswith("average")] == [
        *["measured, % · average"] * shown, "clean test, % · average", "corrupted test, % · average"]


def test_a_methods_own_numbers_are_no_accuracies_of_the_miniature(measured):
    write_run(measured, "mini/ours", BALANCED["ours"] | {"method.anchors": [3.0, 3.0], "pgd": [10.0, 12.0]})
    heads = page(Study.of("fedcrl", results.collect(measured), measured)).mini.panel.columns
    assert "measured, % · under PGD" in heads and not [head for head in heads if "anchors" in head]
    render(["fedcrl"], measured)
    assert "method.anchors" in (measured / "reports/runs/fedcrl/mini.html").read_text()


def test_histogram_is_shown_where_it_exists(measured):
    render(["fedcrl"], measured)
    mini = measured / "reports/runs/fedcrl/miniature.html"
    assert "clients.svg" not in mini.read_text()
    (measured / "papers/fedcrl/runs/mini/clients.svg").write_text("<svg/>")
    render(["fedcrl"], measured)
    assert 'src="../../../papers/fedcrl/runs/mini/clients.svg"' in mini.read_text()


def test_a_page_says_that_a_table_mixes_kinds_of_machine(measured):
    """Two processors round differently, unless both were held to portable arithmetic."""
    def made_on(method, **versions):
        path = measured / f"papers/fedcrl/runs/balanced/{method}/result.json"
        document = json.loads(path.read_text())
        del document["self"]
        document["versions"] |= versions
        path.write_text(json.dumps(seal(document)))

    def notes():
        study = Study.of("fedcrl", results.collect(measured), measured)
        return [text for note in page(study).notes for text in note.texts if "kinds of" in text]

    first, second = list(BALANCED)[:2]
    made_on(first, processor="A avx2")
    made_on(second, processor="B avx512f")
    (text,) = notes()
    assert text.startswith("The cells were trained on 2 kinds of machine") and text.endswith("on B avx512f.")
    for method in BALANCED:
        made_on(method, arithmetic="portable")
    assert not notes()


def test_provenance_and_deviations(measured):
    text = page(Study.of("fedcrl", results.collect(measured), measured))
    assert [row.name for row in text.provenance.rows] == ["miniature", "balanced"]
    assert [value.text for value in text.provenance.rows[1].values] == [
        "2", "digits", "bundled", "a" * 12, "none", "b" * 12, "0, 1", "cpu", "2.8.0", "c" * 12 + "+", "6"]
    notes = {note.scenario: note.texts for note in text.notes}
    assert notes["balanced"] == ["digits: every second image."] and notes["skewed"] == [
        "50% of the images; beta ~ 0.1."
    ]


def test_a_note_has_its_numbers_from_the_results(measured):
    def note(text):
        document = PAPER | {"notes": {"balanced": text}}
        (measured / "papers/fedcrl/paper.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        load_paper.cache_clear()
        notes = page(Study.of("fedcrl", results.collect(measured), measured)).notes
        return next(note.texts[0] for note in notes if note.scenario == "balanced")

    mean = sum(BALANCED["ours"]["average"]) / len(BALANCED["ours"]["average"])
    assert note("Ours ends at {ours average}.") == f"Ours ends at {mean:.1f}."
    with pytest.raises(ParamError, match="paper.yaml: notes.balanced: unknown method 'our' .nearest: 'ours'"):
        note("{our average}")
    with pytest.raises(ParamError, match="notes.balanced: unknown measure 'averag'"):
        note("{ours averag}")


def test_communication_and_fairness_of_every_scenario_that_was_run(measured):
    render(["fedcrl"], measured)
    text = unlinked((measured / "reports/fedcrl.md").read_text()).partition("## Communication and fairness")[
        2
    ]
    assert (
        text.count("| FedAvg | 1,000 | 2,000 | 12.0 kB |  | <ins>9.00</ins> ± 0.00 | **50.50** ± 0.71 |") == 2
    )
    assert (
        text.count(r"| Ours | 1,000 | 2,000 | 12.0 kB | (2\|θ\|) | **4.50** ± 0.71 | **50.50** ± 0.71 |") == 2
    )
    assert r"In parentheses the paper's count. Sec. 5: \|θ\| counts" in text
    assert r"\published{2\textbar{}$\theta$\textbar{}}" in (measured / "reports/fedcrl.tex").read_text()


def test_worst_tenth_of_the_clients():
    assert worst_tenth([90.0, None, 50.0]) == 50.0
    assert (
        worst_tenth([float(n) for n in range(20)]) == 0.5
        and worst_tenth([float(n) for n in range(21)]) == 1.0
    )
    assert worst_tenth([70.0]) is None and worst_tenth([70.0, 70.0, None]) is None


def test_miniature_shows_only_the_methods_that_params_asks_for(measured):
    write_run(measured, "mini/fedprox", BALANCED["ours"])
    shown = page(Study.of("fedcrl", results.collect(measured), measured))
    assert [row.name for row in shown.communication[0].rows] == ["FedAvg", "Ours"]
    assert shown.provenance.rows[0].values[0].text == "2"


# -- figures -------------------------------------------------------------------------------------------------

def test_trailing_mean():
    def smooth(values, window, index=None):
        return trailing_mean(
            pd.Series(values, index or range(1, len(values) + 1), dtype=float), window
        ).tolist()
    assert smooth([1, 2, 3, 4, 5], 3) == [1, 1.5, 2, 3, 4]
    assert smooth([9, 1, 2, 3], 3, [0, 1, 2, 3]) == [1, 1.5, 2]              # round 0 is before training
    assert smooth([1, 2, 6], 3, [1, 3, 5]) == [1, 1.5, 4]                    # evaluated every second round
    assert smooth([9, 1], 1, [0, 1]) == [9, 1]


def test_seeds_are_smoothed_one_by_one():
    history = pd.DataFrame(
        {"seed": [0, 0, 0, 1, 1, 1], "round": [0, 1, 2] * 2, "loss": [np.nan, 1, 3, np.nan, 5, 5]}
    )
    assert over_seeds(history, "loss", 2).reset_index().to_numpy().tolist() == [[1, 3, 1, 5], [2, 3.5, 2, 5]]


def test_curves_of_the_papers_scenarios_and_of_the_miniature(measured):
    render(["fedcrl"], measured)
    html = (measured / "reports/fedcrl.html").read_text()
    mini = (measured / "reports/runs/fedcrl/miniature.html").read_text()
    for name, shown in (("fedcrl-figure3", html), ("fedcrl-figure3-mini", mini)):
        svg = (measured / f"reports/figures/{name}.svg").read_text()
        assert svg.count('id="line-') == 2 * 2 and "training loss" in svg
        assert shown.count(f'figures/{name}.svg"') == 1
    assert "trailing mean of 2 rounds" in html and 'id="figure5"' not in html
    text = (measured / "reports/fedcrl.md").read_text()
    assert (
        "![Measured accuracy (weighted by test size) and training loss over rounds, one line per method: "
        "balanced](figures/fedcrl-figure3.svg)" in text
    )
    assert "\n\n\n" not in text


def test_a_figure_without_runs_says_how_to_get_it(root):
    render(["fedcrl"], root)
    command = "fedrepro run 'papers/fedcrl/dvc.yaml:main@balanced-*' 'papers/fedcrl/dvc.yaml:main@skewed-*'"
    html, text = ((root / f"reports/fedcrl.{kind}").read_text() for kind in ("html", "md"))
    assert (
        f'<p class="run">Nothing measured yet: <code>{command}</code>.</p>'
        in html.replace("&#39;", "'")
    )
    assert f"- **Figure 3**, Curves: `{command}`\n" in text
    assert not (root / "reports/figures").exists()


def test_a_figure_that_lacks_cells_says_how_to_get_them(measured):
    render(["fedcrl"], measured)
    command = "fedrepro run 'papers/fedcrl/dvc.yaml:main@balanced-*' 'papers/fedcrl/dvc.yaml:main@skewed-*'"
    assert f"Not complete; what is missing: <code>{command}</code>" in (
        measured / "reports/fedcrl.html"
    ).read_text().replace("&#39;", "'")
    assert f"Not complete; what is missing: `{command}`" in (measured / "reports/fedcrl.md").read_text()


def test_a_figure_whose_cells_no_grid_holds_says_so(root):
    path = root / "papers/fedcrl/paper.yaml"
    path.write_text(yaml.safe_dump(PAPER | {"grids": {}}, sort_keys=False))
    render(["fedcrl"], root)
    assert (
        "Nothing measured yet. No grid of <code>papers/fedcrl/paper.yaml</code> holds its cells "
        "yet.</p>\n</details>" in (root / "reports/fedcrl.html").read_text()
    )


# -- the corruptions -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("frost, said", [("photographs of the package icy", "The frost comes from "
                                                                            "photographs of the package "
                                                                            "icy."),
                                         ("", "Where the frost comes from stands in the picture")])
def test_the_corruptions_stand_on_their_papers_page_alone(root, frost, said):
    write_sheet(root, frost)
    render(["rahfl", "fedcrl"], root)
    html, text, body = ((root / f"reports/rahfl.{kind}").read_text() for kind in ("html", "md", "tex"))
    assert re.search(
        r'<img src="../papers/rahfl/figures/corruptions.png" alt="One photograph [^"]*15 corruptions[^"]*" '
        r'width="2" height="1">',
        html,
    )
    assert 'id="corruptions"' in html
    assert (
        "](../papers/rahfl/figures/corruptions.png)" in text
        and r"\includegraphics[width=\linewidth]{../papers/rahfl/figures/corruptions.png}" in body
    )
    assert all(said in page_text for page_text in (html, text, body))
    check_tex(body)
    assert "corruptions.png" not in (root / "reports/fedcrl.html").read_text()


def test_the_sheet_that_is_drawn_says_where_its_frost_comes_from(tmp_path):
    target = tmp_path / "sheet.png"
    contact_sheet.contact_sheet(contact_sheet.bundled_image(), target)
    with Image.open(target) as image:
        assert image.info[pictures.FROST] == contact_sheet.find_ice().source


def test_a_broken_sheet_is_named_and_the_rest_is_rendered(root):
    path = write_sheet(root, "")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(FedReproError, match="corruptions.png: not a picture"):
        render(["rahfl"], root)
    html = (root / "reports/rahfl.html").read_text()
    assert (
        "corruptions.png: not a picture" in html and 'id="corruptions"' not in html and 'id="table1"' in html
    )


def test_a_measure_without_values_is_named(measured):
    path = measured / "papers/fedcrl/runs/balanced/ours/history.csv"
    path.write_text(path.read_text().replace("weighted", "other"))
    with pytest.raises(FedReproError, match="balanced/ours/history.csv: the column 'weighted' is missing"):
        render(["fedcrl"], measured)


def test_a_negative_measure_is_ranked_and_shown(root):
    edit(root / "papers/fedcrl/paper.yaml",
         lambda paper: paper["tables"]["table1"]["columns"].update(Avg="method.gain"))
    for method, values in {"fedavg": [-1.0, -2.0], "ours": [1.0, 2.0]}.items():
        write_run(root, f"balanced/{method}", {"weighted": [60.0, 61.0], "method.gain": values})
    render(["fedcrl"], root)
    assert "−1.50" in (root / "reports/fedcrl.md").read_text(encoding="utf-8")
    values = [Value("measured", Summary(mean, None, 1)) for mean in (-1.5, 1.5, -2.0)]
    mark(values, lower=False)
    assert [value.mark for value in values] == ["second", "best", ""]


def test_a_scenario_of_which_half_was_scored_otherwise_is_shown(root):
    """As while it is run again after a change of `evaluation.tests`."""
    write_run(root, "mini/fedavg", {"average": [60.0, 61.0]})
    write_run(root, "mini/ours", {"weighted": [60.0, 61.0]})
    with pytest.raises(FedReproError, match="the column 'average' is missing"):
        render(["fedcrl"], root)
    assert (root / "reports/fedcrl.md").exists()


def test_a_name_with_a_comma_is_a_column(root):
    file = write_run(root, "balanced/ours", {"Art, Painting": [70.0, 71.0], "average": [60.0, 61.0]})
    history = file.with_name("history.csv")
    history.write_text(history.read_text().replace("Art, Painting", '"Art, Painting"', 1))
    found, problems = results.survey(root)
    assert not problems and [*found.values()][0]["measures"]["Art, Painting"] == [70.0, 71.0]
    history.write_text(history.read_text() + "1,2,0.5,1\n")
    _, (problem,) = results.survey(root)
    assert "history.csv:8: not as many fields as the header has" in problem.text


def test_without_a_paper_there_is_an_overview(tmp_path):
    (tmp_path / "params.yaml").write_text("data: {}\n")
    render(root=tmp_path)
    assert "0 of 0 cells" in (tmp_path / "reports/index.md").read_text(encoding="utf-8")


def test_index_counts_cells(measured):
    render(["fedcrl"], measured)
    text = (measured / "reports/index.md").read_text()
    assert ("2 of 30 cells of the papers' tables, and of further settings for them, are measured so far, for "
            "one of the five papers.") in text
    assert text.count("2 of 6 cells of its tables, and of further settings for them, measured") == 1
    assert text.count("0 of 6 cells of its tables, and of further settings for them, measured") == 4
    assert sorted(path.name for path in (measured / "reports").iterdir()) == [
        "across.html",
        "across.md",
        "across.tex",
        "fedcrl.html",
        "fedcrl.md",
        "fedcrl.tex",
        "figures",
        "index.html",
        "index.md",
        "measured.csv",
        "runs",
    ]
    rows = (measured / "reports/measured.csv").read_text().splitlines()
    assert (
        rows[0] == "paper,scenario,method,measure,mean,std,seeds"
        and "fedcrl,balanced,ours,average,66.5000,0.0000,2" in rows
    )


def test_html_is_well_formed_and_headers_have_a_scope(measured):
    render(root=measured)
    for name in ("fedcrl", "index", "runs/fedcrl/balanced"):
        html = (measured / "reports" / f"{name}.html").read_text()
        assert set(Cells(html).heads) <= {"col", "colgroup", "row"}
        assert "A &amp; B: 100% of {everything}" in html or "/" in name
        assert not re.search(r'(src|href)="(https?:)?//', html)


def test_same_inputs_give_the_same_bytes(measured):
    first = {path: path.read_bytes() for path in render(root=measured)}
    assert {path: path.read_bytes() for path in render(root=measured)} == first


def test_unknown_paper_names_the_nearest(root):
    with pytest.raises(ParamError, match="unknown paper 'fedclr'"):
        render(["fedclr"], root)


def test_stage_says_one_line_and_exits_with_2():
    done = subprocess.run(
        [sys.executable, "-m", "stages.report", "fedclr"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["error: unknown paper 'fedclr' (nearest: 'fedcrl')"]


# -- formats -------------------------------------------------------------------------------------------------

def test_tex_escapes_everything_special():
    assert tex(r"a_b & 5% #1 {x} $y^2~\z") == (
        r"a\_b \& 5\% \#1 \{x\} \$y\textasciicircum{}2\textasciitilde{}\textbackslash{}z")
    assert tex("β ± 1, θ0 ✓ é 漢 ŧ") == r"$\beta$ $\pm$ 1, $\theta$0 \checkmark{} é (U+6F22) (U+0167)"


def test_markdown_escapes_tables_and_html():
    assert markdown("|B_0| <b>*") == r"\|B\_0\| \<b\>\*"
    assert markdown("a\n\n# b") == "a # b"
    assert markdown_code("x") == "`x`" and markdown_code("`<b>`|\n") == r"`` `<b>`\|  ``"
    assert markdown_code("a | b", bar="|") == "`a | b`"


def test_tex_is_balanced(measured):
    render(["fedcrl"], measured)
    check_tex((measured / "reports/fedcrl.tex").read_text())


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_tex_compiles(measured):
    render(["fedcrl"], measured)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "fedcrl.tex"],
        cwd=measured / "reports",
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-1500:]


@pytest.mark.parametrize("text, alone, words", [
    (">0", False, "above 0"), ("<=-1.5", False, "at most −1.5"), ("abs<1", False, "less than 1 apart"),
    ("=8.47", False, "+8.47"), ("=68.4", True, "68.4"),
    ("=0", False, "0"), ("~-2", False, "about −2"), ("rank<=1", False, "first"),
    ("rank<=3 low", False, "among the first 3")])
def test_what_a_claim_expects_in_words(text, alone, words):
    assert parse_expected(text, alone).words == words


def test_words():
    assert split_setting("practical(beta=0.1,N=20),test=clean") == ["practical(beta=0.1,N=20)", "test=clean"]
    assert setting_words("practical(beta=0.1,N=20)") == "practical (β = 0.1, N = 20)"
    assert setting_words("balanced-inter-domain") == "balanced inter-domain"
    assert setting_words("public=tiny-imagenet") == "public = tiny-imagenet"
    assert method_words("FedCCL[local=1,global=0]") == "FedCCL (local = 1, global = 0)"
    assert [pretty(text) for text in ("theta0", "beta_joint", "T_f", "delta", "eta", "beta")] == [
        "θ0",
        "β joint",
        "T_f",
        "Δ",
        "η",
        "β",
    ]
    assert [
        measure_words(name) for name in ("weighted", "clean.AVG", "inter.photo", "average", "method.gap")
    ] == ["weighted by test size", "clean test, average", "inter-domain, photo", "average", "method, gap"]
    assert method_label(load_paper("fedccl"), "fedccl-local") == "FedCCL (local = 1, global = 0)"
    assert [bytes_words(n) for n in (999, 12_000, 5_400_000)] == ["999 B", "12.0 kB", "5.4 MB"]
