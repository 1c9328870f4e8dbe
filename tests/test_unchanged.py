"""`fedrepro run` with nothing to do leaves DVC alone, until a file changes that decides."""

import os

import pytest
from stub_stages import ran, repository, run, stub

from pipeline.commands import unchanged


@pytest.fixture
def folder(tmp_path):
    """Two stages that were run, and then found up to date."""
    folder = repository(tmp_path, first=stub("first", "in"), last=stub("last", "first"))
    (folder / "papers" / "ours").mkdir(parents=True)
    (folder / "papers" / "ours" / "paper.yaml").write_text("name: Ours\n")
    run(folder)
    assert "nothing to do: 2 stages" in run(folder)
    ran(folder)
    return folder


def looked_up(folder, monkeypatch) -> int | None:
    """What the next `fedrepro run` in the folder takes for granted."""
    monkeypatch.chdir(folder)
    return unchanged.known(unchanged.key([]), unchanged.root_of(folder))


def test_a_second_call_with_nothing_to_do_asks_no_dvc(folder, monkeypatch):
    assert looked_up(folder, monkeypatch) == 2
    (folder / ".dvc" / "config").rename(folder / "kept")  # without it DVC finds no git and ends
    os.utime(folder / "kept")
    assert looked_up(folder, monkeypatch) is None
    (folder / "kept").rename(folder / ".dvc" / "config")
    assert "nothing to do: 2 stages" in run(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "in.txt").write_text("2\n"),
        lambda folder: (folder / "first.txt").write_text("2\n"),
        lambda folder: (folder / "last.txt").unlink(),
        lambda folder: (folder / "dvc.lock").unlink(),
        lambda folder: (folder / "papers" / "ours" / "paper.yaml").write_text("name: Hers\n"),
        lambda folder: (folder / "papers" / "ours" / "params.yaml").write_text("methods:\n"),
    ],
    ids=["input", "output", "missing", "lock", "paper", "new file"],
)
def test_a_change_is_looked_at(folder, monkeypatch, change):
    change(folder)
    assert looked_up(folder, monkeypatch) is None


def test_what_changed_is_run_and_only_then_nothing_to_do(folder):
    (folder / "in.txt").write_text("2\n")
    run(folder)
    assert ran(folder) == ["first", "last"]
    assert "nothing to do: 2 stages" in run(folder)
    assert ran(folder) == [] and (folder / "last.txt").read_text() == "2\n"


def test_a_file_that_changes_while_dvc_looks_is_looked_at_again(folder, monkeypatch):
    monkeypatch.chdir(folder)
    asked, places = unchanged.key(["last"]), ["in.txt"]
    before = unchanged.state(places, folder)
    (folder / "in.txt").write_text("of the meantime\n")
    unchanged.remember(asked, folder, 1, places, before)
    assert unchanged.known(asked, folder) is None
    unchanged.remember(asked, folder, 1, places, unchanged.state(places, folder))
    assert unchanged.known(asked, folder) == 1


def test_targets_and_folders_are_told_apart(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert unchanged.known(unchanged.key(["last"]), folder) is None
    monkeypatch.chdir(folder / "papers")
    assert unchanged.root_of(folder / "papers") == folder
    assert unchanged.known(unchanged.key([]), folder) is None


def test_a_damaged_note_is_none(folder, monkeypatch):
    (folder / unchanged.FILE).write_text("[")
    assert looked_up(folder, monkeypatch) is None
    assert "nothing to do: 2 stages" in run(folder)
    assert looked_up(folder, monkeypatch) == 2
