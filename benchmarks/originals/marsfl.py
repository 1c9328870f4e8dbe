"""WenkeHuang/MarsFL: local and server updates of FedNova and FedMD."""

import copy
import importlib
import sys
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from benchmarks.originals.federation import (
    EPOCHS,
    ROUNDS,
    WIDTHS,
    Feed,
    Net,
    PublicFeed,
    Table,
    local,
    ours,
    package,
    public_images,
    world,
)
from pipeline.schema import Optimiser

REPOSITORY, MARK = "WenkeHuang/MarsFL", "Sever/FedNovaSever.py"


def prepare(checkout: Path) -> None:
    for name in ("Sever", "Sever.utils", "Local", "Local.utils"):
        package(name, checkout.joinpath(*name.split(".")))
    for name, values in {
        "utils": {}, "Datasets": {}, "Datasets.public_dataset": {"get_public_dataset": None},
        "utils.utils": {"create_if_not_exists": None},
        "utils.conf": {"get_device": lambda device_id: "cpu", "checkpoint_path": None, "net_path": None},
    }.items():  # fmt: skip
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(values)


def kind(name: str) -> Any:
    return getattr(importlib.import_module(name), name.split(".")[1])


def settings(rule: Optimiser, **own: Any) -> tuple[Namespace, Any]:
    """Its arguments and its configuration."""
    optimiser = Namespace(
        type="SGD",
        local_train_lr=rule.lr,
        momentum=rule.momentum,
        weight_decay=rule.weight_decay,
        local_epoch=EPOCHS,
    )
    sections = {name: Namespace(**values) for name, values in own.items()}
    return Namespace(device_id=0, structure="heterogeneity"), Namespace(
        OPTIMIZER=optimiser, Local=sections, Sever=sections
    )


def fednova(table: Table) -> None:
    rule = Optimiser("sgd", 0.05, momentum=0.5)
    federation = world(optimiser=rule)
    run, without = ours("fednova", federation), ours("fedavg", federation)
    given = settings(rule, FedNovaLocal={"rho": rule.momentum})
    theirs = kind("Local.FedNovaLocal")(*given), kind("Sever.FedNovaSever")(*given)
    shared, nets = Net(run.start), [Net(run.start) for _ in federation.clients]
    feeds, rounds = [Feed(federation, k) for k in range(len(nets))], []
    for number in range(1, ROUNDS + 1):
        for feed in feeds:
            feed.plan.extend(local(number))
        given = {
            "online_clients_list": range(len(nets)),
            "nets_list": nets,
            "global_net": shared,
            "priloader_list": feeds,
            "n_list": [],
            "a_list": [],
            "d_list": [],
            "fed_aggregation": None,
        }
        theirs[0].loc_update(**given)
        theirs[1].sever_update(**given)
        rounds.append(copy.deepcopy(nets))
    table.add(
        "fednova",
        "global models",
        run,
        rounds,
        without=without,
        remark="with momentum 0.5; theirs weighs by the number of batches, here in proportion to the samples",
    )


def fedmd(table: Table) -> None:
    """Ours has the public phase first, theirs the local one: the two are called in our order."""
    rule = Optimiser("sgd", 0.05, 0.9, 1e-5)
    federation = world(widths=WIDTHS, batchnorm=True, optimiser=rule, public=public_images())
    run = ours("fedmd", federation, second_forward=True, public_optimiser="sgd")
    without, nets = ours("local", federation), [Net(model) for model in run.models[0]]
    server, feed = kind("Sever.FedMdSever"), PublicFeed(federation)
    server = server.__new__(server)  # its constructor reads a data set
    torch.nn.Module.__init__(server)
    server.device, server.public_epoch, server.public_loader, server.public_lr = "cpu", 1, feed, rule.lr
    server.args, trainer, rounds = (
        Namespace(structure="heterogeneity"),
        kind("Local.BaseLocal")(*settings(rule)),
        [],
    )
    for number in range(1, ROUNDS + 1):
        feed.round = number
        server.sever_update(
            fed_aggregation=None,
            online_clients_list=range(len(nets)),
            priloader_list=None,
            global_net=None,
            nets_list=nets,
        )
        for k, net in enumerate(nets):
            private = Feed(federation, k)
            private.plan.extend(local(number))
            trainer.train_net(k, net, private)
        rounds.append(copy.deepcopy(nets))
    table.add(
        "fedmd", "clients' models", run, rounds, without=without, second_forward=True, public_optimiser="sgd"
    )


CASES = (fednova, fedmd)
