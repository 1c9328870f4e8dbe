"""`fedrepro run CELL --seeds 7,8` and `sweep CELL mu=0.1,1`: outside of git and of the tables."""

import json

import pytest
from repository import CELL, edited, forget, python, stage

from pipeline.commands import variants
from pipeline.errors import ParamError
from pipeline.schema import Cell
from pipeline.schema.cell import ExtraSeeds

WITHOUT_DVC = "from pipeline.commands import run, variants; run.main = lambda *_: 0"


@pytest.mark.parametrize("text", ["", "7,", "7;8", "-1", "7.5", "7,7", "x", str(2**31)])
def test_what_is_no_list_of_seeds_is_refused(text):
    with pytest.raises(ParamError, match="--seeds"):
        variants.parse_seeds(text)


def test_a_paper_is_refused():
    for names in ([], ["fedlsa"], ["fedlsa/nowhere"], ["fedlsa/mini/nothing"]):
        with pytest.raises(ParamError):
            variants.extra_seeds(names, "7")
    assert variants.parse_seeds("7, 8") == (7, 8)


def test_extra_seeds_are_trained_beside_the_table_and_taken_over_later(project):
    text = python(project, f"{WITHOUT_DVC}; variants.extra_seeds(['{CELL}'], '5')").stdout
    added = ExtraSeeds("fedcrl", "mini", "fedprox", (5,))
    result = json.loads((added.folder(project) / "result.json").read_text())
    assert result["seeds"] == [5]
    assert f"{result['measures']['weighted'][0]:.2f} %" in text
    trained = list(project.glob(".cells/*/seed-5*"))
    assert trained
    with edited(project / "params.yaml", lambda document: document["miniature"].update(seeds=[5])):
        stage(project, "partition", "fedcrl/mini")
        done = stage(project, "train", CELL)
    stage(project, "partition", "fedcrl/mini")
    assert "round" not in done.stderr.replace("4 rounds", "")  # nothing was trained again
    again = json.loads((Cell.parse(CELL).folder(project) / "result.json").read_text())
    assert again["measures"] == result["measures"]
    forget(project)


@pytest.mark.parametrize(
    "text, key",
    [
        *((text, "sweep '") for text in ("mu", "mu=", "=1", "mu=1,1.0", "a b=1")),
        ("mx=1", "'mx'"),
        ("mu=-1", "mu: "),
        ("learning_rate=x", "learning_rate: "),
    ],
)
def test_a_sweep_that_no_training_takes_is_refused_before_the_first(text, key):
    with pytest.raises(ParamError, match=key):
        variants.sweep(CELL, text)


def test_a_sweep_trains_every_value_and_leaves_git_alone(project):
    before = {path: path.read_bytes() for path in project.glob("papers/*/runs/*/*/*")}
    shown = python(project, f"{WITHOUT_DVC}; variants.sweep('{CELL}', 'mu=1e-3,5')").stdout
    for value in (0.001, 5):
        result = json.loads(
            (project / f"papers/fedcrl/sweeps/mini/fedprox/mu={value}/result.json").read_text()
        )
        assert result["hyper"]["mu"] == value
        accuracies = result["measures"][result["headline"]]
        assert f"mu {value} {sum(accuracies) / len(accuracies):.2f} ± " in " ".join(shown.split())
    assert before == {path: path.read_bytes() for path in project.glob("papers/*/runs/*/*/*")}
    forget(project)
