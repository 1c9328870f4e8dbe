"""Nothing is written outside of the checkout, whatever `.cells` says; no text of a CSV is a formula."""

import csv
import io

import pandas as pd
import pytest

from pipeline import files
from pipeline.cells.results import as_csv
from pipeline.clusters.node import Keeper

NAMES = [
    *("../../escaped", "{}/absolute", "x/../../escaped", "x/y/seed-0.pt", "x/seed-0.py", "x/places.json"),
    *("kept/1-x/places.json", "seed-0.pt", "..", "", "x/seed-0.pt\n", "x/seed--1.pt", "./x/seed-0.pt"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_saves_files_of_cells_alone(tmp_path, name):
    root = tmp_path / "root"
    keeper = Keeper(str(root))
    with pytest.raises(ValueError):
        keeper.save(name.format(tmp_path), b"x")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


PATHS = ["{0}/told", "{1}/.cells/told", "{1}/.cells/logs/../told", "logs/told", "", "{1}/.cells/logs/"]


@pytest.mark.parametrize("path", PATHS)
def test_a_worker_tells_logs_alone(tmp_path, path):
    root = tmp_path / "root"
    (root / ".cells/logs").mkdir(parents=True)
    keeper = Keeper(str(root))
    keeper.tell(f"{root}/.cells/logs/stage.log", b"fine")
    with pytest.raises(ValueError):
        keeper.tell(path.format(tmp_path, root), b"x")
    (root / ".cells/logs/linked.log").symlink_to(tmp_path / "told")
    with pytest.raises(OSError):
        keeper.tell(f"{root}/.cells/logs/linked.log", b"x")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["stage.log"]


@pytest.mark.parametrize("folder", ["..", "../..", "/etc", "a/b", ""])
def test_a_worker_is_given_seeds_of_cells_alone(tmp_path, folder):
    with pytest.raises(ValueError):
        Keeper(str(tmp_path)).begin("cell", "node", [folder])


FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "=cmd|' /C calc'!A0", "\t=1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_text_of_a_table_is_a_formula(text):
    table = pd.DataFrame({"label": [text], text: [-1.5]})
    header, row = csv.reader(io.StringIO(as_csv(table), newline=""))
    assert header == ["label", f"'{text}"] and row[0] == f"'{text}" and float(row[1]) == -1.5
    assert list(table.columns) == ["label", text]


@pytest.mark.parametrize("text", ["-1.5", "+3", "FedAvg", "", "a=b", "'=1"])
def test_other_texts_stay_as_they_are(text):
    assert files.as_text(text) == text and files.as_text("\r=1") == "'\r=1"
