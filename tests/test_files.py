"""Files and folders that are whole or absent."""

import errno
import json
import os
import subprocess
import sys

import pytest
from official import names

from pipeline import files
from pipeline.errors import FedReproError


@pytest.fixture
def dead_process():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_text_is_replaced_as_a_whole_and_json_is_sorted(tmp_path):
    target = tmp_path / "deep" / "a.txt"
    files.write_text(target, "one\n")
    files.write_text(target, "zwei Ä\n")
    assert target.read_bytes() == "zwei Ä\n".encode()
    assert names(tmp_path) == ["deep/a.txt"]
    target = tmp_path / "a.json"
    files.write_json(target, {"b": 1, "a": [0.1]})
    assert target.read_text() == '{\n  "a": [\n    0.1\n  ],\n  "b": 1\n}\n'
    with pytest.raises(FedReproError, match="a.json.*not written"):
        files.write_json(target, {"a": float("nan")})
    assert json.loads(target.read_text()) == {"a": [0.1], "b": 1}


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, failure, monkeypatch):
    target = tmp_path / "a.txt"
    files.write_text(target, "old")

    def fail(path):
        raise failure

    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises((FedReproError, KeyboardInterrupt)) as caught:
        files.write_text(target, "half")
    if isinstance(failure, OSError):
        assert str(caught.value).endswith(": No space left on device")
    assert target.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_a_write_clears_what_a_killed_one_left(tmp_path, dead_process):
    others = [
        f".a.txt.{os.getppid()}-{files.machine()}.new",
        f".a.txt.{dead_process}-elsewhere.new",
        f".b.a.txt.{dead_process}-{files.machine()}.new",
        "a.txt",
    ]
    for name in [f".a.txt.{dead_process}-{files.machine()}.new", *others]:
        (tmp_path / name).write_text("half, of another process, machine or file")
    old = tmp_path / f".a.txt.{os.getpid()}-{files.machine()}x.new"  # of a container that is gone
    old.write_text("half")
    os.utime(old, (1, 1))
    files.write_text(tmp_path / "a.txt", "whole")
    assert names(tmp_path) == sorted(others) and (tmp_path / "a.txt").read_text() == "whole"


def test_containers_of_one_name_and_start_are_told_apart(monkeypatch):
    names = set()
    for namespace in ("pid:[1]", "pid:[2]"):
        monkeypatch.setattr(os, "readlink", lambda path, namespace=namespace: namespace)
        names.add(files.machine.__wrapped__())
    assert len(names) == 2


def test_a_folder_is_replaced_as_a_whole(tmp_path, dead_process):
    target = tmp_path / "set"
    with files.replace_folder(target) as folder:
        (folder / "old").write_text("1")
    (tmp_path / f".set.{dead_process}-{files.machine()}.new").mkdir()
    (tmp_path / f".set.{dead_process}-{files.machine()}.old").mkdir()
    with files.replace_folder(target) as folder:
        (folder / "new").write_text("2")
        assert names(target) == ["old"]
    assert names(target) == ["new"] and [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path):
    target = tmp_path / "set"
    with files.replace_folder(target) as folder:
        (folder / "old").write_text("1")
    with (
        pytest.raises(FedReproError, match="set: cannot be written: No space"),
        files.replace_folder(target) as folder,
    ):
        (folder / "half").write_text("2")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == ["set/old"]
