"""A small repository of papers for the tests of reports, and runs written by hand."""

import csv
import json

import yaml

from pipeline.report.claims import COLUMNS
from pipeline.schema import Cell, papers
from pipeline.sealing import seal

DOCUMENT = """
name: a paper
title: "A & B: 100% of {everything}"
authors: "A. Müller, C. #1"
reference: Journal_1 (2024)
idea: One sentence.
order: 1
scenarios:
  balanced: &scenario
    data: {set: digits}
    partition: {kind: dirichlet, clients: 2, beta: 0.3, fixed: true}
    model: {name: cnn2}
    training: {rounds: 2, batch_size: 8}
    evaluation: {tests: clients, last: 1}
    seeds: [0, 1]
  skewed: *scenario
methods: {fedavg: {label: FedAvg}, fedprox: {label: FedProx}, ours: {label: Ours}}
grids: {main: {scenarios: [balanced, skewed], methods: [fedavg, fedprox, ours]}}
titles: {skewed: Skewed_labels & sizes}
notes: {skewed: 50% of the images; beta ~ 0.1}
tables:
  table1:
    number: "1"
    title: Domains
    published: table1.csv
    baseline: FedAvg
    blocks: {"even,public=a|Digits": {scenario: balanced}}
    columns: {Avg: average}
  table2:
    number: "2"
    title: Label skew
    published: table2.csv
    rows: {Averaged: null}
    blocks:
      "practical(beta=0.1,N=20)|CIFAR_10": {scenario: balanced}
      "pathological(N=20)|CIFAR_10": {scenario: skewed}
    columns: {Acc.: weighted, Std.: clients_std}
  table3: {number: "3", title: Sizes, published: table3.csv}
miniature: {scenario: *scenario, methods: [fedavg, ours]}
figures:
  figure3:
    number: "3"
    title: Curves
    scenarios: [balanced, skewed]
    kind: curves
    measures: [weighted, loss]
    window: 2
  figure5: {number: "5", title: Not drawn, scenarios: [balanced]}
communication: {source: "Sec. 5: |θ| counts", counts: {ours: 2|θ|}}
"""
PAPER = yaml.safe_load(DOCUMENT)
PUBLISHED = {
    "table1": [
        ("even,public=a", "Digits", column, method, value)
        for method, row in {
            "FedAvg": [("M", "41.11"), ("Avg", "42.22")],
            "FedProx": [("M", "43.33"), ("Avg", "44.44"), ("delta", "+2.22")],
            "Ours": [("M", "45.55"), ("Avg", "46.66"), ("delta", "+4.44")],
        }.items()
        for column, value in row
    ],
    "table2": [
        (setting, "CIFAR_10", column, method, f"{base + offset:.2f}")
        for method, base in (("FedAvg", 31.07), ("FedProx", 32.07), ("Ours", 33.07), ("Averaged", 32.03))
        for setting, offset in (("practical(beta=0.1,N=20)", 0), ("pathological(N=20)", 20))
        for column, offset in (("Acc.", offset), ("Std.", offset - 25))
    ],
    "table3": [
        ("sizes", data, column, "", value)
        for data in ("Digits", "Others")
        for column, value in (("N", "7007"), ("size", "|theta|"))
    ],
}
BALANCED = {
    "fedavg": {
        "M": [70.0, 72.0],
        "average": [60.0, 62.0],
        "weighted": [50.0, 51.0],
        "clients_std": [9.0, 9.0],
    },
    "ours": {"M": [80.0, 81.0], "average": [66.5, 66.5], "weighted": [55.0, 56.0], "clients_std": [4.0, 5.0]},
}


def described(name, **changes):
    """What meta.json says of a small bundled set of two classes."""
    meta = {"set": name, "source": "bundled", "deviation": "", "classes": ["a", "b"], "domains": [name]}
    return meta | {"official_split": True, "inputs": {}} | changes


def small_repository(path):
    """A repository of five equal papers with two scenarios and three methods, and no runs."""
    for order, name in enumerate(papers(), 1):
        folder = path / "papers" / name
        (folder / "published").mkdir(parents=True)
        (folder / "paper.yaml").write_text(
            yaml.safe_dump(PAPER | {"name": name.upper(), "order": order}, sort_keys=False), encoding="utf-8"
        )
        for table, rows in PUBLISHED.items():
            with (folder / "published" / f"{table}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(
                    ["paper", "table", "setting", "dataset", "column", "method", "value", "std", "note"]
                )
                writer.writerows([name, table[5:], *row, "", ""] for row in rows)
    (path / "params.yaml").write_text("data: {}\n")
    return path


def _clients(measures):
    """Three clients of each seed, the last without test images, that give the run its mean and spread."""
    averages = measures.get("average") or next(iter(measures.values()))
    spreads = measures.get("clients_std", [min(10.0, mean, 100.0 - mean) for mean in averages])
    return [[mean - spread, mean + spread, None] for mean, spread in zip(averages, spreads, strict=True)]


def write_run(root, name, measures, paper="fedcrl"):
    """A finished cell, as the training stage leaves it."""
    cell = Cell.parse(f"{paper}/{name}")
    seeds = list(range(len(next(iter(measures.values())))))
    folder = cell.folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    document = seal(
        {
            "cell": str(cell),
            "paper": paper,
            "scenario": cell.scenario,
            "method": cell.method,
            "label": "x",
            "algorithm": cell.method,
            "hyper": {},
            "seeds": seeds,
            "rounds": 2,
            "hook": "post",
            "last": 1,
            "headline": "average" if "average" in measures else next(iter(measures)),
            "measures": measures,
            "final": measures,
            # of the rounds 0, 1 and 2, below
            "last3": (halves := {name: [value / 2 for value in values] for name, values in measures.items()}),
            "last5": halves,
            "clients": _clients(measures),
            "traffic": {"up": 1000, "down": 2000, "bytes": 12000},
            "warnings": [],
            "data": {
                "set": "digits",
                "source": "bundled",
                "digest": "a" * 64,
                "deviation": "every second image",
            },
            "public": None,
            "partition": "b" * 64,
            "device": "cpu",
            "precision": "fp32",
            "executor": "sequential",
            "versions": {"torch": "2.8.0"},
            "started": "2025-01-01T00:00:00+00:00",
            "seconds": [1.5] * len(seeds),
            "git": {"commit": "c" * 40, "dirty": True},
            "digest": "d" * 64,
        }
    )
    (folder / "result.json").write_text(json.dumps(document, indent=2, sort_keys=True))
    header = ",".join(["seed,round,loss", *measures])
    lines = [
        f"{s},{r},{2.0 - r if r else ''}," + ",".join(str(v[s] * r / 2) for v in measures.values())
        for s in seeds
        for r in range(3)
    ]
    (folder / "history.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder / "result.json"


def write_claims(root, rows):
    with (root / "papers/fedcrl/claims.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *([*row, "", ""] for row in rows)])
