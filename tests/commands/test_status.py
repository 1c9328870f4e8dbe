"""What is done, stale, failed, missing or not planned; and all of it in a moment."""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import pytest
from one_paper import AVG, DEALT, DIGITS, MINI, PROX, finish, partition, repository
from repository import PARAMETERS, edit, reread, run

from pipeline.cells import choices
from pipeline.cells.experiment import Experiment
from pipeline.commands import hours, status
from pipeline.files import write_json, write_text
from pipeline.provenance import identity
from pipeline.schema import ROOT, Cell, papers
from pipeline.sealing import seal

HERE = {"precision": "fp32", "executor": "sequential"}


@pytest.fixture
def root(tmp_path):
    return repository(tmp_path)


def states(root: Path) -> dict[Cell, str]:
    return {cell: one.state for cell, one in status.Board(root).overview("fedcrl").cells.items()}


def test_a_tuning_is_listed_with_what_it_has_chosen_and_trained(root):
    eight = {"configurations": 8, "seeds": [0]}
    tuning = {
        "mini": eight | {"methods": ["fedavg"], "test_seeds": [0, 1]},
        "balanced": eight | {"methods": ["fedprox"]},
    }
    edit(root / PARAMETERS, lambda document: document.update(tuning=tuning))

    def actual() -> status.Overview:
        return status.Board(root).overview("fedcrl")

    def tuning_states() -> dict[str, str]:
        return {str(cell): one.state for cell, one in actual().tunings["tuning of mini"].items()}

    finish(root, MINI)
    tuned, published = "fedcrl/mini-tuned/fedavg", "fedcrl/mini-published/fedavg"
    assert tuning_states() == {tuned: "missing", published: "missing"}
    before = actual()
    balanced = before.tunings["tuning of balanced"]
    assert [str(cell) for cell in balanced] == ["fedcrl/balanced-tuned/fedprox", "fedcrl/balanced/fedprox"]
    assert set(balanced) & set(before.cells) == {PROX}  # of table II
    hours_of = {str(cell): one.hours for cell, one in before.tunings["tuning of mini"].items()}
    trials = 8 / 2  # of one seed each
    assert hours_of[tuned] == pytest.approx((1 + trials) * hours_of[published], rel=0.3)
    for tried in (4, 8):  # paper.yaml asks for 8
        assert tuning_states() == {tuned: "missing", published: "missing"}
        one = {"changes": {}, "values": {}, "accuracy": [50.0], "seconds": [1.0]}
        choice = {"cell": str(MINI), "seeds": [0], "chosen": 0, "configurations": [one] * tried}
        write_json(choices.path(MINI, root), seal(choice))
    chosen, untuned = choices.tuned(MINI, root), choices.published(MINI, root)
    finish(root, chosen)
    assert tuning_states() == {tuned: "stale", published: "missing"}  # one draw should serve all its seeds
    for cell in (chosen, untuned):
        path = cell.folder(root) / "result.json"
        finish(root, cell)
        content = json.loads(path.read_text())
        del content["partitions"]
        write_json(path, seal(content))
    assert tuning_states() == {tuned: "done", published: "done"}
    assert "  fedrepro tune fedcrl" in status.lines({"fedcrl": actual()}, [], tables=True)
    assert status._stages({"fedcrl": actual()}, "tuning of mini") == []
    assert status._stages({"fedcrl": actual()}, "tuning of balanced") == [
        "papers/fedcrl/tuning/dvc.yaml:tuned-balanced@fedprox",
        "papers/fedcrl/grids/dvc.yaml:main@balanced-fedprox",
    ]


def test_every_cell_has_one_state(root):
    assert states(root) == dict.fromkeys(
        [MINI, AVG, PROX, Cell("fedcrl", "mnist", "fedavg"), Cell("fedcrl", "mnist", "fedprox")], "missing"
    ) | {Cell("fedcrl", "balanced", "ours"): "no stage", Cell("fedcrl", "mnist", "ours"): "no stage"}
    finish(root, AVG)
    finish(root, MINI)
    assert [cell for cell, state in states(root).items() if state == "done"] == [MINI, AVG]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Such a repository with three cells done; a test leaves it as it was."""
    root = repository(tmp_path_factory.mktemp("trained"))
    for cell in (MINI, AVG, PROX):
        finish(root, cell)
    return root


@pytest.mark.parametrize(
    "file, old, new, stale",
    [
        ("papers/fedcrl/paper.yaml", "mu: 0.1", "mu: 0.2", [PROX]),
        ("papers/fedcrl/paper.yaml", "beta: 0.5", "beta: 0.6", [AVG, PROX]),
        ("papers/fedcrl/paper.yaml", "beta: 0.7", "beta: 0.8", [MINI]),
        ("params.yaml", "seeds: [0, 1]", "seeds: [0, 1, 2]", [MINI]),  # one more seed
        ("papers/fedcrl/paper.yaml", "label: FedProx", "label: Prox", []),
        ("pipeline/methods/fedprox.py", "weight = self.mu", "weight = 2 * self.mu", [PROX]),
        ("pipeline/methods/fedprox.py", '"""FedProx: FedAvg with a penalty', '"""FedProx: a penalty', []),
        ("pipeline/training/seeds.py", "BYTES = 4", "BYTES = 8", [MINI, AVG, PROX]),
    ],
)
def test_stale_is_what_would_now_come_out_otherwise(trained, file, old, new, stale):
    text = (trained / file).read_text()
    assert old in text
    (trained / file).write_text(text.replace(old, new))
    reread()
    try:
        assert [cell for cell, state in states(trained).items() if state == "stale"] == stale
    finally:
        (trained / file).write_text(text)
        reread()


def test_stale_is_what_lacks_draws_or_history(root):
    path = finish(root, AVG)
    result = json.loads(path.read_text())
    write_json(path, seal({key: value for key, value in result.items() if key != "partitions"}))
    assert states(root)[AVG] == "stale"
    scenario = AVG.resolve(root)[0]
    assert identity.redrawn(json.loads(path.read_text()), scenario)
    one = {"seeds": [0]}  # of which nobody can say on how many draws it was
    assert not identity.redrawn(one, scenario)
    assert not identity.redrawn(result, dataclasses.replace(scenario, seeds=[0]))  # fewer seeds move none
    history = finish(root, AVG).with_name("history.csv")
    lines = history.read_text().splitlines(keepends=True)
    assert states(root)[AVG] == "done"
    history.write_text("".join(lines[:-1]))
    assert states(root)[AVG] == "stale"
    history.unlink()
    assert states(root)[AVG] == "stale"
    for half in ("", "[]", "{}", '{"cell"'):
        finish(root, AVG).write_text(half)
        assert states(root)[AVG] == "stale"


@pytest.mark.parametrize("features", [False, True])
def test_failed_is_the_mark_of_today_under_what_the_cell_was_trained_on(root, features):
    """Training with frozen features digests them with the partition, and the executor; so does the status."""
    partition(root, "balanced")
    trained_on, old = DEALT, "of-yesterday"
    if features:
        changed = {"data": DIGITS["data"] | {"features": "vit_tiny"}, "model": {"name": "vit_head"}}
        edit(root / PARAMETERS, lambda document: document["scenarios"]["balanced"].update(changed))
        meta = {"digest": "f", "trained": True, "images": "i", "width": 1}
        write_json(root / "data/digits-vit_tiny/meta.json", meta)
        trained_on = hashlib.sha256(f"{DEALT}f".encode()).hexdigest()
        old = identity.cell_digest(Experiment.of(PROX, root), DEALT)  # of the partition alone
    for cell, digest in ((AVG, identity.cell_digest(Experiment.of(AVG, root), trained_on)), (PROX, old)):
        mark = {"cell": str(cell), "error": "seed 0: loss is nan"} | HERE
        write_json(root / f".cells/{digest}/error.json", mark)
    assert status.failures(root) == {AVG: "seed 0: loss is nan"}
    if not features:
        assert [cell for cell, state in states(root).items() if state == "failed"] == [AVG]
        finish(root, AVG)
        assert "failed" not in states(root).values()  # run again since


def test_a_method_of_another_paper_has_its_table_and_the_miniatures_partition(root):
    edit(root / PARAMETERS, lambda document: document["miniature"].update(others=["fedprox"]))
    cell = Cell("fedcrl", "across", "fedprox")
    write_text(root / "papers/fedcrl/runs/mini/clients.csv", "client,domain,train,test\n0,m,700,1\n")
    assert hours.images_of(cell, cell.resolve(root)[0], root) == ({"0": 700}, 1)
    actual = status.Board(root).overview("fedcrl")
    assert [*actual.tables["across papers"]] == [cell]
    assert [*actual.tables["miniature"]] == [MINI]
    assert actual.cells[cell].stage == "papers/fedcrl/dvc.yaml:across@fedprox"
    finish(root, cell)
    assert states(root)[cell] == "done"


def test_what_is_printed(root, capsys):
    finish(root, AVG)
    finish(root, MINI)
    assert status.status(["fedcrl"], root=root) == 0
    printed = capsys.readouterr().out
    rows = {line[:21].strip(): line[21:].split() for line in printed.splitlines()}
    assert rows["fedcrl"][:6] == ["7", "2", ".", ".", "3", "2"]
    assert rows["table II"][:6] == ["6", "1", ".", ".", "3", "2"]
    assert rows["miniature"] == ["1", "1", ".", ".", ".", "."]
    assert "table I" not in rows
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert "  fedrepro run fedcrl\n" in printed
    assert "--stages 'table II' | xargs -r" in printed
    assert status.status(root=root) == 0  # of all papers a line each
    text = capsys.readouterr().out
    assert "\nfedcrl " in text
    assert "table II" not in text
    assert text.endswith("fedrepro status fedcrl\n")
    assert status.status(["fedcrl"], table="table II", root=root) == 0
    assert capsys.readouterr().out.split() == [
        f"papers/fedcrl/grids/dvc.yaml:main@{name}"
        for name in ("balanced-fedprox", "mnist-fedavg", "mnist-fedprox")
    ]


@pytest.mark.rest  # a new process follows the code of every cell
def test_five_papers_without_torch_or_dvc():
    code = (
        "import sys, runpy; sys.argv = ['fedrepro', 'status']; sys.modules.update(dict.fromkeys(['torch', "
        "'dvc', 'mlflow', 'pandas', 'sklearn']))\n"
        "runpy.run_module('pipeline', run_name='__main__')"
    )
    done = run(ROOT, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith(tuple(papers())) for line in done.stdout.splitlines()) == 5, done.stderr
