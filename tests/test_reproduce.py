"""make repro: this machine's miniatures and the committed ones, which stay as they are."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from repository import ROOT, commit, git

from pipeline.commands import reproduce
from pipeline.commands.reproduce import compare, summary
from pipeline.errors import FedReproError
from pipeline.schema import Cell
from pipeline.sealing import seal


@pytest.fixture
def here(tmp_path) -> Path:
    """A clone whose commit has FedCRL's miniature, nothing trained yet."""
    shutil.copytree(ROOT / "papers/fedcrl/runs/mini", tmp_path / "papers/fedcrl/runs/mini")
    commit(tmp_path)
    return tmp_path


def move(root: Path, method: str, points: float, **versions: str) -> None:
    """Let a cell of the miniature have come out otherwise."""
    folder = Cell("fedcrl", "mini", method).folder(root)
    result = json.loads((folder / "result.json").read_text())
    result["measures"][result["headline"]] = [
        value + points for value in result["measures"][result["headline"]]
    ]
    result["versions"] |= versions
    (folder / "result.json").write_text(json.dumps(seal(result)))
    if points:
        (folder / "history.csv").write_text((folder / "history.csv").read_text() + "\n")


def test_the_same_bits(here):
    actual = compare(here, ["fedcrl"])
    assert len(actual) == 17 and all(one.same_bits for one in actual)
    lines = summary(actual)
    assert "(committed: " not in lines[0] and "17 of 17 cells" in lines[1] and len(lines) == 2


def test_another_processor_is_normal(here):
    for one in compare(here, ["fedcrl"]):
        method = Cell.parse(one.cell).method
        move(here, method, {"fedprox": 0.9, "moon": -1.5}.get(method, 0.0), processor="AMD EPYC")
    actual = compare(here, ["fedcrl"])
    moved = {one.cell: round(one.difference, 4) for one in actual if not one.same_bits}
    assert moved == {"fedcrl/mini/fedprox": 0.9, "fedcrl/mini/moon": -1.5}
    lines = summary(actual)
    assert "AMD EPYC; processor AMD EPYC (committed: " in lines[0] and "15 of 17 cells" in lines[1]
    assert [line.split(":")[0].strip() for line in lines[2:]] == ["fedcrl/mini/moon", "fedcrl/mini/fedprox"]


def test_a_paper_whose_miniature_git_does_not_have_is_compared_with_nothing(here):
    assert compare(here, ["rahfl"]) == []
    assert summary([]) == ["Measured:      git has no number of these miniatures to compare with"]


def _killed():
    raise KeyboardInterrupt


def test_the_clone_follows_the_commits_and_keeps_what_was_trained(tmp_path, capsys, monkeypatch):
    (tmp_path / ".gitignore").write_text("/reproduction/\n/.cells/\n")
    (tmp_path / "result").write_text("committed")
    commit(tmp_path)
    clone = reproduce.prepare(tmp_path)
    (clone / "result").write_text("of this machine")
    (clone / ".cells").mkdir()
    (tmp_path / "result").write_text("edited")
    assert reproduce.prepare(tmp_path) == clone and (clone / "result").read_text() == "of this machine"
    assert "1 uncommitted changes take no part" in capsys.readouterr().out
    git(tmp_path, "commit", "-qam", "two")
    reproduce.prepare(tmp_path)
    assert (
        (clone / "result").read_text() == "edited"
        and not (clone / ".cells").exists()  # what was trained for another commit
    )
    (clone / ".cells").mkdir()
    reproduce.prepare(tmp_path, again=True)
    assert not (clone / ".cells").exists()
    (clone / ".cells").mkdir()
    git(tmp_path, "commit", "-qm", "three", "--allow-empty")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # killed before its checkout
        patch.setattr(
            reproduce,
            "git",
            lambda folder, what, *rest: git(folder, what, *rest) if what != "checkout" else _killed(),
        )
        reproduce.prepare(tmp_path)
    reproduce.prepare(tmp_path)
    assert git(clone, "rev-parse", "HEAD") == git(tmp_path, "rev-parse", "HEAD")
    assert not (clone / ".cells").exists()
    assert git(tmp_path, "status", "--porcelain") == ""


def test_a_paper_is_reproduced_alone(here, tmp_path_factory, monkeypatch, capsys):
    """Without a name every paper."""
    rahfl = "papers/rahfl/runs/mini"
    shutil.copytree(ROOT / rahfl, here / rahfl)
    commit(here)
    calls: list = []
    monkeypatch.setattr(reproduce, "ROOT", tmp_path_factory.mktemp("root"))
    monkeypatch.setattr(reproduce, "prepare", lambda root, again: here)
    monkeypatch.setattr(reproduce.subprocess, "run", _recording(calls, subprocess.run))
    assert reproduce.reproduce(["rahfl"], jobs=2) == 0
    assert calls.pop() == ["rahfl/mini", "--force", "--jobs", "2"]
    assert "16 of 16 cells of the miniatures have the same bits" in capsys.readouterr().out
    reproduce.reproduce()
    assert calls.pop() == ["--force"] and "33 of 33 cells" in capsys.readouterr().out
    with pytest.raises(FedReproError, match=r"unknown paper 'fedclr' \(nearest: 'fedcrl'\)"):
        reproduce.reproduce(["rahfl", "fedclr"])
    monkeypatch.setattr(reproduce, "load_paper", lambda name: SimpleNamespace(miniature=None))
    with pytest.raises(FedReproError, match="papers/rahfl/paper.yaml: miniature: missing"):
        reproduce.reproduce(["rahfl"])
    assert not calls


def _recording(calls: list, run):
    """`subprocess.run`, but for the command that trains, whose arguments are written down."""

    def recorded(command, **options):
        if command[1:4] != ["-m", "pipeline", "run"]:
            return run(command, **options)
        calls.append(command[4:])
        return subprocess.CompletedProcess(command, 0)

    return recorded


def test_without_git_it_says_what_to_do(tmp_path):
    with pytest.raises(FedReproError, match="not a git repository, which DVC needs: clone FedRepro with git"):
        reproduce.prepare(tmp_path)
