"""The code of an earlier commit: what it is asked, wherever its modules lay."""

import pytest

from pipeline.commands.former_code import FormerCode, walk_module
from pipeline.errors import FedReproError
from pipeline.schema import Cell

CELL = Cell("toy", "mini", "fedavg")
SCHEMA = """
from pathlib import Path
ROOT = Path.cwd()
class Cell:
    def __init__(self, *names): self.names = names
    def folder(self, root): return root
"""
RESULTS = "def read(path): return {'self': 'abc'}"
EXPERIMENT = "class Experiment:\n    of = staticmethod(lambda cell, root: None)"
CURRENT = "def current(result, experiment): return True"
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
    former.check_counts(CELL, {"self": "abc"})
    with pytest.raises(FedReproError, match="has another result of it"):
        former.check_counts(CELL, {"self": "xyz"})


def test_the_walk_is_found_where_the_former_code_has_it(former):
    assert (former.root / f"{walk_module(former.root).replace('.', '/')}.py").is_file()
