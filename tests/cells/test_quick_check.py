"""What is recognised at once is what the slow check accepts, and results are recognised."""

import copy
import json
import math

import pytest

from pipeline.cells.documents import Result
from pipeline.cells.quick_check import plainly
from pipeline.errors import FedReproError
from pipeline.schema import ROOT
from pipeline.schema.checker import check_known

ODD = [None, True, -1, 0, 101, 2**70, 0.5, 1e300, math.inf, math.nan, "x", "\x00", [], [0.5], {}, {"a": 1}]
PLACES = sorted((ROOT / "papers").glob("*/runs/mini/fed*/result.json"))


def accepted(document) -> bool:
    try:
        check_known(Result, document, "result")
    except FedReproError:
        return False
    return True


def places(value, at=()):
    """The place of every value within another."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*at, key))


def value_at(document, at):
    for key in at:
        document = document[key]
    return document


def replaced(document, at, value):
    changed = copy.deepcopy(document)
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return changed


@pytest.mark.parametrize("path", PLACES, ids=lambda path: "/".join(path.parts[-5:-1]))
def test_results_are_recognised(path):
    assert plainly(Result)(json.loads(path.read_text(encoding="utf-8")))


def test_a_further_key_within_the_document_is_left_to_the_check():
    document = json.loads(PLACES[0].read_text(encoding="utf-8"))
    mappings = [at for at in places(document) if at and isinstance(value_at(document, at), dict)]
    assert len(mappings) > 5
    for at in mappings:
        changed = replaced(document, (*at, "strange"), 1)
        assert accepted(changed) or not plainly(Result)(changed), at
    assert plainly(Result)(document | {"strange": 1})


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_what_is_recognised_the_check_accepts(odd):
    document = json.loads(PLACES[0].read_text(encoding="utf-8"))
    some = [at for at in places(document) if at][::7]
    assert len(some) > 50
    for at in some:
        changed = replaced(document, at, odd)
        assert accepted(changed) or not plainly(Result)(changed), at


@pytest.mark.parametrize("key", ["clients", "seeds", "measures"])
def test_a_key_that_is_missing_is_not_overlooked(key):
    document = json.loads(PLACES[0].read_text(encoding="utf-8"))
    del document[key]
    assert not plainly(Result)(document)
    assert not accepted(document)
