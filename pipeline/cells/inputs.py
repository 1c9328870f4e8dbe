"""What a cell is trained on, read from its files without importing torch, so that `fedrepro status` stays
fast."""
import hashlib
from pathlib import Path

from pipeline.data import corrupted, features, partition
from pipeline.schema import ROOT, Cell


def inputs(cell: Cell, seed: int, root: Path = ROOT) -> dict:
    """The meta.json of the partition that a seed trains on; its `digest` also over the features or corrupted
    images that the scenario takes, `data` with their deviations."""
    scenario = cell.resolve(root)[0]
    _, meta = partition.read(partition_folder(cell, seed, root))
    folder, added = root / "data" / scenario.data.set, {}
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


def partition_folder(cell: Cell, seed: int, root: Path = ROOT) -> Path:
    """Where the partition stage leaves what a seed trains on."""
    folder = root / "papers" / cell.paper / "partitions" / cell.partition
    return partition.folder_of_draw(folder, cell.resolve(root)[0].draw(seed))
