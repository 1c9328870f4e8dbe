"""`fedrepro run` runs stages, or with --seeds trains cells with a user's seeds."""

import subprocess
import sys

import pytest
from repository import ROOT

from pipeline.commands import run, start, variants
from pipeline.errors import ParamError


def test_without_seeds_the_stages_are_run_with_all_options(monkeypatch):
    called = {}
    monkeypatch.setattr(run, "main", lambda stages, **options: called.update(stages=stages, **options) or 7)
    assert start.main(["mini"], jobs=2, force=True, on="slurm", cancel=False) == 7
    assert called == {"stages": ["mini"], "jobs": 2, "force": True, "on": "slurm", "cancel": False}


def test_with_seeds_the_cells_are_trained_with_these(monkeypatch):
    called = []
    monkeypatch.setattr(variants, "extra_seeds", lambda *arguments: called.append(arguments) or 3)
    assert start.main(["fedlsa/mini"], seeds="7,8", jobs=2, force=False) == 3
    assert called == [(["fedlsa/mini"], "7,8", 2)]


def test_seeds_are_refused_on_a_cluster(monkeypatch):
    monkeypatch.setattr(variants, "extra_seeds", lambda *arguments: 0)  # so that a mistake trains nothing
    with pytest.raises(ParamError, match="--seeds: trains on this machine only"):
        start.main(["fedlsa/mini"], seeds="7,8", on="slurm", jobs=None)


@pytest.mark.parametrize("module", ["run", "start"])
def test_the_command_begins_without_the_modules_of_results(module):
    """variants reads results by pandas, which costs a second: only --seeds needs it."""
    code = f"import sys, pipeline.commands.{module}; print({{'pandas', 'torch'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
