"""Seconds of commands that train nothing, as a project grows: `PYTHONPATH=. python benchmarks/start_up.py`.

CPU seconds of `fedrepro status`, `plan 24` and a `run` with nothing to do, in made-up projects of 100, 1,000
and 10,000 finished cells (--cells), each with the result of a cell of FedCRL's miniature under another name,
ten methods in a scenario and a claim for every scenario. Each command is called twice and the second is
measured: the first leaves what it found in .cells. For `run` that is made here, since the first one asks DVC
about every stage. Writes start_up.csv and start_up.svg into benchmarks/results (--out).
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from pipeline import files
from pipeline.cells.experiment import Experiment
from pipeline.commands import unchanged
from pipeline.provenance import identity
from pipeline.schema import ROOT, Cell, load_paper
from pipeline.schema.paper import PUBLISHED
from pipeline.sealing import seal

CELLS = (100, 1_000, 10_000)
COMMANDS = {"status": ["status"], "plan": ["plan", "24"], "run": ["run", "grown"]}
PAPER = "grown"
METHODS = 10
PATTERN = ROOT / "papers" / "fedcrl" / "runs" / "mini" / "fedprox"
COLUMNS = ("cells", *COMMANDS, "processor")
PLACE = "table=1|setting={0}|dataset=Digits|column=Acc.|method={1}"


def grow(folder: Path, cells: int) -> Path:
    """A project with that many finished cells, in a new folder within `folder`; returns it."""
    root = folder / PAPER
    command = [sys.executable, "-m", "pipeline", "new", "project", str(root)]
    subprocess.run(command, check=True, cwd=folder, env=environment(ROOT), stdout=subprocess.DEVNULL)
    scenarios = [f"s{number}" for number in range(-(-cells // METHODS))]
    methods = [f"m{number}" for number in range(METHODS)]
    of_paper = root / "papers" / PAPER
    files.write_text(of_paper / "paper.yaml", _paper(scenarios, methods))
    rows = [
        (PAPER, "1", scenario, "Digits", "Acc.", method.upper(), "61.5", "", "")
        for scenario in scenarios
        for method in methods
    ]
    _write_csv(of_paper / "published" / "table1.csv", PUBLISHED, rows)
    claims = [
        (one, f"M0 is better in {one}", PLACE.format(one, "M0"), PLACE.format(one, "M1"), ">0", "Table 1", "")
        for one in scenarios
    ]
    header = ("id", "claim", "left", "right", "expected", "where", "slip")
    _write_csv(of_paper / "claims.csv", header, claims)
    load_paper(PAPER, root)  # says what is wrong with it
    named = [Cell(PAPER, scenario, method) for scenario in scenarios for method in methods]
    for cell in named[:cells]:
        _finish(cell, root)
    subprocess.run(
        [sys.executable, "-m", "pipeline", "sync"],
        check=True,
        cwd=root,
        env=environment(root),
        stdout=subprocess.DEVNULL,
    )
    _found_up_to_date(named[:cells], root)
    return root


def _paper(scenarios: list[str], methods: list[str]) -> str:
    """paper.yaml: every scenario is the miniature, drawn from another seed."""
    scenario = (
        "{data: {set: digits, size: 16, channels: 1}, seeds: [0, 1], "
        "partition: {kind: dirichlet, clients: 10, beta: 0.1}, model: {name: cnn2, features: 128}, "
        "training: {rounds: 8, batch_size: 16, optimiser: {name: adam, lr: 0.003}}, "
        "evaluation: {tests: clients, last: 2}}"
    )
    lines = [
        *(f"{key}: {value}" for key, value in (("name", PAPER), ("title", "Made up"), ("authors", "Nobody"))),
        *("reference: Nowhere (2026)", "idea: A project to measure.", "order: 1", "scenarios:"),
        *(f"  {name}: {scenario}" for name in scenarios),
        "methods:",
        *(f"  {name}: {{algorithm: fedprox, label: {name.upper()}, mu: 0.0{name[1:]}1}}" for name in methods),
        f"grids:\n  all: {{scenarios: [{', '.join(scenarios)}], methods: [{', '.join(methods)}]}}",
        'tables:\n  table1:\n    number: "1"\n    title: Accuracy\n    published: table1.csv',
        "    columns: {Acc.: weighted}\n    blocks:",
        *(f"      {name}|Digits: {{scenario: {name}}}" for name in scenarios),
    ]
    return "\n".join(lines) + "\n"


def _write_csv(path: Path, header: tuple | list, rows: list[tuple]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def _finish(cell: Cell, root: Path) -> None:
    """Write the result of PATTERN as that of the cell, by today's code and the cell's own values."""
    result = json.loads((PATTERN / "result.json").read_text(encoding="utf-8"))
    experiment = Experiment.of(cell, root)
    result |= {key: getattr(cell, key) for key in ("paper", "scenario", "method")}
    result |= {"cell": str(cell), "label": cell.method.upper(), "hyper": experiment.hyper}
    result["code"] = identity.digest_of(experiment)
    result["digest"] = identity.cell_digest(experiment, result["partition"], code=result["code"])
    folder = cell.folder(root)
    folder.mkdir(parents=True)
    files.write_json(folder / "result.json", seal({k: v for k, v in result.items() if k != "self"}))
    (folder / "history.csv").write_bytes((PATTERN / "history.csv").read_bytes())


def _found_up_to_date(cells: list[Cell], root: Path) -> None:
    """Leave what a first `run` leaves once DVC has found every stage of the cells up to date."""
    folders = [cell.folder(root).relative_to(root) for cell in cells]
    places = [str(folder / name) for folder in folders for name in ("result.json", "history.csv")]
    places += [*unchanged.ALWAYS, f"papers/{PAPER}/grids/dvc.yaml", f"papers/{PAPER}/grids/dvc.lock"]
    asked = json.dumps([str(root), PAPER])
    unchanged.remember(asked, root, len(cells), places, unchanged.state(places, root))


def environment(root: Path) -> dict[str, str]:
    """That of a command of the code at `root`."""
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}


def seconds(words: list[str], root: Path) -> float:
    """CPU seconds of the second of two calls of a command."""
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "pipeline", *words]
        subprocess.run(command, check=True, cwd=root, env=environment(root), stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def draw(rows: list[dict], path: Path) -> None:
    """Seconds over cells, both on logarithmic axes: what grows linearly has the slope 1."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "fedrepro"}):
        figure, axes = plt.subplots(figsize=(4.5, 3), layout="constrained")
        for name in COMMANDS:
            axes.plot([row["cells"] for row in rows], [row[name] for row in rows], marker="o", label=name)
        axes.set(xlabel="cells", ylabel="CPU seconds", xscale="log", yscale="log")
        axes.legend(title="fedrepro")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=CELLS)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    chosen = parser.parse_args(words)
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for cells in chosen.cells:
        with tempfile.TemporaryDirectory() as folder:
            root = grow(Path(folder).resolve(), cells)
            measured = {name: round(seconds(command, root), 2) for name, command in COMMANDS.items()}
        rows.append({"cells": cells, **measured, "processor": identity.machine()["processor"]})
        print(rows[-1], flush=True)
    table = [tuple(row[name] for name in COLUMNS) for row in rows]
    _write_csv(chosen.out / "start_up.csv", COLUMNS, table)
    draw(rows, chosen.out / "start_up.svg")


if __name__ == "__main__":
    main()
