"""The code of an earlier commit: what it is asked, wherever its modules lay."""

import pytest

from pipeline.commands.former_code import Answer, FormerCode, walk_module
from pipeline.errors import FedReproError
from pipeline.schema import Cell

CELL = Cell("toy", "mini", "fedavg")
OTHER = Cell("toy", "mini", "other")
SCHEMA = """
from pathlib import Path
ROOT = Path.cwd()
class Cell:
    def __init__(self, *names): self.method = names[-1]
    def folder(self, root): return root
"""
RESULTS = "def read(path): return {'self': 'abc'}"
EXPERIMENT = "class Experiment:\n    of = staticmethod(lambda cell, root: cell)"
CURRENT = "def current(result, experiment): return experiment.method == 'fedavg'"
TODAY = ("pipeline/provenance/identity.py", "pipeline/training/walk.py")
BEFORE = ("pipeline/cells/provenance.py", "pipeline/cells/walk.py")


@pytest.fixture(params=[TODAY, BEFORE], ids=["today", "before the rooms"])
def former(tmp_path, request):
    identity, walk = request.param
    texts = {
        "pipeline/schema.py": SCHEMA,
        "pipeline/cells/results.py": RESULTS,
        "pipeline/cells/experiment.py": EXPERIMENT,
        identity: CURRENT,
        walk: "",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    return FormerCode("0" * 40, tmp_path)


def test_a_result_counts_by_the_former_codes_own_answer(former):
    assert former.ask([CELL, OTHER]) == {CELL: Answer("counts", "abc"), OTHER: Answer("stale", "abc")}


def test_a_result_that_the_former_code_cannot_read_does_not_count(former):
    (former.root / "pipeline/cells/results.py").write_text("def read(path): raise ValueError('cut short')")
    answer = former.ask([CELL])[CELL]
    assert answer == Answer("cut short", "")
    with pytest.raises(FedReproError, match="00000000 has no such result, or cannot read it: cut short"):
        former.check_counts({"self": "abc"}, answer)


def test_former_code_that_cannot_be_loaded_is_told_in_one_line(former):
    (former.root / "pipeline/schema.py").write_text("import nowhere_to_be_found")
    with pytest.raises(FedReproError, match="00000000 cannot read its results: ModuleNotFoundError"):
        former.ask([CELL])


def test_the_very_result_of_the_commit_counts(former):
    former.check_counts({"self": "abc"}, Answer("counts", "abc"))


def test_another_result_than_the_commits_does_not_count(former):
    with pytest.raises(FedReproError, match="has another result of it"):
        former.check_counts({"self": "xyz"}, Answer("counts", "abc"))


def test_a_result_that_was_stale_does_not_count(former):
    with pytest.raises(FedReproError, match="does not count as that of 00000000's code either"):
        former.check_counts({"self": "abc"}, Answer("stale", "abc"))


def test_the_walk_is_found_where_the_former_code_has_it(former):
    assert (former.root / f"{walk_module(former.root).replace('.', '/')}.py").is_file()
