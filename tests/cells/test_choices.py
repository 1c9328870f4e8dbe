"""Tuned values on disk: what has another shape is one line."""

import copy
import json

import pytest

from pipeline.cells import choices
from pipeline.errors import FedReproError
from pipeline.schema import Cell
from pipeline.sealing import seal

TUNED = Cell("fedcrl", "balanced", "fedprox")


TRIED = {
    "changes": {"mu": 0.1},
    "values": {"mu": 0.1},
    "accuracy": [50.0, 60.0],
    "seconds": [1.0, 2.0],
    "digest": "d",
}


TUNING = {
    "cell": str(TUNED),
    "seeds": [0, 1],
    "chosen": 0,
    "configurations": [TRIED, {"changes": {}, "values": {}, "error": "diverged"}],
}


def tuning(root, document):
    path = choices.path(TUNED, root)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(seal(document)))
    return choices.read(TUNED, root)


@pytest.mark.parametrize(
    "change",
    [
        {"chosen": 1},
        {"chosen": 2},
        {"chosen": -1},
        {"chosen": 10**30},
        {"seeds": []},
        {"seeds": ["0", "1"]},
        {"seeds": [0]},
        {"seeds": [-1, 0]},
        {"configurations": []},
        {"configurations": [7]},
        {"configurations": [TRIED, None]},
    ],
    ids=repr,
)
def test_a_tuning_of_another_shape_is_one_line(tmp_path, change):
    assert tuning(tmp_path, TUNING)["chosen"] == 0
    with pytest.raises(FedReproError) as error:
        tuning(tmp_path, TUNING | change)
    assert "fedprox.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["changes", "values", "accuracy", "seconds"])
@pytest.mark.parametrize("value", [..., None, 7, "x", [[]], ["x"], [-1, 5], [101, 5], True], ids=repr)
def test_a_configuration_of_another_shape_is_one_line(tmp_path, key, value):
    document = copy.deepcopy(TUNING)
    document["configurations"][0][key] = value
    if value is ...:
        del document["configurations"][0][key]
    if (key, value) == ("seconds", [101, 5]):
        return
    with pytest.raises(FedReproError) as error:
        tuning(tmp_path, document)
    assert "configurations[0]" in str(error.value)
    assert key in str(error.value)


def test_every_committed_tuning_is_read():
    assert all(choices.read(cell)["cell"] == str(cell) for cell in choices.tuned_cells())
