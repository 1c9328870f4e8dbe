"""WenkeHuang/RethinkFL, the code of FPL and of its comparison: SGD with momentum 0.9 and weight decay 1e-5,
new in every round, is written into it."""

import importlib
from pathlib import Path
from typing import Any

import torch

from benchmarks.originals import federated_model
from benchmarks.originals.federated_model import Theirs, arrays_of_tensors
from benchmarks.originals.federation import CLASSES, EPOCHS, ROUNDS, Ours, Table, data, local, ours, world
from pipeline.schema import Optimiser

REPOSITORY, MARK = "WenkeHuang/RethinkFL", "models/fpl.py"
RULE = Optimiser("sgd", 0.05, 0.9, 1e-5)
SLOWLY = Optimiser("sgd", 0.01, 0.9, 1e-5)  # FPL's contrast blows rounding up
WIDELY_HELD = ((0, 1, 2, 3, 4),) * 4 + ((0, 1, 2, 3), (1, 2, 3, 4))  # so that classes have several clusters
SENT = "global models"


def prepare(checkout: Path) -> None:
    federated_model.prepare(checkout)


def run_of(kind: str, federation: Any, run: Ours, rounds: int = ROUNDS, **arguments: Any) -> Theirs:
    module, name = kind.split(":")
    loaded = importlib.import_module(f"models.{module}")
    arrays_of_tensors(loaded)
    starts, rate = [run.start] * len(federation.clients), federation.training.optimiser.lr
    theirs = Theirs(getattr(loaded, name), federation, starts, rate, **arguments)
    theirs.model.ini()
    return theirs.train(rounds)


def baselines(table: Table) -> None:
    for name, options, kind, arguments, without, remark in (
        ("fedavg", {}, "fedavg:FedAvG", {}, "local", "BatchNorm, momentum, weight decay"),
        (
            "fedprox",
            {"mu": 20.0, "legacy_scale": 0.01},
            "fedprox:FedProx",
            {"mu": 20.0},
            "fedavg",
            "theirs scales the term by 0.01",
        ),
        ("moon", {"mu": 2.0, "tau": 0.5}, "moon:MOON", {"mu": 2.0}, "fedavg", ""),
    ):
        federation = world(optimiser=RULE, batchnorm=name == "fedavg")
        run, other = ours(name, federation, **options), ours(without, federation)
        theirs = run_of(kind, federation, run, **arguments)
        table.add(name, SENT, run, theirs.models, without=other, remark=remark, **options)


def fedproto(table: Table) -> None:
    federation = world(optimiser=RULE)
    without = ours("fedavg", federation)
    theirs = None
    for means, differs, remark in (
        ("last_epoch", "", "theirs counts the last local epoch"),
        ("running", "reading", "PFLlib's form: all local epochs"),
        ("eval", "reading", "ours by default, the paper's: a pass after training"),
    ):
        run = ours("fedproto", federation, lam=2.0, averaging=True, means=means)
        theirs = theirs or run_of("fedproto:FedProto", federation, run, mu=2.0)
        table.add(
            "fedproto",
            SENT,
            run,
            theirs.models,
            without=without,
            differs=differs,
            remark=remark,
            lam=2.0,
            averaging=True,
            means=means,
        )


def fpl(table: Table) -> None:
    federation = world(data((32, 24, 40, 32, 24, 48), WIDELY_HELD), optimiser=SLOWLY)
    without, theirs = ours("fedavg", federation), None
    for means, differs, remark in (
        ("last_epoch", "", "theirs counts the last local epoch"),
        ("running", "reading", "all local epochs"),
        ("eval", "reading", "ours by default, the paper's Algorithm 1: a pass after the update"),
    ):
        run = ours("fpl", federation, tau=0.2, means=means)
        theirs = theirs or run_of("fpl:FPL", federation, run)
        table.add(
            "fpl",
            SENT,
            run,
            theirs.models,
            without=without,
            differs=differs,
            remark=remark,
            tau=0.2,
            means=means,
        )
        if not differs:
            mine = run.states[-1].prototypes
            clusters = [
                torch.cat([row.view(1, -1) for row in theirs.model.global_protos[c]]) for c in range(CLASSES)
            ]
            rows = [mine.vectors[mine.classes == c] for c in range(CLASSES)]
            sort = [(m[m[:, 0].argsort()], t[t[:, 0].argsort()]) for m, t in zip(rows, clusters)]
            table.add(
                "fpl",
                "cluster prototypes",
                [m for m, _ in sort],
                [t for _, t in sort],
                tau=0.2,
                means=means,
                remark=f"{len(mine.vectors)} clusters of {CLASSES} classes",
            )


def fedproc(table: Table) -> None:
    """One round from our prototypes and our weight of the cross-entropy, then all of theirs."""
    federation, alpha = world(optimiser=RULE), 0.4
    run, without = ours("fedproc", federation, alpha=alpha), ours("fedavg", federation)
    theirs = run_of("fedproc:FedProc", federation, run, rounds=0, communication_epoch=11)
    second = Theirs(
        type(theirs.model),
        federation,
        [run.states[1].model] * len(federation.clients),
        RULE.lr,
        communication_epoch=11,
    )
    second.model.ini()
    second.model.global_protos = {c: [row] for c, row in enumerate(run.states[1].prototypes.vectors)}
    second.model.epoch_index = alpha * 10  # its alpha falls from 1 to 0 in eleven rounds
    for feed in second.feeds:
        feed.plan.extend(local(2, EPOCHS))
    second.model.loc_update(second.feeds)
    table.add(
        "fedproc",
        "global model after one round from equal prototypes",
        run.models[2],
        list(second.model.nets_list),
        without=run.models[1],
        alpha=alpha,
    )
    run = ours("fedproc", federation)
    theirs = run_of("fedproc:FedProc", federation, run)
    table.add(
        "fedproc",
        SENT,
        run,
        theirs.models,
        without=without,
        differs="reading",
        remark="theirs trains nothing in round 1, has prototypes of raw representations, divides by T - 1; "
        "ours as the paper and the authors' code",
    )


CASES = (baselines, fedproto, fpl, fedproc)
