"""Results: what a file may hold, what is refused in one line, and what is read from it."""

import json
import shutil
import subprocess
import sys

import pytest
from reporting import write_run

from pipeline.cells import results
from pipeline.errors import FedReproError
from pipeline.report import render
from pipeline.schema import ROOT, Cell, papers
from pipeline.sealing import seal


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
    assert table["std"][0] == pytest.approx(2**0.5) and table["std"].isna()[1]
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
        "ours/result.json: seeds: expected a list, not 2; another version",
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
        "ours/result.json: measures.average[0]: must be at most 100, not 1.18e+21",
    ),
    "negative": (
        lambda path: _rewrite(path, lambda d: d.update(seconds=[-1.0, 1.0])),
        "ours/result.json: seconds[0]: must be at least 0, not -1.0",
    ),
    "huge": (
        lambda path: _rewrite(path, lambda d: d["traffic"].update(up=10**400)),
        "ours/result.json: traffic.up: must be finite, not 1000",
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
}


def _lines(path, change):
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def _swap(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def test_metrics_of_a_paper_are_the_headline_numbers_of_its_cells(measured):
    found = results.collect(measured)
    numbers = json.loads(results.metrics("fedcrl", found, measured))
    assert numbers["balanced"]["ours"]["accuracy"] == 66.5
    assert {(s, m) for s, methods in numbers.items() for m in methods} == {
        (cell.scenario, cell.method) for cell in found if cell.paper == "fedcrl"
    }
    assert json.loads(results.metrics("fedlsa", found, measured)) == {}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_cannot_be_used_is_named_and_the_rest_is_rendered(measured, name):
    damage, message = DAMAGES[name]
    damage(measured / OURS / "result.json")
    found, problems = results.survey(measured)
    assert [problem.cell for problem in problems] == [Cell("fedcrl", "balanced", "ours")]
    assert message in problems[0].text and len(found) == 3
    with pytest.raises(FedReproError) as raised:
        render(["fedcrl"], measured)
    assert message in str(raised.value)
    html = (measured / "reports/fedcrl.html").read_text()
    assert message.replace("'", "&#39;") in html and "80.50" not in html.partition('id="numbers"')[2]


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
    assert all((measured / f"reports/{name}.html").exists() for name in (*papers(), "index"))


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
