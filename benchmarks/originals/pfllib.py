"""TsingZ0/PFLlib: its servers' own train() with its clients', compared with our rounds.

Put in their way are the data, the choice of clients, and evaluation, which here copies the models that a
round begins with. A case that changes more says so in its remark.
"""

import copy
import importlib
import random
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
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
    Pass,
    Table,
    World,
    data,
    drawn,
    learned,
    local,
    ours,
    world,
)
from pipeline import keys
from pipeline.engine.state import Clients, mix
from pipeline.methods.fedamp import attention_weights, squared_distances

REPOSITORY, MARK = "TsingZ0/PFLlib", "system/flcore/servers/serverala.py"
BEGUN = "models that rounds begin with"
ARGUMENTS = {
    "algorithm": "any", "alphaK": 2.0, "auto_break": False, "batch_num_per_client": 2, "batch_size": BATCH,
    "beta": 1.0, "client_drop_rate": 0.0, "dataset": "", "device": "cpu", "dlg_eval": False, "dlg_gap": 100,
    "eta": 2.0, "eval_gap": 1, "feature_dim": WIDTH, "few_shot": 0, "fine_tuning_epoch_new": 0,
    "global_rounds": ROUNDS, "goal": "test", "join_ratio": 1.0, "K": 4, "lamda": 1.5, "layer_idx": 2,
    "learning_rate_decay": False, "learning_rate_decay_gamma": 0.99, "local_epochs": EPOCHS,
    "local_learning_rate": RATE, "mu": 0.5, "num_classes": CLASSES, "num_new_clients": 0,
    "p_learning_rate": 0.02, "plocal_epochs": 1, "rand_percent": 100, "random_join_ratio": False,
    "save_folder_name": "", "send_slow_rate": 0.0, "server_learning_rate": 1.0, "sigma": 20.0, "tau": 0.5,
    "time_select": False, "time_threthold": 1e9, "top_cnt": 100, "train_slow_rate": 0.0,
}  # fmt: skip


class Enough(Exception):
    """What the last round left has been seen."""


class Theirs:
    """A server of theirs, run from the model that our clients began with.

    passes: those over a client's data in a round. network: what their clients hold. prepare: changes before
    the first round. seen: what of the server is copied at the beginning of every round.
    """

    def __init__(
        self,
        kind: str,
        run: Ours,
        world: World,
        passes: Callable[[int], list[Pass]] = local,
        network: Callable[[Net], Any] = lambda net: net,
        prepare: Callable[["Theirs"], None] = lambda theirs: None,
        seen: Callable[[Any], Any] = lambda server: [client.model for client in server.clients],
        **arguments: Any,
    ):
        module, name = kind.split(":")
        for reader in ("servers.serverbase", "clients.clientbase", "clients.clientala"):
            part(reader).read_client_data = lambda dataset, k, **_: list(zip(*data_of(world, k)))
        first = network(Net(run.start))
        given = ARGUMENTS | {"num_clients": len(world.clients), "model": first} | arguments
        self.world, self.passes, self.seen = world, passes, seen
        self.round, self.recorded = 0, []
        self.server = getattr(part("servers." + module), name)(Namespace(**given), 0)
        self.feeds = [Feed(world, k) for k in range(len(world.clients))]
        for client in self.server.clients:
            client.load_train_data = self.loader(client.id)
        self.server.select_clients = self.select
        for name in ("evaluate", "evaluate_personalized", "evaluate_one_step"):
            setattr(self.server, name, self.evaluate)
        prepare(self)
        try:
            self.server.train()
        except Enough:
            pass

    def loader(self, k: int) -> Callable:
        def load(batch_size: int | None = None) -> Feed:
            self.feeds[k].size = batch_size or BATCH
            return self.feeds[k]

        return load

    def select(self) -> list:
        self.round += 1
        for feed in self.feeds:
            feed.plan.clear()
            feed.plan.extend(self.passes(self.round))
        return list(self.server.clients)

    def evaluate(self, *_: Any) -> None:
        self.server.rs_test_acc.append(0.0)
        if self.round == len(self.recorded) + 1:  # the first evaluation of this round
            self.recorded.append(copy.deepcopy(self.seen(self.server)))
        if self.round > ROUNDS:
            raise Enough

    @property
    def models(self) -> list:
        """As they are after the first round, and so on."""
        return self.recorded[1:]


def part(name: str) -> Any:
    return importlib.import_module(f"flcore.{name}")


def data_of(world: World, k: int) -> tuple:
    return world.clients[k].images, world.clients[k].labels


def globally(run: Ours) -> list:
    return [state.model for state in run.states[1:]]


def the_global(server: Any) -> Any:
    return server.global_model


# -- methods that their server runs as it is -----------------------------------------------------------------


def plain(table: Table) -> None:
    """(ours, options, theirs, arguments, what it is without its idea, remark)"""
    cases = (
        ("fedavg", {}, "serveravg:FedAvg", {}, "local", ""),
        ("fedprox", {"mu": 0.5}, "serverprox:FedProx", {}, "fedavg", ""),
        ("fedper", {}, "serverper:FedPer", {}, "fedavg", ""),
        ("lgfedavg", {}, "serverlg:LG_FedAvg", {}, "fedavg", ""),
        ("fedproto", {"lam": 1.5, "means": "running"}, "serverproto:FedProto", {}, "local", ""),
    )
    for name, options, server, arguments, without, remark in cases:
        federation = world()
        run, other = ours(name, federation, **options), ours(without, federation)
        theirs = Theirs(server, run, federation, **arguments)
        table.add(name, BEGUN, run, theirs.models, without=other, remark=remark, **options)
    vectors, sent = run.states[-1].prototypes.vectors, theirs.server.global_protos
    table.add(
        "fedproto",
        "global prototypes",
        vectors,
        torch.stack([sent[c] for c in range(CLASSES)]),
        means="running",
    )


def scaffold(table: Table) -> None:
    federation = world(averaging="uniform")
    run, without = ours("scaffold", federation, server_lr=0.5), ours("fedavg", federation)
    theirs = Theirs("serverscaffold:SCAFFOLD", run, federation, server_learning_rate=0.5)
    table.add(
        "scaffold",
        BEGUN,
        run,
        theirs.models,
        without=without,
        server_lr=0.5,
        remark="a scenario that averages uniformly: theirs has plain means",
    )


def feddyn(table: Table) -> None:
    federation = world(averaging="uniform")
    run, without = ours("feddyn", federation, alpha=0.5), ours("fedavg", federation)
    client = part("clients.clientdyn")
    for repaired, differs, remark in (
        (True, "", "theirs with the squared distance to the received model"),
        (False, "their error", "as released, the penalty is the distance, not its square as in the paper"),
    ):
        norm = (lambda v, p: v.square().sum()) if repaired else torch.norm
        client.torch = SimpleNamespace(**vars(torch) | {"norm": norm})
        theirs = Theirs("serverdyn:FedDyn", run, federation, alpha=0.5)
        table.add(
            "feddyn",
            BEGUN,
            run,
            theirs.models,
            without=without,
            differs=differs,
            remark=remark + "; a scenario that averages uniformly, as theirs",
            alpha=0.5,
        )


def fedbn(table: Table) -> None:
    federation = world(batchnorm=True)
    run, without = ours("fedbn", federation), ours("fedavg", federation)
    theirs = Theirs("serverbn:FedBN", run, federation)
    table.add(
        "fedbn",
        BEGUN,
        run,
        theirs.models,
        without=without,
        remark="BatchNorm's weights and biases; its running statistics stay at home in both",
    )


def moon(table: Table) -> None:
    federation = world()
    run, without = ours("moon", federation, mu=0.5, tau=0.5), ours("fedavg", federation)
    theirs = Theirs("servermoon:MOON", run, federation)
    table.add(
        "moon",
        BEGUN,
        run,
        theirs.models,
        without=without,
        mu=0.5,
        tau=0.5,
        remark="in round 1 theirs takes the received model for the previous one too, which pulls nowhere; "
        "ours has no contrast there",
    )


def fedrep(table: Table) -> None:
    federation = world()
    run, without = ours("fedrep", federation, head_epochs=2), ours("fedper", federation)

    def passes(round: int) -> list[Pass]:
        return [("head", round, epoch) for epoch in range(2)] + local(round)

    theirs = Theirs("serverrep:FedRep", run, federation, passes, plocal_epochs=2)
    table.add("fedrep", BEGUN, run, theirs.models, without=without, head_epochs=2)


def ditto(table: Table) -> None:
    federation = world()
    run = ours("ditto", federation, lam=0.7, personal_epochs=3)
    without = ours("ditto", federation, lam=0.0, personal_epochs=3)

    def passes(round: int) -> list[Pass]:
        return local(round, 3) + local(round)

    theirs = Theirs(
        "serverditto:Ditto",
        run,
        federation,
        passes,
        plocal_epochs=3,
        mu=0.7,
        seen=lambda server: [client.model_per for client in server.clients],
    )
    table.add("ditto", "personal models", run, theirs.models, without=without, lam=0.7)
    table.add("ditto", "global model", run.states[-1].model, theirs.server.global_model, lam=0.7)


def pfedme(table: Table) -> None:
    federation, rates = world(), {"lam": 1.5, "inner_steps": 4, "inner_lr": 0.02, "lr": RATE}
    run, without = ours("pfedme", federation, decay=0.001, **rates), ours("fedavg", federation)
    theirs = Theirs("serverpFedMe:pFedMe", run, federation)
    table.add(
        "pfedme",
        BEGUN,
        run,
        theirs.models,
        without=without,
        decay=0.001,
        remark="theirs, as the authors' code, lets theta decay by 0.001",
        **rates,
    )
    table.add(
        "pfedme",
        BEGUN,
        ours("pfedme", federation, **rates).models[1:],
        theirs.models,
        differs="reading",
        remark="ours by default as the paper's Algorithm 1, without the code's decay of theta",
        **rates,
    )


def perfedavg(table: Table) -> None:
    federation = world()
    run, without = ours("perfedavg", federation, alpha=RATE, beta=RATE), ours("fedavg", federation)
    theirs = Theirs("serverperavg:PerAvg", run, federation, seen=the_global, local_epochs=1)
    table.add(
        "perfedavg",
        "global model",
        globally(run),
        theirs.models,
        without=globally(without),
        alpha=RATE,
        beta=RATE,
        remark="theirs trains twice an epoch, so one of its epochs is two passes",
    )


def fedpcl(table: Table) -> None:
    """Theirs relies on the order in which classes occur: only the last ones may be absent."""
    federation = world(data(held=((0, 1, 2, 3, 4), (0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4))))
    run = ours("fedpcl", federation, tau=0.5, averaging=False, ce=False, inference="local_prototype")

    def passes(round: int) -> list[Pass]:
        return local(round) if round > 1 else []

    clip, torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_, lambda *_: None
    theirs = Theirs("serverpcl:FedPCL", run, federation, passes, network=lambda net: net.base)
    torch.nn.utils.clip_grad_norm_ = clip
    table.add(
        "fedpcl",
        "features that rounds begin with",
        [[m.features for m in models] for models in run.models[1:]],
        theirs.models,
        without=[[m.features for m in run.models[0]]] * ROUNDS,
        averaging=False,
        ce=False,
        tau=0.5,
        remark="its clipping of gradients at length 10 is off",
    )


# -- methods whose random numbers have to be ours, or that need a repair -------------------------------------


def fedala(table: Table) -> None:
    for tensors, where in ((2, "the head"), (0, "all tensors")):
        federation, options = world(), {"eta": 2.0, "tensors": tensors, "threshold": 0.1}
        run, without = ours("fedala", federation, **options), ours("fedavg", federation)

        def prepare(theirs: Theirs, federation: World = federation) -> None:
            turns = iter((r, client) for r in range(ROUNDS + 2) for client in federation.clients)

            def first(low: int, high: int) -> int:
                r, client = next(turns)
                numbers = keys.torch_generator("mixing slice", theirs.world.seed, r, client.name)
                return int(torch.randint(high + 1, (), generator=numbers))

            importlib.import_module("utils.ALA").random = SimpleNamespace(randint=first)
            for client, mine in zip(theirs.server.clients, federation.clients):
                order = drawn("mixing order", federation.seed, mine.name, n=len(mine.labels))
                client.ALA.train_data = [(mine.images[i], mine.labels[i]) for i in order]
                client.ALA.rand_percent = 80

        theirs = Theirs("serverala:FedALA", run, federation, prepare=prepare, layer_idx=tensors)
        table.add(
            "fedala", BEGUN, run, theirs.models, without=without, remark=f"weights over {where}", **options
        )
        table.add(
            "fedala",
            "mixing weights",
            [learned(w) for w in run.states[-1].weights],
            [client.ALA.weights for client in theirs.server.clients],
            remark=f"over {where}",
            **options,
        )


def fedamp(table: Table) -> None:
    federation, options = world(), {"alpha": 2.0, "sigma": 20.0, "lam": 1.5, "raw": True, "penalty": "norm"}
    run, alone = ours("fedamp", federation, **options), ours("local", federation)
    client = part("clients.clientamp")

    def let_through(theirs: Theirs) -> None:
        """Where theirs joins the data of a client's parameters, the parameters themselves."""

        def cat(parts: list, dim: int = 0) -> torch.Tensor:
            live = {p.data_ptr(): p for one in theirs.server.clients for p in one.model.parameters()}
            return torch.cat([live.get(value.data_ptr(), value).view(-1) for value in parts], dim)

        client.torch = SimpleNamespace(**vars(torch) | {"cat": cat})

    theirs = Theirs("serveramp:FedAMP", run, federation, prepare=let_through)
    table.add(
        "fedamp",
        BEGUN,
        run,
        theirs.models,
        without=alone,
        remark="theirs with a penalty of the parameters, not of their .data",
        **options,
    )
    client.torch = torch
    theirs = Theirs("serveramp:FedAMP", run, federation)
    why = (
        "as released, its penalty is of the parameters' .data and has no gradient: every client trains alone"
    )
    table.add(
        "fedamp", BEGUN, run, theirs.models, without=alone, differs="their error", remark=why, **options
    )
    table.add("local", "models of its FedAMP", alone, theirs.models, remark=why)
    last = Clients(alone.models[-1])
    sent = mix(last, attention_weights(squared_distances(last, list(last[0])), 2.0, 20.0))
    table.add(
        "fedamp",
        "the server's messages u_k, from equal models",
        list(sent),
        [client.client_u for client in theirs.server.clients],
        without=list(last),
        **options,
    )


def fedgh(table: Table) -> None:
    federation, options = world(), {"server_lr": 0.5, "server_batch": BATCH}
    run, without = (
        ours("fedgh", federation, **options),
        ours("fedgh", federation, **options | {"server_lr": 1e-30}),
    )

    def shuffled(theirs: Theirs) -> None:
        def loader(pairs: list, size: int, **_: Any):
            order = drawn("server", federation.seed, theirs.round, n=len(pairs))
            for chosen in order.split(size):
                yield tuple(torch.stack([pairs[i][side] for i in chosen]) for side in (0, 1))

        part("servers.servergh").DataLoader = loader

    def of_its_own(theirs: Theirs) -> None:
        shuffled(theirs)
        server = theirs.server
        server.head = copy.deepcopy(server.head)
        server.opt_h = torch.optim.SGD(server.head.parameters(), lr=server.server_learning_rate)

    for prepare, differs, remark in (
        (of_its_own, "", "their server with a head of its own"),
        (shuffled, "their error", "as released, the server's head is the first client's"),
    ):
        theirs = Theirs("servergh:FedGH", run, federation, prepare=prepare, server_learning_rate=0.5)
        table.add(
            "fedgh", BEGUN, run, theirs.models, without=without, differs=differs, remark=remark, **options
        )


def fedpac(table: Table) -> None:
    federation = world()
    run, without = (ours("fedpac", federation, lam=lam, weighted=False) for lam in (1.5, 0.0))

    def passes(round: int) -> list[Pass]:
        return [("head", round, 0), *local(round)]

    def separate_from_training(theirs: Theirs) -> None:
        """Statistics take a pass over the data, which must not be one of training's."""
        for client, feed in zip(theirs.server.clients, theirs.feeds):

            def extract(extract=client.statistics_extraction, feed=feed):
                planned = list(feed.plan)
                feed.plan.clear()
                statistics = extract()
                feed.plan.extend(planned)
                return statistics

            client.statistics_extraction = extract

    solve = part("servers.serverpac").solve_quadratic

    def to_one(*given: Any) -> list:
        return [[share / sum(shares) for share in shares] for shares in solve(*given)]

    def copied(theirs: Theirs) -> None:
        separate_from_training(theirs)
        part("servers.serverpac").solve_quadratic = to_one
        server = theirs.server

        def receive(receive=server.receive_models):
            receive()
            server.uploaded_heads = copy.deepcopy(server.uploaded_heads)

        server.receive_models = receive

    for prepare, differs, remark in (
        (
            copied,
            "",
            "theirs combines copies of the heads, and what is left of its weights (cvxpy's) once those below "
            "0.001 are cut sums to one",
        ),
        (
            separate_from_training,
            "their error",
            "as released, a client's new head is written over the one that it sent "
            "before the next client's is combined",
        ),
    ):
        theirs = Theirs("serverpac:FedPAC", run, federation, passes, prepare=prepare)
        part("servers.serverpac").solve_quadratic = solve
        table.add(
            "fedpac",
            BEGUN,
            run,
            theirs.models,
            without=without,
            limit=1e-6,
            differs=differs,
            remark=remark,
            lam=1.5,
            weighted=False,
        )


CASES = (
    plain,
    scaffold,
    feddyn,
    fedbn,
    moon,
    fedrep,
    ditto,
    pfedme,
    perfedavg,
    fedpcl,
    fedala,
    fedamp,
    fedgh,
    fedpac,
)


def prepare(checkout: Path) -> None:
    sys.path.insert(0, str(checkout / "system"))
    random.sample = lambda items, n: list(items)[:n]  # theirs draws an order of the clients
