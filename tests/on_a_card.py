"""python tests/on_a_card.py [method ...]: three rounds of every method on a pretended GPU and on the CPU,
with what its paper's miniature sets and made-up images. `20 [all|half|decay]` counts what rounds of as many
clients cost, `server20` what the server does with as many models, `layers` what convolutions do; `digests`
compares digests of states. A line of JSON each; test_card.py reads them."""

import dataclasses
import json
import math
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

os.environ |= {"OMP_NUM_THREADS": "1", "FEDREPRO_EXECUTOR": "stacked"}
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from federation import miniature_cells, miniature_world, run
from pretend_card import DEVICE, OnCard, there_is_a_card

from pipeline import methods
from pipeline.engine import state
from pipeline.engine.handle import Handle
from pipeline.engine.phase import Client
from pipeline.engine.stacked import convolution, stack
from pipeline.engine.state import (
    Clients,
    Params,
    State,
    mix,
    pack,
    tensors_of,
    weighted_mean,
    with_tensors,
)
from pipeline.engine.trained import Trained, check_finite
from pipeline.engine.world import World
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedcrl import interpolate
from pipeline.schema import Cell, Model, Optimiser, Training
from pipeline.training import evaluation
from pipeline.training.checkpoint import SeedFiles, content_hash, fingerprint

ROUNDS = 3
# The CPU averages models as a card does, in matrix products: where a mean lies halfway between two numbers of
# float32, the order of the sum decides.
AS_ON_A_CARD = mock.patch.object(state, "ONE_BY_ONE", ())
COUNTED = 5  # rounds of `counts`
BATCH = 4
TRAINING = Training(rounds=COUNTED, batch_size=BATCH, optimiser=Optimiser("adam", 0.003))
# what rounds are counted of
SETTINGS = {
    "all": TRAINING,
    "half": dataclasses.replace(TRAINING, participation=0.5),
    "decay": dataclasses.replace(TRAINING, optimiser=Optimiser("adam", 0.003, lr_decay=0.9)),
}


def trained(cell: Cell, device) -> tuple[list[torch.Tensor], list[float], World]:
    """(every number of the deployed models, their accuracies, the world)."""
    scenario, algorithm, hyper = cell.resolve()
    method, made = methods.load(algorithm, hyper, str(cell)), miniature_world(scenario, ROUNDS, device)
    now = method.init(made)
    for number in range(1, ROUNDS + 1):
        made = made.at(number)
        # as from a checkpoint
        now = method.round(with_tensors(now, iter([value.to(device) for value in tensors_of(now)])), made)
    method.diagnostics(now), method.traffic(made, now), method.vectors(now)
    models = method.deployed(now, made)
    tests = [evaluation.TestSet(c.name, c.images, c.labels) for c in made.clients]
    accuracies = evaluation.measure(
        models,
        made,
        tests,
        "clients",
        lambda network, images, client: method.scores(Handle(network, client=client), images, now),
    )[1]
    evaluation.representations(models, made, tests)
    return [value.cpu() for model in models for value in model.values()], accuracies, made


def compared(cell: Cell) -> dict:
    """equal: the same models and accuracies bit for bit? again: steps taken of a shape that was taken before;
    replays of recorded ones; waits: what the host waited for in them; scored: how often it waited while the
    models were."""
    with there_is_a_card() as card:
        again: list[list[str]] = []

        def take(step, turn, *chosen):
            known, before = step.taken > 0, len(card.waits)
            real(step, turn, *chosen)
            again.extend([card.waits[before:]] if known else [])

        def measure(*args):
            before = len(card.waits)
            measures = real_measure(*args)
            scored.append(len(card.waits) - before)
            return measures

        real, real_measure, scored = stack.Step.take, evaluation.measure, []
        with mock.patch.object(stack.Step, "take", take), mock.patch.object(evaluation, "measure", measure):
            there, accuracies, made = trained(cell, DEVICE)
    with AS_ON_A_CARD:
        here, expected, _ = trained(cell, torch.device("cpu"))
    assert all(isinstance(c.images, OnCard) for c in made.clients)
    return {
        "equal": all(map(torch.equal, there, here)) and accuracies == expected,
        "again": len(again),
        "replays": sum(graph.replays for graph in card.graphs),
        "waits": sorted(set(sum(again, []))),
        "scored": scored,
    }


def rules() -> dict:
    """What the card refuses, and what a graph does."""
    with there_is_a_card() as card:

        def refused(operation) -> str:
            try:
                operation()
            except RuntimeError as error:
                return str(error)
            return ""

        there = torch.arange(3.0, device=DEVICE)
        total = torch.zeros(3, device=DEVICE)
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(DEVICE)
        with torch.cuda.graph(graph):
            total += 2 * there
            fetched = refused(there.sum().item)
        recorded = total.tolist()
        there.add_(1)
        graph.replay(), graph.replay()
        with torch.cuda.stream(stream):
            early = refused(lambda: there + 1)
            torch.cuda.synchronize()
            late = refused(lambda: there + 1)
        return {
            "mixed": refused(lambda: there + torch.ones(3)),
            "fetched": fetched,
            "recorded": recorded,
            "replayed": total.tolist(),
            "early": early,
            "late": late,
            "waits": card.waits,
        }


def federation(clients: int, training: Training, device=DEVICE) -> World:
    """Clients with 4 to 12 grey images, of bytes, around FedCCL's network."""
    numbers = torch.Generator().manual_seed(0)

    def client(k: int) -> Client:
        images = torch.randint(0, 256, (BATCH + k % 9, 1, 16, 16), generator=numbers) / 255
        labels = torch.randint(0, 10, (len(images),), generator=numbers)
        return Client(f"c{k}", "made up", Model("cnn4"), images.to(device), labels.to(device))

    return World.create([client(k) for k in range(clients)], training, 10, 0, device)


def counts(clients: int, setting: str) -> dict:
    """Five rounds of FedAvg with convolutions by im2col: steps recorded, shapes that came more than once;
    launches, kernels, host waits and bytes moved in the last round, and means of its replayed steps; equal:
    the same model as on the CPU, bit for bit?"""

    def now() -> Counter:
        moved = {"launches": card.launches, "kernels": card.kernels, "bytes": card.moved}
        return Counter(moved | {"waits": len(card.waits)})

    def take(step, turn, *chosen):
        begun = now()
        real(step, turn, *chosen)
        shapes[turn.leading, len(turn.rows), turn.size] += 1
        if step.graph is not None:
            replayed.append(now() - begun)

    real, shapes, replayed = stack.Step.take, Counter(), []
    by_im2col = mock.patch.multiple(convolution, DEVICES=(DEVICE.type, "cpu"), chosen=lambda *_: True)
    with by_im2col, there_is_a_card() as card, mock.patch.object(stack.Step, "take", take):
        method, world = FedAvg(), federation(clients, SETTINGS[setting])
        last = method.init(world)
        for number in range(1, COUNTED + 1):
            replayed.clear()
            begun = now()
            last = method.round(last, world.at(number))
        spent = now() - begun
        model = {name: value.cpu() for name, value in last.model.items()}
    with by_im2col, AS_ON_A_CARD:
        plain = run(method, federation(clients, SETTINGS[setting], "cpu"), COUNTED).model
    total = sum(replayed, Counter())
    return {
        "equal": all(torch.equal(model[name], value) for name, value in plain.items()),
        "recorded": len(card.graphs),
        "shapes": sum(count > 1 for count in shapes.values()),
        "round": dict(spent),
        "step": {name: round(count / len(replayed), 1) for name, count in total.items()},
        "pool": world.executor.pool.nbytes,
    }


def federated(clients: int, device) -> Clients:
    """A model for each client, different, with a counter among its entries."""
    numbers = torch.Generator().manual_seed(0)

    def model(k: int) -> Params:
        layers = {f"features.{layer}": torch.randn(6, 5, generator=numbers) for layer in range(7)}
        head = {"head.weight": torch.randn(2, 6, generator=numbers)}
        return Params({**layers, "features.count": torch.tensor(k), **head})

    models = [model(k) for k in range(clients)]
    return Clients(Params((name, value.to(device)) for name, value in one.items()) for one in models)


def server(clients: int) -> dict:
    """What the server computes of models with nine entries: launches, kernels, waits and bytes of each
    computation, and the largest difference to the CPU's values, which are summed model by model."""
    weights = torch.rand(clients, clients, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    nobody = Client("c", "made up", Model("cnn4"), torch.zeros(0), torch.zeros(0))
    phase = SimpleNamespace(step=len, loss=None, key=(0, "local", 3), clients=[nobody] * clients)
    computed = {
        "mean": lambda models: weighted_mean(models, range(1, clients + 1)),
        "mix": lambda models: mix(models, weights),
        "interpolation": lambda models: interpolate(models, models[0], weights[0]),
        "finite": lambda models: check_finite(phase, Trained(models, [math.nan] * clients)),
        "digest": lambda models: fingerprint(pack(State(models=models, weights=weights))),
    }
    rows = {}
    for name, compute in computed.items():
        with there_is_a_card() as card:
            models = federated(clients, DEVICE)
            begun = card.launches, card.kernels, len(card.waits), card.moved
            there = compute(models)
            spent = card.launches, card.kernels, len(card.waits), card.moved
            there = [value.cpu() for value in tensors_of(there)]
        counted = (after - before for before, after in zip(begun, spent))
        row = dict(zip(("launches", "kernels", "waits", "bytes"), counted))
        here = tensors_of(compute(federated(clients, "cpu")))
        gaps = [float((a - b).abs().max()) for a, b in zip(there, here, strict=True)]
        rows[name] = row | {"gap": max(gaps, default=0.0)}
    return rows


def digests() -> dict:
    """Of a state on the card: is its digest the same `again`, of equal values in other memory? Is it another
    with a `changed` value, with two models `swapped`, and `here`, on the CPU? saved: is the hash of its
    checkpoint the one that the CPU computes?"""

    def made(device, first: int = 0, step: float = 0.0) -> dict:
        models = federated(3, device)
        models[1]["head.weight"][1, 2] += step
        return pack(State(models=Clients([models[first], models[1], models[2 - first]])))

    with there_is_a_card():
        there = fingerprint(made(DEVICE))
        found = {
            "again": fingerprint(made(DEVICE)) == there,
            "changed": fingerprint(made(DEVICE, step=2.0**-20)) != there,
            "swapped": fingerprint(made(DEVICE, first=2)) != there,
        }
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(torch, "save") as written:
            SeedFiles(Path(folder), 0).save(made(DEVICE))
    here, saved = made("cpu"), written.call_args[0][0]["hash"]
    return found | {"here": fingerprint(here) != there, "saved": content_hash(here) == saved}


def layers() -> list[dict]:
    """Kernels of a convolution's gradients by im2col, of weights alone (a first layer) and of images too."""
    rows = []
    for clients, images, channels in ((3, 2, 1), (3, 16, 1), (20, 16, 1), (3, 2, 3), (20, 16, 3)):
        row = {"clients": clients, "images": images, "channels": channels}
        for name, wanted in (("first", (0,)), ("later", (0, 1))):
            with there_is_a_card() as card:
                weights = torch.randn(clients, 4, channels, 5, 5, device=DEVICE)
                inputs = torch.randn(clients, images, channels, 8, 8, device=DEVICE)

                def loss(weight, image):
                    return convolution.unfolded(image, weight, None, (1, 1), (0, 0)).sum()

                before = card.kernels
                torch.func.vmap(torch.func.grad(loss, argnums=wanted))(weights, inputs)
                rows.append(row | {"layer": name, "kernels": card.kernels - before})
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    if "rules" in wanted:
        print(json.dumps(rules()), flush=True)
    for clients in (int(word.removeprefix("server")) for word in wanted if word.startswith("server")):
        print(json.dumps({"algorithm": f"server{clients}", **server(clients)}), flush=True)
    if "digests" in wanted:
        print(json.dumps({"algorithm": "digests", **digests()}), flush=True)
    if "layers" in wanted:
        print(json.dumps(layers()), flush=True)
    for clients in (int(word) for word in wanted if word.isdecimal()):
        for setting in [word for word in wanted if word in SETTINGS] or SETTINGS:
            print(
                json.dumps({"clients": clients, "setting": setting, **counts(clients, setting)}), flush=True
            )
    for algorithm, cell in miniature_cells().items():
        if not wanted or algorithm in wanted:
            print(json.dumps({"algorithm": algorithm, **compared(cell)}), flush=True)
