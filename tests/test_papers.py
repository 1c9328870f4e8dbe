"""The five papers as data: every table, row and column leads to a scenario, a method and a measure."""

import re

import pytest
from published import PAPERS, published

from pipeline import methods
from pipeline.errors import ParamError
from pipeline.schema import ROOT, Cell, Table, load_paper
from pipeline.schema.paper import DELTA, Block

KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# Blocks that state a setting or a cost; no run measures them.
UNMEASURED = (
    "local-computation module-cost private-data-scale quantity=model hyper-parameter hyperparameters "
    "dataset-statistics"
).split()
# other readings of one data set of a table
PARTIAL = (
    "table1-few table2-augmented table2-tuned table6-dir-05 table8-02 table8-released table9-released"
).split()


@pytest.mark.parametrize("paper", PAPERS)
def test_names_are_kebab_and_labels_unique(paper):
    document = load_paper(paper)
    for name in (*document.scenarios, *document.methods, *document.grids):
        assert KEBAB.fullmatch(name), name
    labels = [document.label(method) for method in document.methods]
    assert len(labels) == len(set(labels))
    for method, values in document.methods.items():
        assert values.get("algorithm", method).isidentifier(), method


@pytest.mark.parametrize("paper", PAPERS)
def test_every_scenario_is_used_and_described(paper):
    document = load_paper(paper)
    drawn = {name for figure in document.figures.values() for name in figure.scenarios}
    in_tables = {block.scenario for table in document.tables.values() for block in table.blocks.values()}
    assert drawn | in_tables | set(document.extra_scenarios) == set(document.scenarios) - {"mini", "across"}
    assert set(document.titles) == set(document.scenarios) - {"mini", "across"} >= set(document.notes)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_scenario_beside_the_tables_is_in_none_and_in_no_figure_of_the_print(paper):
    document = load_paper(paper)
    used = {block.scenario for table in document.tables.values() for block in table.blocks.values()}
    printed = [one for one in document.figures.values() if not one.title.endswith("(not in the paper)")]
    used |= {name for one in printed for name in one.scenarios}
    assert not used & set(document.extra_scenarios)


@pytest.mark.parametrize("paper", PAPERS)
def test_methods_with_code_accept_their_hyper_parameters(paper):
    document = load_paper(paper)
    for key, values in document.methods.items():
        if values.get("algorithm", key) in methods.names():
            for scenario in document.scenarios:
                _, algorithm, hyper = Cell(paper, scenario, key).resolve()
                assert methods.load(algorithm, hyper, key)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("rows: &rows {Averaged: null}", "rows: &rows {Averaged: fedavgg}", "tables.table2.rows.Averaged"),
        (
            "scenarios: [cifar10-dir-01]\n    methods: [fedavg, fedcrl]",
            "scenarios: [cifar10-dri-01]\n    methods: [fedavg, fedcrl]",
            "figures.figure4.scenarios: unknown scenario 'cifar10-dri-01'",
        ),
        ("scenarios: {emnist-dir-01: &one", "scenarios: {emnist-dir-02: &one", "methods.moon.scenarios"),
    ],
)
def test_a_wrong_reference_is_named(tmp_path, old, new, message):
    text = (ROOT / "papers/fedcrl/paper.yaml").read_text()
    assert text.count(old) == 1
    (tmp_path / "papers/fedcrl").mkdir(parents=True)
    (tmp_path / "papers/fedcrl/paper.yaml").write_text(text.replace(old, new))
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    with pytest.raises(ParamError, match=message):
        load_paper("fedcrl", tmp_path)


def test_a_row_can_have_a_separate_scenario():
    table = Table(
        "1",
        "",
        "x.csv",
        blocks={"s|d": Block("main", "inter."), "s|d|BASE": Block("alone", "inter.")},
        columns={"Cost": None},
    )
    assert table.block("s", "d", "BASE").scenario == "alone"
    assert table.block("s", "d", "FedMD").scenario == "main"
    assert table.block("s", "e", "FedMD") is None
    local = Table("1", "", "x.csv", also={"averaged": "pre.AVG", "local": "post.average"})
    assert local.measure(Block("main", "inter."), "averaged") == "pre.inter.AVG"
    assert local.measure(Block("main"), "local") == "post.average"
    measures = [table.measure(table.block("s", "d", "FedMD"), column) for column in ("M", DELTA, "Cost")]
    assert measures == ["inter.M", None, None]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_published_file_is_a_table(paper):
    folder = ROOT / "papers" / paper / "published"
    files = {path.name for path in folder.glob("*.csv")} - {"missing.csv"}
    assert files == {table.published for table in load_paper(paper).tables.values()}
    assert (ROOT / "papers" / paper / "claims.csv").exists()
    for key, actual in published(paper).items():
        assert actual, key
        assert {row["paper"] for row in actual} == {paper}
        at = [(row["setting"], row["dataset"], row["column"], row["method"]) for row in actual]
        assert len(at) == len(set(at)), key


@pytest.mark.parametrize("paper", PAPERS)
def test_every_block_stands_in_its_table(paper):
    for key, table in load_paper(paper).tables.items():
        rows = published(paper)[key]
        blocks = {f"{row['setting']}|{row['dataset']}" for row in rows}
        of_rows = {f"{row['setting']}|{row['dataset']}|{row['method']}" for row in rows}
        assert set(table.blocks) <= blocks | of_rows, key
        assert set(table.rows) <= {row["method"] for row in rows}, key
        assert set(table.columns) <= {row["column"] for row in rows}, key
        if key in PARTIAL:
            continue
        left_out = {block.split("|")[0] for block in blocks - set(table.blocks)}
        assert all(any(word in setting for word in UNMEASURED) for setting in left_out), (key, left_out)
