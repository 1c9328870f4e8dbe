"""findings.csv: no number disappears without a line in withdrawn.csv, and commands find a cell's findings."""

import pytest

from pipeline.commands import explain
from pipeline.errors import ParamError
from pipeline.findings_file import COLUMNS, FILE, as_text, losses, lost, of_cell, read_findings, withdrawn


def row(**values):
    return dict.fromkeys(COLUMNS, "") | {"paper": "fedlsa", "id": "L04", "difference": "3.77"} | values


def test_a_row_that_is_gone_is_lost():
    assert lost([row()], []) == ["fedlsa L04: the whole row was 3.77"]


def test_a_number_that_is_gone_is_lost():
    before = [row(tuned_alike="+0.1 [−4.4, 4.6], 5 seeds: undecided")]
    assert losses(before, [row(tuned_alike="not run")]) == [
        ("fedlsa", "L04", "tuned_alike", "+0.1 [−4.4, 4.6], 5 seeds: undecided")
    ]


def test_one_of_several_other_settings_that_is_gone_is_lost():
    before = [row(other_settings="cropped: +6.7, 12 seeds: holds; 64 px: +0.2, 2 seeds: undecided")]
    after = [row(other_settings="cropped: +6.7, 12 seeds: holds")]
    assert [one[2] for one in losses(before, after)] == ["other_settings"]


def test_another_setting_does_not_stand_for_one_that_is_gone():
    before = [row(other_settings="cropped: +6.7, 12 seeds: holds")]
    after = [row(other_settings="on PACS, 64 px: +0.2, 2 seeds: undecided; cropped: not run")]
    assert [one[2] for one in losses(before, after)] == ["other_settings"]


def test_a_place_among_fewer_is_a_loss():
    before = [row(tuned_alike="−1.6 [−4.5, 1.3], 3 seeds, 3rd of 16: undecided")]
    after = [row(tuned_alike="−1.6 [−4.5, 1.3], 3 seeds, 3rd of 13: undecided")]
    assert [one[2] for one in losses(before, after)] == ["tuned_alike"]


def test_a_row_without_a_number_may_be_withdrawn(tmp_path):
    assert lost([row(difference="")], [], withdrawn(gone(tmp_path, number=""))) == []


def test_a_new_row_or_another_number_is_no_loss():
    assert lost([row()], [row(difference="-1.00"), row(id="L05")]) == []


def gone(folder, column="row", number="3.77", reason="its partition was wrong"):
    path = folder / "withdrawn.csv"
    head = "paper,id,column,number,date,reason"
    path.write_text(f"{head}\nfedlsa,L04,{column},{number},2026-11-29,{reason}\n")
    return path


def test_a_withdrawn_row_is_no_loss(tmp_path):
    assert lost([row()], [], withdrawn(gone(tmp_path))) == []


def test_a_withdrawn_number_does_not_excuse_a_later_one(tmp_path):
    assert lost([row(difference="2.10")], [], withdrawn(gone(tmp_path)))


def test_a_withdrawn_column_does_not_excuse_another_one(tmp_path):
    before = [row(tuned_alike="3.77")]
    assert lost(before, [row(tuned_alike="not run")], withdrawn(gone(tmp_path, "same_hook")))


def test_a_withdrawn_row_needs_a_reason(tmp_path):
    with pytest.raises(ParamError, match="withdrawn.csv:2: reason"):
        withdrawn(gone(tmp_path, reason=""))


def test_an_unknown_column_is_named(tmp_path):
    with pytest.raises(ParamError, match="withdrawn.csv:2: column: unknown column"):
        withdrawn(gone(tmp_path, "tuned_alik"))


def test_the_file_is_read_as_it_was_written(tmp_path):
    (tmp_path / "findings.csv").write_text(as_text([row(claim="a, b")]))
    assert read_findings(tmp_path / "findings.csv") == [row(claim="a, b")]


def test_a_cells_findings_are_those_that_compare_it(tmp_path):
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_text(as_text([row(cells="p/s/a p/s/b"), row(id="L05", cells="p/s/ab")]))
    assert [one["id"] for one in of_cell("p/s/a", tmp_path)] == ["L04"]


def test_explain_tells_a_finding_with_its_numbers():
    one = row(claim="Better than FedAvg", verdict="direction holds; not tuned alike", low="2.02", high="5.52")
    assert explain._finding(one | {"unit": "points", "printed": "7.02"}) == (
        "L04 Better than FedAvg: direction holds; not tuned alike (3.77 [2.02, 5.52] points, printed 7.02)"
    )


def test_explain_tells_a_finding_without_an_interval():
    assert explain._finding(row(claim="Anchors gain", verdict="one seed, for")) == (
        "L04 Anchors gain: one seed, for (3.77)"
    )
