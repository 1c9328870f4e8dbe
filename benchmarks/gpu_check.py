"""The first minutes on a GPU: is the engine right there, how fast is it, and how long would the tables take?

`PYTHONPATH=.:tests python benchmarks/gpu_check.py --out gpu_check.json [--pfllib DIR]`, with torch alone: no
DVC, no MLflow, no data sets. Images are made up. It stops at the first wrong number and names it, and after
--minutes, of which every row has a share. The file is written after every row, with the rows that were left
out and why.
`--device cpu` tries the whole order without a card; `--pretended` does so on the tests' pretended card, where
times mean nothing.
"""

import argparse
import collections
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
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
# Rounds before the one that counts: a shape is met, recorded, replayed.
WARM = {"cuda": 3}
# of the time that is left; an order without has one. Agreement comes first and may take all: its numbers
# count most, and what is imported in its first row must not be cut short.
SHARES = {"agreement": 0, "repeats": 1, "steps": 3, "kinds": 2, "growth": 2, "pfllib": 5}
# Mean size of a client over the largest one, in FedCRL's partition by Dir(0.1): clients that wait for the
# largest make a round longer than equal sizes would.
DIRICHLET = 0.53
# Of a table's clients, how many a round of `speeds` has at most.
MOST_CLIENTS = 20
# seconds after which a row that is over time is interrupted again
AGAIN = 5.0
# in torch's warning about an operation that has no deterministic algorithm; the operation is its first word
NO_RULE = "does not have a deterministic implementation"
# what the CUDA runtime calls the host's waits
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
# (name, what measures it)
Row = tuple[str, Callable[[], dict]]


class WrongNumber(Exception):
    """What differs, in one line."""


class OutOfTime(BaseException):
    """A row's share is over. No Exception: torch's load_state_dict makes another error of every one of them,
    and that would end the check."""


def agreement(device) -> Iterator[Row]:
    """Two rounds of each method on the device, stacked, and on the CPU, sequential."""
    from federation import miniature_cells

    cells = miniature_cells()
    for name in METHODS:
        yield name, partial(_agreement, cells[name], device)


def _agreement(cell, device) -> dict:
    import torch

    scenario, algorithm, hyper = cell.resolve()
    torch.set_default_dtype(torch.float64)
    try:
        expected = _trained(scenario, algorithm, hyper, torch.device("cpu"), "sequential")
        actual = _trained(scenario, algorithm, hyper, device, "stacked")
    finally:
        torch.set_default_dtype(torch.float32)
    largest = max(float(value.abs().max()) for value in expected)
    off = max(float((a - b).abs().max()) for a, b in zip(actual, expected, strict=True)) / largest
    if not off < TOLERANCE:
        raise WrongNumber(f"after {ROUNDS} rounds a weight is off by {off:.2e} of the largest")
    return {"difference": off}


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


def repeats(device) -> Iterator[Row]:
    """The same two rounds twice on the device: whether a seed gives the same bits there, as cells are trained
    and where torch takes its deterministic algorithms."""
    from federation import miniature_cells

    cells = miniature_cells()
    for name in ("fedavg", "scaffold", "fedlsa", "rahfl"):
        yield name, partial(_repeated, cells[name], device, deterministic=False)
        yield f"{name}, deterministic", partial(_repeated, cells[name], device, deterministic=True)


def _repeated(cell, device, deterministic: bool) -> dict:
    """deterministic: use torch's deterministic algorithms, and name the operations that have none."""
    import torch

    scenario, algorithm, hyper = cell.resolve()
    executor = "sequential" if device.type == "cpu" else "stacked"
    before = torch.are_deterministic_algorithms_enabled()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        try:
            first, second = (_trained(scenario, algorithm, hyper, device, executor) for _ in range(2))
        finally:
            torch.use_deterministic_algorithms(before)
    lacking = {str(warning.message).split()[0] for warning in heard if NO_RULE in str(warning.message)}
    return {
        "same_bits": all(torch.equal(a, b) for a, b in zip(first, second, strict=True)),
        "difference": max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True)),
        "deterministic_algorithms": deterministic,
        "without_deterministic_algorithm": sorted(lacking),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


def kinds(device) -> Iterator[Row]:
    """A round of 20 clients as the tables have them and `steps` does not: seconds beside those of equal
    clients with colour images who all take part."""
    for name in ("equal", "dirichlet", "one channel", "a tenth take part", "evaluation"):
        yield name, partial(_kind, device, name)


def _kind(device, name: str) -> dict:
    from benchmarks.growth import federation
    from pipeline.methods.fedavg import FedAvg
    from pipeline.schema import Model, Optimiser, Training

    os.environ["FEDREPRO_EXECUTOR"] = "sequential" if device.type == "cpu" else "stacked"
    mean = IMAGES.get(device.type, FEW)
    sizes = _dirichlet_sizes(20, mean) if name == "dirichlet" else [mean] * 20
    training = Training(1000, 16, 1, Optimiser("adam", 0.003))
    if name == "a tenth take part":
        training = dataclasses.replace(training, participation=0.1)
    channels = 1 if name == "one channel" else 3
    world = federation(sizes, 32, Model("cnn2", dropout=0.3), training, device, channels)
    method = FedAvg()
    state, seconds = method.init(world), []
    for number in range(1, WARM.get(device.type, 1) + 2):
        here = world.at(number)
        begun = time.perf_counter()
        if name == "evaluation":
            _score(method, state, here)
        else:
            state = method.round(state, here)
        _wait(device)
        seconds.append(time.perf_counter() - begun)
    return {"images": sum(sizes), "largest_client": max(sizes), "seconds": seconds[-1]}


def _score(method, state, world) -> None:
    """The accuracy of every client's model on as many test images as it has training images."""
    from pipeline.training import evaluation

    tests = [evaluation.TestSet(client.name, client.images, client.labels) for client in world.clients]
    evaluation.measure(method.deployed(state, world), world, tests, "clients")


def _equal_sizes(device, clients: int) -> list[int]:
    return [IMAGES.get(device.type, FEW)] * clients


def _dirichlet_sizes(clients: int, mean: int) -> list[int]:
    """Sizes that fall evenly from the largest, mean / DIRICHLET, and have the same mean."""
    largest = mean / DIRICHLET
    step = 2 * (largest - mean) / (clients - 1)
    return [max(2, round(largest - step * k)) for k in range(clients)]


def steps(device) -> Iterator[Row]:
    """Kernels, host waits and milliseconds of a step, and a round's time and memory as clients grow."""
    from pipeline.schema import Optimiser

    for clients in (20, 100):
        for optimiser in (Optimiser("sgd", 0.01), Optimiser("adam", 0.003)):
            yield f"{clients} clients, {optimiser.name}", partial(_step, device, optimiser, clients)


def _step(device, optimiser, clients: int) -> dict:
    import torch
    from torch.profiler import ProfilerActivity, profile

    from pipeline.schema import Model

    rounds = _rounds(device, Model("cnn2", dropout=0.3), optimiser, _equal_sizes(device, clients))
    seconds = list(islice(rounds, WARM.get(device.type, 1) + 1))[-1]
    on_card = device.type == "cuda"
    activities = [ProfilerActivity.CUDA if on_card else ProfilerActivity.CPU]
    with profile(activities=activities) as seen:
        next(rounds)
    events = seen.events()
    if on_card:
        kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in events)
    else:  # operations that no other called
        kernels = sum(event.cpu_parent is None for event in events)
    taken = -(-IMAGES.get(device.type, FEW) // 16)
    return {
        "kernels_per_step": round(kernels / taken, 1),
        "waits_per_step": round(sum(event.name in WAITS for event in events) / taken, 2) if on_card else None,
        "ms_per_step": 1000 * seconds / taken,
        "rounds_per_second": 1 / seconds,
        "device_mb": _memory(device),
    }


def growth(device) -> Iterator[Row]:
    """Seconds of a round as clients grow at the same images in all."""
    for clients in (10, 50, 200):
        yield f"{clients} clients", partial(_growth, device, clients)


def _growth(device, clients: int) -> dict:
    from pipeline.schema import Model, Optimiser

    images = 60 * IMAGES.get(device.type, FEW) // clients
    model, optimiser = Model("cnn2", dropout=0.3), Optimiser("adam", 0.003)
    rounds = _rounds(device, model, optimiser, [images] * clients)
    warm = WARM.get(device.type, 1)
    return {"images": images * clients, "seconds": list(islice(rounds, warm + 1))[-1]}


def _rounds(
    device, model, optimiser, sizes: list[int], side: int = 32, batch: int = 16, channels: int = 3
) -> Iterator[float]:
    """Seconds of each round of FedAvg on made-up images, without end. sizes: images of each client."""
    from benchmarks.growth import federation
    from pipeline.methods.fedavg import FedAvg
    from pipeline.schema import Training

    os.environ["FEDREPRO_EXECUTOR"] = "sequential" if device.type == "cpu" else "stacked"
    training = Training(rounds=1000, batch_size=batch, local_epochs=1, optimiser=optimiser)
    world = federation(sizes, side, model, training, device, channels)
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


def speeds(device) -> Iterator[Row]:
    """Operations per second, as `hours` counts them, of rounds of each shape in the tables."""
    for shape, scenario in {_shape(scenario): scenario for _, scenario, _ in _scenarios()}.items():
        yield shape, partial(_speed, device, scenario)


def _speed(device, scenario) -> dict:
    """Of three rounds; of fewer where the time was over. Clients of a Dirichlet partition have other sizes,
    and wait for the largest."""
    from pipeline.commands import hours

    model, data, training = scenario.networks[0], scenario.data, scenario.training
    sizes = _equal_sizes(device, min(scenario.clients, MOST_CLIENTS))
    if _is_dirichlet(scenario):
        sizes = _dirichlet_sizes(len(sizes), sizes[0])
    rounds = _rounds(device, model, training.optimiser, sizes, data.size, training.batch_size, data.channels)
    seconds: list[float] = []
    with suppress(OutOfTime):
        for each in islice(rounds, 3):
            seconds.append(each)
    if not seconds:
        raise OutOfTime
    done = hours.PASSES * hours.operations(model, data) * sum(sizes)
    return {"operations_per_second": done / min(seconds), "rounds": len(seconds)}


def _shape(scenario) -> str:
    options = (value for value in dataclasses.astuple(scenario.networks[0]) if value is not None)
    data, batch = scenario.data, scenario.training.batch_size
    pixels = f"{data.size} px{' grey' if data.channels == 1 else ''}"
    clients = f"{scenario.clients}{' Dirichlet' if _is_dirichlet(scenario) else ''} clients"
    return f"{' '.join(map(str, options))}, {pixels}, {clients}, batch {batch}"


def _is_dirichlet(scenario) -> bool:
    return scenario.partition.kind == "dirichlet"


def _scenarios() -> Iterator[tuple]:
    """(name, scenario, operations of each cell) of every table that trains on pixels: on features that are
    computed once, training takes minutes on a CPU."""
    from pipeline.cells.experiment import Experiment
    from pipeline.commands import hours
    from pipeline.schema import load_paper, papers, planned

    for paper in papers():
        cells = [Experiment.of(cell) for cell in planned(paper)]
        for name in load_paper(paper).scenarios:
            mine = [one for one in cells if one.cell.scenario == name]
            works = [work * len(one.scenario.seeds) for one in mine if (work := hours.work(one)[0])]
            if works and mine[0].scenario.data.features == "pixels":
                yield f"{paper}/{name}", mine[0].scenario, works


def tables(rates: dict[str, dict]) -> dict[str, dict]:
    """Hours of every table at the speed of its shape. A method that does more than FedAvg takes longer."""
    rows = {}
    for name, scenario, works in _scenarios():
        rate = rates.get(_shape(scenario), {}).get("operations_per_second")
        known = {"operations_per_second": rate, "hours": sum(works) / rate / 3600} if rate else {}
        rows[name] = {"cells": len(works)} | (known or {"left_out": f"no speed of {_shape(scenario)}"})
    return rows


def pfllib(device, checkout: Path) -> Iterator[Row]:
    """Rounds per second beside PFLlib's, on MNIST."""
    for clients in (20, 100):
        yield f"{clients} clients", partial(_pfllib, device, checkout, clients)


def _pfllib(device, checkout: Path, clients: int) -> dict:
    command = [sys.executable, "benchmarks/against_pfllib.py", "--pfllib", str(checkout.resolve())]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command += ["--device", device.type, "--clients", str(clients), "--out", str(out)]
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            return {"left_out": (done.stderr.strip().splitlines() or ["ended without a message"])[-1]}
        return {"rows": json.loads(out.read_text(encoding="utf-8"))["rows"]}


def run(orders: dict[str, Iterator[Row]], document: dict, out: Path, end: float) -> None:
    """Measure the rows of all orders, each within its share of the time until `end`; then note the tables'
    hours. A wrong number, or an error, ends it."""
    from pipeline.engine.stacked import convolution

    todo = [(step, name, measure) for step, rows in orders.items() for name, measure in rows]
    left = sum(SHARES.get(step, 1) for step, *_ in todo)
    for step, name, measure in todo:
        shares = SHARES.get(step, 1)
        share, left = shares / left if shares else 1, left - shares
        try:
            row = _measured(measure, (end - time.monotonic()) * share)
        except Exception as error:
            cause = str(error)
            if not isinstance(error, WrongNumber):
                cause = f"{type(error).__name__}: {error}"
                traceback.print_exc()
            document["stopped"] = f"{step}: {name}: {cause}"
            _write(document, out)
            sys.exit(f"error: {document['stopped']}")
        document.setdefault(step, {})[name], document["im2col"] = row, convolution.used
        print(step, name, json.dumps(row), flush=True)
        _write(document, out)
    document["tables"] = tables(document.get("speeds", {}))
    _write(document, out)
    rows = [(step, name, document[step][name]) for step, name, _ in todo]
    missing = [f"{step}: {name}: {row['left_out']}" for step, name, row in rows if "left_out" in row]
    print(f"{len(rows) - len(missing)} of {len(rows)} rows measured", *missing, sep="\n")


def _measured(measure: Callable[[], dict], seconds: float) -> dict:
    """A row with the seconds that it took, or why it is left out."""
    import torch

    begun = time.monotonic()
    try:
        with at_most(seconds):
            row = measure()
    except OutOfTime:
        row = {"left_out": f"more than its {max(seconds, 0):.0f} s of the time"}
    except torch.OutOfMemoryError as error:
        row = {"left_out": f"out of memory: {str(error).splitlines()[0]}"}
    return row | {"took": round(time.monotonic() - begun, 1)}


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises OutOfTime in the block once it has run for so long."""

    def stop(*_):
        raise OutOfTime

    if seconds <= 0:
        raise OutOfTime
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _write(document: dict, out: Path) -> None:
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


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

        device = pretend_card.DEVICE
        there = pretend_card.there_is_a_card()
        there.__enter__().graphs = collections.deque(maxlen=0)  # the tests' card keeps all, with their memory
    elif device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        document |= {"card": properties.name, "memory_gb": round(properties.total_memory / 2**30, 1)}
    end = time.monotonic() + 60 * arguments.minutes
    orders = {step.__name__: step(device) for step in (agreement, repeats, steps, kinds, growth)}
    if arguments.pfllib and not arguments.pretended:
        orders["pfllib"] = pfllib(device, arguments.pfllib)
    orders["speeds"] = speeds(device)
    run(orders, document, arguments.out, end)


if __name__ == "__main__":
    main()
