"""What torch and its libraries are told before a GPU trains."""

import os

import pytest
import torch

from pipeline.engine.environment import set_precision

NAME = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Torch's settings and the variable, which `set_precision` changes, are put back."""
    monkeypatch.setenv(NAME, "")
    monkeypatch.delenv(NAME)
    places = (
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cudnn, "deterministic"),
    )
    before = [getattr(place, setting) for place, setting in places]
    yield
    for (place, setting), value in zip(places, before):
        setattr(place, setting, value)


def test_cublas_gets_workspaces_with_which_equal_runs_have_equal_bits():
    set_precision(torch.device("cuda"))
    assert os.environ[NAME] == ":4096:8"


def test_a_users_workspaces_stay(monkeypatch):
    monkeypatch.setenv(NAME, ":16:8")
    set_precision(torch.device("cuda"))
    assert os.environ[NAME] == ":16:8"


def test_on_a_cpu_nothing_is_set():
    set_precision(torch.device("cpu"))
    assert NAME not in os.environ
