"""KarhouTam/FL-bench: the servers of FedAvgM and of FedAdam, FedYogi and FedAdagrad, on the changes that our
clients send. The clients' own step is FedAvg's."""

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.originals.federation import (
    ROUNDS,
    SIZES,
    Ours,
    Table,
    World,
    learned,
    methods,
    ours,
    package,
    world,
)
from pipeline.engine.state import Params

REPOSITORY, MARK = "KarhouTam/FL-bench", "src/server/fedopt.py"


def prepare(checkout: Path) -> None:
    """Its servers without what they inherit, which reads data sets and starts workers."""
    for name in ("src", "src.server"):
        package(name, checkout.joinpath(*name.split(".")))
    base, command = types.ModuleType("src.server.fedavg"), types.ModuleType("omegaconf")
    base.FedAvgServer = object  # type: ignore[attr-defined]
    command.DictConfig = dict  # type: ignore[attr-defined]
    sys.modules |= {"src.server.fedavg": base, "omegaconf": command}


def served(
    run: Ours, federation: World, step: Callable[[dict, list[dict]], None]
) -> list[list[torch.Tensor]]:
    """The global model after every round, where `step` moves it by what every client's FedAvg changed."""
    average = methods.load("fedavg", {}, "against_originals")
    x, rounds = {name: value.clone().requires_grad_() for name, value in run.start.items()}, []
    for number in range(1, ROUNDS + 1):
        start = Params((name, value.detach().clone()) for name, value in x.items())
        now = federation.at(number)
        models = now.local_epochs(now.everyone(start), average.loss).models
        step(x, [{name: start[name] - model[name] for name in start} for model in models])
        rounds.append([value.detach().clone() for value in x.values()])
    return rounds


def sent_by(run: Ours) -> Any:
    return [learned(state.model) for state in run.states[1:]]


def fedavgm(table: Table) -> None:
    federation, server = world(), importlib.import_module("src.server.fedavgm").FedAvgMServer
    run = ours("fedavgm", federation, beta=0.7, nesterov=True)

    def step(x: dict, changes: list[dict]) -> None:
        if not hasattr(mine, "public_model_params"):
            mine.public_model_params = x
            mine.global_optmizer = torch.optim.SGD(list(x.values()), lr=1.0, momentum=0.7, nesterov=True)
        packages = {
            k: {"weight": n, "model_params_diff": one} for k, (n, one) in enumerate(zip(SIZES, changes))
        }
        mine.aggregate_client_updates(packages)

    mine = server.__new__(server)
    table.add(
        "fedavgm",
        "global models",
        sent_by(run),
        served(run, federation, step),
        without=sent_by(ours("fedavg", federation)),
        beta=0.7,
        nesterov=True,
        remark="its server's step alone",
    )


def fedadam(table: Table) -> None:
    optimiser = importlib.import_module("src.server.fedopt").AdaptiveOptimizer
    rates = {"beta1": 0.8, "beta2": 0.9, "server_lr": 0.05, "tau": 0.01}
    for second in ("adam", "yogi", "adagrad"):
        federation, mine = world(), []
        run = ours("fedadam", federation, second=second, v0=0.0, **rates)

        def step(x: dict, changes: list[dict], second: str = second, mine: list = mine) -> None:
            if not mine:
                mine.append(optimiser(second, x, 0.8, 0.9, 0.05, 0.01))
            mine[0].step(changes, torch.tensor(SIZES) / sum(SIZES))

        table.add(
            "fedadam",
            "global models",
            sent_by(run),
            served(run, federation, step),
            without=sent_by(ours("fedavg", federation)),
            second=second,
            v0=0.0,
            **rates,
            remark="its server's step alone; v begins at 0 there, in the paper and in ours at tau^2",
        )


CASES = (fedavgm, fedadam)
