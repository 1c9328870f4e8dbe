"""What a cell is trained on, read from its files without importing torch, so that `fedrepro status` stays
fast."""

import hashlib

from pipeline.cells.experiment import Experiment
from pipeline.data import corrupted, features, partition, soundness, store
from pipeline.data.hashes import Hashes
from pipeline.errors import ParamError
from pipeline.schema import Scenario, Trial, shorten


def inputs(experiment: Experiment, seed: int) -> dict:
    """The meta.json of the partition that a seed trains on; its `digest` also over the features or corrupted
    images that the scenario takes, `data` with their deviations."""
    scenario = experiment.scenario
    _, meta = partition.read(experiment.partition(seed))
    folder, added = experiment.root / "data" / scenario.data.set, {}
    if scenario.data.features != "pixels":
        found = features.meta(folder.with_name(f"{folder.name}-{scenario.data.features}"))
        added["features"] = found["digest"]
        untrained = "" if found["trained"] else "features of an untrained network"
        meta["data"]["deviation"] = "; ".join(filter(None, [meta["data"]["deviation"], untrained]))
    if scenario.corruption is not None:
        damage = corrupted.read(corrupted.folder_of(folder))
        added["corrupted"] = damage.digest
        meta["data"]["deviation"] = damage.meta["deviation"]
    if added:
        meta["digest"] = hashlib.sha256("".join([meta["digest"], *added.values()]).encode()).hexdigest()
    return meta


def verify(experiment: Experiment) -> None:
    """Recompute the digests of everything that the cell trains on, and look whether its partitions make
    sense.

    Raises DataError or ParamError naming what was altered. Files that have not changed since they were last
    hashed are not read again.
    """
    scenario, cell, root = experiment.scenario, experiment.cell, experiment.root
    sha256 = Hashes(root / ".cells" / "hashes.json")
    folder = root / "data" / scenario.data.set
    stored = store.verify(folder, sha256)
    public = None if scenario.public is None else store.verify(root / "data" / scenario.public.set, sha256)
    if scenario.data.features != "pixels":
        features.verify(folder.with_name(f"{folder.name}-{scenario.data.features}"), stored, sha256)
    if scenario.corruption is not None:
        corrupted.verify(corrupted.folder_of(folder), sha256)
    for place in dict.fromkeys(experiment.partition(seed) for seed in scenario.seeds):
        parts, meta = partition.verify(place)
        _check_tests(parts, scenario, f"papers/{cell.paper}/paper.yaml: scenario {cell.scenario!r}")
        for found, listed in ((stored, meta["data"]), (public, meta["public"])):
            if found is not None and listed["digest"] != found.meta["digest"]:
                raise ParamError(
                    f"{shorten(place)}: made from other data than data/{found.meta['set']} now "
                    "holds; run its partition stage again"
                )
        if not isinstance(cell, Trial):  # whose clients have fewer images than the scenario says
            soundness.check(parts, scenario, stored, public, shorten(place))


def _check_tests(parts: partition.Parts, scenario: Scenario, where: str) -> None:
    """ParamError where a partition has no test image for what the scenario measures; before hours of training
    rather than after them."""
    kind = scenario.evaluation.tests
    if not any(map(len, parts.own_test if kind == "clients" else parts.domain_test.values())):
        raise ParamError(f"{where}: its partition leaves no test image; see `partition.test`, its share")
    missing = {domain for _, domain in parts.clients} - set(parts.domain_test)
    if kind in ("domains", "cross") and missing:
        raise ParamError(
            f"{where}: `evaluation.tests: {kind}` needs a test set of {min(missing)!r}, and "
            f"the partition has only {', '.join(map(repr, parts.domain_test))}"
        )
