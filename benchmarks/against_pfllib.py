"""Speed of FedRepro and of an unmodified PFLlib checkout on one workload, round by round in turn, one thread.

    PYTHONPATH=. python benchmarks/against_pfllib.py --pfllib DIR --mnist data/mnist
        [--batch 16 64] [--methods FedAvg ...] [--rounds 6]
    PYTHONPATH=. python benchmarks/against_pfllib.py --pfllib DIR --device cuda --clients 20
        (wall seconds count; then --clients 100)

DIR is a checkout of TsingZ0/PFLlib, which needs ujson, h5py, cvxpy and calmsize. Workload: 16,000 MNIST
training images, PFLlib's own Dirichlet(0.1) split over 20 clients and its 75/25 split (seed 1), FedAvgCNN,
SGD 0.005, one local epoch, all clients in every round. Both programs run the same images; PFLlib drops the
last incomplete batch, so FedRepro does too here. PFLlib's main.py runs as it is; hooks around
Server.select_clients and Server.evaluate mark rounds and evaluations. Results go to benchmarks/results/
with versions and machine.
"""

import argparse
import importlib.util
import json
import os
import random
import runpy
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.machine import ROOT, cpu, machine, peak_mb

SAMPLES, SEED = 16_000, 1
NEEDED = ("ujson", "h5py", "cvxpy", "calmsize")
PFLLIB = {
    "FedAvg": [],
    "FedProto": ["-lam", "1"],
    "FedRep": [],
    "MOON": ["-mu", "1", "-tau", "0.5"],
    "Ditto": ["-mu", "0.1", "-pls", "1"],
    "pFedMe": ["-lam", "15", "-bt", "1", "-lrp", "0.01"],
    "FedALA": [],
}
# The reading that PFLlib has, where there are several: class means of what training saw in passing.
OURS = {
    "FedAvg": ("fedavg", {}),
    "FedProto": ("fedproto", {"lam": 1.0, "means": "running"}),
    "FedRep": ("fedrep", {"head_epochs": 1}),
    "MOON": ("moon", {"mu": 1.0, "tau": 0.5}),
    "Ditto": ("ditto", {"lam": 0.1}),
    "pFedMe": ("pfedme", {"lam": 15.0}),
    "FedALA": ("fedala", {}),
}


# -- the workload --------------------------------------------------------------------------------------------


def prepare(pfllib: Path, mnist: Path, clients: int) -> Path:
    """Write the workload for PFLlib (its own npz files) and for us (one file); returns ours."""
    import numpy as np

    from pipeline.data import store

    name = f"MNIST_{clients}"  # PFLlib looks for "MNIST" in it
    ours = pfllib / "dataset" / f"{name}.npz"
    if ours.exists():
        return ours
    stored = store.verify(mnist)
    train = np.flatnonzero(stored.split == store.TRAIN)
    chosen = np.sort(np.random.RandomState(SEED).permutation(train)[:SAMPLES])
    images, labels = stored.images[chosen][..., 0], stored.labels[chosen]
    values = ((images.astype(np.float32) / 255 - 0.5) / 0.5)[:, None]
    sys.path.insert(0, str(pfllib / "dataset"))
    from utils import dataset_utils

    random.seed(SEED)
    np.random.seed(SEED)
    held, held_labels, statistic = dataset_utils.separate_data(
        (np.arange(SAMPLES), labels),
        clients,
        10,
        niid=True,
        balance=False,
        partition="dir",
        class_per_client=2,
    )
    train_parts, test_parts = dataset_utils.split_data(held, held_labels)
    folder = pfllib / "dataset" / name
    for name in ("train", "test"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    as_images = [
        [{"x": values[d["x"]], "y": labels[d["x"]]} for d in parts] for parts in (train_parts, test_parts)
    ]
    dataset_utils.save_file(
        f"{folder}/config.json",
        f"{folder}/train/",
        f"{folder}/test/",
        *as_images,
        clients,
        10,
        statistic,
        True,
        False,
        "dir",
    )
    arrays = {
        f"{kind}.{k}": d["x"]
        for kind, parts in (("train", train_parts), ("test", test_parts))
        for k, d in enumerate(parts)
    }
    np.savez(ours, values=values, labels=labels, **arrays)
    return ours


# -- workers: `go` on standard input runs a round, which answers with one JSON line --------------------------


def now() -> float:
    """Wall seconds, after what a GPU has been given is done."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def row_of(wall: float, cpu: float, train_wall: float, train_cpu: float) -> dict:
    """What a worker answers after a round: seconds and memory so far."""
    import torch

    on_card = torch.cuda.is_initialized()
    device_mb = round(torch.cuda.max_memory_allocated() / 2**20) if on_card else None
    seconds = {"wall": wall, "cpu": cpu, "train_wall": train_wall, "train_cpu": train_cpu}
    return seconds | {"mb": peak_mb(), "device_mb": device_mb}


def pfllib_worker(pfllib: Path, method: str, batch: int, clients: int, device: str) -> None:
    """PFLlib's main.py with its rounds and evaluations timed from outside."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.chdir(pfllib / "system")
    sys.path.insert(0, os.getcwd())
    sys.modules.pop("utils", None)
    import flcore.servers.serverbase as base

    clock = {"round": -1, "wall": 0.0, "cpu": 0.0, "eval_wall": 0.0, "eval_cpu": 0.0, "depth": 0}

    def next_round() -> None:
        if clock["round"] >= 0:
            wall, spent = now() - clock["wall"], cpu() - clock["cpu"]
            trained = wall - clock["eval_wall"], spent - clock["eval_cpu"]
            answers.write(json.dumps(row_of(wall, spent, *trained)) + "\n")
        else:
            answers.write('{"ready": true}\n')
        if not sys.stdin.readline():
            os._exit(0)
        clock.update(round=clock["round"] + 1, eval_wall=0.0, eval_cpu=0.0, wall=now(), cpu=cpu())

    original = base.Server.select_clients

    def select_clients(server):
        next_round()
        return original(server)

    def timed(function):
        def inner(*arguments, **keywords):
            clock["depth"] += 1
            wall, spent = now(), cpu()
            try:
                return function(*arguments, **keywords)
            finally:
                clock["depth"] -= 1
                if clock["depth"] == 0:
                    clock["eval_wall"] += now() - wall
                    clock["eval_cpu"] += cpu() - spent

        return inner

    def wrap(server):
        for name in ("evaluate", "evaluate_personalized"):
            if name in server.__dict__:
                setattr(server, name, timed(server.__dict__[name]))

    base.Server.select_clients = select_clients
    wrap(base.Server)
    base.Server.__init_subclass__ = classmethod(lambda server, **_: wrap(server))
    words = f"-data MNIST_{clients} -m CNN -algo {method} -gr 1000 -nc {clients} -lbs {batch} -lr 0.005 -ls 1"
    sys.argv = ["main.py", *words.split(), "-jr", "1.0", "-dev", device, "-eg", "1", *PFLLIB[method]]
    runpy.run_path("main.py", run_name="__main__")


def our_worker(workload: Path, method: str, batch: int, clients: int, device: str) -> None:
    """The same rounds through the engine."""
    import numpy as np
    import torch

    from pipeline import methods
    from pipeline.engine.handle import Handle
    from pipeline.engine.phase import Client
    from pipeline.engine.trained import Watch
    from pipeline.engine.world import World
    from pipeline.schema import Model, Optimiser, Training
    from pipeline.training import evaluation

    torch.set_num_threads(1)
    with np.load(workload) as arrays:
        values, labels = arrays["values"], torch.from_numpy(arrays["labels"])
        parts = {kind: [arrays[f"{kind}.{k}"] for k in range(clients)] for kind in ("train", "test")}

    def tensors(indices):
        return torch.from_numpy(values[indices]).contiguous(memory_format=torch.channels_last).to(
            device
        ), labels[indices].to(device)

    model = Model("fedavg_cnn")
    members = [Client(str(k), "mnist", model, *tensors(parts["train"][k])) for k in range(clients)]
    tests = [evaluation.TestSet(str(k), *tensors(parts["test"][k])) for k in range(clients)]
    world = World.create(
        members, Training(1000, batch, 1, Optimiser("sgd", 0.005), drop_last=True), 10, 0, device
    )
    name, hyper = OURS[method]
    algorithm = methods.load(name, hyper, "benchmark")
    state, executor = algorithm.init(world), world.executor
    print('{"ready": true}', flush=True)
    while sys.stdin.readline():
        world = world.at(world.round + 1, watch := Watch(executor))
        wall, spent = now(), cpu()
        state = algorithm.round(state, world)
        train_wall, train_cpu = now() - wall, cpu() - spent
        models = (
            algorithm.deployed(state, world)
            if algorithm.headline == "pre"
            else algorithm.after_training(state, watch.trained.models)
        )
        measures, _ = evaluation.measure(
            models,
            world,
            tests,
            "clients",
            lambda net, x, k, state=state: algorithm.scores(Handle(net, client=k), x, state),
        )
        row = row_of(now() - wall, cpu() - spent, train_wall, train_cpu)
        print(json.dumps(row | {"accuracy": measures["weighted"]}), flush=True)


# -- in turn -------------------------------------------------------------------------------------------------


class Worker:
    """A gated process; `round()` lets it run one round."""

    def __init__(self, name: str, arguments: list[str], script: str = __file__, **environment: str):
        self.name, self.rows = name, []
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self.process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )
        if not self.process.stdout.readline():
            raise SystemExit(f"{name} did not start; run it alone to see why: {' '.join(arguments)}")

    def round(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self.name} stopped in round {len(self.rows)}; run it alone to see why: "
                f"{' '.join(self.process.args)}"
            )
        self.rows.append(json.loads(line))

    def median(self, key: str) -> float:
        return statistics.median(row[key] for row in self.rows[1:]) if len(self.rows) > 1 else float("nan")

    def stop(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def check_packages() -> None:
    """Names what PFLlib imports and this environment lacks."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"PFLlib needs packages that are not installed: {', '.join(missing)}")


def compare(
    pfllib: Path, workload: Path, method: str, batch: int, rounds: int, clients: int, device: str
) -> list[dict]:
    """Medians after one warm-up round; ratio = PFLlib / ours, in CPU seconds on a CPU, in wall seconds on a
    GPU."""
    from pipeline.devices import slow_bf16

    shared = ["--worker", method, "--batch", str(batch), "--clients", str(clients), "--device", device]
    kind = "cpu" if device == "cpu" else "wall"
    workers = [
        Worker("PFLlib", ["--pfllib", str(pfllib), *shared]),
        Worker("FedRepro fp32", ["--workload", str(workload), *shared]),
    ]
    if device == "cpu" and (note := slow_bf16()):
        print(f"bf16 is left out: {note}")
    else:
        mine = ["--workload", str(workload), *shared]
        workers.append(Worker("FedRepro bf16", mine, FEDREPRO_PRECISION="bf16"))
    for _ in range(rounds + 1):
        for worker in workers:
            worker.round()
    for worker in workers:
        worker.stop()
    rows = []
    for worker in workers:
        row = {
            "method": method,
            "batch": batch,
            "clients": clients,
            "device": device,
            "program": worker.name,
            "rounds": len(worker.rows) - 1,
        }
        for key in ("train_cpu", "cpu", "train_wall", "wall"):
            row[key] = round(worker.median(key), 3)
            pairs = [a[key] / b[key] for a, b in zip(workers[0].rows[1:], worker.rows[1:])]
            row[f"{key}_ratio"] = round(statistics.median(pairs), 2) if pairs else None
        row["peak_mb"] = round(max(r["mb"] for r in worker.rows)) if worker.rows else None
        row["device_mb"] = worker.rows[-1]["device_mb"] if worker.rows else None
        rows.append(row)
        print(
            f"{method:9} b{batch:<3} {worker.name:14} n={row['rounds']:<2} train {row[f'train_{kind}']:6.2f} "
            f"{kind} s {row[f'train_{kind}_ratio']}x   "
            f"train+eval {row[kind]:6.2f} {kind} s {row[f'{kind}_ratio']}x   "
            f"{row['device_mb'] or row['peak_mb']} MB",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pfllib", type=Path, help="checkout of TsingZ0/PFLlib")
    parser.add_argument(
        "--mnist",
        type=Path,
        default=ROOT / "data" / "mnist",
        help="the prepared set (dvc repro data/dvc.yaml:fetch@mnist)",
    )
    parser.add_argument("--methods", nargs="+", default=["FedAvg"], choices=sorted(OURS))
    parser.add_argument("--batch", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "against_pfllib.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--workload", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker and arguments.workload:
        return our_worker(
            arguments.workload, arguments.worker, arguments.batch[0], arguments.clients, arguments.device
        )
    if arguments.pfllib is None:
        parser.error("--pfllib DIR is missing")
    check_packages()
    pfllib = arguments.pfllib.resolve()
    if arguments.worker:
        return pfllib_worker(
            pfllib, arguments.worker, arguments.batch[0], arguments.clients, arguments.device
        )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=pfllib, capture_output=True, text=True
    ).stdout.strip()
    workload = prepare(pfllib, arguments.mnist, arguments.clients)
    here = machine()
    arguments.out.parent.mkdir(exist_ok=True)
    known = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []

    def setting(row: dict) -> tuple:
        return tuple(row[name] for name in ("method", "batch", "clients", "device", "processor", "gpu"))

    # Written after each comparison: one that ends early leaves what was measured before it.
    for method in arguments.methods:
        for batch in arguments.batch:
            measured = compare(
                pfllib, workload, method, batch, arguments.rounds, arguments.clients, arguments.device
            )
            about = {name: here[name] for name in ("processor", "gpu", "fedrepro")}
            rows = [row | about for row in measured]
            settings = set(map(setting, rows))
            known = [row for row in known if setting(row) not in settings] + rows
            document = {"machine": here, "pfllib": commit, "rows": known}
            arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
