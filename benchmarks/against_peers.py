"""CPU seconds of a FedAvg round beside other frameworks', round by round in turn, one thread.

    PYTHONPATH=.:benchmarks:PACKAGES python benchmarks/against_peers.py --pfllib DIR [--flbench DIR]

The workload is that of against_pfllib.py, each client's images cut to full batches: FedAvgCNN, SGD 0.005, one
local epoch, all clients, no evaluation. Everyone trains the same plain network but PFLlib and FL-bench, which
have it themselves. FL-bench comes as a checkout of KarhouTam/FL-bench; Flower (flwr, ray), pfl-research (pfl)
and BlazeFL (blazefl) as packages. What does not start is named and left out.
"""

import argparse
import itertools
import json
import logging
import os
import pickle
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import against_pfllib as base

LR, CLIENTS = 0.005, 20
PEERS = ("FedRepro", "PFLlib", "FL-bench", "Flower", "pfl-research", "BlazeFL")


def network():
    """FedAvgCNN as PFLlib has it."""
    from torch import nn

    def block(channels: int, width: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, width, 5), nn.ReLU(), nn.MaxPool2d(2)]

    dense = [nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*block(1, 32), *block(32, 64), *dense)


def data(workload: Path, batch: int) -> list[tuple]:
    """Each client's images and labels, as many as fill batches."""
    import numpy as np
    import torch

    with np.load(workload) as arrays:
        parts = [arrays[f"train.{k}"] for k in range(CLIENTS)]
        parts = [part[: len(part) // batch * batch] for part in parts]
        return [
            (torch.from_numpy(arrays["values"][part]), torch.from_numpy(arrays["labels"][part]))
            for part in parts
        ]


def loader(client: tuple, batch: int):
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(*client), batch_size=batch, shuffle=True)


def epoch(model, batches) -> None:
    """The loop of the frameworks' examples."""
    from torch import nn, optim

    optimiser, criterion = optim.SGD(model.parameters(), lr=LR), nn.CrossEntropyLoss()
    model.train()
    for images, labels in batches:
        optimiser.zero_grad()
        criterion(model(images), labels).backward()
        optimiser.step()


# -- a generator for each peer: everything until a `yield` is one round --------------------------------------


def fedrepro(clients: list[tuple], batch: int):
    import torch

    from pipeline.engine.phase import Client
    from pipeline.engine.world import World
    from pipeline.methods.fedavg import FedAvg
    from pipeline.schema import Model, Optimiser, Training

    def member(k: int, images, labels) -> Client:
        images = images.contiguous(memory_format=torch.channels_last)
        return Client(str(k), "mnist", Model("fedavg_cnn"), images, labels)

    training = Training(1000, batch, 1, Optimiser("sgd", LR))
    world = World.create([member(k, *client) for k, client in enumerate(clients)], training, 10, 0)
    method = FedAvg()
    state = method.init(world)
    while True:
        yield
        state = method.round(state, world.at(world.round + 1))
        world = world.at(world.round + 1)


def flbench(clients: list[tuple], batch: int):
    import torch
    from omegaconf import OmegaConf
    from src.server import fedavg

    settings = OmegaConf.load(Path(fedavg.__file__).parents[2] / "config" / "defaults.yaml")
    settings.model.name, settings.optimizer.lr, settings.lr_scheduler.name = "avgcnn", LR, None
    settings.common.update(join_ratio=1.0, local_epoch=1, batch_size=batch, use_cuda=False)
    settings.common.update(client_side_evaluation=False, save_log=False, global_epoch=100)
    ends = [0, *itertools.accumulate(len(labels) for _, labels in clients)]
    images, labels = (torch.cat(parts) for parts in zip(*clients))
    members = list(range(len(clients)))

    class Server(fedavg.FedAvgServer):
        def get_dataset(self):
            return fedavg.BaseDataset(images, labels, list(range(10)))

        def get_clients_data_indices(self):
            return [{"train": list(range(*ends[k : k + 2])), "val": [], "test": []} for k in members]

    folder = Path(fedavg.__file__).parents[2] / "data" / "mnist"
    folder.mkdir(exist_ok=True)
    (folder / "args.json").write_text('{"split": "sample", "monitor_window_name_suffix": ""}')
    separation = {"train": members, "val": [], "test": members, "total": len(members)}
    (folder / "partition.pkl").write_bytes(pickle.dumps({"separation": separation}))
    where = SimpleNamespace(runtime=SimpleNamespace(output_dir=folder))
    fedavg.HydraConfig = SimpleNamespace(get=lambda: where)
    server = Server(settings)
    while True:
        yield
        server.selected_clients = members
        server.train_one_round()
        server.current_epoch += 1


def pfl(clients: list[tuple], batch: int):
    import torch

    from benchmarks.peers import pfl_rounds

    def shuffled(k: int) -> tuple:
        order = torch.randperm(len(clients[k][1]))
        return tuple(values[order] for values in clients[k])

    count = len(clients)
    return pfl_rounds(network, shuffled, count, count, batch, LR, sampler="minimize_reuse")


def blazefl(clients: list[tuple], batch: int):
    from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgBaseServerHandler

    models = SimpleNamespace(select_model=lambda name: network())
    parts = SimpleNamespace(get_dataloader=lambda cid, **_: loader(clients[cid], batch))
    count = len(clients)
    handler = FedAvgBaseServerHandler(models, "cnn", parts, 1000, count, 1.0, "cpu", batch, 0)
    trainer = FedAvgBaseClientTrainer(models, "cnn", parts, "cpu", count, 1, batch, LR, 0)
    while True:
        yield
        trainer.local_process(handler.downlink_package(), handler.sample_clients())
        for package in trainer.uplink_package():
            handler.load(package)


def flower(clients: list[tuple], batch: int):
    from benchmarks.peers import flower_rounds

    def train(model, k: int) -> int:
        epoch(model, loader(clients[k], batch))
        return len(clients[k][1])

    return flower_rounds(network, train, len(clients), len(clients))


ROUNDS = {
    "FedRepro": fedrepro,
    "FL-bench": flbench,
    "Flower": flower,
    "pfl-research": pfl,
    "BlazeFL": blazefl,
}


def cpu() -> float:
    """Of this process and all that it started."""
    import psutil

    spent = 0.0
    for process in (me := psutil.Process(), *me.children(recursive=True)):
        try:
            spent += sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return spent


def worker(name: str, workload: Path, batch: int) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rounds = ROUNDS[name](data(workload, batch), batch)
    next(rounds)
    answers.write('{"ready": true}\n')
    while sys.stdin.readline():
        spent, wall = cpu(), time.perf_counter()
        next(rounds)
        answers.write(json.dumps({"train_cpu": cpu() - spent, "wall": time.perf_counter() - wall}) + "\n")
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pfllib", type=Path, help="checkout of TsingZ0/PFLlib")
    parser.add_argument("--flbench", type=Path, help="checkout of KarhouTam/FL-bench")
    parser.add_argument("--mnist", type=Path, default=base.ROOT / "data" / "mnist")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--out", type=Path, default=base.ROOT / "benchmarks" / "results" / "against_peers.json"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--workload", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flbench:
        sys.path.insert(0, str(arguments.flbench.resolve()))
    if arguments.worker:
        return worker(arguments.worker, arguments.workload, arguments.batch)
    pfllib = arguments.pfllib.resolve()
    workload = base.prepare(pfllib, arguments.mnist, CLIENTS)
    compare(arguments, pfllib, workload)


def compare(arguments: argparse.Namespace, pfllib: Path, workload: Path) -> None:
    """Medians after a first round; the ratio to FedRepro's is that of rounds side by side."""
    shared = ["--batch", str(arguments.batch)]
    started = {}
    for name in arguments.peers:
        if name == "PFLlib":
            script, own = base.__file__, ["--pfllib", str(pfllib), "--worker", "FedAvg"]
            own += ["--clients", str(CLIENTS), "--device", "cpu"]
        else:
            script, own = __file__, ["--workload", str(workload), "--worker", name]
            own += ["--flbench", str(arguments.flbench)] if arguments.flbench else []
        try:
            started[name] = base.Worker(name, own + shared, script)
        except SystemExit as error:
            print(f"left out: {error}")
    for _ in range(arguments.rounds + 1):
        for name, one in started.items():
            one.round()
            print(f"{name}: {one.rows[-1]['train_cpu']:.2f} CPU s", flush=True)
    ours, rows = started["FedRepro"].rows[1:], []
    for name, one in started.items():
        ratios = [a["train_cpu"] / b["train_cpu"] for a, b in zip(one.rows[1:], ours)]
        rows.append({"framework": name, "rounds": len(ratios), "cpu": round(one.median("train_cpu"), 2)})
        rows[-1] |= {"ratio": round(statistics.median(ratios), 2), "batch": arguments.batch}
        print(rows[-1], flush=True)
        one.stop()
    arguments.out.write_text(json.dumps({"machine": base.machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
