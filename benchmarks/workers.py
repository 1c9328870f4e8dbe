"""How much sooner are two workers done than one? On two free cores:

`PYTHONPATH=. python benchmarks/workers.py`

Four seeds of FedCCL's MNIST scenario with FedAvg, cut down to 12,000 images and two rounds, through the
worker processes of `pipeline.cells.workers`, first one at a time, then two, three times in turn. Needs
data/mnist. Writes benchmarks/results/workers.json with the load of the machine before each run: what else
runs counts against the second worker.
"""

import argparse
import dataclasses
import json
import os
import statistics
import time

from cut_down import RESULTS, Smaller, workplace
from machine import cpu, machine

SEEDS, TURNS = 4, 3


def cut(scenario):
    return dataclasses.replace(
        scenario,
        training=dataclasses.replace(scenario.training, rounds=2),
        partition=dataclasses.replace(scenario.partition, samples=12_000),
    )


def main() -> None:
    from pipeline.cells.experiment import Experiment
    from pipeline.cells.seeds import Job
    from pipeline.cells.workers import train_seeds

    cell, rows = Smaller("fedccl", "mnist-dir-005", "fedavg", cut), []
    for turn in range(TURNS):
        for workers in (1, 2):
            os.environ["FEDREPRO_WORKERS"] = str(workers)
            with workplace(cell) as root:
                load, begun, spent = os.getloadavg()[0], time.perf_counter(), cpu()
                experiment = Experiment.of(cell, root)
                jobs = [Job(experiment, seed, f"{turn}") for seed in range(SEEDS)]
                for _ in train_seeds(jobs, lambda row: None):
                    pass
                rows.append(
                    {
                        "workers": workers,
                        "wall": round(time.perf_counter() - begun, 2),
                        "cpu": round(cpu() - spent, 2),
                        "load": round(load, 2),
                    }
                )
            print(rows[-1], flush=True)
    ratios = [one["wall"] / two["wall"] for one, two in zip(rows[::2], rows[1::2])]
    print(
        f"two workers are done {statistics.median(ratios):.2f} times as soon (median of "
        f"{', '.join(f'{r:.2f}' for r in ratios)})"
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "workers.json").write_text(
        json.dumps(
            {"machine": machine(), "ratio": round(statistics.median(ratios), 2), "rows": rows}, indent=1
        )
        + "\n"
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    main()
