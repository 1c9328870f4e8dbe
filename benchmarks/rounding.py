"""How far does rounding alone move a miniature?

`PYTHONPATH=. python benchmarks/rounding.py`

Trains twelve cells of the miniatures from the beginning under three settings of the processor's arithmetic,
all else equal, and writes results/rounding.csv. Prints how many seeds have
the committed results' accuracy, which may come from another processor. Needs data and partitions:

`dvc repro corrupted papers/{fedccl,fcclplus,fedlsa,rahfl,fedcrl}/dvc.yaml:partition-mini`
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

import pandas as pd

from pipeline.cells.arithmetic import PORTABLE
from pipeline.cells.checkpoint import FORCE
from pipeline.cells.results import as_csv
from pipeline.files import write_text
from pipeline.schema import ROOT, Cell

CELLS = {
    "fedcrl": ("fedavg", "fedrep", "ditto"),
    "fedlsa": ("fedavg", "fedlsa"),
    "rahfl": ("base", "rahfl"),
    "fedccl": ("fedavg", "fedpcl", "fedccl"),
    "fcclplus": ("base", "fedmd"),
}
SETTINGS = {"default": {}, "AVX2": PORTABLE | {"MKL_CBWR": "AVX2"}, "portable": PORTABLE}


def train(name: str) -> list[float]:
    """Accuracy of each seed in percent; in a temporary root, so that no checkpoint of the repository is read
    or written."""
    from pipeline.cells.training import train_cell

    with tempfile.TemporaryDirectory() as folder:
        for entry in ("data", "papers", "params.yaml", "pipeline", "stages"):
            (Path(folder) / entry).symlink_to(ROOT / entry)
        result = train_cell(Cell.parse(name), Path(folder), write=False)
    return result["measures"][result["headline"]]


def main() -> None:
    rows = []
    for setting, values in SETTINGS.items():
        inherited = {key: value for key, value in os.environ.items() if key not in PORTABLE}
        environment = inherited | values | {FORCE: "1", "FEDREPRO_WORKERS": "1", "FEDREPRO_TRACKING": "off"}
        same = seeds = 0
        for name in (f"{paper}/mini/{method}" for paper, methods in CELLS.items() for method in methods):
            done = subprocess.run(
                [sys.executable, __file__, name], env=environment, stdout=subprocess.PIPE, check=True
            )
            accuracies = json.loads(done.stdout.splitlines()[-1])
            result = json.loads((Cell.parse(name).folder(ROOT) / "result.json").read_text(encoding="utf-8"))
            equal = [*map(float.__eq__, accuracies, result["measures"][result["headline"]])]
            same, seeds = same + sum(equal), seeds + len(equal)
            rows.append([name, setting, round(fmean(accuracies), 4)])
            print(*rows[-1], f"{sum(equal)} of {len(equal)} seeds as committed", flush=True)
        print(f"{setting}: {same} of {seeds} seeds have the committed accuracy", flush=True)
    table = pd.DataFrame(rows, columns=["cell", "setting", "accuracy"])
    write_text(ROOT / "benchmarks" / "results" / "rounding.csv", as_csv(table))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cell", nargs="?", help=argparse.SUPPRESS)
    if cell := parser.parse_args().cell:
        print(json.dumps(train(cell)))
    else:
        main()
