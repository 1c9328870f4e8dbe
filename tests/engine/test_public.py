"""The public phase: a graph that is kept, or made when its client steps, gives the same bits."""

import pytest
import torch
from all_methods import METHODS, algorithm_of, name
from federation import run, same
from public_data import federation

from pipeline.engine import public as public_phase

EVERY = [m for m in METHODS if algorithm_of(m) in ("fedmd", "feddf", "fedmatch", "rhfl", "fccl", "fcclplus")]


@pytest.mark.parametrize("method", EVERY, ids=name)
def test_looking_twice_gives_the_same_bits(method, monkeypatch):
    """With BatchNorm, dropout, or neither: a graph made when its client steps, or kept since all looked."""
    saved = run(method, federation(monkeypatch, local_epochs=2), 2)
    graphs, whole = [], type(method).client_output
    monkeypatch.setattr(public_phase, "LARGE", 0)
    monkeypatch.setattr(
        type(method), "client_output", lambda *given: graphs.append(torch.is_grad_enabled()) or whole(*given)
    )
    twice = run(method, federation(monkeypatch, local_epochs=2), 2)
    assert same(twice.models, saved.models)
    if getattr(method, "form", "clients") == "clients":
        assert graphs == ([False] * 5 + [True] * 5) * (2 * 3)  # two rounds of three public batches
