"""The rounds of many_clients.py with Flower and pfl-research, whose packages are in the folder PACKAGES:

    PYTHONPATH=.:PACKAGES python benchmarks/many_clients_peers.py [--cases CLIENTS:TAKING_PART ...]

The same work: as many clients, as many of them in a round, 20 images of a client, the same network, batch 16,
SGD, one local epoch, no evaluation, one thread. Clients are made when they are asked for, as both frameworks
do by default. Each case is a process of its own. CPU seconds are those of the process and of all that it
started, medians of three rounds after the first; memory is the largest sum of what these processes hold alone
(USS), seen after each round. What does not start is named and left out.

Writes benchmarks/results/many_clients_peers.csv, FedRepro's rows among it, measured in turn with the others.
"""

import argparse
import json
import logging
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "results" / "many_clients_peers.csv"
IMAGES = 20  # of a client
BATCH = 16
LR = 0.01
# rounds that count, after a first one that does not
ROUNDS = 3
# clients:how many take part in a round
CASES = ["10:10", "100:100", "1000:10", "10000:10", "100000:100"]


def images_of(k: int) -> tuple:
    """Images and labels of client k."""
    import torch

    numbers = torch.Generator().manual_seed(k)
    images = torch.randn(IMAGES, 3, 32, 32, generator=numbers)
    return images, torch.randint(0, 10, (IMAGES,), generator=numbers)


def network():
    """FedCRL's network of two convolutions as plain PyTorch."""
    from torch import nn

    def block(channels: int, width: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, width, 5), nn.ReLU(), nn.MaxPool2d(2)]

    dense = [nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10)]
    return nn.Sequential(*block(3, 32), *block(32, 64), *dense)


# -- a generator for each framework: everything until a `yield` is one round --------------------------------


def fedrepro(clients: int, taking_part: int) -> Iterator[None]:
    import torch

    from pipeline.engine.phase import Client, Made
    from pipeline.engine.world import World
    from pipeline.methods.fedavg import FedAvg
    from pipeline.schema import Model, Optimiser, Training

    training = Training(ROUNDS + 2, BATCH, 1, Optimiser("sgd", LR), participation=taking_part)
    model = Model("cnn2", dropout=0.3)

    def client(k: int) -> Client:
        images, labels = images_of(k)
        return Client(str(k), "made up", model, images.contiguous(memory_format=torch.channels_last), labels)

    world = World.create(Made([IMAGES] * clients, [model], client), training, 10, 0, "cpu")
    method = FedAvg()
    state = method.init(world)
    number = 0
    while True:
        yield
        number += 1
        state = method.round(state, world.at(number))


def pfl_research(clients: int, taking_part: int) -> Iterator[None]:
    from benchmarks.peers import pfl_rounds

    return pfl_rounds(network, images_of, clients, taking_part, BATCH, LR)


def flower(clients: int, taking_part: int) -> Iterator[None]:
    import torch

    from benchmarks.peers import flower_rounds

    def train(model, k: int) -> int:
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=LR)
        images, labels = images_of(k)
        for batch in torch.randperm(IMAGES).split(BATCH):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()
        return IMAGES

    return flower_rounds(network, train, clients, taking_part)


FRAMEWORKS = {"FedRepro": fedrepro, "pfl-research": pfl_research, "Flower": flower}


# -- measuring ----------------------------------------------------------------------------------------------


def used() -> tuple[float, float]:
    """(CPU seconds, MB that no other process shares) of this process and of all that it started."""
    import psutil

    seconds = 0.0
    megabytes = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
            seconds += times.user + times.system
            megabytes += process.memory_full_info().uss / 2**20
        except psutil.Error:  # it has ended
            continue
    return seconds, megabytes


def measure(framework: str, clients: int, taking_part: int) -> dict[str, float | int | str]:
    """One case in this process; its first round is not counted."""
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    rounds = FRAMEWORKS[framework](clients, taking_part)
    next(rounds)
    next(rounds)
    begun, largest = used()
    seconds = []
    for _ in range(ROUNDS):
        next(rounds)
        ended, held = used()
        seconds.append(ended - begun)
        largest = max(largest, held)
        begun = ended
    return {
        "framework": framework,
        "clients": clients,
        "taking_part": taking_part,
        "round_s": round(statistics.median(seconds), 2),
        "memory_mb": round(largest),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=CASES, help="clients:how many take part in a round")
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument("case", nargs="*", help=argparse.SUPPRESS)  # framework, clients, taking part
    arguments = parser.parse_args()
    if arguments.case:
        framework, clients, taking_part = arguments.case
        answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # frameworks write to the standard output, too
        answers.write(json.dumps(measure(framework, int(clients), int(taking_part))) + "\n")
        os._exit(0)  # without waiting for the threads of a framework

    import subprocess

    from benchmarks.machine import measured_alone, write_rows

    rows = []
    for words in arguments.cases:
        clients, taking_part = words.split(":")
        for framework in FRAMEWORKS:
            try:
                rows.append(measured_alone(__file__, framework, clients, taking_part))
            except subprocess.CalledProcessError as error:
                reason = (error.stderr.strip().splitlines() or ["no reason"])[-1]
                print(f"left out: {framework} with {clients} clients: {reason}")
                continue
            print(rows[-1], flush=True)
    write_rows(arguments.out, rows)


if __name__ == "__main__":
    main()
