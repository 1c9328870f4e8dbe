"""Files beside the results, as `check` reads them: tables of clients, and sources.yaml."""

import pytest

from pipeline.errors import FedReproError
from pipeline.provenance import companions
from pipeline.provenance.companions import check_clients, problems
from pipeline.schema import Cell

CELL = Cell("fedcrl", "balanced", "ours")
HEAD = "client,domain,train,test,0,1\n"
WHOLE = "a,digits,3,2,1,2\nb,digits,5,2,4,1\n"


@pytest.fixture
def table(tmp_path):
    """Writes clients.csv."""

    def write(rows: str):
        path = tmp_path / "clients.csv"
        path.write_text(HEAD + rows)
        return path

    return write


def test_a_whole_table_of_clients_passes(table):
    check_clients(table(WHOLE), {})


@pytest.mark.parametrize("rows", ["a,digits,3,2,3\n", "a,digits,3,-1,1,2\n"], ids=["short", "negative"])
def test_a_line_that_is_short_or_negative_is_refused(table, rows):
    with pytest.raises(FedReproError, match="not counts of images"):
        check_clients(table(rows), {})


def test_images_that_do_not_sum_to_those_of_the_classes_are_refused(table):
    with pytest.raises(FedReproError, match="client a: 3 images, 4 by class"):
        check_clients(table("a,digits,3,2,2,2\n"), {})


def test_other_clients_than_the_results_are_refused(table):
    result = {"holdings": {"images": [[3, 6]]}, "final": {}}
    with pytest.raises(FedReproError, match=f"not the clients on which {CELL} was trained"):
        check_clients(table(WHOLE), {CELL: result})


def test_a_result_without_holdings_is_not_compared(table):
    check_clients(table(WHOLE), {CELL: {"holdings": None, "final": {}}})


def test_of_a_sample_as_many_clients_have_an_accuracy_as_are_scored(table):
    measures = {"average": [50.0], "weighted": [50.0], "clients_std": [0.0]}
    result = {"holdings": {"images": [[3, 5]]}, "final": measures, "measures": measures, "sample": 1}
    check_clients(table(WHOLE), {CELL: result | {"clients": [[None, 50.0]]}})
    with pytest.raises(FedReproError, match="2 clients have an accuracy, 1 are scored"):
        check_clients(table(WHOLE), {CELL: result | {"clients": [[50.0, 50.0]]}})
    with pytest.raises(FedReproError, match="30.0 is no share of the 2 test images of b"):
        parts = {name: [30.0] for name in ("average", "weighted")} | {"clients_std": [0.0]}
        check_clients(table(WHOLE), {CELL: result | {"clients": [[None, 30.0]], "final": parts}})


def test_sources_of_other_code_are_told(root, monkeypatch):
    monkeypatch.setattr(companions, "overlay", lambda key, root: {})
    monkeypatch.setattr(companions.identity, "noted", lambda key, root: {str(CELL): "then"})
    monkeypatch.setattr(companions.identity, "code_of", lambda experiment, result: "now")
    told = list(problems("fedcrl", {CELL: {"seeds": [0]}}, root))
    assert told == [
        f"papers/fedcrl/sources.yaml: not of today's code for {CELL}: python -m stages.sources fedcrl"
    ]


def test_a_papers_tables_of_clients_are_compared_with_the_results_of_their_scenario(root, monkeypatch):
    monkeypatch.setattr(companions, "sources", lambda key, results, root: [])
    path = root / "papers/fedcrl/runs/balanced/clients.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + WHOLE)
    result = {"holdings": {"images": [[3, 6]]}, "final": {}}
    told = list(problems("fedcrl", {CELL: result, Cell("fedcrl", "other", "ours"): result}, root))
    assert len(told) == 1
    assert f"not the clients on which {CELL} was trained" in told[0]
