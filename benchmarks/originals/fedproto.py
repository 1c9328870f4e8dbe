"""yuetan031/FedProto, the authors' code: its local update and its two means."""

import copy
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.originals.federation import (
    CLASSES,
    EPOCHS,
    RATE,
    ROUNDS,
    Feed,
    Net,
    Table,
    definitions,
    local,
    ours,
    world,
)
from pipeline.schema import Optimiser

REPOSITORY, MARK = "yuetan031/FedProto", "lib/update.py"
code: Any = None


class Pair(Net):
    """Theirs gives log-probabilities and representations."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        z = self.base(images)
        return F.log_softmax(self.head(z), dim=1), z


def prepare(checkout: Path) -> None:
    global code
    update = definitions(checkout / "lib" / "update.py", "LocalUpdate")
    code = definitions(checkout / "lib" / "utils.py", "agg_func", "proto_aggregation")
    code.update = update.LocalUpdate.update_weights_het


def fedproto(table: Table) -> None:
    """Its SGD has momentum 0.5."""
    federation = world(optimiser=Optimiser("sgd", RATE, momentum=0.5))
    without = ours("local", federation)
    arguments = Namespace(
        optimizer="sgd", lr=RATE, train_ep=EPOCHS, ld=1.0, num_classes=CLASSES, verbose=False
    )
    runs = {means: ours("fedproto", federation, means=means) for means in ("last_epoch", "running", "eval")}
    nets = [Pair(runs["eval"].start) for _ in federation.clients]
    sent: Any = {}
    models, prototypes = [], []
    for number in range(1, ROUNDS + 1):
        collected = {}
        for k, net in enumerate(nets):
            feed = Feed(federation, k)
            feed.plan.extend(local(number))
            self = types.SimpleNamespace(
                args=arguments, device="cpu", criterion=nn.NLLLoss(), trainloader=feed
            )
            *_, outputs = code.update(self, arguments, k, sent, model=net)
            collected[k] = code.agg_func(outputs)
        sent = code.proto_aggregation(collected)
        models.append(copy.deepcopy(nets))
        prototypes.append(torch.stack([sent[c][0] for c in range(CLASSES)]))
    for means, differs, remark in (
        ("last_epoch", "", "theirs counts the last local epoch"),
        ("running", "reading", "PFLlib's form: all local epochs"),
        ("eval", "reading", "ours by default, the paper's: a pass after training"),
    ):
        run = runs[means]
        table.add(
            "fedproto", "models", run, models, without=without, differs=differs, remark=remark, means=means
        )
        table.add(
            "fedproto",
            "global prototypes",
            [state.prototypes.vectors for state in run.states[1:]],
            prototypes,
            differs=differs,
            remark=remark,
            means=means,
        )
    run = ours("fedproto_hetero", federation, space="features", means="last_epoch")
    table.add(
        "fedproto_hetero",
        "models",
        run,
        models,
        without=without,
        space="features",
        means="last_epoch",
        remark="without the projector, which is RAHFL's",
    )


CASES = (fedproto,)
