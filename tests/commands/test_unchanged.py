"""What `fedrepro run` takes for granted: targets that were up to date, as long as no file changes."""

import os
from types import SimpleNamespace

import pytest

from pipeline.commands import unchanged

PLACES = ["dvc.lock", "first.txt", "images", "in.txt", "params.yaml"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository whose two stages were found up to date."""
    for name in (".dvc", "images", "papers/ours"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("dvc.lock", "first.txt", "in.txt", "images/1.png", "papers/ours/paper.yaml"):
        (tmp_path / name).write_text("1\n")
    monkeypatch.chdir(tmp_path)
    unchanged.remember(unchanged.key([]), tmp_path, 2, PLACES, unchanged.state(PLACES, tmp_path))
    return tmp_path


def taken_for_granted(*targets: str) -> int | None:
    return unchanged.known(unchanged.key(targets), unchanged.root_of(unchanged.Path.cwd()))


def test_nothing_has_changed(folder):
    assert taken_for_granted() == 2


def test_bytecode_is_no_change(folder):
    (folder / "images" / "__pycache__").mkdir()
    unchanged.remember(unchanged.key([]), folder, 2, PLACES, unchanged.state(PLACES, folder))
    (folder / "images" / "__pycache__" / "one.pyc").write_text("1\n")
    assert taken_for_granted() == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "in.txt").write_text("2\n"),
        lambda folder: os.utime(folder / "in.txt", (0, 0)),
        lambda folder: (folder / "first.txt").unlink(),
        lambda folder: (folder / "dvc.lock").rename(folder / "dvc.lock.damaged"),
        lambda folder: (folder / "images" / "1.png").rename(folder / "images" / "2.png"),
        lambda folder: (folder / "images" / "2.png").write_text("1\n"),
        lambda folder: (folder / "papers" / "ours" / "paper.yaml").write_text("2\n"),
        lambda folder: (folder / "papers" / "ours" / "params.yaml").write_text("2\n"),
        lambda folder: (folder / "params.yaml").write_text("2\n"),
    ],
    ids="text time missing lock renamed added paper overlay parameters".split(),
)
def test_a_change_is_looked_at(folder, change):
    change(folder)
    assert taken_for_granted() is None


def test_a_file_that_changes_while_dvc_looks_is_looked_at_again(folder):
    before = unchanged.state(PLACES, folder)
    (folder / "in.txt").write_text("of the meantime\n")
    unchanged.remember(unchanged.key(["last"]), folder, 1, PLACES, before)
    assert taken_for_granted("last") is None
    unchanged.remember(unchanged.key(["last"]), folder, 1, PLACES, unchanged.state(PLACES, folder))
    assert taken_for_granted("last") == 1


def test_targets_and_folders_are_told_apart(folder, monkeypatch):
    assert taken_for_granted("last") is None
    monkeypatch.chdir(folder / "papers")
    assert taken_for_granted() is None


def test_outside_of_a_repository_nothing_is_known(folder):
    (folder / ".dvc").rmdir()
    assert taken_for_granted() is None


def test_a_damaged_note_is_none(folder):
    (folder / unchanged.FILE).write_text("[")
    assert taken_for_granted() is None
    unchanged.remember(unchanged.key([]), folder, 2, PLACES, unchanged.state(PLACES, folder))
    assert taken_for_granted() == 2


def test_what_stages_read_and_write_is_looked_at(folder):
    def file(*parts: str):
        return SimpleNamespace(fs_path=str(folder.joinpath(*parts)))

    stage = SimpleNamespace(
        deps=[file("in.txt")], outs=[file("sub", "out.txt")], path=folder / "sub" / "dvc.yaml"
    )
    found = unchanged.places_of([stage], folder)
    assert {"in.txt", "sub/out.txt", "sub/dvc.yaml", "sub/dvc.lock"} <= {*found}
    assert {*unchanged.ALWAYS} <= {*found}
