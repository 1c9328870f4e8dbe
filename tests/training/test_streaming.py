"""Trained models are kept only in rounds whose scoring reads them; the results are the same."""

import dataclasses

import pytest
from repository import edit, stage

from pipeline.cells.experiment import Experiment
from pipeline.engine import trained as recorded
from pipeline.schema import Cell
from pipeline.training import seeds
from pipeline.training.seeds import Job, SeedTraining, trained

CELL = Cell("fedcrl", "mini", "fedavg")
ROUNDS = 4


@pytest.fixture(scope="module")
def four_rounds(project):
    """A miniature of four rounds, one seed."""

    def change(document):
        scenario = document["miniature"]["scenario"]
        scenario["training"]["rounds"] = ROUNDS
        scenario["evaluation"] = {"tests": "clients", "last": 1}
        scenario["seeds"] = [0]

    edit(project / "papers/fedcrl/paper.yaml", change)
    stage(project, "partition", "fedcrl/mini")
    return project


def experiment(root, **changes) -> Experiment:
    known = Experiment.of(CELL, root)
    protocol = dataclasses.replace(known.scenario.evaluation, **changes)
    return dataclasses.replace(known, scenario=dataclasses.replace(known.scenario, evaluation=protocol))


@pytest.fixture
def kept(monkeypatch):
    """Whether each round kept its trained models, in order; the training before round 1 first."""
    rounds = []

    class Recorded(recorded.Watch):
        def __init__(self, executor, keep=True):
            super().__init__(executor, keep)
            rounds.append(not self.streams)

    monkeypatch.setattr(seeds, "Watch", Recorded)
    return rounds


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"every": 1}, [True, True, True, True]),
        ({"every": 2}, [False, True, False, True]),
        ({"every": 2, "last": 2}, [False, True, True, True]),
        ({"every": 4}, [False, False, False, True]),
    ],
    ids=str,
)
def test_the_models_of_a_round_that_is_not_scored_are_dropped(four_rounds, kept, changes, expected):
    trained(Job(experiment(four_rounds, **changes), 0, f"kept-{changes}"))
    assert kept[1:] == expected


def test_dropping_them_changes_no_number_and_no_state(four_rounds, monkeypatch):
    streamed = trained(Job(experiment(four_rounds, every=4), 0, "streamed"))
    monkeypatch.setattr(SeedTraining, "_reads_trained", lambda self, number: True)
    kept_all = trained(Job(experiment(four_rounds, every=4), 0, "kept"))
    assert streamed.rows == kept_all.rows
    assert streamed.clients == kept_all.clients
