"""The campaigns' own parts: what a power cut leaves, the figures that they write, an oracle that notices."""

import random
from collections import Counter
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def chaos(monkeypatch):
    """Their modules are imported by plain names, as `python tests/chaos` does it."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "chaos")


TABLE = "x\n\n| campaign | commit | day | seed | tried | wrong |\n|---|---|---|--:|--:|--:|\n"


def test_figures_of_the_same_commit_and_seed_are_written_once(tmp_path):
    import figures

    page = tmp_path / "page.md"
    page.write_text(TABLE + "| kills | 1 | 2026-01-01 | 7 | 1 | 0 |\n\nmore\n")
    for tried in (1000, 2000):
        figures.write("kills", 8, tried, 0, page, "2")
    text = page.read_text()
    assert text.startswith(TABLE)
    assert text.endswith("\n\nmore\n")
    rows = [line for line in text.splitlines() if line.startswith("| kills")]
    assert len(rows) == 2
    assert "| 8 | 2,000 | 0 |" in rows[0]
    assert "| 7 | 1 | 0 |" in rows[1]


def test_what_was_not_synchronised_is_lost(tmp_path):
    import disk

    folder, before, diary = (tmp_path / name for name in ("folder", "before", "diary"))
    for place in (folder, before, diary):
        place.mkdir()
    new, target, other = folder / ".a.new", folder / "a", folder / "b"
    (before / "a").write_text("old")
    target.write_text("new content")
    other.write_text("never synchronised")
    (diary / "content-1").write_text("new content")
    lines = [f"sync\t{new}\tcontent-1", f"rename\t{new}\t{target}"]
    (diary / "diary").write_text("\n".join(lines) + "\n")
    synced, pending, _ = disk.read(diary)
    assert synced == {str(target): "content-1"}
    assert pending == {str(target)}
    (diary / "diary").write_text("\n".join([*lines, f"folder\t{folder}"]) + "\n")
    assert disk.read(diary) == (synced, set(), {str(folder)})
    lost = disk.cut(folder, before, diary, random.Random(1))
    assert target.read_text() == "new content"
    assert len(lost) == 1
    assert lost[0].endswith(" b")
    assert not other.exists() or len(other.read_text()) < len("never synchronised")


def test_a_folder_whose_name_was_not_synchronised_is_old_or_new_as_a_whole(tmp_path):
    import disk

    lines = ["sync\t/x/.set.new/a\tc1", "folder\t/x/.set.new", "rename\t/x/.set.new\t/x/set"]
    (tmp_path / "diary").write_text("\n".join(lines) + "\n")
    assert disk.read(tmp_path)[:2] == ({"/x/set/a": "c1"}, {"/x/set"})


@pytest.mark.rest  # it imports torch
def test_the_oracle_of_foreign_data_notices():
    import foreign

    one, other = Counter({(b"1", "ant", 0): 2}), Counter({(b"2", "ant", 0): 2})
    case = foreign.Case("x", "arrays", {"a.npz": b""}, foreign.Truth(one, 3), must=True)
    assert foreign.judged(case, ("taken", (one, 3))) == ""
    assert "not what was written" in foreign.judged(case, ("taken", (other, 3)))
    assert "left out" in foreign.judged(case, ("taken", (one, 0)))
    assert "usual form" in foreign.judged(case, ("refused", "a.npz: no"))
    free = case._replace(must=False)
    assert foreign.judged(free, ("refused", "a.npz: no")) == ""
    assert "without a name" in foreign.judged(free, ("refused", "no"))
    assert "several lines" in foreign.judged(free, ("refused", "a.npz:\nno"))
    assert "means nothing" in foreign.judged(case._replace(truth=None), ("taken", (one, 3)))
