"""A repository with one small paper, of which no cell has run."""

import shutil
from pathlib import Path

import numpy as np
import yaml

from pipeline.cells.experiment import Experiment
from pipeline.data.partition import content_digest
from pipeline.files import write_json, write_text
from pipeline.provenance import identity
from pipeline.schema import ROOT, Cell
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
# A partition without clients, and its digest.
DATA = {"set": "digits", "digest": "d", "deviation": ""}
EMPTY = {"public": np.empty(0, np.int64), "heldout": np.empty(0, np.int64)}
DEALT = content_digest(EMPTY, {"data": DATA, "public": None})
AVG, PROX = Cell("fedcrl", "balanced", "fedavg"), Cell("fedcrl", "balanced", "fedprox")
MINI = Cell("fedcrl", "mini", "fedavg")


def repository(tmp_path: Path) -> Path:
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
        "partition": DEALT,
        "partitions": [DEALT, "q"],
        "data": DATA,
        "public": None,
        "digest": identity.cell_digest(Experiment.of(cell, root), DEALT),
    } | changed
    write_json(path, seal(result))
    rounds = range(result["rounds"] + 1)
    lines = ["seed,round", *(f"{seed},{number}" for seed in result["seeds"] for number in rounds)]
    write_text(path.with_name("history.csv"), "\n".join(lines) + "\n")
    return path


def partition(root: Path, scenario: str) -> None:
    """The files of a partition without clients."""
    folder = root / "papers/fedcrl/partitions" / scenario
    write_json(
        folder / "meta.json",
        {
            "digest": DEALT,
            "clients": [],
            "tests": [],
            "warnings": [],
            "data": DATA,
            "public": None,
        },
    )
    np.savez(folder / "indices.npz", **EMPTY)
