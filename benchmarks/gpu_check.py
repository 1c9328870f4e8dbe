"""The first minutes on a GPU: is the engine right there, how fast is it, and how long would the tables take?

`PYTHONPATH=.:tests python benchmarks/gpu_check.py --out gpu_check.json [--pfllib DIR]`, with torch alone: no
DVC, no MLflow, no data sets. Images are made up. It stops at the first wrong number and names it, and after
--minutes. What is known until then is in the file, which is written after every step.
`--device cpu` tries the whole order without a card; `--pretended` does so on the tests' pretended card, where
times mean nothing.
"""

import argparse
import collections
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# One method for each thing that methods ask of the engine.
METHODS = ("fedavg", "fedprox", "scaffold", "moon", "fedlsa", "fedccl", "fedcrl", "fedproto", "fedrep")
METHODS += ("feddyn", "fedbn", "rahfl")
ROUNDS = 2
# Largest difference of a weight from the sequential CPU run, as a share of the largest weight. Compared in
# double precision: in single, two rounds of Adam make 0.2 % of a difference of rounding.
TOLERANCE = 1e-6
# Images of a client, made up: on a card, and where a CPU or the pretended card stands in.
IMAGES = {"cuda": 200}
FEW = 16


class WrongNumber(Exception):
    """What differs, in one line."""


def agreement(device) -> Iterator[tuple[str, dict]]:
    """Two rounds of each method on the device, stacked, and on the CPU, sequential."""
    import torch
    from federation import miniature_cells

    torch.set_default_dtype(torch.float64)
    cells = miniature_cells()
    for name in METHODS:
        scenario, algorithm, hyper = cells[name].resolve()
        expected = _trained(scenario, algorithm, hyper, torch.device("cpu"), "sequential")
        actual = _trained(scenario, algorithm, hyper, device, "stacked")
        largest = max(float(value.abs().max()) for value in expected)
        off = max(float((a - b).abs().max()) for a, b in zip(actual, expected, strict=True)) / largest
        yield name, {"difference": off}
        if not off < TOLERANCE:
            raise WrongNumber(f"{name}: after {ROUNDS} rounds a weight is off by {off:.2e} of the largest")
    torch.set_default_dtype(torch.float32)


def _trained(scenario, algorithm: str, hyper: dict, device, executor: str) -> list:
    """Every value of the deployed models after some rounds, on the CPU."""
    from federation import miniature_world

    from pipeline import methods

    os.environ["FEDREPRO_EXECUTOR"] = executor
    method, world = methods.load(algorithm, hyper, "gpu_check"), miniature_world(scenario, ROUNDS, device)
    state = method.init(world)
    for number in range(1, ROUNDS + 1):
        state = method.round(state, world.at(number))
    return [
        value.detach().cpu().double()
        for model in method.deployed(state, world)
        for value in model.values()
        if value.is_floating_point()
    ]


def steps(device) -> Iterator[tuple[str, dict]]:
    """Kernels and milliseconds of a step, and a round's time and memory as clients grow."""
    from torch.profiler import ProfilerActivity, profile

    from pipeline.schema import Model, Optimiser

    for clients in (20, 100):
        for optimiser in (Optimiser("sgd", 0.01), Optimiser("adam", 0.003)):
            rounds = _rounds(device, Model("cnn2", dropout=0.3), optimiser, clients)
            for _ in range(3):  # a shape is met, recorded, replayed
                next(rounds)
            seconds = next(rounds)
            activities = [ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU]
            with profile(activities=activities) as seen:
                next(rounds)
            kernels = sum(event.count for event in seen.key_averages())
            taken = -(-IMAGES.get(device.type, FEW) // 16)
            yield (
                f"{clients} clients, {optimiser.name}",
                {
                    "kernels_per_step": round(kernels / taken, 1),
                    "ms_per_step": 1000 * seconds / taken,
                    "rounds_per_second": 1 / seconds,
                    "device_mb": _memory(device),
                },
            )


def growth(device) -> Iterator[tuple[str, dict]]:
    """Seconds of a round as clients grow at the same images in all."""
    from pipeline.schema import Model, Optimiser

    for clients in (10, 50, 200):
        images = 60 * IMAGES.get(device.type, FEW) // clients
        model, optimiser = Model("cnn2", dropout=0.3), Optimiser("adam", 0.003)
        rounds = _rounds(device, model, optimiser, clients, images=images)
        seconds = [next(rounds) for _ in range(4)]
        yield f"{clients} clients", {"images": images * clients, "seconds": min(seconds[2:])}


def _rounds(
    device, model, optimiser, clients: int, side: int = 32, batch: int = 16, images: int = 0
) -> Iterator[float]:
    """Seconds of each round of FedAvg on made-up images, without end."""
    from growth import federation

    from pipeline.methods.fedavg import FedAvg
    from pipeline.schema import Training

    os.environ["FEDREPRO_EXECUTOR"] = "sequential" if device.type == "cpu" else "stacked"
    training = Training(rounds=1000, batch_size=batch, local_epochs=1, optimiser=optimiser)
    each = images or IMAGES.get(device.type, FEW)
    world = federation(clients, each, side, model, training, device)
    method = FedAvg()
    state, number = method.init(world), 0
    while True:
        number, begun = number + 1, time.perf_counter()
        state = method.round(state, world.at(number))
        _wait(device)
        yield time.perf_counter() - begun


def _wait(device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(device) -> float | None:
    import torch

    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None


def tables(device) -> Iterator[tuple[str, dict]]:
    """For every scenario of a table: operations per second of a round on made-up images of its kind, and the
    hours of all its methods at that rate. A method that does more than FedAvg takes longer."""
    from pipeline.cells.experiment import Experiment
    from pipeline.commands import hours
    from pipeline.schema import load_paper, papers, planned

    known: dict[tuple, float] = {}
    for paper in papers():
        cells = [Experiment.of(cell) for cell in planned(paper)]
        for scenario in load_paper(paper).scenarios:
            mine = [one for one in cells if one.cell.scenario == scenario]
            works = [work.whole * len(one.scenario.seeds) for one in mine if (work := hours.work(one))]
            # On features that are computed once, training takes minutes on a CPU.
            if not works or mine[0].scenario.data.features != "pixels":
                continue
            first = mine[0].scenario
            shape = (first.networks[0], first.data.size, first.training.batch_size, first.clients)
            if shape not in known:
                known[shape] = _rate(device, first, *shape)
            yield (
                f"{paper}/{scenario}",
                {
                    "cells": len(works),
                    "operations_per_second": known[shape],
                    "hours": sum(works) / known[shape] / 3600,
                },
            )


def _rate(device, scenario, model, side: int, batch: int, clients: int) -> float:
    """Operations per second, as `hours` counts them, of a round on made-up images."""
    from pipeline.commands import hours

    rounds = _rounds(device, model, scenario.training.optimiser, min(clients, 20), side, batch)
    next(rounds)
    next(rounds)
    data = dataclasses.replace(scenario.data, channels=3)
    one = hours.operations(model, data)
    return hours.PASSES * one * IMAGES.get(device.type, FEW) * min(clients, 20) / next(rounds)


def pfllib(checkout: Path, device, out: Path) -> None:
    """Rounds per second beside PFLlib's, with 20 and with 100 clients."""
    for clients in (20, 100):
        command = [sys.executable, "benchmarks/against_pfllib.py", "--pfllib", str(checkout)]
        command += ["--device", device.type, "--clients", str(clients), "--out", str(out)]
        subprocess.run(command, cwd=ROOT, check=True)


def run(order, device, document: dict, out: Path, end: float) -> None:
    """Note a step's rows, until the time is over."""
    from pipeline.engine import stacked_convolution

    rows = document[order.__name__] = {}
    if time.monotonic() > end:
        return print(f"{order.__name__}: left out, the time is over")
    try:
        for key, row in order(device):
            rows[key], document["im2col"] = row, stacked_convolution.used
            print(order.__name__, key, json.dumps(row), flush=True)
            out.write_text(json.dumps(document, indent=1) + "\n")
            if time.monotonic() > end:
                return print(f"{order.__name__}: cut short, the time is over")
    except WrongNumber as error:
        sys.exit(f"error: {order.__name__}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--pretended", action="store_true", help="on the pretended card of the tests")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--pfllib", type=Path, help="checkout of TsingZ0/PFLlib, to compare with")
    arguments = parser.parse_args()
    import torch

    device, document = torch.device(arguments.device), {"torch": torch.__version__}
    if arguments.pretended:
        import pretend_card

        from pipeline.engine import optimisers

        device, optimisers.FUSED = pretend_card.DEVICE, ()
        there = pretend_card.there_is_a_card()
        there.__enter__().graphs = collections.deque(maxlen=0)  # the tests' card keeps all, with their memory
    elif device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        document |= {"card": properties.name, "memory_gb": round(properties.total_memory / 2**30, 1)}
    end = time.monotonic() + 60 * arguments.minutes
    for order in (agreement, steps, growth, tables):
        run(order, device, document, arguments.out, end)
    if arguments.pfllib and time.monotonic() < end:
        pfllib(arguments.pfllib, device, arguments.out.with_suffix(".pfllib.json"))


if __name__ == "__main__":
    main()
