"""Nothing is written outside of the checkout, whatever a copied `.cells` or another machine says; no text of
a CSV is a formula."""

import csv
import io
import json
import os

import pandas as pd
import pytest

from pipeline import files
from pipeline.cells.results import as_csv
from pipeline.commands import keeping
from pipeline.engines.node import Keeper
from pipeline.sealing import seal

DEAD = 999_999_999


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose killed run had kept a file and a folder, and what lies outside of it."""
    root = tmp_path / "checkout"
    (root / "out/inner").mkdir(parents=True)
    (root / "out/inner/a").write_text("former")
    (root / "file").write_text("former")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/text").write_text("mine")
    keeping.keep([root / "out", root / "file", root / "missing"], kept(root))
    return root


def kept(root):
    return root / ".cells/kept" / f"{DEAD}-{files.MACHINE}" / "stage"


def back(root, *outputs):
    return keeping.put_back_of_the_dead(root, {root / name for name in outputs})


def test_kept_outputs_come_back_in_a_checkout_that_was_moved(checkout):
    moved = checkout.with_name("moved")
    os.replace(checkout, moved)
    (moved / "file").unlink()
    assert len(back(moved, "out", "file")) == 1
    assert (moved / "out/inner/a").read_text() == (moved / "file").read_text() == "former"
    assert not checkout.exists() and not (moved / ".cells/kept" / f"{DEAD}-{files.MACHINE}").exists()


@pytest.mark.parametrize(
    "place",
    [
        "{}/precious",
        "../precious",
        "out/../../precious",
        ".",
        "",
        "./",
        "pipeline",
        7,
        None,
        ["out"],
        "C:\\precious",
        "..\\precious",
    ],
)
@pytest.mark.parametrize("sealed", [True, False])
def test_a_list_that_names_anything_else_puts_nothing_back(checkout, place, sealed):
    place = place.format(checkout.parent) if isinstance(place, str) else place
    document = {"places": [place, "gone"]}
    (kept(checkout) / "places.json").write_text(json.dumps(seal(document) if sealed else document))
    (kept(checkout) / "0/planted").write_text("theirs")
    (checkout / "pipeline").mkdir()
    before = sorted(checkout.parent.glob("precious/*")), sorted(checkout.glob("[!.]*"))
    assert len(back(checkout, "out", "file", "gone")) == sealed
    assert (sorted(checkout.parent.glob("precious/*")), sorted(checkout.glob("[!.]*"))) == before
    assert (checkout.parent / "precious/text").read_text() == "mine" and not kept(checkout).exists()


@pytest.mark.parametrize("content", ["", "[]", '["/etc/passwd"]', "7", "{}", '{"self": 1}', "[" * 100_000])
def test_what_is_no_list_puts_nothing_back(checkout, content):
    (kept(checkout) / "places.json").write_text(content)
    assert back(checkout, "out", "file") == [] and not kept(checkout).exists()


@pytest.mark.parametrize("name", ["x-{}", "-{}", "{}", "1e3-{}"])
def test_folders_of_other_names_are_left_alone(checkout, name):
    other = checkout / ".cells/kept" / name.format(files.MACHINE) / "stage"
    other.mkdir(parents=True)
    back(checkout, "out", "file")
    assert other.is_dir()


def test_a_linked_folder_is_left_alone(checkout):
    (kept(checkout).parent / "linked").symlink_to(checkout.parent / "precious")
    back(checkout, "out", "file")
    assert (checkout.parent / "precious/text").read_text() == "mine"


# -- Ray -----------------------------------------------------------------------------------------------------

NAMES = [
    "../../escaped",
    "{}/absolute",
    "x/../../escaped",
    "x/y/seed-0.pt",
    "x/seed-0.py",
    "x/places.json",
    "kept/1-x/places.json",
    "seed-0.pt",
    "..",
    "",
    "x/seed-0.pt\n",
    "x/seed--1.pt",
    "./x/seed-0.pt",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_saves_files_of_cells_alone(tmp_path, name):
    root = tmp_path / "root"
    keeper = Keeper(str(root))
    with pytest.raises(ValueError):
        keeper.save(name.format(tmp_path), b"x")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "path",
    [
        "{0}/told",
        "{1}/.cells/told",
        "{1}/.cells/logs/../told",
        "logs/told",
        "",
        "{1}/.cells/logs/",
        "{1}/.cells/logs/..",
    ],
)
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


# -- spreadsheets --------------------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "=cmd|' /C calc'!A0", "\t=1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_text_of_a_table_is_a_formula(tmp_path, text):
    files.write_csv(tmp_path / "table.csv", ["label", text], [[text, -1.5]])
    table = pd.DataFrame({"label": [text], text: [-1.5]})
    for written in ((tmp_path / "table.csv").read_bytes().decode(), as_csv(table)):
        header, row = csv.reader(io.StringIO(written, newline=""))
        assert header == ["label", f"'{text}"] and row[0] == f"'{text}" and float(row[1]) == -1.5
    assert list(table.columns) == ["label", text]


def test_a_carriage_return_hides_no_formula():
    assert files.as_text("\r=1") == "'\r=1"


@pytest.mark.parametrize("text", ["-1.5", "+3", "FedAvg", "", "a=b", "'=1"])
def test_other_texts_stay_as_they_are(text):
    assert files.as_text(text) == text
