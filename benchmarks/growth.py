"""Seconds per round and memory as clients and samples grow: `PYTHONPATH=. python benchmarks/growth.py`.

FedAvg, the 2-conv network of FedCRL on made-up 32 x 32 RGB images, batch 16, Adam, one local epoch, one
thread. Clients grow at 12,000 images in all, then images grow with 20 clients; last, 100 clients with 60,000
images. Writes benchmarks/results/growth.json and .svg. FEDREPRO_DEVICE and FEDREPRO_EXECUTOR as everywhere.
"""

import argparse
import json
import os
import resource
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = (
    [(n, 12_000) for n in (10, 20, 50, 100, 200)]
    + [(20, s) for s in (3_000, 6_000, 24_000)]
    + [(100, 60_000)]
)


def federation(sizes: list[int], side: int, model, training, device, channels: int = 3):
    """A world of clients with made-up images.

    sizes: images of each client
    side, channels: of an image, in pixels and colours
    model, training: of every client, as in a scenario
    """
    import torch

    from pipeline.engine.phase import Client
    from pipeline.engine.world import World

    rng = torch.Generator().manual_seed(0)

    def client(k: int, size: int) -> Client:
        images = torch.randn(size, channels, side, side, generator=rng)
        labels = torch.randint(0, 10, (size,), generator=rng)
        images = images.contiguous(memory_format=torch.channels_last)
        return Client(str(k), "made up", model, images.to(device), labels.to(device))

    return World.create([client(k, size) for k, size in enumerate(sizes)], training, 10, 0, device)


def measure(clients: int, samples: int) -> None:
    """One case in a process of its own, so that its peak memory is its own."""
    import torch

    from pipeline.methods.fedavg import FedAvg
    from pipeline.schema import Model, Optimiser, Training

    torch.set_num_threads(1)
    device = os.environ.get("FEDREPRO_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    training = Training(9, 16, 1, Optimiser("adam", 0.003))
    world = federation([samples // clients] * clients, 32, Model("cnn2", dropout=0.3), training, device)
    method = FedAvg()
    state = method.init(world)
    seconds = []
    for number in (1, 2, 3):
        start, spent = time.perf_counter(), time.process_time()
        state = method.round(state, world.at(number))
        seconds.append((time.perf_counter() - start, time.process_time() - spent))
    row = {
        "clients": clients,
        "samples": samples,
        "wall": round(min(w for w, _ in seconds[1:]), 3),
        "cpu": round(min(c for _, c in seconds[1:]), 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    if device != "cpu":
        row["device_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    print(json.dumps(row))


def draw(rows: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "fedrepro"}):
        figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
        for panel, key, chosen, label in (
            (axes[0], "clients", [r for r in rows if r["samples"] == 12_000], "clients (12,000 images)"),
            (axes[1], "samples", [r for r in rows if r["clients"] == 20], "images (20 clients)"),
        ):
            chosen = sorted(chosen, key=lambda r: r[key])
            panel.plot([r[key] for r in chosen], [r["cpu"] for r in chosen], marker="o")
            panel.set(xlabel=label, ylim=(0, None))
        axes[0].set_ylabel("CPU seconds per round")
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("case", nargs="*", type=int, help=argparse.SUPPRESS)  # clients and samples
    if case := parser.parse_args().case:
        return measure(*case)
    from benchmarks.machine import machine, measured_alone

    rows = []
    for clients, samples in CASES:
        rows.append(measured_alone(__file__, clients, samples))
        print(rows[-1], flush=True)
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    (results / "growth.json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    draw(rows, results / "growth.svg")


if __name__ == "__main__":
    main()
