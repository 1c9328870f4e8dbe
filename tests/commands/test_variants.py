"""What is printed of cells that were trained with a user's seeds or values."""

import pytest

from pipeline.cells.results import read
from pipeline.commands import variants
from pipeline.schema import Cell

CELL = Cell("fedcrl", "mini", "fedavg")


@pytest.fixture
def committed():
    """The result of the cell that the tables show."""
    return read(CELL.folder() / "result.json")


def printed(capsys) -> list[str]:
    variants._print(CELL, {"seed 7": {7: 50.0}}, CELL)
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_the_number_in_the_table_is_printed_below_the_new_ones(committed, capsys):
    lines = printed(capsys)
    assert [line.split("  ")[0] for line in lines[1:3]] == ["seed 7", "in the table"]
    seeds = ", ".join(map(str, committed["seeds"]))
    assert lines[2].endswith(f"(seeds {seeds})")


def test_a_number_of_other_test_sets_is_not_printed(committed, capsys, monkeypatch):
    other = {**committed, "measures": {"another": [1.0, 2.0]}}
    monkeypatch.setattr(variants, "read", lambda path: other)
    assert not any("in the table" in line for line in printed(capsys))
