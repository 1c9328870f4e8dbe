"""`fedrepro run` with lock files that are cut or held, with former outputs and other processes."""

import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import repository as checkout
import warm
import yaml
from repository import PATIENCE, ROOT, commit, wait_for
from stub_stages import ENVIRONMENT, MORE, RUN, clean, living, ran, repository, run, stub

from pipeline import locks
from pipeline.errors import FedReproError
from pipeline.files import alive


@pytest.mark.parametrize("entry", ['{"read": {"', '{"write": {"FOLDER/one.txt": {"pid": PID, "cmd": "x"}}}'])
def test_what_is_left_in_the_rwlock_is_no_obstacle(tmp_path, entry):
    """Half a file, or an entry of this process, which DVC leaves where the list could not be written after a
    look at a stage."""
    folder = repository(tmp_path, one=stub("one", "in"))
    (folder / "left").write_text(entry.replace("FOLDER", str(folder)))
    begin = f'sed "s/PID/$$/" left > .dvc/tmp/rwlock; exec {sys.executable} -m pipeline run'
    subprocess.run(["bash", "-c", begin], cwd=folder, env=ENVIRONMENT, check=True, timeout=PATIENCE)
    assert ran(folder) == ["one"]
    assert clean(folder)


def test_a_cut_lock_file_costs_no_stage_that_was_run_before(tmp_path):
    """As DVC leaves it, which is killed while it writes."""
    folder = repository(tmp_path, one=stub("one", "in"), two=stub("two", "in"))
    run(folder)
    ran(folder)
    assert locks.mend_locks(folder) == []  # as `fedrepro status` or a stage
    lock = folder / "dvc.lock"
    lock.write_text(lock.read_text()[:-90])
    assert "dvc.lock is cut, " in run(folder)
    assert ran(folder) == []
    assert clean(folder)


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
    """Also where DVC was writing an earlier entry anew; a whole one with other entries is none."""
    old, new = LOCK.encode(), LOCK.replace("b026", "b027").encode()
    assert [end for end in range(len(old)) if not locks.damage(old[:end], old)] == []
    missed = {new[:end] for end in range(len(new)) if not locks.damage(new[:end], old)}
    assert missed == set()
    assert locks.damage(b"\0" * 512) == "is empty"
    assert locks.damage(b"\xff\xfe") == "is cut"
    more = old + b"  three:\n    cmd: python three\n"
    for whole in (old, new, more, b"schema: '2.0'\nstages: {}\n"):
        assert locks.damage(whole) == "" == locks.damage(whole, whole) == locks.damage(new, old)
    assert locks.damage(more, old) == ""
    assert locks.damage(old, more) == "lacks 1 of 3 stages"


def test_a_cut_lock_file_is_mended_from_its_copy_else_from_git_else_removed(tmp_path):
    repository(tmp_path)
    lock, copy = tmp_path / "papers/p/dvc.lock", tmp_path / ".cells/locks/papers/p/dvc.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text(LOCK)
    commit(tmp_path, "papers")
    lock.write_text(LOCK.split("  two:")[0])  # good YAML, one entry gone
    (line,) = locks.mend_locks(tmp_path)
    assert "papers/p/dvc.lock lacks 1 of 2 stages" in line
    assert line.endswith("replaced by that of git")
    assert lock.read_text() == LOCK
    assert copy.with_name("dvc.lock.damaged").exists()
    newer = LOCK + "  three:\n    cmd: python three\n"
    lock.write_text(newer)
    assert locks.mend_locks(tmp_path) == []
    assert copy.read_text() == newer
    lock.write_text("")
    (line,) = locks.mend_locks(tmp_path)
    assert line.endswith("replaced by its copy")
    assert lock.read_text() == newer
    lock.write_text(LOCK)
    assert locks.mend_locks(tmp_path) == []
    assert lock.read_text() == LOCK  # as git has it: checked out
    lock.write_text("<<<<<<< ours\n" + LOCK + "\n<<<<<<< theirs\n")
    assert locks.mend_locks(tmp_path) == []  # a conflict is the user's
    (tmp_path / "dvc.lock").write_text(LOCK[:100])
    (line,) = locks.mend_locks(tmp_path)
    assert line.endswith("removed; its stages run again")
    assert not (tmp_path / "dvc.lock").exists()
    (tmp_path / "dvc.lock").write_text("")
    import zc.lockfile

    held = zc.lockfile.LockFile(str(tmp_path / ".dvc/tmp/lock"))  # a DVC at work may be writing
    assert locks.mend_locks(tmp_path) == []
    held.close()


def test_former_outputs_outlive_a_stage_that_fails_or_is_killed(tmp_path):
    """With `persist`, as every written stage has it, a plain `dvc repro` too."""
    outs = [{"out.txt": {"cache": False, "persist": True}}]
    cmd = "touch begun && eval $THEN && echo $MARK > out.txt"
    folder = repository(tmp_path, one={"cmd": cmd, "deps": ["in.txt"], "outs": outs})
    checkout.run(folder, *RUN, **MORE, MARK="former", THEN="true")
    checkout.run(folder, *RUN, "--force", **MORE, MARK="later", THEN="false", expect=1)
    assert (folder / "out.txt").read_text() == "former\n"
    assert clean(folder)
    for how in (signal.SIGINT, signal.SIGKILL):
        (folder / "begun").unlink()
        environment = ENVIRONMENT | {"MARK": "later", "THEN": "sleep 67.125"}
        process = subprocess.Popen([*RUN, "--force"], cwd=folder, env=environment, stdout=subprocess.PIPE)
        wait_for((folder / "begun").exists)
        process.send_signal(how)
        process.communicate(timeout=PATIENCE)
        wait_for(lambda: not living(folder))
        assert (folder / "out.txt").read_text() == "former\n"
        assert clean(folder)


WRITTEN = "dvc.yaml data/dvc.yaml reports/*/dvc.yaml papers/*/dvc.yaml papers/*/*/dvc.yaml".split()


@pytest.mark.parametrize(
    "path", [str(path.relative_to(ROOT)) for name in WRITTEN for path in ROOT.glob(name)]
)
def test_every_stage_leaves_its_former_outputs_until_it_replaces_them(path):
    for name, stage in yaml.safe_load((ROOT / path).read_text())["stages"].items():
        outs = stage.get("do", stage).get("outs", [])
        saved = [isinstance(out, dict) and all(one.get("persist") for one in out.values()) for out in outs]
        assert all(saved), name


def run_until(folder: Path, pattern: str, then: Callable[[], object]) -> str:
    """What `fedrepro run` prints; `then` is called once it prints a line of this pattern."""
    command = [str(warm.python()), *RUN[1:]]
    warm_stages = ENVIRONMENT | {"PATH": checkout.search_path()}
    process = subprocess.Popen(
        command, cwd=folder, env=warm_stages, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines, waits = [], False
    for line in process.stdout:
        lines.append(line)
        if not waits and re.search(pattern, line):
            waits = True
            then()
    assert process.wait(timeout=PATIENCE) == 0, "".join(lines)
    assert waits, "".join(lines)
    return "".join(lines)


def test_a_stage_that_another_process_runs_is_waited_for(tmp_path):
    """A plain `dvc repro`, which `fedrepro run` starts too."""
    until = "for i in $(seq 600); do test -e released && break; sleep 0.1; done"
    folder = repository(tmp_path, one=stub("one", "in", does=until), two=stub("two", "one"))
    other = [str(warm.python()), "-m", "dvc", "repro"]
    process = subprocess.Popen(other, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    wait_for((folder / "one.begun").exists)
    reply = run_until(folder, r"one waits for process \d+", (folder / "released").touch)
    assert "failed" not in reply
    assert process.wait(timeout=PATIENCE) == 0
    assert ran(folder).count("one") == 1
    assert clean(folder)


def test_dvcs_lock_is_waited_for(tmp_path):
    folder = repository(tmp_path, one=stub("one", "in"))
    code = "import zc.lockfile as z; k = z.LockFile('.dvc/tmp/lock'); open('held', 'w'); input()"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdin=subprocess.PIPE, text=True)
    wait_for((folder / "held").exists)
    waits = rf"waiting for process {process.pid}, which has DVC's lock\n"
    run_until(folder, waits, lambda: process.communicate("\n"))
    assert process.returncode == 0
    assert ran(folder) == ["one"]


def test_locks_of_hard_links_need_no_flock(tmp_path):
    """Neither a status before it nor what an earlier flock left makes it hang."""
    folder = repository(tmp_path, one=stub("one", "in"))
    run(folder)
    assert (folder / ".dvc/tmp/lock").exists()
    with open(folder / ".dvc/config", "a") as file:
        file.write("    hardlink_lock = True\n")
    (folder / "in.txt").write_text("2\n")
    run(folder)
    assert ran(folder) == ["one", "one"]
    assert not (folder / ".dvc/tmp/lock").exists()
    assert locks.mend_locks(folder) == []
    assert not (folder / ".dvc/tmp/lock").exists()
    claim = folder / ".dvc/tmp/claim.lock"
    claim.touch()
    os.link(claim, folder / ".dvc/tmp/lock")  # held: nobody mends what its owner may write
    (folder / "dvc.lock").write_text("")
    assert locks.mend_locks(folder) == []
    assert (folder / "dvc.lock").read_text() == ""


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
    assert done.returncode == 2
    assert line.startswith("error: ")
    assert place in line
    assert "Permission" in line


def test_a_zombie_is_not_alive():
    process = subprocess.Popen(["true"])
    wait_for(lambda: not alive(process.pid))  # ended, and nobody has asked for its exit code yet
    assert process.returncode is None
    assert alive(os.getpid())
    process.wait()
    assert not alive(process.pid)


MERGED = ["a0: &a0 {k: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 10)]
LISTS = ["a0: &a0 [1]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]


@pytest.mark.parametrize("lines", [MERGED, LISTS, ["a: " + "[" * 5000]])
def test_a_lock_file_that_would_unfold_without_end_is_cut(lines):
    content = "\n".join(["schema: '2.0'", *lines, "stages: {}", ""]).encode()
    assert locks.damage(content) == "is cut"
