"""Seals of documents."""

import json

import pytest

from pipeline.sealing import seal


@pytest.fixture
def reread():
    """A sealed document as it comes back from a file."""
    return json.loads(json.dumps(seal({"b": {2: [1.5], 10: "ä"}, "a": 1})))


def test_a_seal_survives_a_file(reread):
    assert seal(reread)["self"] == seal({"b": {2: [1.5], 10: "ä"}, "a": 1})["self"]


def test_a_seal_shows_a_change(reread):
    assert seal({**reread, "a": 2})["self"] != reread["self"]


def test_a_number_that_json_cannot_hold_is_refused():
    with pytest.raises(ValueError):
        seal({"a": float("nan")})
