"""Milliseconds of a local step with compiled convolutions: `PYTHONPATH=. python benchmarks/compiled.py`.

Each network of pipeline/models/small.py that has convolutions trains epochs on made-up images by the engine,
with torch's operators and with `pipeline.models.compiled` in turn: batches, loss, gradient and a step of SGD,
float32, one thread, CPU time. The first epoch of each does not count. This is done with the default
arithmetic and with the portable one, in a process each. Writes benchmarks/results/compiled.csv.

With `--cell CELL`, whose data and partition must be there, it is instead the first round of this cell, by the
executors `sequential` and `compiled` in turn. Writes benchmarks/results/compiled_rounds.csv.
"""

import argparse
import copy
import json
import os
import statistics
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "results" / "compiled.csv"
ROUNDS = ROOT / "benchmarks" / "results" / "compiled_rounds.csv"
ARITHMETICS = ("default", "portable")
# (network, channels, side of its images)
NETWORKS = (
    ("cnn2", 3, 32),
    ("fedavg_cnn", 3, 32),
    ("fedavg_cnn", 1, 28),
    ("cnn4", 1, 28),
    ("cnn5", 3, 32),
    ("lenet", 3, 32),
    ("simple_cnn", 3, 32),
)
BATCHES = (16, 64)


def measure(arithmetic: str, pairs: int, images: int) -> list[dict[str, float | int | str]]:
    """A row for each network and batch size, in this process, which has not imported torch.

    arithmetic: one of ARITHMETICS
    pairs: how many epochs are measured with torch's operators, and as many with the compiled convolutions
    images: of an epoch

    Raises FedReproError where the convolutions cannot be compiled.
    """
    from pipeline.arithmetic import adopt

    adopt(arithmetic)
    import torch

    from pipeline.errors import FedReproError
    from pipeline.models import compiled

    torch.set_num_threads(1)
    why = compiled.unavailable()
    if why:
        raise FedReproError(why)
    rows = []
    for name, channels, side in NETWORKS:
        for batch in BATCHES:
            times = _times(name, channels, side, batch, pairs, images)
            ratios = [by_torch / by_block for by_torch, by_block in times]
            row = {
                "arithmetic": arithmetic,
                "network": name,
                "channels": channels,
                "side": side,
                "batch": batch,
                "pairs": pairs,
                "torch_ms": round(statistics.median(by_torch for by_torch, _ in times), 3),
                "compiled_ms": round(statistics.median(by_block for _, by_block in times), 3),
                "ratio": round(statistics.median(ratios), 2),
                "least_ratio": round(min(ratios), 2),
                "largest_ratio": round(max(ratios), 2),
            }
            rows.append(row)
    return rows


def _times(
    name: str, channels: int, side: int, batch: int, pairs: int, images: int
) -> list[tuple[float, float]]:
    """Of each pair of epochs, milliseconds of a step with torch's operators and with the compiled ones."""
    import torch

    from pipeline.engine.compiled import join_convolutions
    from pipeline.engine.phase import Client
    from pipeline.engine.world import World, supervised
    from pipeline.schema import Model, Optimiser, Training

    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(images, channels, side, side, generator=generator)
    labels = torch.randint(0, 10, (images,), generator=generator)
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    client = Client("0", "made up", Model(name), pixels, labels)
    training = Training(1, batch, 1, Optimiser("sgd", 0.005), drop_last=True)
    world = World.create([client], training, 10, 0, "cpu")
    models = world.everyone(world.new_model())
    networks = world.executor.networks
    (key,) = networks
    by_torch = networks[key]
    by_block = copy.deepcopy(by_torch)
    join_convolutions(by_block.features.encoder)

    def step(network) -> float:
        networks[key] = network
        begun = time.process_time()
        world.local_epochs(models, supervised)
        return (time.process_time() - begun) * 1000 / (images // batch)

    step(by_torch)
    step(by_block)
    return [(step(by_torch), step(by_block)) for _ in range(pairs)]


def rounds_of(cell: str, pairs: int) -> list[dict[str, float | int | str]]:
    """CPU seconds of a cell's first round without scoring: a row for each pair, `sequential` first.

    cell: its name, such as "fedcrl/cifar10-dir-01-rounds/fedavg"
    pairs: how many times both executors train the round
    """
    from pipeline.arithmetic import adopt
    from pipeline.cells.experiment import Experiment
    from pipeline.schema import Cell

    experiment = Experiment.of(Cell.parse(cell))
    adopt(experiment.scenario.arithmetic)
    import torch

    from pipeline import methods
    from pipeline.cells.loading import load_world

    torch.set_num_threads(1)
    method = methods.load(
        experiment.algorithm, experiment.hyper, experiment.where, experiment.cell.paper, experiment.root
    )
    worlds = {}
    for executor in ("sequential", "compiled"):
        os.environ["FEDREPRO_EXECUTOR"] = executor
        worlds[executor], _ = load_world(experiment, seed=0)
    state = method.init(worlds["sequential"])
    rows = []
    for _ in range(pairs):
        seconds = {}
        for executor, world in worlds.items():
            begun = time.process_time()
            method.round(state, world.at(1))
            seconds[executor] = round(time.process_time() - begun, 2)
        ratio = round(seconds["sequential"] / seconds["compiled"], 2)
        row = {
            "cell": cell,
            "sequential_s": seconds["sequential"],
            "compiled_s": seconds["compiled"],
            "ratio": ratio,
        }
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--cell", help="measure the first round of this cell instead")
    parser.add_argument(
        "--out", type=Path, help="file for the rows, instead of the one in benchmarks/results"
    )
    parser.add_argument("--here", choices=ARITHMETICS, help=argparse.SUPPRESS)  # in this process, as JSON
    chosen = parser.parse_args()
    if chosen.here:
        print(json.dumps(measure(chosen.here, chosen.pairs, chosen.images)))
        return
    from benchmarks.machine import measured_alone, write_rows
    from pipeline.provenance import identity

    if chosen.cell:
        rows = rounds_of(chosen.cell, chosen.pairs)
        processor = identity.machine()["processor"]
        write_rows(chosen.out or ROUNDS, [{**row, "processor": processor} for row in rows])
        return
    rows = []
    for arithmetic in ARITHMETICS:
        numbers = ("--pairs", chosen.pairs, "--images", chosen.images)
        for row in measured_alone(__file__, "--here", arithmetic, *numbers):
            rows.append({**row, "processor": identity.machine()["processor"]})
            print(rows[-1], flush=True)
    write_rows(chosen.out or TABLE, rows)


if __name__ == "__main__":
    main()
