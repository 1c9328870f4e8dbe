"""The five papers as data: every table, row and column leads to a scenario, a method and a measure."""

import pytest
from published import PAPERS, published

from pipeline import methods
from pipeline.schema import ROOT, Cell, Table, load_paper
from pipeline.schema.paper import Block

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
def test_every_scenario_is_used_and_described(paper):
    document = load_paper(paper)
    drawn = {name for figure in document.figures.values() for name in figure.scenarios}
    in_tables = {block.scenario for table in document.tables.values() for block in table.blocks.values()}
    printed = [one for one in document.figures.values() if not one.title.endswith("(not in the paper)")]
    of_the_print, extra = in_tables.union(*(one.scenarios for one in printed)), {*document.extra_scenarios}
    assert not of_the_print & extra
    assert drawn | in_tables | extra == set(document.scenarios) - {"mini", "across"}
    assert set(document.titles) == set(document.scenarios) - {"mini", "across"} >= set(document.notes)


@pytest.mark.parametrize("paper", PAPERS)
def test_methods_with_code_accept_their_hyper_parameters(paper):
    document = load_paper(paper)
    for key in document.methods:
        for scenario in document.scenarios:
            _, algorithm, hyper = Cell(paper, scenario, key).resolve()
            assert methods.load(algorithm, hyper, key)


def test_a_column_of_ours_has_the_model_before_the_blocks_measure():
    table = Table("1", "", "x.csv", also={"averaged": "pre.AVG", "local": "post.average"})
    assert table.measure(Block("main", "inter."), "averaged") == "pre.inter.AVG"
    assert table.measure(Block("main"), "local") == "post.average"


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
