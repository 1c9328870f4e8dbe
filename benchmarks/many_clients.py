"""Seconds and memory of FedAvg with up to 100,000 clients: `PYTHONPATH=. python benchmarks/many_clients.py`.

The 2-conv network of FedCRL (1.04 MB), 20 made-up 32 x 32 RGB images a client, batch 16, SGD, one local
epoch, one thread, a CPU. Each case is a process of its own, so that its peak memory is its own. Clients are
made when they are read; with `1000 1000 once` as arguments, all are made before round 1, and that case
alone is measured and printed. Without arguments, writes benchmarks/results/many_clients.csv.
"""

import argparse
import json
import resource
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "results" / "many_clients.csv"
IMAGES = 20  # of a client
# (clients, how many take part in a round, when clients are made)
CASES = (
    (10, 10, "read"),
    (100, 100, "read"),
    (1_000, 1_000, "read"),
    (10, 1, "read"),
    (100, 1, "read"),
    (1_000, 1, "read"),
    (10_000, 10, "read"),
    (100_000, 100, "read"),
)


def measure(clients: int, taking_part: int, made: str) -> dict[str, float | int | str]:
    """One case in this process.

    clients: their number
    taking_part: how many of them are drawn for each round
    made: `read` or `once`, when their images are made
    """
    import torch

    from pipeline.engine.phase import Client
    from pipeline.engine.world import World
    from pipeline.methods.fedavg import FedAvg
    from pipeline.schema import Model, Optimiser, Training

    torch.set_num_threads(1)
    training = Training(9, 16, 1, Optimiser("sgd", 0.01), participation=taking_part)
    model = Model("cnn2", dropout=0.3)

    def client(k: int) -> Client:
        numbers = torch.Generator().manual_seed(k)
        images = torch.randn(IMAGES, 3, 32, 32, generator=numbers)
        labels = torch.randint(0, 10, (IMAGES,), generator=numbers)
        images = images.contiguous(memory_format=torch.channels_last)
        return Client(str(k), "made up", model, images, labels)

    begun = time.process_time()
    if made == "once":
        federation = [client(k) for k in range(clients)]
    else:
        from pipeline.engine.phase import Made

        federation = Made([IMAGES] * clients, [model], client)
    world = World.create(federation, training, 10, 0, "cpu")
    method = FedAvg()
    state = method.init(world)
    start = time.process_time() - begun
    rounds = []
    for number in (1, 2, 3):
        begun = time.process_time()
        state = method.round(state, world.at(number))
        rounds.append(time.process_time() - begun)
    return {
        "clients": clients,
        "taking_part": taking_part,
        "made": made,
        "start_s": round(start, 3),
        "round_s": round(min(rounds[1:]), 3),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("case", nargs="*", help=argparse.SUPPRESS)  # clients, taking part, when made
    case = parser.parse_args().case
    if case:
        print(json.dumps(measure(int(case[0]), int(case[1]), case[2])))
        return
    from benchmarks.machine import measured_alone, write_rows

    rows = []
    for clients, taking_part, made in CASES:
        rows.append(measured_alone(__file__, clients, taking_part, made))
        print(rows[-1], flush=True)
    write_rows(TABLE, rows)


if __name__ == "__main__":
    main()
