"""What cannot be in a finished seed, wherever it was trained, and that it replaces no good result."""

import json
import shutil

import pytest
from repository import CELL

from pipeline.cells import training
from pipeline.cells.experiment import Experiment
from pipeline.cells.plausible import Expected, of_clients_last, of_row, of_seed
from pipeline.errors import TrainingError
from pipeline.schema import Cell
from pipeline.sealing import seal

EXPECTED = Expected(rounds=2, clients=2, classes=3, hook="post")


def row(number: int, **changes) -> dict:
    measures = {"average": 50.0, "weighted": 45.0, "clients_std": 10.0, "loss": 1.5, "method.norm": 300.0}
    return {"round": number} | measures | changes


def seed(**changes) -> dict:
    run = {"rows": [row(0), row(1), row(2)], "hook": "post", "clients": [40.0, 60.0]}
    run |= {"holdings": {"images": [5, 6], "classes": [2, 3]}, "by_class": [1.0, None, 99.0]}
    return run | changes


def test_an_honest_seed_has_no_problem():
    assert of_seed(seed(), EXPECTED) == ""
    assert of_seed(seed(rows=[row(0, loss=None), row(1), row(2)]), EXPECTED) == ""


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            {"rows": [row(0), row(1), row(2, average=454.86)]},
            "round 2: average: 454.86 is not between 0 and 100",
        ),
        ({"rows": [row(0), row(1, weighted=-1.0), row(2)]}, "round 1: weighted"),
        ({"rows": [row(0), row(1, loss=float("inf")), row(2)]}, "loss: inf is no number"),
        ({"rows": [row(0, **{"method.norm": float("nan")}), row(1), row(2)]}, "method.norm: nan"),
        ({"rows": [row(0), row(1, participants=-1), row(2)]}, "participants"),
        ({"rows": [row(0), row(1)]}, "1 rounds, the scenario has 2"),
        ({"rows": [row(0), row(1), row(2), row(3)]}, "3 rounds, the scenario has 2"),
        ({"hook": "pre"}, "scores the models 'pre', the cell scores 'post'"),
        ({"clients": [40.0]}, "clients: 1 clients, the partition has 2"),
        ({"clients": [40.0, 60.0, 50.0]}, "clients: 3 clients"),
        ({"holdings": {"images": [5], "classes": [2, 3]}}, "holdings.images: 1 clients"),
        ({"holdings": {"images": [5, 6], "classes": [2, 4]}}, "holdings.classes"),
        ({"by_class": [1.0, 2.0]}, "by_class: 2 classes"),
        ({"clients": [45.0, 65.0]}, "average is 50.0, the clients give 55.0"),
        ({"clients": [30.0, 70.0]}, "clients_std is 10.0, the clients give 20.0"),
        ({"rows": [row(0), row(1), row(2, weighted=61.0)]}, "weighted is 61.0"),
    ],
)
def test_a_seed_that_cannot_be_is_named(changes, said):
    assert said in of_seed(seed(**changes), EXPECTED)


@pytest.mark.parametrize(
    "kind, line, said",
    [
        ("domains", {"average": 50.0, "a": 40.0, "b": 60.0, "metric.x": 1.0}, ""),
        ("domains", {"average": 55.0, "a": 40.0, "b": 60.0}, "average is 55.0, the domains give 50.0"),
        (
            "domains",
            {"average": 50.0, "a": 40.0, "b": 60.0, "post.average": 1.0, "post.a": 2.0},
            "post.average",
        ),
        ("cross", {"average": 50.0, "intra.AVG": 50.0, "intra.0": 40.0, "intra.1": 60.0}, ""),
        (
            "cross",
            {"average": 50.0, "intra.AVG": 50.0, "intra.0": 45.0, "intra.1": 60.0},
            "intra.AVG is 50.0",
        ),
        ("cross", {"average": 55.0, "intra.AVG": 50.0}, "average is 55.0"),
        ("pooled", {"average": 55.0}, ""),
    ],
)
def test_parts_of_a_line_have_to_give_its_means(kind, line, said):
    found = of_row(line, kind)
    assert said in found and bool(said) == bool(found)


def test_of_one_common_test_set_the_clients_give_the_mean():
    assert of_clients_last({"average": 50.0}, [40.0, 60.0], "pooled") == ""
    assert "the clients give 45" in of_clients_last({"average": 50.0}, [40.0, 50.0], "pooled")


def test_a_delivered_seed_that_cannot_be_is_not_written_over_a_good_result(finished, tmp_path):
    root = shutil.copytree(finished, tmp_path / "copy", symlinks=True)
    good = Cell.parse(CELL).folder(root) / "result.json"
    before = good.read_bytes()
    planned = training.plan(Experiment.of(Cell.parse(CELL), root), "fp32", "sequential")
    file = planned.jobs[0].files.finished
    run = json.loads(file.read_text())
    run["rows"][-1]["average"] = 454.86
    file.write_text(json.dumps(seal(run)))
    with pytest.raises(TrainingError, match="seed 0 cannot be what training wrote: round 4: average: 454.86"):
        planned.write(planned.result())
    assert good.read_bytes() == before
    assert file.with_name(file.name + ".damaged").exists() and not file.exists()
