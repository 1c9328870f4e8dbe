"""Lines of progress that a worker sends."""

import json

import pytest
from repository import ODD

from pipeline.training.progress import event

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
