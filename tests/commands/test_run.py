"""`fedrepro run` on stub stages: order, parallelism, failures, Ctrl-C, kill -9, time left."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from repository import PATIENCE, wait_for
from rich.console import Console
from stub_stages import ENVIRONMENT, RUN, TIMED, clean, living, ran, repository, run, stub

import pipeline.commands.run  # noqa: F401  (as commands.run: `run` is another one here)
from pipeline import commands
from pipeline.cells.experiment import Experiment
from pipeline.commands import schedule, unchanged
from pipeline.commands.run import Display, _hidden, partition_stage, targets
from pipeline.commands.sync import show_grids
from pipeline.errors import ParamError
from pipeline.schema import ROOT, Cell, load_paper, planned
from pipeline.training.checks import runnable


def when(folder: Path, name: str) -> tuple[float, float]:
    return float((folder / f"{name}.begun").read_text()), float((folder / f"{name}.ended").read_text())


def test_a_scenario_stands_for_its_cells():
    cells = [cell for cell in planned("fedlsa") if cell.scenario == "pacs-64"]
    assert targets("fedlsa/pacs-64") == [cell.stage(load_paper("fedlsa")) for cell in cells] != []
    assert targets("papers/fedlsa/dvc.yaml") == ["papers/fedlsa/dvc.yaml"]
    assert targets("fedlsa") == ["papers/fedlsa/dvc.yaml", "papers/fedlsa/grids/dvc.yaml"]
    with pytest.raises(ParamError, match="papers/fedlsa/paper.yaml: grids: unknown scenario 'pac-64'"):
        targets("fedlsa/pac-64")
    with pytest.raises(ParamError, match="run: a stage without a name"):
        targets("")


class Stop(Exception):
    """Ends a command where a test has seen enough."""


def test_a_run_writes_the_stages_that_paper_yaml_asks_for(monkeypatch, capsys):
    def stop(*arguments):
        raise Stop

    monkeypatch.setattr(commands.run, "sync", lambda: [ROOT / "papers/fedcrl/tuning/dvc.yaml"])
    monkeypatch.setattr(commands.run, "Schedule", stop)
    with pytest.raises(Stop):
        commands.run.main(["fedcrl/mini/fedprox"], force=True)
    assert "papers/fedcrl/tuning/dvc.yaml: written, as paper.yaml says" in capsys.readouterr().out


def test_what_runs_and_in_what_order(tmp_path):
    """first -> left, right -> last; `last` has a separate dvc.yaml."""
    diamond = repository(
        tmp_path,
        first=stub("first", "in"),
        left=stub("left", "first", does="sleep 1.5"),
        right=stub("right", "first", does="sleep 1.5"),
    )
    (diamond / "sub").mkdir()
    last = {
        "cmd": "cd ..; " + TIMED.format("last", "true", "left.txt right.txt"),
        "deps": ["../left.txt", "../right.txt"],
        "outs": [{"../last.txt": {"cache": False}}],
    }
    (diamond / "sub" / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"last": last}}))
    run(diamond, "sub/dvc.yaml:last", "--jobs", "2")
    first, left, right, last = (when(diamond, name) for name in ("first", "left", "right", "last"))
    assert first[1] < min(left[0], right[0])
    assert max(left[1], right[1]) < last[0]
    assert max(left[0], right[0]) < min(left[1], right[1])  # both ran at once
    assert {line.split(maxsplit=1)[1] for line in (diamond / "ran").read_text().splitlines()} == {"1 1"}
    assert sorted(ran(diamond)) == ["first", "last", "left", "right"]
    assert clean(diamond)
    assert (diamond / "last.txt").read_text() == "1\n1\n"
    logs = {path: path.stat().st_mtime_ns for path in (diamond / ".cells/logs").iterdir()}
    assert "nothing to do: 4 stages" in run(diamond, "sub/dvc.yaml")
    assert {path: path.stat().st_mtime_ns for path in (diamond / ".cells/logs").iterdir()} == logs
    assert len(logs) == 4
    assert '"stages": 4' in (diamond / unchanged.FILE).read_text()  # what the next call takes for granted
    assert "nothing to do: 4 stages" in run(diamond, "sub/dvc.yaml")
    ran(diamond)
    (diamond / "left.txt").write_text("edited\n")
    assert "1 of 4 stages run, 3 unchanged" in run(diamond, "sub/dvc.yaml")
    assert ran(diamond) == ["left"]  # its output is as before: `last` has not changed
    run(diamond, "first", "--force")
    assert ran(diamond) == ["first"]
    assert clean(diamond)


def test_a_cell_is_not_trained_for_representations_that_nothing_needs(tmp_path):
    """As in a fresh clone: results are in git, representations are not; also of a tuned cell."""
    stages, cells = {}, {}
    for name, place in (("mini/fedavg", "runs"), ("mini-tuned/fedavg", "tuning")):
        result = f"papers/fedcrl/{place}/{name}/result.json"
        pictures = f"papers/fedcrl/representations/{name}.npz"
        folders = " ".join(str(Path(file).parent) for file in (result, pictures))
        stages[place] = {
            "cmd": f"mkdir -p {folders}; echo {{}} > {result}; cp in.txt {pictures}; echo {place} >> ran",
            "deps": ["in.txt"],
            "outs": [{result: {"cache": False}}, pictures],
        }
        cells[tmp_path / result] = tmp_path / pictures
    stages["figure"] = {
        "cmd": f"echo figure >> ran; cat {' '.join(map(str, cells.values()))} > figure.txt",
        "deps": [str(path.relative_to(tmp_path)) for path in cells.values()],
        "outs": [{"figure.txt": {"cache": False}}],
    }
    folder = repository(tmp_path, **stages)

    def fresh() -> None:
        for pictures in cells.values():
            pictures.unlink()
        shutil.rmtree(folder / ".dvc/cache")

    run(folder)
    assert sorted(ran(folder)) == ["figure", "runs", "tuning"]
    fresh()
    assert "2 stages are up to date" in run(folder, "runs", "tuning")
    assert not any(pictures.exists() for pictures in cells.values())
    run(folder, "figure")  # which needs them
    assert sorted(ran(folder)) == ["runs", "tuning"]
    fresh()
    for result in cells:
        result.unlink()
    run(folder, "runs", "tuning")  # more is missing
    fresh()
    (folder / "in.txt").write_text("2\n")
    run(folder, "runs", "tuning")
    assert sorted(ran(folder)) == ["runs", "runs", "tuning", "tuning"]


def test_stages_of_grids_are_hidden_from_dvc_until_one_is_run(tmp_path):
    folder = repository(tmp_path, one=stub("one", "in"))
    grid = folder / "papers/p/grids/dvc.yaml"
    grid.parent.mkdir(parents=True)
    far = {"cmd": "echo far >> ran", "deps": ["one.txt"], "wdir": "../../.."}
    grid.write_text(yaml.safe_dump({"stages": {"far": far}}))
    shutil.copy(ROOT / ".dvcignore", folder)
    assert "1 of 1 stages run" in run(folder)
    assert "unknown stage" in run(folder, "papers/p/grids/dvc.yaml:far", expect=2)
    show_grids(folder)
    assert ran(folder) == ["one"]
    assert "1 of 2 stages run" in run(folder, "papers/p/grids/dvc.yaml:far")
    assert ran(folder) == ["far"]
    hidden = ("papers/p/grids/dvc.yaml:far", "papers/p/tuning/dvc.yaml", "data/dvc.yaml:fetch@mnist")
    assert all(_hidden(f"{ROOT}/{name}") for name in hidden)
    assert not any(_hidden(f"{ROOT}/{name}") for name in ("dvc.yaml", "papers/p/dvc.yaml:mini@m", "mini"))


def test_cells_are_checked_before_the_first_stage_runs(tmp_path, monkeypatch):
    trained = {"cmd": "touch ran", "deps": ["one.txt"], "outs": ["papers/nopaper/runs/mini/m/result.json"]}
    folder = repository(tmp_path, one=stub("one", "in"), two=trained)
    assert run(folder, expect=2).startswith("error: unknown paper 'nopaper'")
    assert ran(folder) == []
    cell = Cell.parse("fedlsa/mini/fedprox")
    runnable(Experiment.of(cell))
    scenario = cell.resolve()[0]
    for method, message in (
        (("fedpox", {}), "methods.fedprox: unknown method 'fedpox' .nearest: 'fedprox'"),
        (("fedprox", {"mue": 0.1}), "methods.fedprox: unknown key 'mue' .nearest: 'mu'"),
        (("fedprox", {"mu": "much"}), "methods.fedprox.mu: expected "),
        (("fedmd", {}), "methods.fedprox: fedmd needs .*, which the scenario 'mini' does not offer"),
    ):
        monkeypatch.setattr(Cell, "resolve", lambda self, root, method=method: (scenario, *method))
        with pytest.raises(ParamError, match=message):
            runnable(Experiment.of(cell))


def test_a_failed_stage_stops_only_what_needs_it(tmp_path):
    """Then it is mended, and only it and what needed it run."""
    fails = 'test -f mended || { echo "error: the reason" >&2; exit 3; }'
    folder = repository(
        tmp_path,
        bad=stub("bad", "in", does=fails),
        late=stub("late", "bad"),
        other=stub("other", "in", does="sleep 0.5"),
        end=stub("end", "other"),
    )
    reply = run(folder, "-j", "2", expect=1)
    assert "2 of 4 stages run, 1 failed, 1 skipped" in reply
    assert f"failed: bad: the reason\n        log: {Path('.cells/logs/bad.log')}" in reply
    assert sorted(ran(folder)) == ["bad", "end", "other"]
    (folder / "mended").touch()
    run(folder)
    assert ran(folder) == ["bad", "late"]
    assert clean(folder)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_no_child_outlives_a_stopped_run(tmp_path, number, code):
    """Not even one that ignores SIGINT; then the next run finishes."""
    folder = repository(
        tmp_path,
        one=stub("one", "in", does="test -f again || sleep 67.125"),
        two=stub("two", "in", does="trap '' INT; test -f again || sleep 67.125; true"),
        end=stub("end", "one", "two"),
    )
    process = subprocess.Popen(
        [*RUN, "--jobs", "2"],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: (folder / "one.begun").exists() and (folder / "two.begun").exists())
    assert len(living(folder)) >= 4
    os.kill(process.pid, number)
    reply = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == code
    assert number == signal.SIGKILL or "stopped: one, two" in reply
    wait_for(lambda: not living(folder))
    if number != signal.SIGKILL:
        return
    (folder / "again").touch()
    run(folder)
    assert ran(folder)[-1] == "end"
    assert clean(folder)


def test_of_hundreds_a_few_are_shown(tmp_path, capsys):
    """300 cells in a cluster's queue and 64 that train, of which some have not told a round yet."""
    tasks = []
    for k in range(364):
        name = f"papers/p/dvc.yaml:main@cifar100-dir-01-fedproto-{k}"
        task = schedule.Task(None, name, tmp_path / f"{k}.log")
        where = "queued (Priority)" if k < 300 else f"on node{k}"
        task.state, task.job = schedule.StageState.RUNNING, SimpleNamespace(where=where)
        if k >= 320:
            event = {"seed": 0, "round": k, "rounds": 500, "accuracy": 40.5, "left": 5000}
            task.events.write_text(json.dumps(event) + "\n")
        tasks.append(task)
    plan = SimpleNamespace(
        tasks=tasks,
        left=lambda jobs, told: (3000.0, 3600.0),
        of=lambda *states: [task for task in tasks if task.state in states],
    )
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24, color_system=None)
    display = Display(plan, 64, console)
    with display.foot:
        display.draw(time.monotonic())
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert "50 to 60 minutes left" in lines[0]
    assert any("-fedproto-320 (on node320)" in line for line in lines)
    display = Display(plan, 64, Console(width=80))  # without a terminal
    display.draw(time.monotonic())
    reply = capsys.readouterr().out
    assert reply.count("-fedproto-") == 8
    assert reply.endswith("; 56 more, 300 queued\n")
    assert "-fedproto-320 (on node320), seed 0, round 320/500, 40.50 %, 1:23:20 left" in reply
    tasks[-1].state, tasks[-1].seconds = schedule.StageState.DONE, 60.0
    tasks[-1].events.write_text(json.dumps({"accuracy": 70.5, "done": True}) + "\n")
    display.ended(tasks[-1])
    assert capsys.readouterr().out.endswith("-fedproto-363  accuracy 70.50 %\n")


def test_the_partition_of_a_scenario_with_public_images_beside_one_without(monkeypatch):
    """Each has a stage of its kind (`sync`)."""
    plain, public = SimpleNamespace(public=None), SimpleNamespace(public="photos")
    for scenarios, stage in (
        ({"one": plain, "two": public}, "partition-public"),
        ({"two": public}, "partition"),
    ):
        paper = SimpleNamespace(scenarios=scenarios)
        monkeypatch.setattr("pipeline.commands.run.load_paper", lambda key, paper=paper: paper)
        assert partition_stage(Cell("p", "two", "m")) == f"papers/p/grids/dvc.yaml:{stage}@two"
