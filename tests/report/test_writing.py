"""Forks that draw the pages of a report: the same texts in the same order, whatever becomes of a fork."""

import os
import signal
import sys

import pytest

from pipeline.errors import ParamError
from pipeline.report.writing import _made

HERE = os.getpid()
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="no forks there")


def names():
    return [lambda name=name: {name: f"{name} by {os.getpid() == HERE}"} for name in "abcd"]


def test_forks_make_all_parts_and_their_order_stays():
    assert _made(names(), 3) == [{name: f"{name} by False"} for name in "abcd"]
    assert _made(names(), 1) == [{name: f"{name} by True"} for name in "abcd"]


def test_what_a_fork_cannot_make_as_it_was_killed_is_made_here():
    def killed():
        if os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"killed": "made"}

    made = _made([*names(), killed], 2)
    assert made == [*({name: f"{name} by True"} for name in "abcd"), {"killed": "made"}]


def test_an_error_of_a_part_is_that_of_the_report():
    def wrong():
        raise ParamError("papers/x/paper.yaml: wrong")

    for workers in (1, 2):
        with pytest.raises(ParamError, match="papers/x/paper.yaml: wrong"):
            _made([*names(), wrong], workers)
