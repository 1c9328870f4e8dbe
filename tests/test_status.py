"""What is done, stale, failed, missing or not planned; the hours that are left; and all of it in a moment."""

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from pipeline.cells import choices, provenance
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs
from pipeline.commands import hours, status
from pipeline.files import write_json, write_text
from pipeline.methods._adversarial import AdversarialTraining
from pipeline.models import NAMES, build
from pipeline.schema import ROOT, Cell, Model, load_paper, load_params, papers
from pipeline.sealing import seal

TRAINING = {"rounds": 10, "batch_size": 16, "local_epochs": 2, "optimiser": {"name": "adam", "lr": 0.001}}
COMMON = {"training": TRAINING, "evaluation": {"tests": "clients"}, "seeds": [0, 1]}
CNN, LENET = {"name": "cnn4"}, {"name": "lenet"}
DIGITS = {
    "data": {"set": "digits", "size": 16},
    "model": CNN,
    "partition": {"kind": "dirichlet", "clients": 4, "beta": 0.5},
}
MINIATURE = {
    **DIGITS,
    "partition": DIGITS["partition"] | {"beta": 0.7},
    "training": TRAINING,
    "evaluation": {"tests": "clients"},
}
MNIST = {
    "data": {"set": "mnist", "size": 32},
    "model": CNN,
    "partition": {"kind": "dirichlet", "clients": 4, "beta": 0.5, "samples": 4000},
}
PAPER = {
    "name": "fedcrl",
    "title": "T",
    "authors": "A",
    "reference": "R",
    "idea": "I",
    "order": 1,
    "scenarios": {"balanced": DIGITS | COMMON, "mnist": MNIST | COMMON},
    "methods": {
        "fedavg": {"label": "FedAvg"},
        "fedprox": {"label": "FedProx", "mu": 0.1},
        "ours": {"label": "Ours"},
    },
    "grids": {"main": {"scenarios": ["balanced", "mnist"], "methods": ["fedavg", "fedprox"]}},
    "tables": {
        "table1": {"number": "I", "title": "Parameters", "published": "table1.csv"},
        "table2": {
            "number": "II",
            "title": "Accuracy",
            "published": "table2.csv",
            "columns": {"Acc.": "weighted", "Cost": None},
            "rows": {"Averaged": None},
            "blocks": {"s|Digits": {"scenario": "balanced"}, "s|MNIST": {"scenario": "mnist"}},
        },
    },
}
HEAD = "paper,table,setting,dataset,column,method,value,std,note\n"
TABLE2 = HEAD + "".join(
    f"fedcrl,II,s,{data},Acc.,{row},50,,\n"
    for data in ("Digits", "MNIST")
    for row in ("FedAvg", "FedProx", "Ours", "Averaged")
)
AVG, PROX = Cell("fedcrl", "balanced", "fedavg"), Cell("fedcrl", "balanced", "fedprox")
MINI = Cell("fedcrl", "mini", "fedavg")
HERE = {"precision": "fp32", "executor": "sequential"}


@pytest.fixture
def root(tmp_path) -> Path:
    """A repository with one small paper, and none of its cells run."""
    write_text(tmp_path / "params.yaml", "miniature: {seeds: [0, 1]}\n")
    write_text(
        tmp_path / "papers/fedcrl/paper.yaml",
        yaml.safe_dump(PAPER | {"miniature": {"methods": ["fedavg"], "scenario": MINIATURE}}),
    )
    write_text(tmp_path / "papers/fedcrl/published/table1.csv", HEAD + "fedcrl,I,s,n/a,tau,FedCRL,0.1,,\n")
    write_text(
        tmp_path / "papers/fedcrl/published/table2.csv", TABLE2 + "fedcrl,II,s,Digits,Cost,FedAvg,2,,\n"
    )
    for name in ("pipeline", "stages"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def finish(root: Path, cell: Cell, seconds=(36.0, 36.0), **changed) -> Path:
    """A result as today's code and parameters give it."""
    path = cell.folder(root) / "result.json"
    result = {
        "cell": str(cell),
        "seeds": [0, 1],
        "rounds": 10,
        "seconds": list(seconds),
        "precision": "fp32",
        "device": "cpu",
        "executor": "sequential",
        "partition": "p",
        "partitions": ["p", "q"],
        "digest": provenance.cell_digest(Experiment.of(cell, root), "p"),
    } | changed
    write_json(path, seal(result))
    rounds = range(result["rounds"] + 1)
    lines = ["seed,round", *(f"{seed},{number}" for seed in result["seeds"] for number in rounds)]
    write_text(path.with_name("history.csv"), "\n".join(lines) + "\n")
    return path


def partition(root: Path, scenario: str) -> None:
    """The files of a partition without clients, of digest p."""
    folder = root / "papers/fedcrl/partitions" / scenario
    write_json(
        folder / "meta.json",
        {"digest": "p", "clients": [], "tests": [], "warnings": [], "data": {"deviation": ""}},
    )
    np.savez(folder / "indices.npz", public=[], heldout=[])


def forget(root: Path) -> None:
    """What a new process would not know."""
    for function in (load_paper, load_params, provenance._code, provenance._digest_of, provenance.noted):
        function.cache_clear()


def states(root: Path) -> dict[Cell, str]:
    results = status.read_results(root)
    actual = status.overview("fedcrl", results, hours.rates_of(results, root), root)
    return {cell: one.state for cell, one in actual.cells.items()}


def test_a_tuning_is_listed_with_what_it_has_chosen_and_trained(root):
    document = yaml.safe_load((root / "papers/fedcrl/paper.yaml").read_text())
    eight = {"configurations": 8, "seeds": [0]}
    document["tuning"] = {
        "mini": eight | {"methods": ["fedavg"], "test_seeds": [0, 1]},
        "balanced": eight | {"methods": ["fedprox"]},
    }
    write_text(root / "papers/fedcrl/paper.yaml", yaml.safe_dump(document))
    forget(root)

    def actual() -> status.Overview:
        results = status.read_results(root)
        return status.overview("fedcrl", results, hours.rates_of(results, root), root)

    def shown() -> dict[str, str]:
        return {str(cell): one.state for cell, one in actual().tunings["tuning of mini"].items()}

    finish(root, MINI)
    tuned, published = "fedcrl/mini-tuned/fedavg", "fedcrl/mini-published/fedavg"
    assert shown() == {tuned: "missing", published: "missing"}
    before = actual()
    balanced = before.tunings["tuning of balanced"]
    assert [str(cell) for cell in balanced] == ["fedcrl/balanced-tuned/fedprox", "fedcrl/balanced/fedprox"]
    assert set(balanced) & set(before.cells) == {PROX}  # of table II
    hours_of = {str(cell): one.hours for cell, one in before.tunings["tuning of mini"].items()}
    trials = 8 / 2  # of one seed each
    assert hours_of[tuned] == pytest.approx((1 + trials) * hours_of[published], rel=0.3)
    for tried in (4, 8):  # paper.yaml asks for 8
        assert shown() == {tuned: "missing", published: "missing"}
        write_json(
            choices.path(MINI, root),
            seal(
                {
                    "cell": str(MINI),
                    "seeds": [0],
                    "chosen": 0,
                    "configurations": [{"changes": {}, "values": {}, "accuracy": [50.0], "seconds": [1.0]}]
                    * tried,
                }
            ),
        )
    chosen, own = choices.tuned(MINI, root), choices.published(MINI, root)
    finish(root, chosen)
    assert shown() == {tuned: "stale", published: "missing"}  # one draw should serve all its seeds
    for cell in (chosen, own):
        path = cell.folder(root) / "result.json"
        finish(root, cell)
        content = json.loads(path.read_text())
        del content["partitions"]
        write_json(path, seal(content))
    assert shown() == {tuned: "done", published: "done"}
    assert "  fedrepro tune fedcrl" in status.lines({"fedcrl": actual()}, [], tables=True)
    assert status._stages({"fedcrl": actual()}, "tuning of mini") == []
    assert status._stages({"fedcrl": actual()}, "tuning of balanced") == [
        "papers/fedcrl/tuning/dvc.yaml:tuned-balanced@fedprox",
        "papers/fedcrl/dvc.yaml:main@balanced-fedprox",
    ]


def test_every_cell_has_one_state(root):
    assert states(root) == dict.fromkeys(
        [MINI, AVG, PROX, Cell("fedcrl", "mnist", "fedavg"), Cell("fedcrl", "mnist", "fedprox")], "missing"
    ) | {Cell("fedcrl", "balanced", "ours"): "no stage", Cell("fedcrl", "mnist", "ours"): "no stage"}
    finish(root, AVG)
    finish(root, MINI)
    assert [cell for cell, state in states(root).items() if state == "done"] == [MINI, AVG]


@pytest.mark.parametrize(
    "file, old, new, stale",
    [
        ("papers/fedcrl/paper.yaml", "mu: 0.1", "mu: 0.2", [PROX]),
        ("papers/fedcrl/paper.yaml", "beta: 0.5", "beta: 0.6", [AVG, PROX]),
        ("papers/fedcrl/paper.yaml", "beta: 0.7", "beta: 0.8", [MINI]),
        ("params.yaml", "seeds: [0, 1]", "seeds: [0, 1, 2]", [MINI]),  # one more seed
        ("papers/fedcrl/paper.yaml", "label: FedProx", "label: Prox", []),
        ("pipeline/methods/fedprox.py", "weight = self.mu", "weight = 2 * self.mu", [PROX]),
        ("pipeline/methods/fedprox.py", '"""FedProx: FedAvg with a pull', '"""FedProx: a pull', []),
        ("pipeline/cells/seeds.py", "BYTES = 4", "BYTES = 8", [MINI, AVG, PROX]),
    ],
)
def test_stale_is_what_would_now_come_out_otherwise(root, file, old, new, stale):
    for cell in (MINI, AVG, PROX):
        finish(root, cell)
    text = (root / file).read_text()
    assert old in text
    (root / file).write_text(text.replace(old, new))
    forget(root)
    assert [cell for cell, state in states(root).items() if state == "stale"] == stale


def test_stale_is_what_was_trained_on_one_draw_for_all_seeds(root):
    path = finish(root, AVG)
    result = json.loads(path.read_text())
    write_json(path, seal({key: value for key, value in result.items() if key != "partitions"}))
    assert states(root)[AVG] == "stale"
    scenario = AVG.resolve(root)[0]
    assert provenance.redrawn(json.loads(path.read_text()), scenario)
    one = {"seeds": [0]}  # of which nobody can say on how many draws it was
    assert not provenance.redrawn(one, scenario)
    assert not provenance.redrawn(result, dataclasses.replace(scenario, seeds=[0]))  # fewer seeds move none


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cell"'])
def test_half_a_result_is_stale(root, text):
    finish(root, AVG).write_text(text)
    assert states(root)[AVG] == "stale"


def test_a_result_without_its_whole_history_is_stale(root):
    history = finish(root, AVG).with_name("history.csv")
    lines = history.read_text().splitlines(keepends=True)
    assert states(root)[AVG] == "done"
    history.write_text("".join(lines[:-1]))
    assert states(root)[AVG] == "stale"
    history.unlink()
    assert states(root)[AVG] == "stale"


def test_failed_is_the_mark_of_today_or_the_log_of_the_last_run(root):
    partition(root, "balanced")
    for digest in (provenance.cell_digest(Experiment.of(AVG, root), "p"), "of-yesterday"):
        write_json(
            root / f".cells/{digest}/error.json",
            {"cell": str(AVG if digest != "of-yesterday" else PROX), "error": "seed 0: loss is nan"} | HERE,
        )
    log = root / ".cells/logs"
    log = log / ("papers_fedcrl_dvc.yaml_mini@fedavg.log")
    write_text(
        log,
        "Running stage 'papers/fedcrl/dvc.yaml:mini@fedavg':\n> python\nerror: no such partition\nERROR: "
        "failed to reproduce 'papers/fedcrl/dvc.yaml:mini@fedavg': failed to run: x\n",
    )
    actual = status.overview("fedcrl", {}, [], root).cells
    assert {cell: one.error for cell, one in actual.items() if one.state == "failed"} == {
        AVG: "seed 0: loss is nan",
        MINI: "no such partition",
    }
    write_text(
        log, "Running stage 'papers/fedcrl/dvc.yaml:mini@fedavg':\n> python\nERROR: interrupted by the user\n"
    )
    finish(root, AVG)
    assert "failed" not in states(root).values()  # stopped by hand; and run again since


def test_an_error_mark_counts_under_what_the_cell_was_trained_on(root):
    """Training with frozen features digests them with the partition, and the executor; so does the status."""
    partition(root, "balanced")
    changed = {"data": DIGITS["data"] | {"features": "vit_tiny"}, "model": {"name": "vit_head"}}
    write_text(
        root / "papers/fedcrl/paper.yaml",
        yaml.safe_dump(PAPER | {"scenarios": PAPER["scenarios"] | {"balanced": DIGITS | COMMON | changed}}),
    )
    write_json(
        root / "data/digits-vit_tiny/meta.json", {"digest": "f", "trained": True, "images": 1, "width": 1}
    )
    forget(root)
    joined = hashlib.sha256(b"pf").hexdigest()
    assert inputs(Experiment.of(AVG, root), 0)["digest"] == joined
    write_json(
        root / f".cells/{provenance.cell_digest(Experiment.of(AVG, root), joined)}/error.json",
        {"cell": str(AVG), "error": "loss is nan"} | HERE,
    )
    write_json(
        root / f".cells/{provenance.cell_digest(Experiment.of(PROX, root), 'p')}/error.json",
        {"cell": str(PROX), "error": "of the partition alone"} | HERE,
    )
    assert status.failures("fedcrl", root).marks == {AVG: "loss is nan"}


def test_a_method_of_another_paper_has_its_own_table_and_the_miniatures_partition(root):
    document = yaml.safe_load((root / "papers/fedcrl/paper.yaml").read_text())
    document["miniature"]["others"] = ["fedprox"]
    write_text(root / "papers/fedcrl/paper.yaml", yaml.safe_dump(document))
    forget(root)
    cell = Cell("fedcrl", "across", "fedprox")
    write_text(root / "papers/fedcrl/runs/mini/clients.csv", "client,domain,train,test\n0,m,700,1\n")
    assert hours.images_of(cell, cell.resolve(root)[0], root) == hours.Images({"0": 700}, 1)
    actual = status.overview("fedcrl", {}, [], root)
    assert actual.tables["across papers"] == [cell] and actual.tables["miniature"] == [MINI]
    assert actual.cells[cell].stage == "papers/fedcrl/dvc.yaml:across@fedprox"
    finish(root, cell)
    assert states(root)[cell] == "done"


def test_hours_are_measured_seconds_per_operation(root):
    """36 s for 1,347.75 images x 3 passes x 2 epochs x 10 rounds and 449.25 tests x 10; MNIST by the
    network's operations at its size, with its 1,000 test images."""
    finish(root, AVG)
    rates = hours.rates_of(status.read_results(root), root)
    small, large = (hours._table()["cnn4", 3][side] for side in (16, 32))
    assert [rate.seconds for rate in rates] == [pytest.approx(36 / (1797 * 0.75 * 60 + 4492.5) / small)]
    assert hours.estimate(PROX, rates, root) == (pytest.approx(72 / 3600), True)
    mnist = Cell("fedcrl", "mnist", "fedavg")
    per_image = 72 / 3600 * large / small / (1797 * 0.75 * 60 + 4492.5)
    assert hours.estimate(mnist, rates, root) == (pytest.approx(per_image * (3000 * 60 + 10_000)), False)
    write_text(
        root / "papers/fedcrl/runs/mnist/clients.csv", "client,domain,train,test\n0,m,700,1\n1,m,800,4\n"
    )
    # counted, not guessed
    assert hours.estimate(mnist, rates, root)[0] == pytest.approx(per_image * (1500 * 60 + 50))
    finish(root, PROX, (72.0, 72.0))
    rates = hours.rates_of(status.read_results(root), root)
    # of the same method where there is one
    assert hours.estimate(MINI, rates, root)[0] == pytest.approx(72 / 3600)
    # of both, as steps of other networks or data are judged by their size
    assert hours.estimate(mnist, rates, root)[0] == pytest.approx(1.5 * per_image * (1500 * 60 + 50))
    assert hours.estimate(mnist, [], root) == (None, False)


def test_every_clients_network_and_the_public_images_count(root):
    """Two clients with a network each; FedMD shows the public images to both, FedAvg to none."""
    two = COMMON | {
        "data": {"set": "digits", "size": 32},
        "models": {"a": CNN, "b": LENET},
        "partition": {"kind": "subset", "sizes": {"a": 100, "b": 10}},
        "public": {"set": "photo_patches", "size": 50, "epochs": 2},
        "evaluation": {"tests": "cross", "every": 5},
    }
    write_text(
        root / "papers/fedcrl/paper.yaml",
        yaml.safe_dump(PAPER | {"scenarios": PAPER["scenarios"] | {"balanced": two}}),
    )
    forget(root)
    scenario = AVG.resolve(root)[0]
    cnn, lenet = (hours._table()[name, 3][32] for name in ("cnn4", "lenet"))
    local, tests = 3 * (100 * cnn + 10 * lenet) * 20, hours._expected(scenario)[1] * (cnn + lenet) * 2
    alone, shown = (
        hours.work(replace(Experiment.of(AVG, root), algorithm=name)) for name in ("fedavg", "fedmd")
    )
    assert alone.whole == pytest.approx(local + tests)
    assert shown.whole - alone.whole == pytest.approx(3 * (cnn + lenet) * 50 * 2 * 10)
    assert alone.step == pytest.approx(16 * (100 * cnn + 10 * lenet) / 110)


def test_adversarial_training_attacks_every_image(root):
    cell = Cell("fedccl", "mini", "fedavg-plus")
    scenario, _, hyper = cell.resolve()
    plain, attacked = (
        hours.work(Experiment(cell, scenario, name, hyper, ROOT)).whole for name in ("fedavg", "fedavg_plus")
    )
    tests = hours.images_of(cell, scenario).test
    images = sum(hours.images_of(cell, scenario).train.values())
    training = scenario.training.rounds * scenario.training.local_epochs * 3 * images
    scored = tests * (scenario.training.rounds + 3 * 3 * (1 + scenario.evaluation.attack.steps))
    assert attacked / plain == pytest.approx(((1 + hyper["steps"]) * training + scored) / (training + scored))
    mnist = Experiment.of(Cell("fedccl", "mnist-adversarial", "fedavg-plus"))
    reads = provenance.method_attributes(mnist)
    assert hours._attack_steps(reads, mnist.hyper) == AdversarialTraining.steps
    assert hours._attack_steps(reads, {"steps": "7"}) == 0  # named before it trains


def count(name: str, channels: int, side: int) -> int:
    """Multiply-adds of torch's own counter, and 100 for each number that a layer puts out."""
    with torch.device("meta"):
        built = build(Model(name), channels, side, 10).eval()
        image = torch.zeros(1, 192) if name == "vit_head" else torch.zeros(1, channels, side, side)
    written: list[int] = []
    for layer in built.modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda *seen: written.append(seen[-1].numel()))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(image)
    return counter.get_total_flops() // 2 + hours.WRITTEN * sum(written)


@pytest.mark.parametrize("name", NAMES)
def test_operations_are_those_of_the_networks(name):
    table = {channels: sizes for (network, channels), sizes in hours._table().items() if network == name}
    assert (
        table
        == {
            channels: {side: count(name, channels, side) for side in sizes}
            for channels, sizes in table.items()
        }
        and table
    )


@pytest.mark.parametrize(
    "partition, images",
    [
        ({"kind": "domains", "clients": {"mnist": 1, "usps": 4}, "share": 0.01}, 600 + 4 * 72.91),
        ({"kind": "domains", "clients": {"mnist": 1}, "test": "index_mod_10"}, 48_000),
        ({"kind": "domains", "clients": {"mnist": 3}, "per_class": 7}, 210),
        ({"kind": "pathological", "clients": 3, "classes": 2, "pool": "train"}, 150_548),
        ({"kind": "subset", "sizes": {"mnist": 150, "usps": 80}}, 230),
    ],
)
def test_training_images_of_a_partition_that_was_never_made(root, partition, images):
    document = PAPER | {
        "scenarios": PAPER["scenarios"]
        | {"balanced": COMMON | {"data": {"set": "digits4"}, "model": CNN, "partition": partition}}
    }
    write_text(root / "papers/fedcrl/paper.yaml", yaml.safe_dump(document))
    forget(root)
    actual = hours.images_of(AVG, AVG.resolve(root)[0], root)
    assert sum(actual.train.values()) == pytest.approx(images)


def test_what_is_printed(root, capsys):
    finish(root, AVG)
    finish(root, MINI)
    assert status.status(["fedcrl"], root=root) == 0
    printed = capsys.readouterr().out
    rows = {line[:21].strip(): line[21:].split() for line in printed.splitlines()}
    assert rows["fedcrl"][:6] == ["7", "2", ".", ".", "3", "2"]
    assert rows["table II"][:6] == ["6", "1", ".", ".", "3", "2"]
    assert rows["miniature"] == ["1", "1", ".", ".", ".", "."] and "table I" not in rows
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert "  fedrepro run fedcrl\n" in printed and "--stages 'table II' | xargs -r" in printed
    assert status.status(root=root) == 0  # of all papers a line each
    text = capsys.readouterr().out
    assert "\nfedcrl " in text and "table II" not in text and text.endswith("fedrepro status fedcrl\n")
    assert status.status(["fedcrl"], table="table II", root=root) == 0
    assert capsys.readouterr().out.split() == [
        f"papers/fedcrl/dvc.yaml:main@{name}"
        for name in ("balanced-fedprox", "mnist-fedavg", "mnist-fedprox")
    ]
    assert status.status(["fedcrl"], as_json=True, root=root) == 0
    document = json.loads(capsys.readouterr().out)["fedcrl"]
    assert (document["cells"], document["done"], document["missing"], document["no_stage"]) == (7, 2, 3, 2)
    assert document["tables"]["table II"]["done"] == 1 and document["by_cell"][str(AVG)] == {
        "state": "done",
        "stage": f"papers/fedcrl/dvc.yaml:main@{AVG.scenario}-fedavg",
    }


def test_a_table_of_mixed_machines_is_named(root, capsys):
    """Portable processors round alike, others do not."""
    finish(root, AVG, versions={"processor": "A avx2", "arithmetic": "portable"})
    finish(root, MINI, versions={"processor": "A avx2"})
    status.status(["fedcrl"], root=root)
    assert "mixed" not in capsys.readouterr().out  # a table each
    finish(root, AVG, machines=[{"processor": "A avx2"}, {"processor": "B"}])
    status.status(["fedcrl"], root=root)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "mixed" in line)
    assert line == "table II: mixed machines, which round differently: 1 on A avx2, 1 on B"


def test_columns_stay_apart():
    left = [status.Status("missing", "s", hours=hours, like=False) for hours in (377.4, None)]
    name, row = status._counted("  table 3, 64 pixels, one client", left * 99).splitlines()
    assert name == "  table 3, 64 pixels, one client" and len(row) <= 80
    assert row.split() == ["198", ".", ".", ".", "198", ".", "~37,363", "+", "99", "cells"]
    assert len(status._counted("office-caltech-10", left * 99)) == 80


def test_five_papers_without_torch_or_dvc():
    code = (
        "import sys, runpy; sys.argv = ['fedrepro', 'status']; sys.modules.update(dict.fromkeys(['torch', "
        "'dvc', 'mlflow', 'pandas', 'sklearn']))\n"
        "runpy.run_module('pipeline', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (
        done.returncode == 0
        and sum(line.startswith(tuple(papers())) for line in done.stdout.splitlines()) == 5
    ), done.stderr
