"""Estimate how many hours the training of a cell takes.

The estimate is (operations of the cell) * (seconds per operation of finished cells that are like it).

Operations are counted in forward passes of one image. These are three passes of every network over its
client's images (one forward, two backward) in each local epoch, three over the public images if the method
uses them, one over the test images after a round, and those of attacks. Whatever else a method does, such as
AugMix views, appears only in the speed of its measured cells.

operations.csv has the operations of one forward pass of one image, for every network at its default widths
with ten classes. These are the multiply-adds, and WRITTEN for every number that a layer writes, because
depthwise convolutions and activations are limited by memory and not by arithmetic. They are in a file since
counting them would import torch, which takes seconds that `fedrepro status` avoids.
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

# Operations of one image for every network, see above.
TABLE = Path(__file__).with_name("operations.csv")
# Multiply-adds that take as long as writing one number. With it, the estimated training steps of seven
# networks at 32 pixels are within a fifth of their CPU seconds on one core; by multiply-adds alone they
# differ 5-fold.
WRITTEN = 100
# Cost of a training step in forward passes: the forward pass itself, the gradients of the activations, and
# those of the weights.
PASSES = 3
# Orders of magnitude by which the size of a measured cell's step may be farther from the estimated one's than
# the nearest cell's is; cells beyond it do not count, as small steps have more overhead per operation.
NEAR = 0.5
# Share of a domain's images that are tests under the rule `index_mod_10` (index mod 10 is 8 or 9).
INDEX_TEST = 0.2
# Steps of the attack in adversarial training if a cell gives none: the default of
# methods._adversarial.AdversarialTraining.steps.
ATTACK_STEPS = 10


@dataclass(frozen=True)
class Rate:
    """The speed of a finished cell.

    algorithm  that it trains with
    trained    (names of its networks, its data set)
    device     on which it was trained
    step       operations of the forward pass of one batch
    seconds    of one process, for one operation
    """

    algorithm: str
    trained: tuple[set[str], str]
    device: str
    step: float
    seconds: float


# -- seconds -------------------------------------------------------------------------------------------------


def on_device(result: Result, device: str | None) -> bool:
    """Whether a result was trained on a device.

    result  of a cell
    device  its name or a part of it, in any case of letters; None: any device
    """
    return device is None or device.casefold() in str(result.get("device", "")).casefold()


def rates_of(results: dict[Cell, Result], root: Path = ROOT, device: str | None = None) -> list[Rate]:
    """The speed of every finished cell; those of unknown size or with another number of rounds are left out.

    results  cell -> its result
    root     folder of the repository
    device   only cells that were trained on it, as in `on_device`; None: all
    """
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
    """Hours of one process that all seeds of a cell take; None if no estimate is possible.

    The speed is that of the finished cells with the same networks and data set, if there are any, and among
    these of those with the same algorithm, if there are any. Otherwise it is that of all finished cells. Of
    them only those count whose training steps are nearest in size: the smaller a step, the more of its time
    is overhead. The median of their speeds is used.

    cell   that is estimated
    rates  of finished cells
    root   folder of the repository
    """
    try:
        experiment = Experiment.of(cell, root)
    except ParamError:
        return None
    whole, step = work(experiment)
    if not whole or not rates:
        return None

    trained = _trained(experiment)
    same_task = [rate for rate in rates if rate.trained == trained]
    same_algorithm = [rate for rate in same_task if rate.algorithm == experiment.algorithm]
    alike = same_algorithm or same_task or rates

    # Orders of magnitude between the size of each cell's step and this one's.
    distances = [abs(math.log10(rate.step / step)) for rate in alike]
    farthest = min(distances) + NEAR
    seconds = [rate.seconds for rate, distance in zip(alike, distances, strict=True) if distance <= farthest]
    return statistics.median(seconds) * whole * len(experiment.scenario.seeds) / 3600


def _trained(experiment: Experiment) -> tuple[set[str], str]:
    """(names of the networks, the data set) that a cell trains."""
    return {model.name for model in experiment.scenario.networks}, experiment.scenario.data.set


# -- operations ----------------------------------------------------------------------------------------------


def work(experiment: Experiment) -> tuple[float, float]:
    """Count the operations of a cell.

    Returns (operations of one seed; operations of the forward pass of a batch, on the average). Both are 0 if
    the size of the data or the operations of a network are not known.
    """
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

    # Operations of one image: by each client's network, by the mean network, and by the networks of all
    # clients together.
    by_client = dict(zip(scenario.models or {}, forward))
    mean = statistics.fmean(forward)
    by_all = sum(forward) if scenario.models else mean * scenario.clients

    # One pass over all training images, then the same with the attack that a method adds, by the clients that
    # take part in a round.
    epoch = sum(count * by_client.get(client, mean) for client, count in train.items())
    local = epoch
    reads = method_attributes(experiment)
    if "random_start" in reads:
        steps = experiment.hyper.get("steps", ATTACK_STEPS)
        # Another value than a number is reported when the cell is to be trained.
        if isinstance(steps, int):
            local *= 1 + steps
    if isinstance(training.participation, int):
        local *= training.participation / scenario.clients
    elif training.participation is not None:
        local *= training.participation
    pretraining = epoch * (training.pretraining or 0)
    whole = PASSES * (local * training.local_epochs * training.rounds + pretraining)

    # All clients score all images, unless they share the scored model or have test images of their own.
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
    """Operations of one forward pass of one image.

    For an image size that is not in the table, those of the nearest size are scaled by the number of pixels.

    model  the network
    data   size and channels of its images

    Raises KeyError for a network that is not in the table.
    """
    table = _table()
    sizes = table.get((model.name, data.channels)) or table[model.name, 3]
    nearest = min(sizes, key=lambda size: abs(math.log(size / data.size)))
    reads_features = len(set(sizes.values())) == 1
    if reads_features:
        return sizes[nearest]
    return sizes[nearest] * (data.size / nearest) ** 2


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
    """The numbers of images that one seed goes through.

    They are counted if the partition was made. Otherwise they follow from the parameters of the partition and
    the size of the data set, and are 0 if that is not known.

    cell      whose partition is meant
    scenario  of the cell
    root      folder of the repository

    Returns (client -> its training images; test images that a round scores by one network). Without a
    partition the only client is "", which stands for all.
    """
    path = root / "papers" / cell.paper / "runs" / cell.partition / "clients.csv"
    kind = scenario.evaluation.tests
    try:
        found = path.stat()
        rows = _rows(path, found.st_mtime_ns, found.st_size)
        train = {row["client"]: float(row["train"]) for row in rows}
        tests = [float(row["test"]) for row in rows]
        if not tests or not all(0 <= count < math.inf for count in (*train.values(), *tests)):
            raise ValueError("no counts")
        # Clients of one domain share its test images.
        by_domain = {row["domain"]: float(row["test"]) for row in rows}
        if kind == "clients":
            test = sum(tests)
        elif kind == "pooled":
            test = max(tests)
        else:
            test = sum(by_domain.values())
    except DAMAGED:
        train, test = _expected(scenario)
    if kind == "pooled" and scenario.corruption is not None:
        test *= 2  # each image as it is, and corrupted
    return train, test


@cache
def _rows(path: Path, changed: int, size: int) -> list[dict[str, str]]:
    """The rows of a table of clients, read once for all cells of its scenario.

    path     of the table
    changed  when it was written, in nanoseconds; another time or size reads it again
    size     in bytes
    """
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def _expected(scenario: Scenario) -> tuple[dict[str, float], float]:
    """As `images_of`, for a partition that was not made yet."""
    partition = scenario.partition
    counts = _counts(scenario.data.set)
    if isinstance(partition, Pooled):
        return _expected_of_pool(partition, counts)
    assert isinstance(partition, (Domains, Subset))
    entry = registry.sets().get(scenario.data.set)
    classes = entry.classes if entry else 0

    # Share of the training images that become the test part; 0: the data set has test images of its own.
    if partition.test == "official":
        taken = 0.0
    elif partition.test == "index_mod_10":
        taken = INDEX_TEST
    else:
        taken = partition.test_share or 0.0
    most = (partition.test_per_class or math.inf) * classes
    used = [counts[name] for name in scenario.data.domains.values() if name in counts]
    tests = 0.0
    for train, test in used or counts.values():
        available = train * taken if taken else test
        tests += min(available, most)

    if isinstance(partition, Subset):
        return {client: float(size) for client, size in partition.sizes.items()}, tests
    return {"": _expected_of_domains(partition, scenario.data, counts, taken, classes)}, tests


def _expected_of_pool(
    partition: Pooled, counts: dict[str, tuple[int, int]]
) -> tuple[dict[str, float], float]:
    """As `images_of`, for a partition that divides the images of all domains together.

    counts  domain -> (training, test) images of the data set
    """
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

    partition  divides each domain over clients of its own
    data       the data set of each domain
    counts     data set of a domain -> (training, test) images
    taken      share of the training images that become the test part
    classes    number of classes
    """
    if partition.per_class:
        return float(partition.per_class * classes * sum(partition.clients.values()))
    total = 0.0
    for domain, clients in partition.clients.items():
        train, _ = counts.get(data.domains.get(domain, domain), (0, 0))
        size = min(train * (1 - taken), partition.samples or math.inf)
        share = partition.share
        if isinstance(share, dict):
            share = share.get(domain, 0)
        # Every client has this share of its domain; None: the clients have all of it together.
        total += size if share is None else size * min(share * clients, 1)
    return total


def _counts(name: str) -> dict[str, tuple[int, int]]:
    """Domain -> (training, test) images of a data set; empty if they are not known beforehand."""
    entry = registry.sets().get(name)
    if entry is None:
        return {}
    if entry.parts:
        counts = {part: _counts(part) for part in entry.parts}
        return {part: count[part] for part, count in counts.items() if count}
    return entry.expected("mirror" if os.environ.get("FEDREPRO_MIRROR") else "canonical")
