"""`fedrepro run CELL --seeds 7,8`: seeds that a user adds, outside of git and of the tables."""

import json

import pytest
from repository import CELL, edit, forget, python, stage

from pipeline.commands import extra_seeds
from pipeline.errors import ParamError
from pipeline.schema import Cell, ExtraSeeds, load_paper


@pytest.mark.parametrize("text", ["", "7,", "7;8", "-1", "7.5", "7,7", "x", str(2**31)])
def test_what_is_no_list_of_seeds_is_refused(text):
    with pytest.raises(ParamError, match="--seeds"):
        extra_seeds.parse(text)


def test_a_scenario_stands_for_its_cells_and_a_paper_is_refused():
    assert Cell("fedlsa", "mini", "fedavg") in extra_seeds.cells(["fedlsa/mini"])
    assert extra_seeds.cells([CELL, CELL]) == [Cell.parse(CELL)]
    for names in ([], ["fedlsa"], ["fedlsa/nowhere"], ["fedlsa/mini/nothing"]):
        with pytest.raises(ParamError):
            extra_seeds.cells(names)
    assert extra_seeds.parse("7, 8") == (7, 8)


def test_extra_seeds_are_trained_beside_the_table_and_taken_over_later(project):
    code = f"from pipeline.commands import extra_seeds as o; o.train(o.cells(['{CELL}']), (5,))"
    text = python(project, code).stdout
    added = ExtraSeeds("fedcrl", "mini", "fedprox", (5,))
    result = json.loads((added.folder(project) / "result.json").read_text())
    assert result["seeds"] == [5] and f"{result['measures']['weighted'][0]:.2f} %" in text
    trained = list(project.glob(".cells/*/seed-5*"))
    assert trained
    edit(project / "params.yaml", lambda document: document["miniature"].update(seeds=[5]))
    stage(project, "partition", "fedcrl/mini")
    done = stage(project, "train", CELL)
    assert "round" not in done.stderr.replace("4 rounds", "")  # nothing was trained again
    again = json.loads((Cell.parse(CELL).folder(project) / "result.json").read_text())
    assert again["measures"] == result["measures"]
    forget(project)


def test_other_seeds_of_the_miniature_leave_the_tunings_valid(project):
    """`dvc exp run -S 'miniature.seeds=[7]'` reads every paper with these seeds."""
    edit(project / "params.yaml", lambda document: document["miniature"].update(seeds=[7]))
    assert load_paper("fedcrl", project).scenarios["mini"].seeds == [7]
