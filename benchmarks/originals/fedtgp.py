"""TsingZ0/FedTGP, the authors' code: its server's train() with its clients'. Its files are stubbed in
memory."""

import copy
import importlib
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from benchmarks.originals.federation import (
    BATCH,
    CLASSES,
    EPOCHS,
    RATE,
    ROUNDS,
    WIDTH,
    Feed,
    Net,
    Ours,
    Table,
    World,
    keys,
    local,
    ours,
    world,
)

REPOSITORY, MARK = "TsingZ0/FedTGP", "system/flcore/servers/servertgp.py"
ARGUMENTS = {
    "algorithm": "FedTGP", "auto_break": False, "batch_size": BATCH, "client_drop_rate": 0.0, "dataset": "",
    "device": "cpu", "eval_gap": 1, "feature_dim": WIDTH, "global_rounds": ROUNDS, "goal": "",
    "join_ratio": 1.0, "lamda": 4.0, "local_epochs": EPOCHS, "local_learning_rate": RATE,
    "margin_threthold": 100.0, "num_classes": CLASSES, "random_join_ratio": False,
    "save_folder_name": "memory", "send_slow_rate": 0.0,
    "server_epochs": 20, "time_select": False, "time_threthold": 1e9, "top_cnt": 100, "train_slow_rate": 0.0,
}  # fmt: skip
items: dict[tuple[str, str], Any] = {}


def prepare(checkout: Path) -> None:
    sys.path.insert(0, str(checkout / "system"))
    base = importlib.import_module("flcore.clients.clientbase")
    base.save_item = lambda item, role, name, path=None: items.update({(role, name): copy.deepcopy(item)})
    base.load_item = lambda role, name, path=None: copy.deepcopy(items.get((role, name)))


class Enough(Exception):
    """The last round has been seen."""


def serve(run: Ours, federation: World, repaired: bool) -> tuple[list, list]:
    """(the clients' models, the generated prototypes) after every round."""
    items.clear()
    modules = [
        importlib.import_module(f"flcore.{name}") for name in ("clients.clientbase", "servers.serverbase")
    ]
    for module in modules:
        module.read_client_data = lambda dataset, k, **_: list(
            zip(federation.clients[k].images, federation.clients[k].labels)
        )
    modules[0].BaseHeadSplit = lambda *_: Net(run.start)
    servers = importlib.import_module("flcore.servers.servertgp")
    server = servers.FedTGP(Namespace(**ARGUMENTS, num_clients=len(federation.clients)), 0)
    generator = items["Server", "TGP"]
    for value, mine in zip(generator.parameters(), run.states[0].generator.values(), strict=True):
        value.data = mine.clone()
    feeds = [Feed(federation, k) for k in range(len(federation.clients))]
    rounds: tuple[list, list] = ([], [])
    numbers: dict[int, torch.Generator] = {}

    def shuffled(pairs: list, size: int, **_: Any) -> list:
        """Every server epoch asks for a loader: our order of the same pairs."""
        now = len(rounds[0])
        numbers.setdefault(now, keys.torch_generator("server", federation.seed, now))
        order = torch.randperm(len(pairs), generator=numbers[now])
        return [
            (torch.stack([pairs[i][0] for i in part]), torch.tensor([pairs[i][1] for i in part]))
            for part in order.split(size)
        ]

    servers.DataLoader = shuffled

    def select() -> list:
        for feed in feeds:
            feed.plan.clear()
            feed.plan.extend(local(len(rounds[0]) + 1))
        return list(server.clients)

    def evaluate() -> None:
        server.rs_test_acc.append(0.0)
        rounds[0].append([copy.deepcopy(items[one.role, "model"]) for one in server.clients])
        rounds[1].append(items.get(("Server", "global_protos")))
        if len(rounds[0]) > ROUNDS:
            raise Enough

    for client, feed in zip(server.clients, feeds):
        client.load_train_data = lambda batch_size=None, feed=feed: feed
        if repaired:

            def train(train=client.train, collect=client.collect_protos) -> None:
                train()
                collect()

            client.train, client.collect_protos = train, lambda: None
    server.select_clients, server.evaluate = select, evaluate
    try:
        server.train()
    except Enough:
        pass
    return rounds[0][1:], [torch.stack([sent[c] for c in range(CLASSES)]) for sent in rounds[1][1:]]


def fedtgp(table: Table) -> None:
    federation, options = world(), {"lam": 4.0, "server_epochs": 20}
    run, without = ours("fedtgp", federation, **options), ours("local", federation)
    for repaired, differs, remark in (
        (True, "", "theirs with class means of the models that were just trained, as in the paper"),
        (
            False,
            "their error",
            "as released, it sends class means of the model before the round's training, since it "
            "saves the trained model after it has collected them",
        ),
    ):
        models, sent = serve(run, federation, repaired)
        table.add(
            "fedtgp",
            "models",
            run,
            models,
            without=without,
            limit=1e-7,
            differs=differs,
            remark=remark,
            **options,
        )
        table.add(
            "fedtgp",
            "generated prototypes",
            [state.prototypes.vectors for state in run.states[1:]],
            sent,
            without=[run.states[1].prototypes.vectors] * ROUNDS,
            limit=1e-7,
            differs=differs,
            remark=remark,
            **options,
        )


CASES = (fedtgp,)
