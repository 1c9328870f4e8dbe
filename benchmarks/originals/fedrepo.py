"""lxcnju/FedRepo, code of FedRS's authors: its local update."""

import copy
import types
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, optim

from benchmarks.originals.federation import CLASSES, ROUNDS, Feed, Net, Table, definitions, local, ours, world
from pipeline.engine.state import Params, weighted_mean
from pipeline.schema import Optimiser

REPOSITORY, MARK = "lxcnju/FedRepo", "algorithms/fedrs.py"
RULE = Optimiser("sgd", 0.05, 0.9, 1e-5)
EPOCHS = 3  # theirs takes at least five steps
code: Any = None


class Pair(Net):
    """Theirs gives representations and logits, and its classifier has no bias."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        z = self.base(images)
        return z, self.head(z)


class Loader(Feed):
    """Its iterators have `next`, as once in torch."""

    def __iter__(self):
        return Batches(super().__iter__())


class Batches:
    def __init__(self, batches: Iterator):
        self.batches = batches

    def __iter__(self):
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        return next(self.batches)

    next = __next__


def prepare(checkout: Path) -> None:
    global code
    code = definitions(
        checkout / "algorithms" / "fedrs.py", "FedRS",
        Averager=lambda: types.SimpleNamespace(add=lambda value: None, item=lambda: 0.0),
        construct_optimizer=lambda model, lr, args: optim.SGD(model.parameters(), lr, 0.9, weight_decay=1e-5),
    ).FedRS  # fmt: skip


def fedrs(table: Table) -> None:
    federation = world(optimiser=RULE, local_epochs=EPOCHS)
    runs = {mode: ours("fedrs", federation, alpha=0.3, mode=mode) for mode in ("soft", "hard")}
    without, model, rounds = ours("fedavg", federation), runs["soft"].start, []
    arguments = Namespace(
        lr=RULE.lr, local_steps=None, local_epochs=EPOCHS, cuda=False, alpha=0.3, max_grad_norm=100
    )
    for number in range(1, ROUNDS + 1):
        nets = [Pair(model) for _ in federation.clients]
        for k, net in enumerate(nets):
            net.head.bias.requires_grad_(False)
            feed = Loader(federation, k)
            feed.plan.extend(local(number, EPOCHS))
            counts = torch.bincount(federation.clients[k].labels, minlength=CLASSES).double()
            self = types.SimpleNamespace(args=arguments, test=lambda **_: (0.0, 0.0))
            code.update_local(self, number, net, feed, None, counts)
        model = weighted_mean(
            [Params(zip(model, net.state_dict().values())) for net in nets], federation.sizes
        )
        rounds.append(copy.copy(model))
    for mode, differs, remark in (
        ("soft", "", "by the classes' sizes, as theirs"),
        ("hard", "reading", "ours by default, the paper's: by whether a client holds the class"),
    ):
        table.add(
            "fedrs",
            "global models",
            [state.model for state in runs[mode].states[1:]],
            rounds,
            without=[state.model for state in without.states[1:]],
            differs=differs,
            remark=remark,
            alpha=0.3,
            mode=mode,
        )


CASES = (fedrs,)
