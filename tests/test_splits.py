"""Clients of other libraries: PFLlib's folders, Flower's lists, the CSV of an export; clients.csv."""

import csv
import dataclasses
import io
import json

import numpy as np
import pandas as pd
import pytest

from pipeline import files
from pipeline.data import histogram, listed, splits
from pipeline.data.partition import partition
from pipeline.data.parts import Parts, Pool
from pipeline.data.store import Stored
from pipeline.errors import DataError, ParamError
from pipeline.schema.partitions import Iid, Listed

WHERE = "papers/x/paper.yaml: scenarios.y.partition"


@pytest.fixture
def stored() -> Stored:
    """60 images of 10 classes, two of them equal, the last 12 official test images."""
    images = np.random.default_rng(0).integers(0, 256, (60, 4, 4, 1), dtype=np.uint8)
    labels, split = np.arange(60) % 10, (np.arange(60) >= 48).astype(np.uint8)
    images[15] = images[5]
    return Stored(images, labels, np.zeros(60, np.int64), split, {"set": "made", "classes": [*"0123456789"]})


def pfllib(folder, stored: Stored, clients: list[tuple[list[int], list[int]]]):
    """The files of PFLlib's save_file."""
    for at, part in enumerate(("train", "test")):
        (folder / part).mkdir(parents=True)
        for client, indices in enumerate(clients):
            x = (stored.images[indices[at]].transpose(0, 3, 1, 2).astype(np.float32) / 255 - 0.5) / 0.5
            with open(folder / part / f"{client}.npz", "wb") as file:
                np.savez_compressed(file, data={"x": x, "y": stored.labels[indices[at]]})
    (folder / "config.json").write_text(json.dumps({"num_clients": len(clients)}))
    return folder


def lists(split: splits.Split) -> list[list[list[int]]]:
    return [[held.tolist() for held in part] for part in split]


def test_pfllibs_images_are_looked_up_and_equal_ones_taken_once(tmp_path, stored):
    folder = pfllib(tmp_path / "MNIST", stored, [([5, 3, 50], [20]), ([15, 7], [41, 8])])
    assert lists(splits.read(folder, stored)) == [[[5, 3, 50], [15, 7]], [[20], [41, 8]]]


def test_an_image_that_the_set_has_not_is_one_line(tmp_path, stored):
    other = dataclasses.replace(stored, images=255 - stored.images)
    folder = pfllib(tmp_path / "MNIST", other, [([0], [1])])
    with pytest.raises(DataError, match="train/0.npz: image 0 of class 0 is not, or no more, in data/made"):
        splits.read(folder, stored)


class Evil:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("content", [Evil(), {"x": Evil()}, [1], {"x": 1}])
def test_a_pickle_of_anything_but_arrays_is_refused(tmp_path, stored, capsys, content):
    folder = pfllib(tmp_path / "MNIST", stored, [([0], [1])])
    with open(folder / "train/0.npz", "wb") as file:
        np.savez(file, data=np.array(content, dtype=object))
    with pytest.raises(DataError, match="train/0.npz: "):
        splits.read(folder, stored)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [[[0, 2], [1]], {"1": [1], "0": [0, 2]}])
def test_flowers_lists_are_positions_in_the_training_part(tmp_path, stored, content):
    mixed = dataclasses.replace(stored, split=1 - stored.split)
    (file := tmp_path / "clients.json").write_text(json.dumps(content))
    assert lists(splits.read(file, mixed)) == [[[48, 50], [49]], [[], []]]


@pytest.mark.parametrize("content", ["{", "[]", '{"a": [1]}', "[[-1]]", "[[1000]]", "[3]", "null"])
def test_a_file_that_is_no_list_of_positions_is_one_line(tmp_path, stored, content):
    (file := tmp_path / "clients.json").write_text(content)
    with pytest.raises(DataError, match="clients.json: "):
        splits.read(file, stored)


def test_an_export_gives_the_same_clients(tmp_path, stored, monkeypatch):
    monkeypatch.setattr(listed, "ROOT", tmp_path)
    pool = Pool(stored.labels, stored.domains, stored.split == 1, ["made"], 10)
    cut = partition(Iid(3), pool, WHERE)
    (file := tmp_path / "papers/x/splits/y.csv").parent.mkdir(parents=True)
    file.write_text(listed.as_csv(cut.train, cut.client_test))
    split = splits.read(file, stored)
    assert lists(split) == lists((cut.train, cut.client_test))
    settings = Listed(3, "papers/x/splits/y.csv", files.sha256(file))
    again = partition(settings, pool, WHERE)
    assert lists((again.train, again.client_test)) == lists(split)
    assert again.domain_test["made"].tolist() == cut.domain_test["made"].tolist()
    file.write_text(listed.as_csv(cut.train, [part[:0] for part in cut.train]))
    official = partition(dataclasses.replace(settings, sha256=files.sha256(file)), pool, WHERE)
    assert {tuple(part) for part in official.client_test} == {tuple(range(48, 60))}
    with pytest.raises(ParamError, match="y.partition.sha256: not that of papers/x/splits/y.csv"):
        partition(settings, pool, WHERE)
    for change in ({"clients": 2}, {"clients": 4}):
        changed = dataclasses.replace(settings, sha256=files.sha256(file), **change)
        with pytest.raises(ParamError, match="y.partition.clients: "):
            partition(changed, pool, WHERE)


def counted(classes):
    parts = Parts([("0", "m"), ("1", "m")], [np.arange(3), np.arange(3, 8)], [np.arange(0)] * 2, {})
    return histogram.label_counts(parts, np.array([0, 0, 1, 1, 1, 1, 1, 0]), classes)


@pytest.mark.parametrize(
    "classes",
    [
        ["train", "domain"],
        ["client", "test"],
        ["tree", ""],
        ["crane"] * 2,
        ["class 1: a", "a"],
        ["a", "class "],
    ],
)
def test_a_class_takes_no_column_of_ours(classes):
    table = counted(classes)
    text = table.to_csv(index=False)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["train"] for row in rows] == ["3", "5"] and len(rows[0]) == 6 and all(rows[0])
    held = pd.read_csv(io.StringIO(text), index_col="client").drop(columns=["domain", "train", "test"])
    assert held.to_numpy().tolist() == [[2, 1], [1, 4]]
    assert all(name in column for name, column in zip(classes, held.columns))
    assert list(counted(["cat", "Train"]).columns) == [*histogram.OURS, "cat", "Train"]
