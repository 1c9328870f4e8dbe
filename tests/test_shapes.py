"""Documents sealed with another shape, names and numbers of a clumsy user: one line, never a traceback."""

import copy
import json
from pathlib import Path

import pytest
import torch
from repository import edit

from pipeline.cells import choices
from pipeline.cells.checkpoint import SeedFiles
from pipeline.cells.checks import check_names
from pipeline.cells.progress import event
from pipeline.clusters.cluster import Mark
from pipeline.errors import FedReproError, ParamError
from pipeline.schema import Cell, read_yaml
from pipeline.sealing import seal

ODD = (None, 7, -1, 1.5, "x", [], {}, [[]], {"a": []}, True, 10**400)
MARK = {
    "cell": "a/b/c",
    "title": "slurm cluster 'x'",
    "id": "7_1",
    "name": "n",
    "digests": {"sequential": {"0": "d"}},
}


@pytest.mark.parametrize("key", MARK)
@pytest.mark.parametrize("value", [value for value in ODD if not isinstance(value, str)], ids=repr)
def test_a_mark_of_another_shape_is_none(tmp_path, key, value):
    path = tmp_path / "mark.json"
    path.write_text(json.dumps(MARK))
    assert Mark.read(path).id == "7_1"
    path.write_text(json.dumps(MARK | {key: value}))
    assert Mark.read(path) is None or (key, value) == ("digests", {})


SEED = {
    "seed": 0,
    "rows": [{"round": 0, "loss": None}, {"round": 1, "loss": 0.5, "average": 50.0, "state": "0" * 16}],
    "clients": [50.0, None],
    "holdings": {"images": [5, 6], "classes": [2, 2]},
    "traffic": [10, 20.5],
    "hook": "pre",
    "by_class": [10.0, None],
    "seconds": 1.5,
    "device": "cpu",
    "precision": "fp32",
    "executor": "sequential",
    "memory": {"process_mb": 300, "device_mb": None},
    "versions": {"torch": "2"},
    "started": "2026-01-01T00:00:00+00:00",
}
CHECKPOINT = {
    "state": {"kind": "dict", "value": {"x": 1}},
    "rows": SEED["rows"],
    "own": [None, 12.5],
    "seconds": 3.0,
}


@pytest.mark.parametrize("key", [*SEED, "pictures", "row"])
def test_a_sealed_seed_of_another_shape_is_set_aside(tmp_path, key):
    files = SeedFiles(tmp_path / "cell", 0)
    document = {name: value for name, value in files.finish(SEED, {}).items() if name != "self"}
    assert files.run()["rows"] == SEED["rows"]
    odd = [document | {key: value} for value in ODD if value not in (document.get(key), True)]
    if key == "row":
        odd = [document | {"rows": [SEED["rows"][0], value]} for value in (*ODD, {"round": 2})]
        odd += [document | {"rows": [{"round": 0, name: value}]} for name in "xy" for value in ([], {}, "x")]
    elif key not in ("holdings", "by_class"):
        odd.append({name: value for name, value in document.items() if name != key})
    for changed in odd:
        files.finished.write_text(json.dumps(seal(changed)))
        if (run := files.run()) is not None:
            assert isinstance(run[key], type(document[key])) or key == "seconds", changed


@pytest.mark.parametrize("key", CHECKPOINT)
def test_a_checkpoint_of_another_shape_is_set_aside(tmp_path, key):
    files = SeedFiles(tmp_path / "cell", 0)
    files.save(CHECKPOINT)
    assert files.resume(torch.device("cpu")) == CHECKPOINT
    odd = (None, "x", [[7]], {"a": []}, -1) if key != "state" else ({}, {"kind": "params"}, [{"kind": "x"}])
    for value in odd:
        files.save(CHECKPOINT | {key: value})
        assert files.resume(torch.device("cpu")) is None
    files.save({name: value for name, value in CHECKPOINT.items() if name != key})
    assert files.resume(torch.device("cpu")) is None


EVENT = {"seed": 1, "round": 2, "rounds": 5, "accuracy": 50.0, "left": 1.5}


@pytest.mark.parametrize("key", EVENT)
def test_an_event_of_another_shape_is_none(key):
    """A worker's machine may send anything."""
    assert event(json.dumps(EVENT).encode()) == EVENT
    for value in [one for one in ODD if one is not None and one is not True and type(one) is not int]:
        if type(value) is not float:
            assert event(json.dumps(EVENT | {key: value}).encode()) == {}
    for line in (b"", b"x", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"done": true}', b'{"round": 1}'):
        assert event(line) == {}


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
    assert "fedprox.json" in str(error.value) and "\n" not in str(error.value)


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
    assert "configurations[0]" in str(error.value) and key in str(error.value)


def test_every_committed_tuning_is_read():
    assert all(choices.read(cell)["cell"] == str(cell) for cell in choices.tuned_cells())


def changed(root: Path, change) -> None:
    edit(root / "papers/fedcrl/paper.yaml", change)


@pytest.mark.parametrize(
    "kind, change",
    [
        ("methods.FedAvg", lambda d: d["methods"].update(FedAvg={"label": "two", "algorithm": "fedavg"})),
        ("scenarios.Balanced", lambda d: d["scenarios"].update(Balanced=d["scenarios"]["balanced"])),
        ("grids.Main", lambda d: d["grids"].update(Main=d["grids"]["main"])),
        ("tables.TABLE1", lambda d: d["tables"].update(TABLE1=d["tables"]["table1"] | {"number": "9"})),
        ("grids.Runs", lambda d: d["grids"].update(Runs=d["grids"]["main"] | {"separate_file": True})),
    ],
)
def test_names_that_differ_by_case_alone_are_refused(root, kind, change):
    changed(root, lambda document: document["methods"]["ours"].update(algorithm="fedavg"))
    check_names("fedcrl", root)
    changed(root, change)
    with pytest.raises(ParamError, match=kind):
        check_names("fedcrl", root)


@pytest.mark.parametrize("key", ["on", "007", "12:30:00", "~", "1_0", "Off", "0x1F", "1e3"])
def test_a_key_that_yaml_reads_as_something_else_is_named(tmp_path, key):
    path = tmp_path / "paper.yaml"
    path.write_text(f"methods:\n  {key}: {{}}\n")
    with pytest.raises(ParamError, match="paper.yaml:2: "):
        read_yaml(path)
    path.write_text(f'methods:\n  "{key}": {{}}\n')
    assert read_yaml(path) == {"methods": {key: {}}}
