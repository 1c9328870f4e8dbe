"""clients.csv: names of classes, which come from data, never take a column of ours."""

import csv
import io

import numpy as np
import pandas as pd
import pytest

from pipeline.data import histogram
from pipeline.data.partition import Parts


def counted(classes):
    parts = Parts([("0", "m"), ("1", "m")], [np.arange(3), np.arange(3, 8)], [np.arange(0)] * 2, {})
    return histogram.label_counts(parts, np.array([0, 0, 1, 1, 1, 1, 1, 0]), classes)


@pytest.mark.parametrize(
    "classes",
    [
        ["train", "tree"],
        ["client", "test"],
        ["domain", ""],
        ["crane"] * 2,
        ["class 1: a", "a"],
        ["a", "class "],
    ],
)
def test_a_class_takes_no_column_of_ours(classes):
    table = counted(classes)
    text = table.to_csv(index=False)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["train"] for row in rows] == ["3", "5"] and len(rows[0]) == 6
    held = pd.read_csv(io.StringIO(text), index_col="client").drop(columns=["domain", "train", "test"])
    assert held.to_numpy().tolist() == [[2, 1], [1, 4]]
    assert all(name in column for name, column in zip(classes, held.columns))
    assert list(counted(["cat", "Train"]).columns) == [*histogram.OURS, "cat", "Train"]
