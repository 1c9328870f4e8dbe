"""Results on disk: what is read from them, and which file is named if one cannot be used."""

import json
import shutil

import pytest
from reporting import write_run

from pipeline.cells import results
from pipeline.errors import FedReproError
from pipeline.report.writing import render
from pipeline.schema import ROOT, Cell
from pipeline.sealing import seal


def test_tidy_has_mean_and_sample_deviation_and_none_for_one_seed(root):
    write_run(root, "mini/fedavg", {"average": [60.0, 62.0]})
    write_run(root, "mini/ours", {"average": [70.0]})
    table = results.tidy(results.collect(root))
    assert list(table.columns) == results.COLUMNS
    assert table["mean"].tolist() == [61.0, 70.0]
    assert table["std"][0] == pytest.approx(2**0.5)
    assert table["std"].isna()[1]
    assert table["seeds"].tolist() == [2, 1]


OURS = "papers/fedcrl/runs/balanced/ours"


# A change of the document, which is sealed again as by another version, and the key that is named.
DOCUMENTS = [
    (lambda d: d.pop("clients"), "'clients'"),
    (lambda d: d.update(seeds=2), "seeds:"),
    (lambda d: d.update(seeds=[0]), "for 1 seeds"),
    (lambda d: d.update(method="fedavg"), "'cell'"),
    (lambda d: d["clients"][0].pop(), "clients:"),
    (lambda d: d.update(holdings={"images": [[5, 6, 7]] * 2}), "holdings: the key 'classes'"),
    (lambda d: d.update(holdings=dict.fromkeys(("images", "classes"), [[5]] * 2)), "clients:"),
    (lambda d: d.update(by_class=[[50.0, 101.0]] * 2), "by_class[0][1]:"),
    (lambda d: d.update(versions={}), "versions: the key 'torch'"),
    (lambda d: d["measures"].update(average=[1.18e21, 66.5]), "measures.average[0]:"),
    (lambda d: d.update(seconds=[-1.0, 1.0]), "seconds[0]:"),
    (lambda d: d["traffic"].update(up=10**400), "traffic.up:"),
    (lambda d: d.update(traffic_of_seeds={k: [1] for k in d["traffic"]}), "'bytes' for 2 seeds"),
    (lambda d: d.update(memory={"process_mb": [1] * 9}), "'process_mb' for 2 seeds"),
    (lambda d: d.update(memory={"device_mb": "x"}), "memory.device_mb"),
    (
        lambda d: d.update(traffic_of_seeds={"up": [1, 2], "down": [1, 2]}),
        "traffic_of_seeds: the key 'by",
    ),
    (lambda d: d.update(headline="averag"), "'averag'"),
    (lambda d: d.update(partitions=5), "partitions:"),
    (lambda d: d.update(partitions=["a"]), "'partitions' for 2 seeds"),
    (lambda d: d.update(machines=[5, 5]), "machines[0]:"),
    (lambda d: d.update(participants="x"), "participants:"),
]


def problem_of(root) -> str:
    """What is said of the one file that cannot be used."""
    actual, problems = results.survey(root)
    assert [*problems] == [Cell("fedcrl", "balanced", "ours")]
    assert len(actual) == 3
    return problems[Cell("fedcrl", "balanced", "ours")]


@pytest.mark.parametrize("change, key", DOCUMENTS)
def test_a_result_of_another_shape_is_named(measured, change, key):
    path = measured / OURS / "result.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(seal(document)))
    text = problem_of(measured)
    assert "ours/result.json: " in text
    assert key in text


# A change of the lines of history.csv, and what is named.
HISTORIES = [
    (lambda lines: lines[:4], "seeds and rounds"),
    (lambda lines: [line.replace("66.5", "69.5") for line in lines], "seed 0 give average 69.5"),
    (lambda lines: [line.replace("0,1,1.0,", "0,1,") for line in lines], "history.csv:"),
    (lambda lines: [*lines[:2], *lines[3:]], "seeds and rounds"),
    (lambda lines: lines[:1], "seeds and rounds"),
    (lambda lines: [*lines, f"7{lines[-1][1:]}"], "seeds and rounds"),
    (lambda lines: [line.replace("average", "averag") for line in lines], "'average'"),
    (lambda lines: [line.replace("66.5", "7x.1") for line in lines], "history.csv: average:"),
    (lambda lines: [line.replace("66.5", "166.5") for line in lines], "history.csv:4: average: 166.5"),
]


@pytest.mark.parametrize("change, key", HISTORIES)
def test_a_history_of_another_shape_is_named(measured, change, key):
    path = measured / OURS / "history.csv"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    text = problem_of(measured)
    assert "ours/history.csv:" in text
    assert key in text


def test_what_the_result_reports_is_the_mean_of_its_history(measured):
    path = measured / OURS / "result.json"
    document = json.loads(path.read_text())
    document["last5"].update(average=[66.5, 66.5])
    path.write_text(json.dumps(seal(document)))
    assert "ours/history.csv: the last rounds" in problem_of(measured)


def test_a_missing_history_is_named(measured):
    (measured / OURS / "history.csv").unlink()
    assert "ours/history.csv: no such file" in problem_of(measured)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda text: text[:400], "not whole JSON"),
        (lambda text: text.replace("66.5", "96.5", 1), "'self' is not"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_the_rest_is_rendered(measured, damage, message):
    path = measured / OURS / "result.json"
    path.write_text(damage(path.read_text()))
    assert message in problem_of(measured)
    with pytest.raises(FedReproError, match=message):
        render(["fedcrl"], measured)
    html = (measured / "reports/fedcrl.html").read_text()
    assert message.replace("'", "&#39;") in html
    assert "80.50" not in html.partition('id="numbers"')[2]


def test_metrics_of_a_paper_are_those_of_its_cells(measured):
    actual = results.collect(measured)
    assert json.loads(results.metrics("fedcrl", actual))["ours"] == 66.5
    assert json.loads(results.metrics("fedlsa", actual)) == {}


def test_metrics_do_not_depend_on_the_order_of_the_results(measured):
    actual = results.collect(measured)
    backwards = dict(reversed(actual.items()))
    assert results.metrics("fedcrl", actual) == results.metrics("fedcrl", backwards)


def test_a_history_has_every_round_of_every_seed(measured):
    table = results.history(Cell("fedcrl", "mini", "ours"), measured)
    assert table[table["round"] == 2]["average"].tolist() == [66.5, 66.5]


def test_the_history_of_a_cell_that_has_none_is_refused(measured):
    with pytest.raises(FedReproError, match="history.csv"):
        results.history(Cell("fedcrl", "mini", "nobody"), measured)


@pytest.mark.parametrize(
    "place, unknown",
    [("balancd/ours", "scenario 'balancd'"), ("balanced/fedporx", "method 'fedporx'")],
)
def test_a_result_of_an_unknown_method_or_scenario_is_named(measured, place, unknown):
    runs = measured / "papers/fedcrl/runs"
    shutil.copytree(runs / "balanced/ours", runs / place)
    actual, problems = results.survey(measured)
    assert len(actual) == 4
    assert [*problems] == [Cell("fedcrl", *place.split("/"))]
    (problem,) = problems.values()
    assert f"{place}/result.json: " in problem
    assert f"unknown {unknown}" in problem


def test_result_in_another_cells_folder_is_refused(measured):
    runs = measured / "papers/fedcrl/runs/balanced"
    shutil.copytree(runs / "ours", runs / "fedprox")
    with pytest.raises(FedReproError, match="fedcrl/balanced/fedprox"):
        results.collect(measured)


def test_a_state_of_digits_alone_is_read_as_text(tmp_path):
    table = results.parse_history(
        b"seed,round,loss,state\n0,0,,1234567890123456\n0,1,0.5,\n", tmp_path / "history.csv"
    )
    assert table[results.STATE].tolist()[0] == "1234567890123456"


def test_a_state_of_another_form_is_refused(tmp_path):
    with pytest.raises(FedReproError, match=r"history.csv:2: state"):
        results.parse_history(b"seed,round,loss,state\n0,0,,12e4\n", tmp_path / "history.csv")


# Of a history.csv, what no reader takes.
NO_HISTORIES = [
    b"",
    b"seed,loss\n0,0.5\n",
    b"seed,round,loss\n0,0,inf\n",
    b"seed,round,loss\n0,0,1_0\n",
    b"seed,round,loss\n0,0,word\n",
    b"seed,round,average\n0,0,100.5\n",
    b"seed,round,average\n0,0,-0.5\n",
    b"seed,round,loss,state\n0,0,,12e4\n",
    b"seed,round,loss\n0,0,\xff\n",
]


@pytest.mark.parametrize("content", NO_HISTORIES)
def test_columns_are_refused_where_a_history_is(root, content):
    write_run(root, "mini/ours", {"average": [70.0]})
    cell = Cell("fedcrl", "mini", "ours")
    (cell.folder(root) / "history.csv").write_bytes(content)
    for read in (results.history, results.columns):
        with pytest.raises(FedReproError, match="history.csv"):
            read(cell, root)


def test_columns_are_those_of_the_history():
    for cell in results.collect(ROOT, "fedcrl", "mini"):
        table, columns = results.history(cell), results.columns(cell)
        assert [*columns] == [name for name in table if name != results.STATE]
        for name, values in columns.items():
            assert values == pytest.approx(table[name].tolist(), abs=0, nan_ok=True)


@pytest.fixture
def checks(monkeypatch):
    """The documents that are checked, in this process so far unknown ones."""
    checked = []
    check_values = results._check_values
    monkeypatch.setattr(results, "_check_values", lambda one: checked.append(one) or check_values(one))
    results._checked.cache_clear()
    return checked


def test_a_result_is_checked_once_in_a_process(root, checks):
    write_run(root, "mini/ours", {"average": [70.0]})
    assert results.collect(root) == results.collect(root)
    assert len(checks) == 1


def test_a_result_that_has_changed_is_checked_again(root, checks):
    path = write_run(root, "mini/ours", {"average": [70.0]})
    results.collect(root)
    path.write_text(path.read_text().replace("70.0", "71.0"))
    with pytest.raises(FedReproError, match="the file was altered"):
        results.collect(root)


def test_a_history_that_has_changed_is_checked_again(root):
    write_run(root, "mini/ours", {"average": [70.0]})
    cell = Cell("fedcrl", "mini", "ours")
    result = results.collect(root)[cell]
    results.checked_history(cell, result, root)
    path = cell.folder(root) / "history.csv"
    path.write_text(path.read_text().replace("70.0", "71.0"))
    with pytest.raises(FedReproError, match="history.csv"):
        results.checked_history(cell, result, root)


def test_a_history_may_be_changed_by_who_has_read_it(root):
    write_run(root, "mini/ours", {"average": [70.0]})
    cell = Cell("fedcrl", "mini", "ours")
    results.history(cell, root)["average"] = 0.0
    assert results.history(cell, root)["average"].max() > 0


def test_the_results_of_one_scenario_alone(root):
    write_run(root, "mini/ours", {"average": [70.0]})
    write_run(root, "balanced/ours", {"average": [70.0]})
    assert [*results.collect(root, "fedcrl", "mini")] == [Cell("fedcrl", "mini", "ours")]
    assert len(results.collect(root, "fedcrl")) == 2
    assert not results.collect(root, "fedlsa")
