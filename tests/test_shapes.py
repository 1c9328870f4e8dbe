"""Documents sealed with another shape, names and numbers of a clumsy user: one line, never a
traceback; results that may be used and what is read from them."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from reporting import write_run
from repository import edit

from pipeline.cells import choices, results
from pipeline.cells.checkpoint import SeedFiles
from pipeline.cells.checks import check_names
from pipeline.cells.progress import event
from pipeline.clusters.cluster import Mark
from pipeline.errors import FedReproError, ParamError
from pipeline.report import render
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


def test_seal_survives_a_file_and_shows_every_change():
    document = seal({"b": {2: [1.5], 10: "ä"}, "a": 1})
    again = json.loads(json.dumps(document))
    assert seal(again)["self"] == document["self"]
    assert seal({**again, "a": 2})["self"] != document["self"]
    with pytest.raises(ValueError):
        seal({"a": float("nan")})


def test_tidy_has_mean_and_sample_deviation_and_none_for_one_seed(root):
    write_run(root, "mini/fedavg", {"average": [60.0, 62.0]})
    write_run(root, "mini/ours", {"average": [70.0]})
    table = results.tidy(results.collect(root))
    assert list(table.columns) == results.COLUMNS
    assert table["mean"].tolist() == [61.0, 70.0]
    assert table["std"][0] == pytest.approx(2**0.5) and table["std"].isna()[1]
    assert table["seeds"].tolist() == [2, 1]


OURS = "papers/fedcrl/runs/balanced/ours"
# A change of the document, which is sealed again as by another version, and the key that is named.
DOCUMENTS = [
    (lambda d: d.pop("clients"), "'clients'"),
    (lambda d: d.update(seeds=2), "seeds:"),
    (lambda d: d.update(seeds=[0]), "for 1 seeds"),
    (lambda d: d.update(method="fedavg"), "'cell'"),
    (lambda d: d["clients"][0].pop(), "clients:"),
    (lambda d: d.update(holdings={"images": [[5, 6, 7]] * 2}), "holdings: the key 'classes'"),
    (lambda d: d.update(holdings=dict.fromkeys(("images", "classes"), [[5]] * 2)), "clients:"),
    (lambda d: d.update(by_class=[[50.0, 101.0]] * 2), "by_class[0][1]:"),
    (lambda d: d.update(versions={}), "versions: the key 'torch'"),
    (lambda d: d["measures"].update(average=[1.18e21, 66.5]), "measures.average[0]:"),
    (lambda d: d.update(seconds=[-1.0, 1.0]), "seconds[0]:"),
    (lambda d: d["traffic"].update(up=10**400), "traffic.up:"),
    (lambda d: d.update(traffic_of_seeds={k: [1] for k in d["traffic"]}), "'bytes' for 2 seeds"),
    (lambda d: d.update(memory={"process_mb": [1] * 9}), "'process_mb' for 2 seeds"),
    (lambda d: d.update(memory={"device_mb": "x"}), "memory.device_mb"),
    (
        lambda d: d.update(traffic_of_seeds={"up": [1, 2], "down": [1, 2]}),
        "traffic_of_seeds: the key 'by",
    ),
    (lambda d: d.update(headline="averag"), "'averag'"),
    (lambda d: d.update(partitions=5), "partitions:"),
    (lambda d: d.update(partitions=["a"]), "'partitions' for 2 seeds"),
    (lambda d: d.update(machines=[5, 5]), "machines[0]:"),
    (lambda d: d.update(participants="x"), "participants:"),
]
# A change of the lines of history.csv, and what is named.
HISTORIES = [
    (lambda lines: lines[:4], "seeds and rounds"),
    (lambda lines: [line.replace("66.5", "69.5") for line in lines], "seed 0 give average 69.5"),
    (lambda lines: [line.replace("0,1,1.0,", "0,1,") for line in lines], "history.csv:"),
    (lambda lines: [*lines[:2], *lines[3:]], "seeds and rounds"),
    (lambda lines: lines[:1], "seeds and rounds"),
    (lambda lines: [*lines, f"7{lines[-1][1:]}"], "seeds and rounds"),
    (lambda lines: [line.replace("average", "averag") for line in lines], "'average'"),
    (lambda lines: [line.replace("66.5", "7x.1") for line in lines], "history.csv: average:"),
    (lambda lines: [line.replace("66.5", "166.5") for line in lines], "history.csv:4: average: 166.5"),
]


def problem_of(root) -> str:
    """What is said of the one file that cannot be used."""
    actual, problems = results.survey(root)
    assert [*problems] == [Cell("fedcrl", "balanced", "ours")] and len(actual) == 3
    return problems[Cell("fedcrl", "balanced", "ours")]


@pytest.mark.parametrize("change, key", DOCUMENTS)
def test_a_result_of_another_shape_is_named(measured, change, key):
    path = measured / OURS / "result.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(seal(document)))
    assert "ours/result.json: " in (text := problem_of(measured)) and key in text


@pytest.mark.parametrize("change, key", HISTORIES)
def test_a_history_of_another_shape_is_named(measured, change, key):
    path = measured / OURS / "history.csv"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    assert "ours/history.csv:" in (text := problem_of(measured)) and key in text


def test_what_the_result_reports_is_the_mean_of_its_history(measured):
    path = measured / OURS / "result.json"
    document = json.loads(path.read_text())
    document["last5"].update(average=[66.5, 66.5])
    path.write_text(json.dumps(seal(document)))
    assert "ours/history.csv: the last rounds" in problem_of(measured)
    path.with_name("history.csv").unlink()
    assert "ours/history.csv: no such file" in problem_of(measured)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda text: text[:400], "not whole JSON"),
        (lambda text: text.replace("66.5", "96.5", 1), "'self' is not"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_the_rest_is_rendered(measured, damage, message):
    path = measured / OURS / "result.json"
    path.write_text(damage(path.read_text()))
    assert message in problem_of(measured)
    with pytest.raises(FedReproError, match=message):
        render(["fedcrl"], measured)
    html = (measured / "reports/fedcrl.html").read_text()
    assert message.replace("'", "&#39;") in html and "80.50" not in html.partition('id="numbers"')[2]


def test_metrics_and_history_of_a_paper(measured):
    actual = results.collect(measured)
    assert json.loads(results.metrics("fedcrl", actual))["ours"] == 66.5
    assert json.loads(results.metrics("fedlsa", actual)) == {}
    table = results.history(Cell("fedcrl", "mini", "ours"), measured)
    assert table[table["round"] == 2]["average"].tolist() == [66.5, 66.5]
    with pytest.raises(FedReproError, match="history.csv"):
        results.history(Cell("fedcrl", "mini", "nobody"), measured)


def test_a_result_of_an_unknown_method_or_scenario_is_named(measured):
    runs = measured / "papers/fedcrl/runs"
    shutil.copytree(runs / "balanced/ours", runs / "balanced/fedporx")
    shutil.copytree(runs / "balanced/ours", runs / "balancd/ours")
    actual, problems = results.survey(measured)
    assert len(actual) == 4
    assert [*problems] == [
        Cell("fedcrl", "balancd", "ours"),
        Cell("fedcrl", "balanced", "fedporx"),
    ]
    words = (("balancd/ours", "scenario 'balancd'"), ("fedporx", "method 'fedporx'"))
    for problem, (place, name) in zip(problems.values(), words):
        assert f"{place}/result.json: " in problem and f"unknown {name}" in problem


def test_result_in_another_cells_folder_is_refused(measured):
    runs = measured / "papers/fedcrl/runs/balanced"
    shutil.copytree(runs / "ours", runs / "fedprox")
    with pytest.raises(FedReproError, match="fedcrl/balanced/fedprox"):
        results.collect(measured)


def test_digits_alone_are_read_as_text_and_other_text_is_refused(tmp_path):
    path = tmp_path / "history.csv"
    table = results.parse_history(b"seed,round,loss,state\n0,0,,1234567890123456\n0,1,0.5,\n", path)
    assert table[results.STATE].tolist()[0] == "1234567890123456"
    with pytest.raises(FedReproError, match=r"history.csv:2: state"):
        results.parse_history(b"seed,round,loss,state\n0,0,,12e4\n", path)
