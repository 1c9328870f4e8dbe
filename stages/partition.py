"""Partition a scenario's data over its clients: `python -m stages.partition fedcrl/mini`."""

import sys
from pathlib import Path

import numpy as np

from pipeline import files
from pipeline.cells.results import as_csv
from pipeline.data import histogram, soundness, store, twins
from pipeline.data import partition as cutting
from pipeline.data.parts import PUBLIC, Parts, Pool, generator
from pipeline.data.store import Stored
from pipeline.errors import ParamError
from pipeline.schema import ROOT, Scenario, find_scenario
from pipeline.schema.paper import scenario_key
from stages._stage import stage


def partition(scenario: str) -> None:
    """Write indices.npz and meta.json of <paper>/<scenario>, of every draw that its seeds train on, and the
    label counts of the first seed's clients as CSV."""
    paper, name, settings = find_scenario(scenario)
    where = f"papers/{paper}/paper.yaml: {scenario_key(name)}"
    deal(settings, where, ROOT / "papers" / paper / "partitions" / name, scenario)


def deal(settings: Scenario, where: str, folder: Path, scenario: str) -> None:
    """Write into `folder` what the seeds of these settings train on, and the table of its clients,
    unless its parent's name begins with a dot.

    settings: with the seeds that are wanted. where: file and key, for errors.
    """
    stored = store.verify(ROOT / "data" / settings.data.set)
    if not stored.meta["classes"]:
        raise ParamError(f"{where}.data.set: {settings.data.set!r} has no labels: it can be public data only")
    pool = Pool.of(settings.data, stored, f"{where}.data")
    public = None if settings.public is None else store.verify(ROOT / "data" / settings.public.set)
    draws = {}
    for draw in sorted({0, *map(settings.draw, settings.seeds)}):
        draws[draw] = cutting.partition(settings.partition, pool, f"{where}.partition", draw)
        if public is not None:
            draws[draw].public = _public(settings, public, draw, where)
        soundness.check(draws[draw], settings, stored, public, where)
    for warning in dict.fromkeys(warning for parts in draws.values() for warning in parts.warnings):
        print(f"{scenario}: {warning}", file=sys.stderr)
    sources = {"data": stored.facts, "public": None if public is None else public.facts}
    with files.replace_folder(folder) as new:
        for draw, parts in draws.items():
            cutting.write(cutting.folder_of_draw(new, draw), parts, sources)
    if not folder.parent.name.startswith("."):
        paper, _, name = scenario.partition("/")
        _show(paper, name, draws[settings.draw(settings.seeds[0])], stored)


def _public(settings: Scenario, public: Stored, draw: int, where: str) -> np.ndarray:
    """The ids of the public images, drawn from the training images of `public`."""
    assert settings.public is not None  # the caller has public data
    size = settings.public.size
    candidates = np.flatnonzero(public.split == store.TRAIN)
    if size > len(candidates):
        raise ParamError(f"{where}.public.size: {size} of only {len(candidates)} images")
    drawn = generator(settings.partition, PUBLIC, draw).permutation(candidates)[:size]
    return np.sort(drawn)


def _show(paper: str, name: str, parts: Parts, stored: Stored) -> None:
    counts = histogram.label_counts(parts, stored.labels, stored.meta["classes"])
    runs = ROOT / "papers" / paper / "runs" / name
    runs.mkdir(parents=True, exist_ok=True)
    files.write_text(runs / "clients.csv", as_csv(counts))
    print(
        f"{paper}/{name}: {len(parts.clients)} clients, {sum(map(len, parts.train))} training images, "
        f"{min(map(len, parts.train))} to {max(map(len, parts.train))} each"
    )


def partition_and_tell(scenario: str) -> None:
    """Deal a scenario's images, then say which of its test images are trained on under another index."""
    partition(scenario)
    line = twins.note(scenario)
    if line:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    stage(partition_and_tell, "scenario")
