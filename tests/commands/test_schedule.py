"""Which missing files of a cell do not have it trained again, how many cores a stage gets, and the time that
a training reports."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.commands.schedule import Schedule, StageState, Task

RESULT = "papers/fedcrl/runs/mini/fedavg/result.json"
PICTURES = "papers/fedcrl/representations/mini/fedavg.npz"
MODELS = "papers/fedcrl/final-models/mini/fedavg"


def file(path: str, exists: bool) -> SimpleNamespace:
    return SimpleNamespace(fs_path=f"/checkout/{path}", exists=exists)


def cell(*missing: str) -> Task:
    """A cell that lacks these of its files."""
    outs = [file(path, path not in missing) for path in (RESULT, PICTURES, MODELS)]
    return Task(SimpleNamespace(outs=outs), "mini@fedavg", Path("log"))


def needing(path: str) -> Task:
    """A stage that depends on a file or folder."""
    return Task(SimpleNamespace(deps=[file(path, False)]), "figure", Path("log"))


@pytest.mark.parametrize("missing", [[PICTURES], [MODELS], [PICTURES, MODELS]])
def test_representations_and_models_that_nothing_needs_may_be_missing(missing):
    assert cell(*missing).pictures_alone_missing()


@pytest.mark.parametrize("needed", [PICTURES, "papers/fedcrl/representations"])
def test_what_a_stage_of_the_run_needs_may_not_be_missing(needed):
    one = cell(PICTURES)
    one.downstream.append(needing(needed))
    assert not one.pictures_alone_missing()


@pytest.mark.parametrize("missing", [[RESULT], [RESULT, PICTURES], []])
def test_a_cell_lacks_more_or_nothing(missing):
    assert not cell(*missing).pictures_alone_missing()


@pytest.mark.parametrize("ago, left", [(0, 30), (10, 20), (60, 0)])
def test_the_time_left_is_that_of_the_last_event_less_what_has_passed_since(tmp_path, ago, left):
    task = Task(None, "mini@fedavg", tmp_path / "log")
    first = {"seed": 0, "round": 1, "rounds": 9, "left": 99}
    last = {"seed": 0, "round": 2, "rounds": 9, "left": 30}
    task.events.write_text(f"{json.dumps(first)}\n{json.dumps(last)}\n")
    moment = time.time() - ago
    os.utime(task.events, (moment, moment))
    assert task.progress()["left"] == pytest.approx(left, abs=5 if left else 0)


class Executor:
    """Takes every stage, and notes the cores that it was given."""

    def __init__(self, cores: int):
        self.cores = cores
        self.given: list[tuple[str, int]] = []

    def far(self, task: Task) -> bool:
        return False

    def submit(self, task: Task, force: bool) -> None:
        self.given.append((task.name, task.workers))


def training(name: str, state: StageState) -> Task:
    """A cell of four seeds."""
    return Task(None, name, Path(name), cell=name, known=[1.0] * 4, state=state)


def launched(cores: int, *tasks: Task) -> list[tuple[str, int]]:
    """(stage, cores) of what is started."""
    plan = Schedule.__new__(Schedule)
    plan.tasks, plan.force = list(tasks), False
    executor = Executor(cores)
    plan.launch(executor)
    return executor.given


def test_cores_are_shared_with_a_stage_that_may_be_ready_soon():
    ready = training("ready", StageState.READY)
    assert launched(4, ready, training("unchecked", StageState.WAITING)) == [("ready", 2)]


def test_a_training_gets_all_cores_where_nothing_else_may_run():
    ready = training("ready", StageState.READY)
    waiting = training("waiting", StageState.WAITING)
    waiting.upstream.append(ready)
    assert launched(4, ready, waiting) == [("ready", 4)]


def test_a_training_gets_no_more_cores_than_it_has_seeds():
    assert launched(9, training("ready", StageState.READY)) == [("ready", 4)]


def test_what_is_ready_waits_for_a_core():
    running = training("running", StageState.RUNNING)
    assert launched(1, running, training("ready", StageState.READY)) == []
