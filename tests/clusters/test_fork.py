"""Which stages are forks of one process, and what such a fork does."""

import os
import sys
from types import SimpleNamespace

import pytest
import yaml

from pipeline.clusters import fork
from pipeline.clusters.local import _is_fork
from pipeline.schema import ROOT


def task(cmd, cell=None):
    return SimpleNamespace(stage=SimpleNamespace(cmd=cmd), cell=cell)


@pytest.mark.parametrize(
    ("cmd", "words"),
    [
        (
            "python -m stages.figures fedcrl/mini/fedavg figure4",
            ["stages.figures", "fedcrl/mini/fedavg", "figure4"],
        ),
        ("python -m stages.results fedcrl", ["stages.results", "fedcrl"]),
        ("python -m stages.figures fcclplus/mini figure5", None),  # images, which torch resizes
        ("python -m stages.figures fedcrl", None),
        ("python -m stages.report fedcrl", None),
        ("python -m stages.train fedcrl/mini/fedavg", None),
        (["python -m stages.results fedcrl"], None),
        (None, None),
    ],
)
def test_figures_of_cells_and_results_are_forks(cmd, words):
    assert fork.arguments_of(task(cmd)) == words
    assert _is_fork(task(cmd)) == (words is not None and sys.platform == "linux")


def test_outputs_of_these_stages_stay_until_they_are_replaced():
    """DVC removes the others before a stage runs; a fork removes nothing."""
    found = 0
    for path in ROOT.glob("papers/*/dvc.yaml"):
        for stage in yaml.safe_load(path.read_text())["stages"].values():
            stage = stage.get("do", stage)
            command = (
                stage["cmd"].replace("${item.method}", "fedavg") if isinstance(stage["cmd"], str) else None
            )
            if fork.arguments_of(task(command)) is not None:
                found += 1
                assert all(flags["persist"] for out in stage["outs"] for flags in out.values())
    assert found > 5


@pytest.fixture
def outputs(monkeypatch):
    """Keeps what a fork would do to its process: folder, group, environment and standard output."""
    where, one, two = os.getcwd(), os.dup(1), os.dup(2)
    monkeypatch.setattr(os, "setpgid", lambda *_: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    os.chdir(where)
    os.dup2(one, 1)
    os.dup2(two, 2)
    os.close(one)
    os.close(two)


def test_an_error_is_a_line_of_the_log_and_the_exit_code(tmp_path, outputs, capfd):
    log = tmp_path / "log"
    with pytest.raises(SystemExit) as ended, capfd.disabled():
        fork.run_here(["stages.figures", "fedcrl/mini/fedavg", "figure99"], str(ROOT), str(log), 0, {})
    assert ended.value.code == 2
    text = log.read_text()
    assert text == "error: papers/fedcrl/paper.yaml: no figure figure99 shows fedcrl/mini/fedavg\n"
