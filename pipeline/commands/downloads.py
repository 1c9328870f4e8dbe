"""List the data sets and pretrained weights that still have to be downloaded before a cell can train."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.data import registry, sources
from pipeline.schema import ROOT, Scenario

WEIGHTS = "pretrained ViT-Ti/16 weights"
HAND = " (by hand)"  # no address that a program can follow


def wanted(scenario: Scenario, root: Path = ROOT) -> set[str]:
    """Names of the data sets, and the weights, that must be downloaded before a scenario can be trained.

    scenario: its `data` and `public` sets. root: of the checkout. What a mirror holds (FEDREPRO_MIRROR) or
    scikit-learn bundles is no download. Raises DataError for an unknown set.
    """
    sets = [scenario.data.set] + ([scenario.public.set] if scenario.public else [])
    names = {name for one in sets for name in _sets(one, root)}
    extracted = root / "data" / f"{scenario.data.set}-{scenario.data.features}"
    if scenario.data.features != "pixels":
        return set() if extracted.is_dir() else names | {WEIGHTS}
    return names


def _sets(name: str, root: Path) -> Iterator[str]:
    entry = registry.find(name)
    if (root / "data" / name).is_dir() or entry.bundled or sources.mirror_has(entry):
        return
    if entry.parts:
        for part in entry.parts:
            yield from _sets(part, root)
    else:
        yield name if entry.canonical and entry.canonical.base else name + HAND
