"""`fedrepro export results`: one tidy table of every repetition."""

import pandas as pd
import pytest
from reporting import BALANCED

from pipeline.cells.results import collect, history
from pipeline.commands import table
from pipeline.errors import ParamError
from pipeline.schema import Cell


def test_every_number_of_a_history_has_a_row(measured):
    tidy = table.tidy(collect(measured), measured)
    for cell in collect(measured):
        wide = history(cell, measured)
        mine = tidy[(tidy.scenario == cell.scenario) & (tidy.method == cell.method)]
        names = [name for name in wide if name not in table.NO_MEASURES]
        assert len(mine) == int(wide[names].notna().sum().sum())
        last = wide.iloc[-1]
        (value,) = mine[
            (mine.seed == last["seed"]) & (mine["round"] == last["round"]) & (mine.measure == "loss")
        ].value
        assert value == last["loss"]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("average", ("average", "pre")),
        ("post.average", ("average", "post")),
        ("loss", ("loss", "")),
        ("method.shift", ("method.shift", "")),
        ("unseen.weighted", ("unseen.weighted", "")),
        ("intra.AVG", ("intra.AVG", "pre")),
    ],
)
def test_a_measure_is_told_from_the_models_that_were_scored(column, expected):
    assert table._measure_and_hook(column, "pre") == expected


def test_csv_and_parquet_hold_the_same(measured, tmp_path):
    files = [str(tmp_path / f"x.{kind}") for kind in ("csv", "parquet")]
    assert table.export([], *files, measured) == 0
    one, other = pd.read_csv(files[0], keep_default_na=False), pd.read_parquet(files[1])
    assert list(one) == table.COLUMNS
    assert len(one)
    pd.testing.assert_frame_equal(one, other, check_dtype=False)


def test_only_the_papers_named_are_in_it(measured, tmp_path):
    with pytest.raises(ParamError, match="unknown paper"):
        table.export(["nothing"], str(tmp_path / "x.csv"), None, measured)


def test_a_file_has_to_be_named(measured):
    with pytest.raises(ParamError, match="name a file"):
        table.export([], None, None, measured)


def test_a_damaged_result_is_left_out_and_said(measured, tmp_path, capsys):
    cell = Cell("fedcrl", "balanced", next(iter(BALANCED)))
    path = cell.folder(measured) / "result.json"
    path.write_text(path.read_text()[:-20])
    table.export([], str(tmp_path / "x.csv"), None, measured)
    assert f"papers/fedcrl/runs/balanced/{cell.method}/result.json: not whole" in capsys.readouterr().err
    assert cell.method not in set(pd.read_csv(tmp_path / "x.csv").query("scenario == 'balanced'").method)
