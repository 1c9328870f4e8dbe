"""`fedrepro run` on a small DVC repository of stub stages: order, parallelism, failures, Ctrl-C, kill -9, cut
lock files, other processes beside it, time left."""

import contextlib
import ctypes
import errno
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from repository import PATIENCE, wait_for
from rich.console import Console

from pipeline.cells.checks import runnable
from pipeline.cells.experiment import Experiment
from pipeline.commands import locks, schedule
from pipeline.commands.display import Plain, Table
from pipeline.commands.run import targets
from pipeline.errors import FedReproError, ParamError
from pipeline.files import alive
from pipeline.schema import Cell, load_paper, papers, planned

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "DVC_NO_ANALYTICS": "1",
    "COLUMNS": "200",
    "FEDREPRO_WORKERS": "",
}
RUN = [sys.executable, "-m", "pipeline", "run"]
TIMED = (
    "date +%s.%N > {0}.begun; echo {0} $FEDREPRO_WORKERS $OMP_NUM_THREADS >> ran; {1}; "
    "cat {2} > {0}.txt; date +%s.%N > {0}.ended"
)


def stub(name: str, *needs: str, does: str = "true") -> dict:
    """A stage that copies what it needs to <name>.txt and leaves its times in <name>.begun and
    <name>.ended."""
    files = [f"{need}.txt" for need in needs]
    return {
        "cmd": TIMED.format(name, does, " ".join(files)),
        "deps": files,
        "outs": [{f"{name}.txt": {"cache": False}}],
    }


def repository(folder: Path, **stages: dict) -> Path:
    """A DVC repository with these stages and their one source, in.txt."""
    (folder / ".dvc" / "tmp").mkdir(parents=True)  # what `dvc init --no-scm` makes, in no time
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = True\n")
    (folder / "in.txt").write_text("1\n")
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    return folder


def run(folder: Path, *arguments: str, expect: int = 0) -> str:
    done = subprocess.run(
        [*RUN, *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def ran(folder: Path) -> list[str]:
    """The stages that ran since the last call, as they began."""
    lines = (folder / "ran").read_text().splitlines() if (folder / "ran").exists() else []
    (folder / "ran").unlink(missing_ok=True)
    return [line.split()[0] for line in lines]


def when(folder: Path, name: str) -> tuple[float, float]:
    return float((folder / f"{name}.begun").read_text()), float((folder / f"{name}.ended").read_text())


def clean(folder: Path) -> bool:
    return (
        json.loads(
            subprocess.run(
                [sys.executable, "-m", "dvc", "status", "--json"],
                cwd=folder,
                env=ENVIRONMENT,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        == {}
    )


@pytest.fixture(scope="module")
def diamond(tmp_path_factory) -> Path:
    """first -> left, right -> last; `last` has a dvc.yaml of its own. Run once with two jobs."""
    folder = repository(
        tmp_path_factory.mktemp("diamond"),
        first=stub("first", "in"),
        left=stub("left", "first", does="sleep 1.5"),
        right=stub("right", "first", does="sleep 1.5"),
    )
    (folder / "sub").mkdir()
    last = {
        "cmd": "cd ..; " + TIMED.format("last", "true", "left.txt right.txt"),
        "deps": ["../left.txt", "../right.txt"],
        "outs": [{"../last.txt": {"cache": False}}],
    }
    (folder / "sub" / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"last": last}}))
    run(folder, "sub/dvc.yaml:last", "--jobs", "2")
    return folder


def test_a_scenario_stands_for_its_cells():
    cells = [cell for cell in planned("fedlsa") if cell.scenario == "pacs-64"]
    assert targets("fedlsa/pacs-64") == [cell.stage(load_paper("fedlsa")) for cell in cells] != []
    assert targets("papers/fedlsa/dvc.yaml") == ["papers/fedlsa/dvc.yaml"]
    with pytest.raises(ParamError, match="papers/fedlsa/paper.yaml: grids: unknown scenario 'pac-64'"):
        targets("fedlsa/pac-64")
    with pytest.raises(ParamError, match="run: a stage without a name"):
        targets("")


def test_order_and_parallelism(diamond):
    first, left, right, last = (when(diamond, name) for name in ("first", "left", "right", "last"))
    assert first[1] < min(left[0], right[0]) and max(left[1], right[1]) < last[0]
    assert max(left[0], right[0]) < min(left[1], right[1])  # both ran at once
    assert {line.split(maxsplit=1)[1] for line in (diamond / "ran").read_text().splitlines()} == {"1 1"}
    assert sorted(ran(diamond)) == ["first", "last", "left", "right"]
    assert clean(diamond) and (diamond / "last.txt").read_text() == "1\n1\n"


def test_nothing_to_do_starts_no_process(diamond):
    logs = {path: path.stat().st_mtime_ns for path in (diamond / ".cells/logs").iterdir()}
    assert "nothing to do: 4 stages are up to date" in run(diamond, "sub/dvc.yaml")
    assert {path: path.stat().st_mtime_ns for path in (diamond / ".cells/logs").iterdir()} == logs and len(
        logs
    ) == 4


def test_a_change_re_runs_what_depends_on_it_and_force_everything(diamond):
    ran(diamond)
    (diamond / "left.txt").write_text("edited\n")
    assert "1 of 4 stages run, 3 unchanged" in run(diamond, "sub/dvc.yaml")
    assert ran(diamond) == ["left"]  # its output is as before: `last` has not changed
    run(diamond, "first", "--force")
    assert ran(diamond) == ["first"] and clean(diamond)


@pytest.mark.parametrize("place, name", [("runs", "mini/fedavg"), ("tuning", "mini-tuned/fedavg")])
def test_a_cell_is_not_trained_for_representations_that_nothing_needs(tmp_path, place, name):
    """As in a fresh clone: the result is in git, the representations are not."""
    result = f"papers/fedcrl/{place}/{name}/result.json"
    pictures = f"papers/fedcrl/representations/{name}.npz"
    folders = [str(Path(name).parent) for name in (result, pictures)]
    writes = f"echo {{}} > {result}; cp in.txt {pictures}"
    train = {
        "cmd": f"echo train >> ran; mkdir -p {' '.join(folders)}; {writes}",
        "deps": ["in.txt"],
        "outs": [{result: {"cache": False}}, pictures],
    }
    figure = {
        "cmd": f"echo figure >> ran; cp {pictures} figure.txt",
        "deps": [pictures],
        "outs": [{"figure.txt": {"cache": False}}],
    }
    folder = repository(tmp_path, train=train, figure=figure)

    def fresh() -> None:
        (folder / pictures).unlink()
        shutil.rmtree(folder / ".dvc/cache")

    run(folder)
    assert ran(folder) == ["train", "figure"]
    fresh()
    assert "1 stages are up to date" in run(folder, "train") and not (folder / pictures).exists()
    run(folder, "train", "--force")
    fresh()
    run(folder, "figure")  # which needs them
    fresh()
    (folder / result).unlink()
    run(folder, "train")  # more is missing
    fresh()
    (folder / "in.txt").write_text("2\n")
    run(folder, "train")
    assert ran(folder) == ["train"] * 4


@pytest.mark.parametrize("target, nearest", [("lefd", "left"), ("sub/dvc.yaml:lost", "sub/dvc.yaml:last")])
def test_an_unknown_stage_is_one_line(diamond, target, nearest):
    assert run(diamond, target, expect=2) == f"error: unknown stage {target!r} (nearest: {nearest!r})\n"


def test_cells_are_checked_before_the_first_stage_runs(tmp_path, monkeypatch):
    trained = {"cmd": "touch ran", "deps": ["one.txt"], "outs": ["papers/nopaper/runs/mini/m/result.json"]}
    folder = repository(tmp_path, one=stub("one", "in"), two=trained)
    assert run(folder, expect=2).startswith("error: unknown paper 'nopaper'") and ran(folder) == []
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
    assert (
        "2 of 4 stages run, 1 failed, 1 skipped" in reply
        and f"failed: bad: the reason\n        log: {Path('.cells/logs/bad.log')}" in reply
    )
    assert sorted(ran(folder)) == ["bad", "end", "other"]
    (folder / "mended").touch()
    run(folder)
    assert ran(folder) == ["bad", "late"] and clean(folder)


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
    if number == signal.SIGTERM:  # as SIGINT
        return
    (folder / "again").touch()
    run(folder)
    assert ran(folder)[-1] == "end" and clean(folder)


def test_a_broken_rwlock_is_no_obstacle(tmp_path):
    folder = repository(tmp_path, one=stub("one", "in"))
    (folder / ".dvc/tmp/rwlock").write_text('{"read": {"')
    run(folder)
    assert ran(folder) == ["one"] and clean(folder)


def test_an_entry_of_its_own_in_the_rwlock_is_no_obstacle(tmp_path):
    """DVC leaves one where the list could not be written after a look at a stage."""
    folder = repository(tmp_path, one=stub("one", "in"))
    write = {str(folder / "one.txt"): {"pid": "PID", "cmd": "fedrepro run"}}
    (folder / "left").write_text(json.dumps({"write": write}).replace('"PID"', "PID"))
    begin = f'sed "s/PID/$$/" left > .dvc/tmp/rwlock; exec {sys.executable} -m pipeline run'  # its own
    subprocess.run(["bash", "-c", begin], cwd=folder, env=ENVIRONMENT, check=True, timeout=PATIENCE)
    assert ran(folder) == ["one"] and clean(folder)


def test_a_terminal_shows_a_table(tmp_path):
    """Rounds, accuracy and time left that a training stage writes to FEDREPRO_EVENTS."""
    event = json.dumps({"cell": "p/s/m", "seed": 0, "round": 3, "rounds": 20, "accuracy": 61.257, "left": 65})
    done = json.dumps({"cell": "p/s/m", "accuracy": 70.5, "done": True})
    does = f"echo '{event}' >> $FEDREPRO_EVENTS; sleep 1.5; echo '{done}' >> $FEDREPRO_EVENTS"
    folder = repository(tmp_path, one=stub("one", "in", does=does))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        RUN,
        cwd=folder,
        env={**ENVIRONMENT, "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    reply = b""
    with contextlib.suppress(OSError):  # Linux ends a terminal's output with an error
        while piece := os.read(ours, 65536):
            reply += piece
    reply = reply.decode()
    assert process.wait(timeout=PATIENCE) == 0
    assert "seed 0, round 3/20" in reply and "61.26 %" in reply and "1:05" in reply
    assert "one  accuracy 70.50 %" in reply and "1 of 1 stages run" in reply


@pytest.mark.parametrize("width, height", [(80, 24), (200, 50)])
def test_a_table_of_hundreds_fits_the_terminal(tmp_path, capsys, width, height):
    """300 cells in a cluster's queue and 64 that train, of which some have not told a round yet."""
    tasks = []
    for k in range(364):
        name = f"papers/p/dvc.yaml:main@cifar100-dir-01-fedproto-{k}"
        task = schedule.Task(None, name, tmp_path / f"{k}.log")
        where = "queued (Priority)" if k < 300 else f"on node{k}"
        task.state, task.job = schedule.RUNNING, SimpleNamespace(where=where)
        if k >= 320:
            event = {"seed": 0, "round": k, "rounds": 500, "accuracy": 40.5, "left": 5000}
            task.events.write_text(json.dumps(event) + "\n")
        tasks.append(task)
    plan = SimpleNamespace(
        tasks=tasks,
        left=lambda jobs, told: 3600.0,
        of=lambda *states: [task for task in tasks if task.state in states],
    )
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    table = Table(plan, 64, console)
    with table:
        table.draw(time.monotonic())
        lines = console.file.getvalue().splitlines()
    rows = [line for line in lines if "-fedproto-" in line]
    assert len(lines) <= height and max(map(len, lines)) <= width + len("\x1b[?25l")
    assert f"and {64 - len(rows)} more, 300 queued" in lines[-2] and "about 1:00:00 left" in lines[-1]
    assert len(rows) == height - 7 and all("40.50 %" in line and "1:23:20" in line for line in rows[:44])
    assert ("(on node320)" in rows[0]) == (width == 200) and "-fedproto-320" in rows[0]
    Plain(plan, 64).draw(time.monotonic())  # without a terminal
    reply = capsys.readouterr().out
    assert reply.count("-fedproto-") == 8 and reply.endswith("; 56 more, 300 queued\n")


def test_training_says_how_far_it_is(tmp_path, monkeypatch):
    from pipeline.cells.progress import Progress
    from pipeline.schema import Cell

    monkeypatch.setenv("FEDREPRO_EVENTS", str(tmp_path / "events"))
    cell = Cell.parse("fedcrl/mini/fedavg")
    progress = Progress(cell, cell.resolve()[0])
    progress.report({"seed": 1, "round": 1, "loss": 2.3, progress.measure: 12.5})
    progress.report({"seed": 1, "round": 2, "loss": 2.2, progress.measure: 25.0})  # too soon to be told
    progress.cell_done({"headline": "a", "measures": {"a": [50.0, 51.0]}})
    first, last = map(json.loads, (tmp_path / "events").read_text().splitlines())
    assert first.pop("left") >= 0 and first == {
        "cell": str(cell),
        "seed": 1,
        "round": 1,
        "rounds": progress.rounds,
        "accuracy": 12.5,
    }
    assert last == {"cell": str(cell), "seeds": 2, "accuracy": 50.5, "done": True}


# -- lock files ----------------------------------------------------------------------------------------------

# A DVC that is killed when it has written a share of a YAML file.
TORN = """
import io, os, signal
from ruamel.yaml import YAML
whole = YAML.dump
def dump(self, data, stream, **options):
    text = io.StringIO()
    whole(self, data, text, **options)
    stream.write(text.getvalue()[:int(len(text.getvalue()) * float(os.environ["TORN"]))])
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
if "TORN" in os.environ:
    YAML.dump = dump
"""


def torn(folder: Path, share: float, *command: str) -> int:
    """Exit code of a command in which DVC is killed while it writes its lock file."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(TORN)
    environment = {**ENVIRONMENT, "TORN": str(share), "PYTHONPATH": f"{folder / 'site'}:{ROOT}"}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, timeout=PATIENCE
    ).returncode


@pytest.mark.parametrize("share, wrong", [(0.0, "is empty"), (0.7, "is cut")])
def test_a_lock_file_outlives_a_kill_at_its_writing(tmp_path, share, wrong):
    folder = repository(tmp_path, one=stub("one", "in"), two=stub("two", "in"))
    run(folder)
    whole = (folder / "dvc.lock").read_bytes()
    (folder / "in.txt").write_text("2\n")
    ran(folder)
    assert locks.mend_locks(folder) == []  # as `fedrepro status` or a stage
    assert torn(folder, share, "pipeline", "run", "one") == 1
    assert ran(folder) == ["one"] and (folder / "dvc.lock").read_bytes() != whole
    assert (folder / ".cells/locks/dvc.lock").read_bytes() == whole
    reply = run(folder)
    assert f"dvc.lock {wrong}, as a killed DVC leaves it: replaced by its copy\n" in reply
    assert sorted(ran(folder)) == ["one", "two"] and clean(folder)


LOCK = """schema: '2.0'
stages:
  one@a:
    cmd: python one
    deps:
    - path: in.txt
      hash: md5
      md5: b026324c6904b2a9cb4b88d6d61c81d1
      size: 2
    outs:
    - path: one.txt
      hash: md5
      md5: b026324c6904b2a9cb4b88d6d61c81d1
      size: 2
  two:
    cmd: python two
    params:
      params.yaml:
        a.b: 12
    outs:
    - path: two.txt
      hash: md5
      md5: 26ab0db90d72e28ad0ba1e22ee510510
      size: 2
"""


def test_a_lock_file_cut_anywhere_is_noticed():
    """Also one whose earlier entry DVC was writing anew; and a whole one with more, less or other entries is
    none."""
    old, new = LOCK.encode(), LOCK.replace("b026", "b027").encode()
    assert [end for end in range(len(old)) if not locks.damage(old[:end], old)] == []
    missed = {new[:end] for end in range(len(new)) if not locks.damage(new[:end], old)}
    assert missed == set()
    assert locks.damage(b"\0" * 512) == "is empty" and locks.damage(b"\xff\xfe") == "is cut"
    more = old + b"  three:\n    cmd: python three\n"
    for whole in (old, new, more, b"schema: '2.0'\nstages: {}\n"):
        assert locks.damage(whole) == "" == locks.damage(whole, whole) == locks.damage(new, old)
    assert locks.damage(more, old) == "" and locks.damage(old, more) == "lacks 1 of 3 stages"


def test_a_cut_lock_file_is_mended_from_its_copy_else_from_git_else_removed(tmp_path):
    repository(tmp_path)
    lock, copy = tmp_path / "papers/p/dvc.lock", tmp_path / ".cells/locks/papers/p/dvc.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text(LOCK)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "papers"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    lock.write_text(LOCK.split("  two:")[0])  # good YAML, one entry gone
    (line,) = locks.mend_locks(tmp_path)
    assert "papers/p/dvc.lock lacks 1 of 2 stages" in line and line.endswith("replaced by that of git")
    assert lock.read_text() == LOCK and copy.with_name("dvc.lock.damaged").exists()
    newer = LOCK + "  three:\n    cmd: python three\n"
    lock.write_text(newer)
    assert locks.mend_locks(tmp_path) == [] and copy.read_text() == newer
    lock.write_text("")
    (line,) = locks.mend_locks(tmp_path)
    assert line.endswith("replaced by its copy") and lock.read_text() == newer
    lock.write_text(LOCK)
    assert locks.mend_locks(tmp_path) == [] and lock.read_text() == LOCK  # as git has it: checked out
    lock.write_text("<<<<<<< ours\n" + LOCK + "\n<<<<<<< theirs\n")
    assert locks.mend_locks(tmp_path) == []  # a conflict is the user's
    (tmp_path / "dvc.lock").write_text(LOCK[:100])
    (line,) = locks.mend_locks(tmp_path)
    assert line.endswith("removed; its stages run again") and not (tmp_path / "dvc.lock").exists()
    (tmp_path / "dvc.lock").write_text("")
    import zc.lockfile

    held = zc.lockfile.LockFile(str(tmp_path / ".dvc/tmp/lock"))  # a DVC at work may be writing
    assert locks.mend_locks(tmp_path) == []
    held.close()


# -- former outputs ------------------------------------------------------------------------------------------


def test_former_outputs_outlive_a_stage_that_fails_or_is_killed(tmp_path):
    """With `persist`, as every written stage has it, a plain `dvc repro` too."""
    outs = [{"out.txt": {"cache": False, "persist": True}}]
    cmd = "touch begun && eval $THEN && echo $MARK > out.txt"
    folder = repository(tmp_path, one={"cmd": cmd, "deps": ["in.txt"], "outs": outs})
    first = ENVIRONMENT | {"MARK": "former", "THEN": "true"}
    assert subprocess.run(RUN, cwd=folder, env=first, capture_output=True).returncode == 0
    for then, how in (("false", None), ("sleep 67.125", signal.SIGINT), ("sleep 67.125", signal.SIGKILL)):
        (folder / "begun").unlink()
        environment = ENVIRONMENT | {"MARK": "later", "THEN": then}
        process = subprocess.Popen([*RUN, "--force"], cwd=folder, env=environment, stdout=subprocess.PIPE)
        wait_for((folder / "begun").exists)
        if how:
            process.send_signal(how)
        process.communicate(timeout=PATIENCE)
        wait_for(lambda: not living(folder))
        assert (folder / "out.txt").read_text() == "former\n" and clean(folder)


@pytest.mark.parametrize(
    "path", ["dvc.yaml", "data/dvc.yaml", *(f"papers/{key}/dvc.yaml" for key in papers())]
)
def test_every_stage_leaves_its_former_outputs_until_it_replaces_them(path):
    for name, stage in yaml.safe_load((ROOT / path).read_text())["stages"].items():
        outs = stage.get("do", stage).get("outs", [])
        saved = [isinstance(out, dict) and all(one.get("persist") for one in out.values()) for out in outs]
        assert all(saved) or (path, name) == ("dvc.yaml", "report")  # whose tables may become fewer


# -- beside other processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [RUN, [sys.executable, "-m", "dvc", "repro"]], ids=["run", "dvc repro"])
def test_a_stage_that_another_process_runs_is_waited_for(tmp_path, other):
    folder = repository(tmp_path, one=stub("one", "in", does="sleep 6"), two=stub("two", "one"))
    process = subprocess.Popen(other, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    wait_for((folder / "one.begun").exists)
    reply = run(folder)
    assert process.wait(timeout=PATIENCE) == 0
    assert re.search(r"one waits for process \d+: dvc\S* .*repro", reply) and "failed" not in reply
    assert ran(folder).count("one") == 1 and clean(folder)


def test_dvcs_lock_is_waited_for(tmp_path):
    folder = repository(tmp_path, one=stub("one", "in"))
    code = "import time, zc.lockfile as z; k = z.LockFile('.dvc/tmp/lock'); open('held', 'w'); time.sleep(8)"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=folder)
    wait_for((folder / "held").exists)
    assert re.search(rf"waiting for process {process.pid}: .*, which has DVC's lock\n", run(folder))
    assert process.wait(timeout=PATIENCE) == 0 and ran(folder) == ["one"]


def test_locks_of_hard_links_need_no_flock(tmp_path):
    """Neither a status before it nor what an earlier flock left makes it hang."""
    folder = repository(tmp_path, one=stub("one", "in"))
    run(folder)
    assert (folder / ".dvc/tmp/lock").exists()
    with open(folder / ".dvc/config", "a") as file:
        file.write("    hardlink_lock = True\n")
    (folder / "in.txt").write_text("2\n")
    run(folder)
    assert ran(folder) == ["one", "one"] and not (folder / ".dvc/tmp/lock").exists()
    assert locks.mend_locks(folder) == [] and not (folder / ".dvc/tmp/lock").exists()
    claim = folder / ".dvc/tmp/claim.lock"
    claim.touch()
    os.link(claim, folder / ".dvc/tmp/lock")  # held: nobody mends what its owner may write
    (folder / "dvc.lock").write_text("")
    assert locks.mend_locks(folder) == [] and (folder / "dvc.lock").read_text() == ""


def test_a_file_system_without_flock_is_one_line(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / "lock").touch()
    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with pytest.raises(FedReproError, match="lock: .*core.hardlink_lock true"):
        locks._check_flock(tmp_path / "lock")


@pytest.mark.parametrize("place", [".dvc/tmp", ".cells/logs"])
def test_a_read_only_folder_is_one_line(tmp_path, place):
    folder = repository(tmp_path, one=stub("one", "in"))
    (folder / ".cells/logs").mkdir(parents=True)
    (folder / place).chmod(0o555)
    # root may write there; PR_CAPBSET_DROP takes CAP_DAC_OVERRIDE from it, and other users have none
    done = subprocess.run(
        RUN,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(24, 1, 0, 0, 0) and None,
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("error: ") and place in line and "Permission" in line


# -- time left -----------------------------------------------------------------------------------------------


def test_time_left_is_at_the_pace_of_this_run_with_the_stages_at_its_end(monkeypatch):
    """Two cells of 100 s, one after the other on a core, then a report of 20 s: here all takes three times as
    long."""
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    one, two, report = (schedule.Task(None, name, Path(name)) for name in ("one", "two", "report"))
    plan = schedule.Schedule.__new__(schedule.Schedule)
    plan.tasks = [one, two, report]
    for task, work, rank in ((one, 100.0, 120.0), (two, 100.0, 120.0), (report, 20.0, 20.0)):
        task.work, task.rank, task.cell = work, rank, None if task is report else task.name
    assert plan.left(1, {}) is None  # nothing has shown how fast it goes
    one.state, one.begun = schedule.RUNNING, 1000.0 - 30
    assert plan.left(1, {}) is None
    assert plan.left(1, {one: 270.0}) == pytest.approx(270 + 3 * schedule.ENDING + 3 * 120)
    one.state, one.seconds = schedule.DONE, 300.0
    assert plan.left(1, {}) == pytest.approx(3 * 120)
    two.state, two.begun = schedule.RUNNING, 1000.0 - 100
    assert plan.left(2, {}) == pytest.approx(300 - 100 + 3 * 20)  # the second core has nothing to do
    two.begun = 0.0
    assert plan.left(2, {}) == pytest.approx(1 + 3 * 20)  # longer than expected: not yet at its end
    two.state, two.seconds = schedule.DONE, 300.0
    report.state, report.begun = schedule.RUNNING, 1000.0 - 15
    assert plan.left(2, {}) == pytest.approx(3 * 20 - 15)


def living(folder: Path) -> list[str]:
    """Command lines of the processes at work in the folder."""
    import psutil

    actual = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder and process.status() != psutil.STATUS_ZOMBIE:
                actual.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return actual


def test_a_zombie_is_not_alive():
    process = subprocess.Popen(["true"])
    wait_for(lambda: not alive(process.pid))  # ended, and nobody has asked for its exit code yet
    assert process.returncode is None and alive(os.getpid())
    process.wait()
    assert not alive(process.pid)
