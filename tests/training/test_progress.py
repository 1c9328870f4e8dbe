"""Lines of progress that a worker sends."""

import dataclasses
import json

import pytest
from repository import ODD

from pipeline.schema import Cell, load_paper
from pipeline.training.progress import Progress, event

EVENT = {"seed": 1, "round": 2, "rounds": 5, "accuracy": 50.0, "left": 1.5}
NO_NUMBER = [value for value in ODD if value not in (None, True) and not isinstance(value, int | float)]


def test_an_event_is_read():
    assert event(json.dumps(EVENT).encode()) == EVENT


@pytest.mark.parametrize("key", EVENT)
@pytest.mark.parametrize("value", NO_NUMBER, ids=repr)
def test_an_event_of_another_shape_is_none(key, value):
    """A worker's machine may send anything."""
    assert event(json.dumps(EVENT | {key: value}).encode()) == {}


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"done": true}', b'{"round": 1}'],
    ids=["empty", "no JSON", "list", "number", "no UTF-8", "deep", "another", "a key alone"],
)
def test_a_line_that_is_no_event_is_none(line):
    assert event(line) == {}


def test_the_end_of_a_cell_is_read():
    done = {"done": True, "seeds": 3, "accuracy": 50.0}
    assert event(json.dumps(done).encode()) == done


def test_events_are_added_to_the_file_that_the_environment_names(tmp_path, monkeypatch):
    file = tmp_path / "events"
    monkeypatch.setenv("FEDREPRO_EVENTS", str(file))
    progress = Progress.__new__(Progress)
    progress.cell = "fedcrl/mini/fedavg"
    progress._event(seed=0)
    progress._event(seed=1)
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert told == [{"cell": "fedcrl/mini/fedavg", "seed": 0}, {"cell": "fedcrl/mini/fedavg", "seed": 1}]


@pytest.mark.parametrize(("headline", "share"), [(None, "60.00 %"), ("average", "50.00 %")])
def test_the_accuracy_of_a_line_is_the_headline_of_the_scenario(headline, share, capsys):
    cell = Cell("fedcrl", "mini", "fedavg")
    scenario = load_paper("fedcrl").scenarios["mini"]
    protocol = dataclasses.replace(scenario.evaluation, headline=headline)
    progress = Progress(cell, dataclasses.replace(scenario, evaluation=protocol))
    progress.printed = -1e6
    progress.report({"seed": 0, "round": 2, "average": 50.0, "weighted": 60.0})
    assert f"accuracy {share}" in capsys.readouterr().err


@pytest.mark.parametrize("row, share", [({"average": 50.0}, "accuracy 50.00 %"), ({}, "round 2/5    ")])
def test_a_line_has_the_accuracy_where_the_round_was_evaluated(row, share, capsys):
    progress = Progress.__new__(Progress)
    progress.cell, progress.rounds, progress.measure = "fedcrl/mini/fedavg", 5, "average"
    progress.done = {0: 1}
    progress.fresh = 0
    progress.begun = progress.printed = progress.sent = -1e6
    progress.report({"seed": 0, "round": 2, **row})
    assert share in capsys.readouterr().err


def test_an_event_tells_which_round_is_over(tmp_path, monkeypatch):
    file = tmp_path / "events"
    monkeypatch.setenv("FEDREPRO_EVENTS", str(file))
    cell = Cell("fedcrl", "mini", "fedavg")
    progress = Progress(cell, load_paper("fedcrl").scenarios["mini"])
    progress.report({"seed": 0, "round": 2, "average": 50.0, "weighted": 60.0})
    told = event(file.read_bytes())
    assert (told["seed"], told["round"], told["rounds"]) == (0, 2, progress.rounds)
