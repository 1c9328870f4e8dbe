"""Load the data set and the partition of a seed and verify them by digest, without importing torch."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.cells import plausible
from pipeline.cells.experiment import Experiment
from pipeline.data import corrupted, features, partition, soundness, store
from pipeline.data.corrupted import Corrupted
from pipeline.data.store import Stored
from pipeline.errors import ParamError
from pipeline.schema import Scenario, Trial, shorten


@dataclass(frozen=True)
class Inputs:
    """A draw of the partition and the images that it indexes, in memory. `vectors` (N, d): of features;
    `damage`: the corrupted images; None where the scenario takes none, as for `public`. `digest`: of them
    all, as `inputs` has it."""

    parts: partition.Parts
    stored: Stored
    public: Stored | None
    vectors: np.ndarray | None
    damage: Corrupted | None
    digest: str = ""


def inputs(experiment: Experiment, seed: int) -> dict:
    """The meta.json of the partition that a seed trains on; its `digest` also over the features or corrupted
    images that the scenario takes, `data` with their deviations."""
    scenario = experiment.scenario
    _, meta = partition.read(experiment.partition(seed))
    folder = experiment.root / "data" / scenario.data.set
    added: list[str] = []
    if scenario.data.features != "pixels":
        described = features.meta(folder.with_name(f"{folder.name}-{scenario.data.features}"))
        added.append(described["digest"])
        untrained = "" if described["trained"] else "features of an untrained network"
        meta["data"]["deviation"] = "; ".join(filter(None, [meta["data"].get("deviation"), untrained]))
    if scenario.corruption is not None:
        damage = corrupted.read_meta(corrupted.folder_of(folder))
        added.append(damage["corruption"]["digest"])
        meta["data"]["deviation"] = damage["deviation"]
    return meta | {"digest": _joined(meta["digest"], *added)}


def _joined(digest: str, *added: str) -> str:
    """Of a partition, and of the features or corrupted images that the scenario takes."""
    return hashlib.sha256("".join([digest, *added]).encode()).hexdigest() if added else digest


@dataclass(frozen=True)
class Dealt:
    """Who trains with a seed; the classes of the data set; the domains that have a test set."""

    clients: plausible.Clients
    classes: int
    domains: list[str]


def dealt(experiment: Experiment, seed: int) -> Dealt:
    """What a seed trains on, by the partition and the labels that are here; nothing is verified.

    OSError or DataError where one of them is missing.
    """
    scenario = experiment.scenario
    stored = experiment.root / "data" / scenario.data.set
    parts, _ = partition.read(experiment.partition(seed))
    labels = np.load(stored / "labels.npy", mmap_mode="r")
    clients = plausible.clients_of(scenario, seed, parts, labels)
    return Dealt(clients, len(store.read_meta(stored)["classes"]), [*parts.domain_test])


def load(experiment: Experiment, place: Path) -> Inputs:
    """What the seeds of one draw train on, every digest recomputed from the bytes that are returned; whether
    the partition makes sense is checked too.

    place: the folder of the draw. Raises DataError or ParamError naming what was altered.
    """
    scenario, data = experiment.scenario, experiment.root / "data"
    folder = data / scenario.data.set
    parts, meta = partition.verify(place)
    _check_tests(parts, scenario, experiment.scenario_key)
    stored = _listed(store.verify(folder), meta["data"], shorten(place))
    _check_kind(stored, scenario, experiment.scenario_key)
    public = None
    if scenario.public is not None:
        public = _listed(store.verify(data / scenario.public.set), meta["public"], shorten(place))
    if not isinstance(experiment.cell, Trial):  # whose clients have fewer images than the scenario says
        soundness.check(parts, scenario, stored, public, shorten(place))
    vectors = None
    added: list[str] = []
    if scenario.data.features != "pixels":
        of_features = folder.with_name(f"{folder.name}-{scenario.data.features}")
        vectors, described = features.read(of_features, stored)
        added.append(described["digest"])
    damage = None if scenario.corruption is None else corrupted.verify(corrupted.folder_of(folder))
    if damage is not None and damage.meta["corruption"]["clean"] != stored.meta["digest"]:
        again = f"run `python -m stages.corrupt {folder.name}` again"
        raise ParamError(f"data/{folder.name}-corrupted: made from other images than are there; {again}")
    added += [damage.meta["corruption"]["digest"]] if damage else []
    return Inputs(parts, stored, public, vectors, damage, _joined(meta["digest"], *added))


def _check_kind(stored: Stored, scenario: Scenario, where: str) -> None:
    """ParamError where samples that are no images are to be normalised as images are."""
    if "dtype" in stored.meta and scenario.data.of_images:
        found = f"{stored.images.dtype} of shape {stored.images.shape[1:]}"
        of_what = f"{scenario.data.normalise!r} is of images, and {scenario.data.set} holds {found}"
        raise ParamError(f"{where}.data.normalise: {of_what}: set it to standard or raw")


def _listed(stored: Stored, noted: dict | None, place: str) -> Stored:
    """The set itself, where it is what the partition notes: digest, source and deviation."""
    if noted != stored.facts:
        now = f"data/{stored.meta['set']} now holds"
        raise ParamError(f"{place}: made from other data than {now}; run its partition stage again")
    return stored


def verify(experiment: Experiment) -> None:
    """`load` all draws that the cell's seeds train on, before hours of training."""
    for place in dict.fromkeys(map(experiment.partition, experiment.scenario.seeds)):
        load(experiment, place)


def _check_tests(parts: partition.Parts, scenario: Scenario, where: str) -> None:
    """ParamError where a partition has no test image for what the scenario measures."""
    kind = scenario.evaluation.tests
    if not any(map(len, parts.client_test if kind == "clients" else parts.domain_test.values())):
        raise ParamError(f"{where}: its partition leaves no test image; see `partition.test`, its share")
    missing = {domain for _, domain in parts.clients} - set(parts.domain_test)
    if kind in ("domains", "cross") and missing:
        needs = f"`evaluation.tests: {kind}` needs a test set of {min(missing)!r}"
        only = ", ".join(map(repr, parts.domain_test))
        raise ParamError(f"{where}: {needs}, and the partition has only {only}")
