"""Corrupt all images of a set once; scenarios use a share of them: `python -m stages.corrupt cifar10`."""

import time
from functools import partial

import numpy as np

from pipeline.data import corrupted, store
from pipeline.data.corrupted import SIDE
from pipeline.data.corruptions import KINDS, corrupt_set
from pipeline.data.corruptions.weather import PACKAGE, find_ice
from pipeline.data.store import TEST, TRAIN
from pipeline.schema import ROOT
from pipeline.training.progress import clock, counter
from stages._stage import stage

HIGHEST = 4  # severity, as in RAHFL's released code (its text: 5)
SEED = 0  # one corrupted set for all clients, rounds and seeds of training
PARTS = {"train": TRAIN, "test": TEST}


def corrupt(name: str) -> None:
    """Write data/<set>-corrupted: types uniform over 15, severities uniform from 1 to HIGHEST."""
    stored = store.verify(ROOT / "data" / name)
    folder = corrupted.folder_of(ROOT / "data" / name)
    clean, total = corrupted.rgb(stored.images), len(stored)
    kind, severity, rank = np.zeros(total, np.uint8), np.zeros(total, np.uint8), np.full(total, -1, np.int32)
    whole = corrupted.Corrupted(np.empty_like(clean), kind, severity, rank)
    begun, count, behind = time.monotonic(), counter(f"data/{folder.name}", total), 0
    for part, code in PARTS.items():
        here = stored.split == code
        report = partial(lambda behind, done: count(behind + done), behind)
        made = corrupt_set(clean[here], SEED, HIGHEST, part, report)
        whole.images[here], kind[here], severity[here] = made.images, made.kind, made.severity
        if code == TRAIN:
            rank[here] = made.rank
        behind += int(here.sum())
    frost = f"photographs of the package {PACKAGE}"
    facts = {"seed": SEED, "max_severity": HIGHEST, "kinds": list(KINDS), "frost": frost}
    resized = "" if stored.images.shape[1:] == clean.shape[1:] else f"resized to {SIDE}x{SIDE} RGB"
    meta = corrupted.write(folder, stored, whole, facts, resized, find_ice().inputs)
    print(
        f"data/{folder.name}: {total:,} images in {clock(time.monotonic() - begun)}, severities 1 to "
        f"{HIGHEST}, frost: {frost}, digest {meta['corruption']['digest'][:12]}"
    )


if __name__ == "__main__":
    from stages._images import of_images

    stage(of_images(corrupt), "name")
