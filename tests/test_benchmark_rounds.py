"""One round of each script in benchmarks/ that compares or measures, on few images; what they compare with is
a stand-in of a few lines."""

import csv
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from repository import CELL, ROOT, run

from benchmarks import against_pfllib, gpu_train, scale
from benchmarks import compiled as compiled_steps
from pipeline.models import compiled
from pipeline.models.small import STACKS

CLIENTS = 20
IMAGES = 16
# As much of PFLlib as `against_pfllib` hooks into: a server whose rounds begin with `select_clients`.
SERVER = """class Server:
    def select_clients(self):
        return []

    def evaluate(self):
        return sum(k * k for k in range(20000))

    def train(self):
        for _ in range(1000):
            self.select_clients()
            self.evaluate()
            sum(k * k for k in range(50000))
"""
MAIN = """import sys

from flcore.servers.serverbase import Server

assert sys.argv[sys.argv.index("-nc") + 1] == "{clients}"
Server().train()
"""


@pytest.fixture(scope="module")
def pfllib(tmp_path_factory) -> Path:
    """A checkout with a workload that is there already, and the packages that PFLlib imports."""
    folder = tmp_path_factory.mktemp("pfllib")
    servers = folder / "system/flcore/servers"
    servers.mkdir(parents=True)
    (servers / "serverbase.py").write_text(SERVER)
    (folder / "system/main.py").write_text(MAIN.format(clients=CLIENTS))
    (folder / "dataset").mkdir()
    for name in against_pfllib.NEEDED:
        (folder / "packages" / name).mkdir(parents=True)
        (folder / "packages" / name / "__init__.py").touch()
    rng = np.random.default_rng(0)
    count = CLIENTS * IMAGES
    parts = np.split(np.arange(count), CLIENTS)
    arrays = {f"{kind}.{k}": part for kind in ("train", "test") for k, part in enumerate(parts)}
    values = rng.normal(size=(count, 1, 28, 28)).astype(np.float32)
    labels = rng.integers(0, 10, count)
    np.savez(folder / f"dataset/MNIST_{CLIENTS}.npz", values=values, labels=labels, **arrays)
    return folder


def script(name: str, *words: str, pfllib: Path | None = None) -> subprocess.CompletedProcess:
    more = [str(pfllib / "packages")] if pfllib else []
    path = ":".join([str(ROOT), str(ROOT / "benchmarks"), *more])
    return run(ROOT, sys.executable, f"benchmarks/{name}.py", *words, PYTHONPATH=path)


def test_a_round_beside_pfllib_of_two_batch_sizes_is_written(pfllib, tmp_path):
    out = tmp_path / "rows.json"
    words = ["--pfllib", str(pfllib), "--batch", "8", "16", "--rounds", "1", "--out", str(out)]
    script("against_pfllib", *words, pfllib=pfllib)
    rows = json.loads(out.read_text())["rows"]
    assert {row["batch"] for row in rows} == {8, 16}
    assert {row["program"] for row in rows} >= {"PFLlib", "FedRepro fp32"}
    assert all(row["rounds"] == 1 for row in rows)
    for row in rows:
        assert row["train_cpu"] > 0
        assert row["cpu"] >= row["train_cpu"]
        assert (row["train_cpu_ratio"] == 1) == (row["program"] == "PFLlib")


@pytest.mark.parametrize("method", sorted(set(against_pfllib.OURS) - {"FedAvg"}))
def test_each_method_that_is_compared_trains_a_round(pfllib, method):
    workload = pfllib / f"dataset/MNIST_{CLIENTS}.npz"
    words = ["--workload", str(workload), "--worker", method, "--batch", "16"]
    worker = against_pfllib.Worker(method, words, PYTHONPATH=str(ROOT))
    worker.round()
    worker.stop()
    (row,) = worker.rows
    assert row["train_cpu"] > 0
    assert 0 <= row["accuracy"] <= 100


def test_a_round_beside_other_frameworks_leaves_out_what_does_not_start(pfllib, tmp_path):
    out = tmp_path / "rows.json"
    peers = ("FedRepro", "PFLlib", "FL-bench")
    words = ["--pfllib", str(pfllib), "--rounds", "1", "--out", str(out), "--peers", *peers]
    said = script("against_peers", *words, pfllib=pfllib).stdout
    rows = {row["framework"]: row for row in json.loads(out.read_text())["rows"]}
    assert "left out: FL-bench did not start" in said
    assert rows.keys() == {"FedRepro", "PFLlib"}
    assert rows["FedRepro"]["ratio"] == 1
    assert rows["PFLlib"]["ratio"] > 0


def test_a_case_of_the_growth_of_clients():
    row = json.loads(script("growth", "4", "64").stdout)
    assert (row["clients"], row["samples"]) == (4, 64)
    assert row["cpu"] > 0
    assert row["peak_mb"] > 100


def test_a_step_of_every_small_network_is_measured_with_and_without_compiled_convolutions(tmp_path):
    why = compiled.unavailable()
    if why:
        pytest.skip(why)
    out = tmp_path / "rows.csv"
    script("compiled", "--pairs", "1", "--images", "64", "--out", str(out))
    with out.open() as file:
        rows = list(csv.DictReader(file))
    measured = {(row["arithmetic"], row["network"], row["batch"]) for row in rows}
    names = {name for name, _, _ in compiled_steps.NETWORKS}
    assert measured == set(itertools.product(compiled_steps.ARITHMETICS, names, ("16", "64")))
    assert {STACKS[name].convolutions for name in names} == {
        stack.convolutions for stack in STACKS.values() if stack.convolutions
    }
    for row in rows:
        ratio = float(row["torch_ms"]) / float(row["compiled_ms"])
        assert float(row["ratio"]) == pytest.approx(ratio, rel=0.02)
        assert row["ratio"] == row["least_ratio"] == row["largest_ratio"]


def test_a_round_of_a_cell_is_measured_with_both_executors(project, tmp_path):
    why = compiled.unavailable()
    if why:
        pytest.skip(why)
    out = tmp_path / "rows.csv"
    words = ["--cell", CELL, "--pairs", "2", "--out", str(out)]
    script = str(ROOT / "benchmarks/compiled.py")
    run(project, sys.executable, script, *words, PYTHONPATH=f"{project}:{ROOT}")
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["cell"] for row in rows] == [CELL, CELL]
    for row in rows:
        ratio = float(row["sequential_s"]) / float(row["compiled_s"])
        assert float(row["ratio"]) == pytest.approx(ratio, abs=0.01)


def test_more_workers_end_sooner_in_the_simulated_cluster():
    measured = json.loads((scale.RESULTS / "scale.json").read_text())["measured"]
    seconds = [600.0] * 64
    ends = {workers: scale.simulate(seconds, workers, measured) for workers in (1, 8)}
    assert ends[8]["seconds"] < ends[1]["seconds"]


def test_cells_that_are_named_are_trained_in_turn_until_the_time_is_over(tmp_path, monkeypatch):
    ran = []

    def train(command, cwd, timeout):
        ran.append(command[-1])
        if len(ran) == 2:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0)

    out = tmp_path / "trained.json"
    names = ["fedlsa/mini/fedavg", "fedcrl/mini/fedprox"]
    monkeypatch.setattr(gpu_train.subprocess, "run", train)
    monkeypatch.setattr(sys, "argv", ["gpu_train.py", *names, "--out", str(out)])
    gpu_train.main()
    assert ran == names
    assert [row["exit"] for row in json.loads(out.read_text())] == [0, "out of time"]


def test_rounds_of_many_clients_beside_frameworks_that_are_not_installed(tmp_path):
    out = tmp_path / "rows.csv"
    done = script("many_clients_peers", "--cases", "4:2", "--out", str(out))
    [row] = csv.DictReader(out.open())
    assert (row["framework"], row["clients"], row["taking_part"]) == ("FedRepro", "4", "2")
    assert float(row["round_s"]) >= 0
    assert int(row["memory_mb"]) > 100
    assert "left out: pfl-research with 4 clients: ModuleNotFoundError: No module named 'pfl'" in done.stdout
    assert "left out: Flower with 4 clients: ModuleNotFoundError: No module named 'flwr'" in done.stdout
