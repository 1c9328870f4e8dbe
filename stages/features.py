"""Compute a data set's frozen ViT-Ti/16 features: `python -m stages.features office_caltech10`."""

from pipeline.data import features, store
from pipeline.schema import ROOT, load_params
from pipeline.training.progress import counter
from stages._stage import stage


def compute(name: str) -> None:
    """Put every image of data/<set> through the frozen ViT-Ti/16 once."""
    stored = store.verify(ROOT / "data" / name)
    count = counter(f"data/{name}-vit_tiny", len(stored))
    pretrained = load_params().data.weights == "pretrained"
    folder = ROOT / "data" / f"{name}-vit_tiny"
    meta = features.write(folder, stored, pretrained, lambda done, total: count(done))
    print(f"data/{name}-vit_tiny: {meta['model']}, {meta['weights']}, weights {meta['weights_digest'][:12]}")


if __name__ == "__main__":
    from stages._images import of_images

    stage(of_images(compute), "name")
