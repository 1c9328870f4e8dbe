"""atuannguyen/FedSR, the authors' code: a client's training."""

import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim
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
    keys,
    learned,
    ours,
    world,
)
from pipeline.engine.state import Params, weighted_mean

REPOSITORY, MARK = "atuannguyen/FedSR", "src/methods/FedSR.py"
OPTIONS = {"l2r": 0.05, "cmi": 0.01}
code: Any = None


def prepare(checkout: Path) -> None:
    global code
    meter = types.SimpleNamespace(update=lambda *_: None, average=lambda: 0.0)
    code = definitions(
        checkout / MARK,
        "Model",
        Base=nn.Module,
        AverageMeter=lambda: meter,
        distributions=torch.distributions,
    ).Model


class Client(Net):
    """What its training asks of a model, around our network; the noise is ours."""

    def __init__(self, model: Params):
        super().__init__(model)
        width = self.head.in_features
        self.r_mu, self.r_sigma = (
            nn.Parameter(torch.zeros(CLASSES, width)),
            nn.Parameter(torch.ones(CLASSES, width)),
        )
        self.C, self.device = nn.Parameter(torch.ones([])), "cpu"
        self.L2R_coeff, self.CMI_coeff = OPTIONS["l2r"], OPTIONS["cmi"]
        self.cls = self.head.forward

    def featurize(self, images: Tensor, return_dist: bool = False) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mean, rough = self.base(images).chunk(2, dim=1)
        spread = F.softplus(rough)
        return mean + spread * torch.randn(mean.shape, generator=self.numbers), (mean, spread)


def fedsr(table: Table) -> None:
    federation = world(probabilistic=True)
    run, without = ours("fedsr", federation, **OPTIONS), ours("fedsr", federation, l2r=0.0, cmi=0.0)
    clients, model, rounds, references = [Client(run.start) for _ in federation.clients], run.start, [], []
    for number in range(1, ROUNDS + 1):
        sent = []
        for k, net in enumerate(clients):
            net.load_state_dict(Net(model).state_dict(), strict=False)
            net.optim = optim.SGD(net.parameters(), RATE)
            for epoch in range(EPOCHS):
                name = federation.clients[k].name
                net.numbers = keys.torch_generator("noise", federation.seed, "local", number, name, epoch)
                feed = Feed(federation, k)
                feed.plan.append(("local", number, epoch))
                code.train_client(
                    net, iter(feed), steps=len(feed)
                )  # it takes the next batch of a new iterator
            sent.append(
                Params(
                    zip(model, list(net.base.state_dict().values()) + list(net.head.state_dict().values()))
                )
            )
        model = weighted_mean(sent, federation.sizes)
        rounds.append(model)
        references.append(
            [
                [net.r_mu.detach().clone(), net.r_sigma.detach().clone(), net.C.detach().clone()]
                for net in clients
            ]
        )
    table.add(
        "fedsr",
        "global models",
        [learned(state.model) for state in run.states[1:]],
        list(map(learned, rounds)),
        without=[learned(state.model) for state in without.states[1:]],
        limit=1e-6,
        remark="ours adds 1e-8 to sigma",
        **OPTIONS,
    )
    table.add(
        "fedsr",
        "references and scale of every client",
        [[[one["mean"], one["rho"], one["scale"]] for one in state.references] for state in run.states[1:]],
        references,
        limit=1e-6,
        **OPTIONS,
    )


CASES = (fedsr,)
