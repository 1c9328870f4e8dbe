"""What a training loads is what its digest covers: of committed results, and while a training runs."""

import json

import pytest
from loaded_modules import undigested

from pipeline import source_code
from pipeline.cells.experiment import Experiment
from pipeline.errors import FedReproError
from pipeline.provenance import identity, modules
from pipeline.schema import ROOT, Cell, papers, planned
from pipeline.training import cache

CELL = "fedcrl/mini/fedprox"


def current_results() -> dict[Cell, dict]:
    """Results of this repository that recorded their modules and were trained by today's code."""
    found = {}
    for cell in (cell for key in papers() for cell in planned(key)):
        path = cell.folder(ROOT) / "result.json"
        result = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        if "modules" in result and identity.current(result, Experiment.of(cell, ROOT)):
            found[cell] = result
    return found


@pytest.fixture(scope="module")
def results() -> dict[Cell, dict]:
    found = current_results()
    assert len({cell.method for cell in found}) > 40, "the miniatures of nearly all methods"
    return found


@pytest.mark.parametrize("paper", papers())
def test_what_committed_trainings_loaded_is_covered_by_their_digests(results, paper):
    """Or it is one of the modules of which tests say that they change no number."""
    missing = {
        str(cell): names
        for cell, result in results.items()
        if cell.paper == paper and (names := undigested(cell, result["modules"], result["executor"]))
    }
    assert missing == {}


def test_a_file_that_changed_after_it_was_loaded_is_refused(monkeypatch):
    monkeypatch.setattr(source_code, "loaded", {"pipeline.errors": "0" * 64})
    with pytest.raises(FedReproError, match=r"^pipeline/errors\.py: changed since this process loaded it"):
        modules.check_unchanged()


def test_files_that_are_as_they_were_loaded_are_not():
    assert source_code.loaded
    modules.check_unchanged()


def test_a_training_asks_before_its_first_round(monkeypatch):
    monkeypatch.setattr(source_code, "loaded", {"pipeline.errors": "0" * 64})
    with pytest.raises(FedReproError, match="changed since this process loaded it"):
        cache.first_rounds(Experiment.of(Cell.parse(CELL)), 0)


def test_a_loaded_module_that_acts_on_import_is_undigested(monkeypatch):
    """One that only defines something is not."""
    code = identity._code(ROOT)
    acting = {"pipeline.report.words": [object()]}
    monkeypatch.setattr(type(code), "_acting", lambda self, name: acting.get(name, []))
    loaded = ["pipeline.report.words", "pipeline.report.tables"]
    assert undigested(Cell.parse(CELL), loaded, "sequential") == ["pipeline.report.words"]
