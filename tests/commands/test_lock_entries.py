"""Entries of dvc.lock that `fedrepro run` writes: byte for byte those of DVC."""

import os
from pathlib import Path

import pytest
from dvc.repo import Repo
from stub_stages import repository, stub

from pipeline.commands import lock_entries
from pipeline.schema import ROOT
from pipeline.schema.documents import read_plain

# Each stage reads one of them: values that are written once and meant again, in the order in which they are
# and in another.
PARAMETERS = """\
one: {lists: [&a [1, 2.5e-05], &b {x: 'yes', y: null}], again: [*b, *a, *a]}
two: &c [0, 1]
three: {twice: [*c, *c], text: 'a: &id001', long: 'WORDS'}
""".replace("WORDS", "more words than a line holds " * 6)


@pytest.fixture
def stages(tmp_path, monkeypatch):
    """Saved stages of DVC that share a dvc.yaml, whose dvc.lock is not there yet."""
    (tmp_path / "params.yaml").write_text(PARAMETERS)
    some = {
        "first": stub("first") | {"params": ["one"]},
        "second": stub("second", "first") | {"params": ["two"]},
        "third": stub("third", "first") | {"params": ["one", "three"]},
        "last.one": stub("last.one"),
    }
    repository(tmp_path, **some)
    monkeypatch.chdir(tmp_path)
    for name in some:
        Path(f"{name}.txt").write_text(name)
    found = {stage.name: stage for stage in Repo().index.stages}
    for stage in found.values():
        stage.save(run_cache=False)
    return [found[name] for name in some]


def by_dvc(stages: list) -> str:
    """What DVC writes of these stages, one after the other, to the dvc.lock that is there."""
    before = Path("dvc.lock").read_bytes() if Path("dvc.lock").exists() else None
    for stage in stages:
        stage.dvcfile.dump_stages([stage], update_pipeline=False)
    text = Path("dvc.lock").read_text()
    os.unlink("dvc.lock")
    if before is not None:
        Path("dvc.lock").write_bytes(before)
    return text


def written(stages: list) -> str:
    lock_entries.enter(stages)
    return Path("dvc.lock").read_text()


def test_new_renewed_and_further_entries_are_written_as_dvc_does(stages):
    first, second, third, last = stages
    expected = by_dvc([third, first])
    assert expected.count("*id00") == 7
    assert "&id005" in expected
    assert written([third, first]) == expected
    expected = by_dvc([second, last])
    assert written([second, last]) == expected
    first.cmd, third.cmd = "date", [*"ab"]
    expected = by_dvc([third, first])
    assert expected.count("cmd: date\n") == 1
    assert written([third, first]) == expected
    assert by_dvc([second]) == expected, "an entry that has not changed changes nothing"


def test_a_lock_file_that_was_edited_is_left_to_dvc(stages, monkeypatch):
    first, second, *_ = stages
    text = written([first, second])
    for edited in (
        text.replace("schema: '2.0'", 'schema: "2.0"'),
        text + "datasets: []\n",
        text.replace("id001", "mine"),
        text.replace("  second:", "   second:").replace("\n    cmd", "\n     cmd"),
        text.removesuffix("\n"),
        text + "  second: {cmd: again}\n",
        "",
    ):
        assert lock_entries.entries_of(edited) is None
    Path("dvc.lock").write_text(text + "# of a user\n")
    expected = by_dvc([second])
    assert written([second]) == expected


def test_entries_of_the_papers_are_found():
    """Otherwise DVC would write them, which takes a second each."""
    paths = [*ROOT.glob("papers/*/dvc.lock"), ROOT / "dvc.lock"]
    assert len(paths) > 5
    for path in paths:
        text = path.read_text(encoding="utf-8")
        entries = lock_entries.entries_of(text)
        assert entries is not None, path
        assert entries.keys() == read_plain(text)["stages"].keys(), path
