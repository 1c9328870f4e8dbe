"""How much of RAHFL's local epoch goes into augmentations?

`PYTHONPATH=. python benchmarks/augmentations.py [--repeats N]`

One batch of 256 images of 32 x 32 x 3 on one thread: the views of RAHFL (plain, two of AugMix, simple) and
the forward and backward pass of each of its four networks on 3 x 256 images twice, once for the cross-entropy
and the JSD (logits of all three views), once for the contrast (features of all three). Losses are the
cross-entropy and simple stand-ins; their cost is small. CPU seconds of this process, medians of runs taken in
turn. Images are patches of scikit-learn's photographs. Takes several minutes and 12 GB of memory. Writes
benchmarks/results/augmentations.json.
"""

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
import torch.nn.functional as F

from pipeline import keys, models
from pipeline.data import augmentations
from pipeline.schema import Model

ROOT = Path(__file__).resolve().parent.parent
BATCH, LIMIT = 256, 0.25
NETWORKS = ("resnet10", "resnet12", "shufflenet", "mobilenetv2")


def photographs(count: int) -> torch.Tensor:
    """uint8 (count, 3, 32, 32)."""
    import numpy as np
    from sklearn.datasets import load_sample_images

    cut = [
        photo[:416].reshape(13, 32, 20, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)
        for photo in load_sample_images().images
    ]
    return torch.from_numpy(np.concatenate(cut)[:count]).permute(0, 3, 1, 2).contiguous()


def views(images: torch.Tensor, generator: torch.Generator) -> list[torch.Tensor]:
    plain = augmentations.plain(images, generator)
    mixed = [augmentations.augmix(plain, generator) for _ in range(2)]
    return [plain, *mixed, augmentations.simple(images, generator)]


def together(chosen: list[torch.Tensor]) -> torch.Tensor:
    """Views as the engine hands them to a network: normalised, one after the other, channels last."""
    return torch.cat([view.float() / 127.5 - 1 for view in chosen]).contiguous(
        memory_format=torch.channels_last
    )


def step(
    network: models.Network, consistency: torch.Tensor, contrast: torch.Tensor, labels: torch.Tensor
) -> None:
    """Both forwards of RAHFL's local loss on (3 B, C, H, W) each, and their backwards, one after the other to
    save memory."""
    logits = network(consistency).unflatten(0, (3, -1))
    chances = logits.softmax(2)
    (F.cross_entropy(logits[0], labels) + (chances - chances.mean(0)).square().sum()).backward()
    del logits, chances
    features = F.normalize(network.features(contrast), dim=1)
    (features @ features.T / 0.2).logsumexp(1).mean().backward()


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    from machine import machine

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    images, labels = photographs(BATCH), torch.arange(BATCH) % 10
    generator = keys.torch_generator(0, "benchmark")
    parts = {
        "plain": lambda: augmentations.plain(images, generator),
        "augmix": lambda: augmentations.augmix(images, generator),
        "simple": lambda: augmentations.simple(images, generator),
        "all four views": lambda: views(images, generator),
    }
    plain, first, second, simple = views(images, generator)
    inputs = together([plain, first, second]), together([plain, first, simple])
    for name in NETWORKS:
        torch.manual_seed(0)
        network = models.build(Model(name), 3, 32, 10).to(memory_format=torch.channels_last).train()
        parts[name] = lambda network=network: step(network, *inputs, labels)
    taken: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(repeats + 1):  # the first is for warming up
        for name, work in parts.items():
            taken[name].append(seconds(work))
        print(f"turn {turn} of {repeats}", flush=True)
    medians = {name: statistics.median(values[1:]) for name, values in taken.items()}
    mine = medians["all four views"]
    shares = {name: mine / (mine + medians[name]) for name in NETWORKS}
    shares["all four networks"] = 4 * mine / (4 * mine + sum(medians[name] for name in NETWORKS))
    for name, value in medians.items():
        print(
            f"{name:18} {1000 * value:9.1f} ms CPU"
            + (f"   share of augmentations {shares[name]:6.2%}" if name in shares else "")
        )
    verdict = "below" if max(shares.values()) < LIMIT else "NOT below"
    print(
        f"all four networks: {shares['all four networks']:.2%} of the time in augmentations, {verdict} "
        f"{LIMIT:.0%} for every network"
    )
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    out = ROOT / "benchmarks" / "results" / "augmentations.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(
        json.dumps(
            {
                "machine": machine(),
                "threads": 1,
                "batch": BATCH,
                "repeats": repeats,
                "peak_mb": peak,
                "cpu_ms": {name: round(1000 * value, 1) for name, value in medians.items()},
                "share_of_augmentations": {name: round(value, 4) for name, value in shares.items()},
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
