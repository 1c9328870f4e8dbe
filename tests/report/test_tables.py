"""Tables: what was measured, what was printed, that neither passes for the other, the paper's layout."""

import json

import pytest
import yaml
from reporting import BALANCED, PAPER, write_run
from repository import edit

from pipeline.cells import results
from pipeline.errors import ParamError
from pipeline.report import comparison
from pipeline.report.drawings import curves
from pipeline.report.page import scenario_tab
from pipeline.report.published import Value, mark, printed_number, read_published
from pipeline.report.study import Study
from pipeline.report.tables import TableView
from pipeline.report.tunings import table_measure
from pipeline.report.verdicts import variants
from pipeline.report.words import measure_words, minus
from pipeline.schema import ROOT, Cell, load_paper, papers
from pipeline.sealing import seal

YAML = "papers/fedcrl/paper.yaml"


def view(root, table):
    return TableView(table, Study.of("fedcrl", results.collect(root), root))


def values(root, table):
    """{row: its values}."""
    return {row.name: row.values for row in view(root, table).panel.rows}


def rewrite(root, change):
    """Other published numbers of table 1: change takes and gives lines without their header."""
    path = root / "papers/fedcrl/published/table1.csv"
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *change(lines)]) + "\n")


def test_measured_printed_and_missing_numbers_of_a_table(measured):
    first = values(measured, "table1")["FedAvg"][0]
    assert (first.mean, first.spread, first.published, first.printed) == ("71.00", "1.41", "41.11", 41.11)
    assert first.difference == pytest.approx(29.89)
    assert first.tint == "u6"
    assert first.cell == Cell("fedcrl", "balanced", "fedavg")
    missing = values(measured, "table1")["FedProx"][0]
    assert (missing.state, missing.published, missing.mean) == ("missing", "43.33", "")
    assert missing.target == "fedcrl/balanced/fedprox"
    table = view(measured, "table1")
    assert (table.measured, table.fillable) == (4, 6)
    panel = view(measured, "table1").panel
    deltas = {row.name: row.values[-1] for row in panel.rows}
    assert [texts[-1] for texts in panel.levels] == ["M", "Avg", "Δ"]
    assert (deltas["Ours"].mean, deltas["Ours"].published) == ("+5.50", "+4.44")
    assert deltas["FedProx"].state == "missing"
    assert deltas["FedAvg"].state == "outside"


def test_ranks_compare_methods_over_the_seeds_that_all_of_them_have(measured, monkeypatch):
    monkeypatch.setattr(comparison, "FEWEST", 3)
    one_seed = {name: [number + 5 for number in numbers[:1]] for name, numbers in BALANCED["fedavg"].items()}
    write_run(measured, "balanced/fedprox", one_seed)
    table = view(measured, "table1")
    [column] = [one.first for one in comparison.settings([table])]
    means = {name: number.mean for name, number in column.numbers.items()}
    assert means == {"FedAvg": 60.0, "FedProx": 65.0, "Ours": 66.5}
    assert column.seeds == 1
    assert column.places["FedProx"].place == 2
    assert table.panel.rows[0].values[1].mean == "60.00"


def test_without_results_no_number_is_measured(root):
    for key in PAPER["tables"]:
        table = view(root, key)
        every = [value for row in table.panel.rows for value in row.values]
        assert table.measured == 0
        assert {value.number for value in every} == {None}
        assert any(value.published for value in every)
    assert view(root, "table1").layout.about == "Digits, even, public = a"
    heads = view(root, "table2").panel.heads
    assert [text for text, _ in heads[0]] == ["practical (β = 0.1, N = 20)", "pathological (N = 20)"]
    assert view(root, "table3").panel.stub == ["dataset"]


def test_a_column_of_ours_follows_and_delta_is_of_the_printed_one(measured):
    edit(measured / YAML, lambda paper: paper["tables"]["table1"].update(also={"local": "post.average"}))
    for name, local in (("ours", 90.0), ("fedavg", 10.0)):
        write_run(measured, f"balanced/{name}", BALANCED[name] | {"post.average": [local] * 2})
    table = view(measured, "table1")
    assert [texts[-1] for texts in table.panel.levels] == ["M", "Avg", "Δ", "local"]
    of = {row.name: row.values for row in table.panel.rows}
    assert (of["Ours"][2].mean, of["Ours"][3].mean, of["Ours"][3].published) == ("+5.50", "90.00", "")
    assert of["FedProx"][3].state == "missing"
    # what is not printed does not count
    assert table.measured == 4


def test_what_a_run_costs_and_the_printed_formula(measured):
    blocks = {
        "even,public=a|Digits": {"scenario": "balanced"},
        "even,public=a|Digits|FedAvg": {"scenario": "balanced", "only": ["Cost"]},
    }
    columns, also = {"Avg": "average", "Cost": "run.traffic"}, {"Time of a round": "run.seconds"}
    edit(
        measured / YAML,
        lambda paper: paper["tables"]["table1"].update(columns=columns, also=also, blocks=blocks),
    )
    cost = 'fedcrl,1,"even,public=a",Digits,Cost,{},2|theta|,,'.format
    rewrite(measured, lambda lines: [*lines, *map(cost, ("FedAvg", "FedProx", "Ours"))])
    panel = view(measured, "table1").panel
    heads = [texts[-1] for texts in panel.levels]
    assert heads == ["M", "Avg", "Δ", "Cost, kB", "Time of a round, s"]
    of = {row.name: dict(zip(heads, row.values)) for row in panel.rows}
    ours = of["Ours"]
    assert (ours["Cost, kB"].mean, ours["Cost, kB"].published) == ("12.00", "2|theta|")
    assert (ours["Time of a round, s"].mean, ours["Δ"].state, ours["Avg"].mean) == (
        "0.75",
        "outside",
        "66.50",
    )
    assert (of["FedAvg"]["Cost, kB"].mean, of["FedAvg"]["Avg"].state) == ("12.00", "outside")


def test_averaged_row_waits_for_every_method_and_takes_no_mark(measured):
    assert [value.state for value in values(measured, "table2")["Averaged"]] == ["missing"] * 4
    write_run(measured, "balanced/fedprox", {"weighted": [90.0], "clients_std": [0.0]})
    averaged = values(measured, "table2")["Averaged"]
    assert [value.mean for value in averaged] == ["65.00", "4.33", "", ""]
    assert {value.mark for value in averaged} == {""}


@pytest.mark.parametrize(
    "means, lower, marks",
    [
        ([1.0, 3.0, 2.0], False, ["", "best", "second"]),
        ([1.0, 3.0, 2.0], True, ["best", "", "second"]),
        ([-1.5, 1.5, -2.0], False, ["second", "best", ""]),
        ([3.0, 3.0, 2.0, 2.0, 1.0], False, ["best", "best", "second", "second", ""]),
        # equal as table
        ([3.001, 3.002, 1.0], False, ["best", "best", "second"]),
        # alone it is no comparison
        ([3.0], False, [""]),
        ([], False, []),
    ],
)
def test_marks(means, lower, marks):
    several = [Value("measured", {0: mean}, published="99.99") for mean in means]
    mark([*several, Value("missing", published="100.00")], lower)
    assert [value.mark for value in several] == marks


def test_comparisons_are_over_common_seeds():
    one, three = Value("measured", {0: 5.0}), Value("measured", {0: 6.0, 1: 1.0, 2: 2.0})
    mark([one, three], lower=False)
    assert (one.mark, three.mark, three.mean) == ("second", "best", "3.00")
    assert three.less(one).mean == "+1.00"
    assert Value("measured", {7: 2.5}).less(one).mean == "−2.50"  # none in common


@pytest.mark.parametrize("changed", [{"executor": "stacked"}, {"device": "NVIDIA H200"}])
def test_a_table_notes_what_was_computed_otherwise(measured, changed):
    """Another executor, precision or device rounds differently."""
    # copies: what is read may be shared with other tests
    runs = {cell: {**run} for cell, run in results.collect(measured).items()}
    study = Study.of("fedcrl", runs, measured)
    assert TableView("table1", study).note == ""
    next(run for cell, run in runs.items() if str(cell) == "fedcrl/balanced/ours").update(changed)
    note = TableView("table1", Study.of("fedcrl", runs, measured)).note
    assert "Ours" in note
    assert [*changed.values()][0] in note
    assert "FedAvg" not in note


@pytest.mark.parametrize("name", papers())
def test_every_published_number_of_the_papers_is_there_once(name):
    study = Study(name, paper := load_paper(name))
    for key, table in paper.tables.items():
        made = TableView(key, study)
        rows = made.panel.rows
        printed = sorted(value.published for row in rows for value in row.values if value.published)
        records = read_published(name, table, ROOT)
        if key in variants(paper):
            records = [one for one in records if table.block(one["setting"], one["dataset"], one["method"])]
        assert records, key
        assert printed == sorted(minus(record["value"]) for record in records), key
        assert all(len(row.values) == len(made.panel.levels) for row in rows)
        assert all(len(row.stub) == len(made.panel.stub) for row in rows)
        assert made.measured == 0


def test_a_missing_published_table_is_named(root):
    (root / "papers/fedcrl/published/table1.csv").unlink()
    with pytest.raises(ParamError, match="table1.csv: no such file"):
        view(root, "table1")


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("42.22", "7x.1", ":3: value: '7x.1'"),
        ("42.22", "O7.1", ":3: value: 'O7.1'"),
        ("42.22,,", "42.22,,likely=4.5.6", ":3: note: '4.5.6'"),
        ("42.22,,", "42.22,x,", ":3: std: 'x'"),
        ("fedcrl,1,", "fedccl,1,", ":2: paper: 'fedccl'"),
        ("42.22,", "42.22", ":3: "),
        ("42.22", "42.22\0", ":3: "),
        ("42.22", "\udcff", ":3: "),
        ("42.22", "4" * 200_000, ":3: "),
        ("Avg,FedAvg", "M,FedAvg", ":3: even,public=a, Digits, M, FedAvg"),
    ],
)
def test_a_published_value_that_is_none_is_named(root, old, new, message):
    path = root / "papers/fedcrl/published/table1.csv"
    path.write_bytes(path.read_bytes().replace(old.encode(), new.encode("utf-8", "surrogateescape"), 1))
    with pytest.raises(ParamError, match=f"papers/fedcrl/published/table1.csv{message}"):
        read_published("fedcrl", load_paper("fedcrl", root).tables["table1"], root)


@pytest.mark.parametrize("value", ["nan", "2|theta|", ""])
def test_a_name_or_a_formula_is_no_number(root, value):
    rewrite(root, lambda lines: [line.replace("42.22", value) for line in lines])
    table = load_paper("fedcrl", root).tables["table1"]
    record = read_published("fedcrl", table, root)[1]
    assert record["value"] == value
    assert printed_number(record) is None


def test_a_table_that_measures_nothing_that_is_printed_is_named(measured):
    later = {key: value for key, value in PAPER["tables"]["table1"].items() if key != "blocks"}
    paper = PAPER | {"tables": PAPER["tables"] | {"table1-later": later}}
    (measured / YAML).write_text(yaml.safe_dump(paper, sort_keys=False))
    load_paper.cache_clear()
    with pytest.raises(ParamError, match="fedcrl/paper.yaml: tables.table1-later"):
        view(measured, "table1-later")


@pytest.mark.parametrize(
    ("headline", "first"),
    [
        (None, ["average", "weighted by test size"]),
        ("average", ["average", "weighted by test size"]),
        ("weighted", ["weighted by test size", "other model, weighted by test size", "average"]),
    ],
)
def test_the_table_of_a_scenario_begins_with_the_mean_that_it_names(measured, headline, first):
    for method in ("fedavg", "ours"):
        more = {"pre.weighted": [57.0, 58.0]}  # the headline is of the other hook
        write_run(measured, f"balanced/{method}", BALANCED[method] | more)
    protocol = {"tests": "clients", "last": 1} | ({} if headline is None else {"headline": headline})
    edit(measured / YAML, lambda paper: paper["scenarios"]["balanced"].update(evaluation=protocol))
    tab = scenario_tab(Study.of("fedcrl", results.collect(measured), measured), "balanced")
    assert [" ".join(texts) for texts in tab.panel.levels[: len(first)]] == first


@pytest.mark.parametrize(("headline", "measure"), [(None, "average"), ("weighted", "weighted")])
def test_tunings_are_compared_by_the_mean_that_the_scenario_names(root, headline, measure):
    """Where it names none, by that of the paper's first table with the scenario."""
    protocol = {"tests": "clients", "last": 1} | ({} if headline is None else {"headline": headline})
    edit(root / YAML, lambda paper: paper["scenarios"]["balanced"].update(evaluation=protocol))
    assert table_measure(Study.of("fedcrl", {}, root), "balanced") == measure


@pytest.mark.parametrize("headline", ["average", "weighted"])
def test_curves_are_of_the_headline(measured, headline):
    for method in ("fedavg", "ours"):
        path = measured / f"papers/fedcrl/runs/balanced/{method}/result.json"
        document = json.loads(path.read_text()) | {"headline": headline}
        document.pop("self")
        path.write_text(json.dumps(seal(document)))
    study = Study.of("fedcrl", results.collect(measured), measured)
    cells = [Cell("fedcrl", "balanced", method) for method in ("fedavg", "ours")]
    (panel,) = curves(study, cells).panels
    assert f"({measure_words(headline)})" in panel.svg
    assert curves(study, []).panels == []
