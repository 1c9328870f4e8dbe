"""What WenkeHuang's repositories share: a model class with the clients' networks in nets_list, whose
loc_update (and col_update, on public images) is a round."""

import copy
import sys
import types
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import optim

from benchmarks.originals.federation import (
    BATCH,
    EPOCHS,
    ROUNDS,
    Feed,
    Net,
    PublicFeed,
    World,
    local,
    package,
)

ARGUMENTS = {
    "averaing": "weight", "communication_epoch": ROUNDS, "dataset": "none", "device_id": 0, "dis_power": 3.0,
    "infoNCET": 0.2, "local_dis_power": 3.0, "local_epoch": EPOCHS, "mu": 1.0, "off_diag_weight": 0.0051,
    "online_ratio": 1.0, "public_epoch": 1, "structure": "heterogeneity", "temp": 0.05, "temperature": 0.5,
}  # fmt: skip


def prepare(folder: Path) -> None:
    """Its modules without the folder for checkpoints, the command line and the GPU."""
    for name in ("models", "models.utils", "utils"):
        package(name, folder.joinpath(*name.split(".")))
    arguments = types.ModuleType("utils.args")
    arguments.ArgumentParser = ArgumentParser  # type: ignore[attr-defined]
    arguments.add_management_args = arguments.add_experiment_args = None  # type: ignore[attr-defined]
    sys.modules["utils.args"] = arguments
    import models.utils.federated_model as base  # type: ignore[import-not-found]

    base.get_device = lambda device_id: torch.device("cpu")
    base.create_if_not_exists = lambda folder: None


def steps_of_sgd(module: Any) -> None:
    """Plain SGD where a module has Adam, as on our side: the first step of a new Adam, lr g / (|g| + 1e-8),
    blows rounding up where g is nearly 0."""

    def adam(parameters: Any, lr: float, weight_decay: float = 0.0) -> optim.SGD:
        return optim.SGD(parameters, lr, weight_decay=1e-5)

    module.optim = types.SimpleNamespace(Adam=adam, SGD=optim.SGD)


def arrays_of_tensors(module: Any) -> None:
    """Where a module makes an array of a list of tensors it means one of objects, as NumPy once did."""

    def array(values: Any) -> np.ndarray:
        if not (isinstance(values, list) and isinstance(values[0], torch.Tensor)):
            return np.array(values)
        made = np.empty(len(values), object)
        made[:] = values
        return made

    module.np = types.SimpleNamespace(array=array, unique=np.unique, where=np.where, mean=np.mean)


class Theirs:
    """A model class of theirs with our models, and the networks after every round."""

    def __init__(self, kind: Any, world: World, models: Any, rate: float, **arguments: Any):
        given = ARGUMENTS | {"parti_num": len(models), "local_lr": rate, "public_lr": rate} | arguments
        self.world, self.model = world, kind([Net(model) for model in models], Namespace(**given), None)
        self.model.random_state = types.SimpleNamespace(choice=lambda all, count, replace: np.array(all))
        self.model._draw_heatmap = lambda *_: None
        self.feeds = [Feed(world, k, BATCH) for k in range(len(models))]
        for feed in self.feeds:  # by which theirs weighs the clients
            feed.sampler = types.SimpleNamespace(indices=np.arange(len(feed.client.labels)))
        self.model.trainloaders = self.feeds
        self.models: list = []

    def train(self, rounds: int = ROUNDS, public: bool = False) -> "Theirs":
        feed = PublicFeed(self.world)
        for number in range(1, rounds + 1):
            self.model.epoch_index, feed.round = number - 1, number
            for one in self.feeds:
                one.plan.clear()
                one.plan.extend(local(number, self.world.training.local_epochs))
            if public:
                self.model.col_update(number - 1, feed)
            self.model.loc_update(self.feeds)
            self.models.append(copy.deepcopy(list(self.model.nets_list)))
        return self
