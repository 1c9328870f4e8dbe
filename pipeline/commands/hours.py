"""Estimates the training hours of a cell from numbers of operations and the measured speed of finished cells.

It counts three passes of every network over its client's images (one forward, two backward) in each local
epoch, three over the public images if the method uses them, one over the test images after a round, and those
of attacks. Whatever else a method does, such as AugMix views, appears only in the speed of its measured
cells.

operations.csv has the operations of one forward pass of one image, for every network at its default widths
with ten classes. These are the multiply-adds, and WRITTEN for every number that a layer writes, because
depthwise convolutions and activations are limited by memory and not by arithmetic. The file exists because
counting them would import torch, which `fedrepro status` avoids.
"""

import contextlib
import csv
import math
import os
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.data import registry
from pipeline.errors import DAMAGED, ParamError
from pipeline.provenance.identity import method_attributes
from pipeline.schema import ROOT, Cell, Data, Domains, Model, Pooled, Scenario, Subset

# Operations of one image by every network, see above.
TABLE = Path(__file__).with_name("operations.csv")
# Multiply-adds that take as long as one number written. So the training steps of seven networks at 32 pixels
# come out within a fifth of their CPU seconds on one core; by multiply-adds alone they differ 5-fold.
WRITTEN = 100
# Cost of a training step in forward passes: the gradients of activations and of weights cost one each.
PASSES = 3
# A measured cell counts where its step is at most these orders of magnitude farther than the nearest one's.
NEAR = 0.5
# Share of a domain that is its test part where this is index mod 10 in {8, 9}.
INDEX_TEST = 0.2
# Default of methods._adversarial.AdversarialTraining.steps.
ATTACK_STEPS = 10


@dataclass(frozen=True)
class Rate:
    """The speed of a finished cell.

    trained  names of its networks, and its data set
    device   on which it was trained
    step     operations of a batch's forward pass
    seconds  of one process, for an operation
    """

    algorithm: str
    trained: tuple[set[str], str]
    device: str
    step: float
    seconds: float


# -- seconds -------------------------------------------------------------------------------------------------


def on_device(result: Result, device: str | None) -> bool:
    """Whether a result was trained on a device of this name, or of a name with this part; None: any."""
    return device is None or device.casefold() in str(result.get("device", "")).casefold()


def rates_of(results: dict[Cell, Result], root: Path = ROOT, device: str | None = None) -> list[Rate]:
    """The speed of every finished cell, on a device (see `on_device`). Cells of unknown size or with other
    parameters than today's are left out."""
    rates = []
    for cell, result in results.items():
        if not on_device(result, device):
            continue
        with contextlib.suppress(*DAMAGED, ParamError):
            experiment = Experiment.of(cell, root)
            whole, step = work(experiment)
            seconds = statistics.fmean(result["seconds"])
            done = result["rounds"] == experiment.scenario.training.rounds
            if whole and done and 0 < seconds < math.inf:
                trained = _trained(experiment)
                rates.append(Rate(experiment.algorithm, trained, result["device"], step, seconds / whole))
    return rates


def estimate(cell: Cell, rates: list[Rate], root: Path = ROOT) -> float | None:
    """Hours of one process that all seeds of a cell take; None where that is not known.

    Measured cells of the same networks and data set count, of those the same algorithm's, where there are
    any. Otherwise it is the cells whose training steps are nearest in size, since the smaller a step, the
    more of its time is overhead.
    """
    try:
        experiment = Experiment.of(cell, root)
    except ParamError:
        return None
    whole, step = work(experiment)
    if not whole or not rates:
        return None
    trained = _trained(experiment)
    same = [rate for rate in rates if rate.trained == trained]
    known = [rate for rate in same if rate.algorithm == experiment.algorithm] or same or rates
    far = [abs(math.log10(rate.step / step)) for rate in known]
    most = min(far) + NEAR
    seconds = [rate.seconds for rate, orders in zip(known, far, strict=True) if orders <= most]
    return statistics.median(seconds) * whole * len(experiment.scenario.seeds) / 3600


def _trained(experiment: Experiment) -> tuple[set[str], str]:
    """Names of the networks, and the data set."""
    return {model.name for model in experiment.scenario.networks}, experiment.scenario.data.set


# -- operations ----------------------------------------------------------------------------------------------


def work(experiment: Experiment) -> tuple[float, float]:
    """(operations of one seed, those of a batch's forward pass on the average); 0 where the size of the data
    is not known, or a network's operations."""
    scenario = experiment.scenario
    training = scenario.training
    evaluation = scenario.evaluation
    train, test = images_of(experiment.cell, scenario, experiment.root)
    try:
        forward = [operations(model, scenario.data) for model in scenario.networks]
    except KeyError:
        return 0, 0
    if not sum(train.values()):
        return 0, 0

    # Operations of one image: by each client's network, by a network on the average, and by all clients.
    by_client = dict(zip(scenario.models or {}, forward))
    mean = statistics.fmean(forward)
    by_all = sum(forward) if scenario.models else mean * scenario.clients

    reads = method_attributes(experiment)
    epoch = sum(count * by_client.get(client, mean) for client, count in train.items())
    local = epoch
    if "random_start" in reads:
        # The attack on every training image; a wrong value is named when the cell is to be trained.
        steps = experiment.hyper.get("steps", ATTACK_STEPS)
        local *= 1 + steps if isinstance(steps, int) else 1
    if isinstance(training.participation, int):
        local *= training.participation / scenario.clients
    elif training.participation is not None:
        local *= training.participation
    whole = PASSES * (local * training.local_epochs * training.rounds + epoch * (training.pretraining or 0))

    # Where not every client scores all images, they share the model that is scored or have other test images.
    every_client = evaluation.tests == "cross" or (evaluation.tests != "clients" and scenario.models)
    tests = test * (by_all if every_client else mean)
    if evaluation.sample is not None:
        tests *= evaluation.sample / scenario.trained_clients
    whole += tests * training.rounds / evaluation.every
    if evaluation.attack:
        whole += PASSES * tests * (1 + evaluation.attack.steps) * min(evaluation.last, training.rounds)
    public = scenario.public
    if public and "public_batches" in reads:
        whole += PASSES * by_all * public.size * public.epochs * training.rounds
    return whole, training.batch_size * epoch / sum(train.values())


def operations(model: Model, data: Data) -> float:
    """Of one image; between the sizes of the table by the pixels from the nearest."""
    table = _table()
    sizes = table.get((model.name, data.channels)) or table[model.name, 3]
    near = min(sizes, key=lambda size: abs(math.log(size / data.size)))
    fixed = len(set(sizes.values())) == 1  # the network reads features, not pixels
    return sizes[near] if fixed else sizes[near] * (data.size / near) ** 2


@cache
def _table() -> dict[tuple[str, int], dict[int, int]]:
    """{(network, channels): {image side: operations of one image}}."""
    table = {}
    for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()):
        key = (row.pop("network"), int(row.pop("channels")))
        table[key] = {int(side): int(count) for side, count in row.items()}
    return table


# -- images --------------------------------------------------------------------------------------------------


def images_of(cell: Cell, scenario: Scenario, root: Path = ROOT) -> tuple[dict[str, float], float]:
    """What one seed goes through: (client -> its training images, test images that a round scores by one
    network). Counted where the partition was made; else one entry "" by the partition's parameters and the
    data set's size, 0 where that is not known."""
    path = root / "papers" / cell.paper / "runs" / cell.partition / "clients.csv"
    kind = scenario.evaluation.tests
    try:
        found = path.stat()
        rows = _rows(path, found.st_mtime_ns, found.st_size)
        train = {row["client"]: float(row["train"]) for row in rows}
        tests = [float(row["test"]) for row in rows]
        domains = dict(zip([row["domain"] for row in rows], tests))
        test = {"clients": sum(tests), "pooled": max(tests)}.get(kind, sum(domains.values()))
        if not all(0 <= count < math.inf for count in (*train.values(), *tests)):
            raise ValueError("no counts")
    except DAMAGED:
        train, test = _expected(scenario)
    if kind == "pooled" and scenario.corruption is not None:
        test *= 2  # as they are, and corrupted
    return train, test


@cache
def _rows(path: Path, changed: int, size: int) -> list[dict[str, str]]:
    """A table of clients, read once for all cells of its scenario until it is written again."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def _expected(scenario: Scenario) -> tuple[dict[str, float], float]:
    """As `images_of`, of a partition that was never made."""
    partition = scenario.partition
    counts = _counts(scenario.data.set)
    if isinstance(partition, Pooled):
        return _expected_of_pool(partition, counts)
    assert isinstance(partition, (Domains, Subset))
    entry = registry.sets().get(scenario.data.set)
    classes = entry.classes if entry else 0

    # Share of the training images that become the test part; 0: it is the set's own.
    taken = {"official": 0.0, "index_mod_10": INDEX_TEST}.get(partition.test, partition.test_share or 0.0)
    most = (partition.test_per_class or math.inf) * classes
    used = [counts[name] for name in scenario.data.domains.values() if name in counts]
    tests = 0.0
    for train, test in used or counts.values():
        tests += min(train * taken if taken else test, most)

    if isinstance(partition, Subset):
        return {client: float(size) for client, size in partition.sizes.items()}, tests
    return {"": _expected_of_domains(partition, scenario.data, counts, taken, classes)}, tests


def _expected_of_pool(
    partition: Pooled, counts: dict[str, tuple[int, int]]
) -> tuple[dict[str, float], float]:
    """As `images_of`, of a partition that deals all domains together."""
    train = sum(train for train, _ in counts.values())
    test = sum(test for _, test in counts.values())
    most = partition.samples or math.inf
    if partition.pool != "train+test":
        return {"": min(train, most)}, test
    whole = min(train + test, most)
    return {"": whole * partition.train_share}, whole * (1 - partition.train_share)


def _expected_of_domains(
    partition: Domains, data: Data, counts: dict[str, tuple[int, int]], taken: float, classes: int
) -> float:
    """Training images of all clients.

    counts  data set of a domain -> (training, test) images
    taken   share of the training images that become the test part
    """
    if partition.per_class:
        return float(partition.per_class * classes * sum(partition.clients.values()))
    total = 0.0
    for domain, clients in partition.clients.items():
        train, _ = counts.get(data.domains.get(domain, domain), (0, 0))
        size = min(train * (1 - taken), partition.samples or math.inf)
        share = partition.share.get(domain, 0) if isinstance(partition.share, dict) else partition.share
        # Every client has this share of its domain; None: the clients share all of it.
        total += size if share is None else size * min(share * clients, 1)
    return total


def _counts(name: str) -> dict[str, tuple[int, int]]:
    """(training, test) images per domain; empty where they are not known beforehand."""
    entry = registry.sets().get(name)
    if entry is None:
        return {}
    if entry.parts:
        counts = {part: _counts(part) for part in entry.parts}
        return {part: count[part] for part, count in counts.items() if count}
    return entry.expected("mirror" if os.environ.get("FEDREPRO_MIRROR") else "canonical")
