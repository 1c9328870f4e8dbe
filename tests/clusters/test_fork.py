"""Which stages are forks of one process, and what such a fork does."""

import dataclasses
import gc
import json
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pipeline.arithmetic import PORTABLE
from pipeline.cells.experiment import Experiment
from pipeline.clusters import fork, local
from pipeline.clusters.local import Local, _forked_by, _is_fork
from pipeline.provenance import definitions, identity
from pipeline.schema import ROOT, Cell

FIGURE = "figures fedcrl/mini/fedavg figure4"


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
        ("python -m stages.train fedcrl/mini/fedavg", None),  # of which the stage is no cell's
        (["python -m stages.results fedcrl"], None),
        (None, None),
    ],
)
def test_figures_of_cells_and_results_are_forks(cmd, words):
    assert fork.arguments_of(task(cmd)) == words
    assert _is_fork(task(cmd)) == (words is not None and sys.platform == "linux")


@pytest.mark.parametrize(
    ("name", "kind"), [("fedcrl/mini/fedavg", "portable"), ("fedlsa/office-caltech/fedavg", None)]
)
def test_cells_are_forks_of_a_process_with_their_arithmetic(monkeypatch, name, kind):
    monkeypatch.setattr(local, "SERVERS", {})
    cell, here = task(f"python -m stages.train {name}", name), Local(1)
    results, figure = (task(f"python -m stages.{words}") for words in ("results fedlsa", FIGURE))
    assert _is_fork(cell) == (sys.platform == "linux")
    assert not _is_fork(task(f"python -m stages.tune {name}", name))
    assert here._arithmetic_of(cell) == kind
    assert here._arithmetic_of(results) == "portable"
    local.SERVERS[kind] = forkserver.ForkServer()  # has not begun
    assert here._arithmetic_of(results) == kind
    assert here._arithmetic_of(figure) == "portable"


@pytest.mark.rest
@pytest.mark.skipif(sys.platform != "linux", reason="there are no forks")
def test_each_arithmetic_has_a_process_of_its_own(tmp_path, monkeypatch):
    """Which imports nothing here: what a fork finds in its environment is what torch would have found."""
    monkeypatch.setattr(fork, "IMPORTS", [])
    monkeypatch.setattr(local, "SERVERS", {})
    here, found = Local(1), {}
    for kind in ("portable", None, "portable"):
        process = multiprocessing.get_context("forkserver").Process(
            target=write_environment, args=(str(tmp_path / f"{kind}.json"),)
        )
        with _forked_by(here.server(kind)):
            process.start()
        process.join()
        assert process.exitcode == 0
        found[kind] = json.loads((tmp_path / f"{kind}.json").read_text())
    assert PORTABLE.items() <= found["portable"]["environment"].items()
    assert not PORTABLE.keys() & found[None]["environment"].keys()
    assert found[None]["parent"] != found["portable"]["parent"]
    assert len(local.SERVERS) == 2


def write_environment(path: str) -> None:
    Path(path).write_text(json.dumps({"environment": dict(os.environ), "parent": os.getppid()}))


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


def test_a_fork_finds_most_code_of_its_cell_followed(monkeypatch):
    """What is left is the cell's method and what its scenario names."""
    from pipeline.clusters import warm

    assert warm.__name__ in fork.IMPORTS
    code = identity._code(ROOT)
    followed = []
    fresh = type(code)(**{field.name: getattr(code, field.name) for field in dataclasses.fields(code)})
    form = definitions.normal_form
    monkeypatch.setattr(identity, "_code", lambda root: fresh)
    monkeypatch.setattr(definitions, "normal_form", lambda *given: followed.append(given[0]) or form(*given))
    warm.follow()
    gc.unfreeze()
    before = len(followed)
    cell = Experiment.of(Cell.parse("fedcrl/mini/fedrep"))
    assert identity.parts_of(cell)
    left = {getattr(node, "name", "") for node in followed[before:]}
    assert "FedRep" in left
    assert "train_seed" not in left
    assert 5 * len(followed[before:]) < before
