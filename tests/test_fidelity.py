"""docs/fidelity.md shows what benchmarks/against_originals.py measured, and every method is on it."""

import json

import pytest
import torch

from benchmarks import against_originals as originals
from benchmarks.originals import NOT_COMPARED
from pipeline import methods
from pipeline.commands.methods import documented
from pipeline.engine import federation as engine
from pipeline.errors import FedReproError
from pipeline.schema import ROOT

MEASURED = json.loads(originals.RESULTS.read_text())
ROWS = [row for entry in MEASURED.values() for row in entry["rows"]]


def test_pages_have_the_measured_numbers_and_all_methods():
    made = originals.PAGE.read_text()
    assert originals.with_tables(made, MEASURED, methods.method_names()) == made
    # `fedrepro methods --page` writes it.
    text = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    assert text == documented() and all(f"`{name}` |" in text for name in methods.method_names())
    compared = {row["method"] for row in ROWS}
    assert (
        compared | NOT_COMPARED.keys() <= set(methods.method_names()) and not compared & NOT_COMPARED.keys()
    )
    assert "| fedhalf | nobody has" in originals.tables(MEASURED, ["fedhalf", *methods.method_names()])


def test_what_was_measured_is_explained():
    for row in ROWS:
        assert row["verdict"] == "equal" or row["remark"], row
        assert row["verdict"] in ("equal", "reading", "their error"), row
        if row["verdict"] == "equal" and row["effect"] is not None:
            assert row["effect"] > 1e3 * row["difference"], row
    assert set(MEASURED) == {repository for repository, _ in originals.known().values()}
    for entry in MEASURED.values():
        assert len(entry["commit"]) == 40 and entry["machine"]["processor"] and entry["machine"]["torch"]


def test_a_folder_that_is_no_checkout_gets_one_line(tmp_path):
    with pytest.raises(FedReproError, match="none of .*TsingZ0/PFLlib"):
        originals.identified(tmp_path)
    mark = originals.known()["pfllib"][1]
    (tmp_path / mark).parent.mkdir(parents=True)
    (tmp_path / mark).touch()
    assert originals.identified(tmp_path) == "pfllib"
    with pytest.raises(FedReproError, match="no git checkout"):
        originals.commit(tmp_path)


def test_what_compares_finds_a_difference(monkeypatch):
    """A method beside itself is equal, beside another is not."""
    monkeypatch.setattr(engine, "build", engine.build)  # the federation puts a separate network there
    default, threads = torch.get_default_dtype(), torch.get_num_threads()
    try:
        from benchmarks.originals import federation

        torch.set_default_dtype(torch.float64)
        table, world = federation.Table(), federation.world()
        fedavg, alone = federation.ours("fedavg", world), federation.ours("local", world)
        table.add("fedavg", "models", fedavg, federation.ours("fedavg", world).models[1:], without=alone)
        table.add("local", "models", alone, fedavg.models[1:])
    finally:
        torch.set_default_dtype(default)
        torch.set_num_threads(threads)
    assert [row.verdict for row in table.rows] == ["equal", "unexplained"]
    assert table.rows[0].difference == 0 and table.rows[0].effect == table.rows[1].difference > 0.01
