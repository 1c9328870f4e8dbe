"""Seeds of a cell in one process: what happens to the others when one fails."""

import threading
from types import SimpleNamespace

import pytest

from pipeline.training import lockstep


def test_a_seed_that_comes_to_its_phase_after_another_failed_ends_too(monkeypatch):
    """It would wait for a result that nobody makes, in a thread that keeps its models in memory."""
    joining, joined, begun, phases = threading.Thread.join, threading.Event(), [], []

    def join(thread, timeout=None):
        joined.set()  # the phases that waited have been cancelled before
        joining(thread, timeout)

    def train(k, report, share):
        begun.append(threading.current_thread())
        if len(begun) == 1:
            raise ValueError("the first seed failed")
        assert joined.wait(30)
        share(SimpleNamespace(run_all=phases.append)).run("a phase")

    monkeypatch.setattr(threading.Thread, "join", join)
    with pytest.raises(ValueError, match="the first seed failed"):
        list(lockstep.together(train, range(2)))
    late = begun[1]
    joining(late, 30)
    assert not late.is_alive()
    assert not phases
