"""Compute a data set's frozen ViT-Ti/16 features: `python -m stages.features office_caltech10`."""

import time

from pipeline.data import features, store
from pipeline.schema import ROOT, load_params
from stages._stage import stage

SECONDS = 5.0


def compute(name: str) -> None:
    """Put every image of data/<set> through the frozen ViT-Ti/16 once."""
    begun = reported = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal reported
        now = time.monotonic()
        if done == total or now - reported >= SECONDS:
            reported = now
            print(f"data/{name}-vit_tiny: {done} of {total} images, {now - begun:.0f} s", flush=True)

    meta = features.write(
        ROOT / "data" / f"{name}-vit_tiny",
        store.verify(ROOT / "data" / name),
        load_params().data.weights == "pretrained",
        report,
    )
    print(f"data/{name}-vit_tiny: {meta['model']}, {meta['weights']}, weights {meta['weights_digest'][:12]}")


if __name__ == "__main__":
    stage(compute, "name")
