"""Originals whose round stands in a script's main block: its statements, in their order and unchanged, run on
our models, batches and views. Left out are evaluation, logging and saving."""

import ast
import copy
import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from benchmarks.originals.federation import (
    BATCH,
    CLASSES,
    ROUNDS,
    WIDTHS,
    Feed,
    Net,
    World,
    data,
    keys,
    local,
    public_images,
    world,
)
from pipeline.schema import Optimiser

RATE = 0.01
RULE = Optimiser("sgd", RATE, weight_decay=1e-5)
SGD = "SGD in Adam's place on both sides"
LEFT_OUT = (
    "evaluate_network",
    "acc_list.append",
    "accuracy_avg",
    "acc_epoch_list = []",
    "acc_list = []",
    "mkdirs",
)


class Pair(Net):
    """Theirs gives logits and an embedding."""

    @property
    def backbone(self) -> nn.Module:
        return self.base

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.base(x)
        return self.head(z), z


class Parallel(nn.Module):
    """nn.DataParallel without a device."""

    def __init__(self, module: nn.Module, device_ids: Any = None):
        super().__init__()
        self.module = module

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)


def federation_of(**more: Any) -> World:
    """An epoch a round, among networks of several widths with BatchNorm."""
    return world(
        widths=WIDTHS, batchnorm=True, optimiser=RULE, public=public_images(32), local_epochs=1, **more
    )


def noise(count: int) -> Callable[[Tensor, torch.Generator], tuple[Tensor, ...]]:
    """Views of pixels in the place of AugMix: the images and `count - 1` times noise on them, in [0, 255]."""

    def views(pixels: Tensor, numbers: torch.Generator) -> tuple[Tensor, ...]:
        clean = pixels.double()
        more = (30 * torch.randn(clean.shape, generator=numbers) for _ in range(count - 1))
        return clean, *((clean + one).clamp(0, 255) for one in more)

    return views


class ViewFeed(Feed):
    """Batches of (the views that ours are, labels)."""

    def __init__(self, world: World, k: int, views: Callable):
        super().__init__(world, k)
        self.views = views

    def __iter__(self):
        stream, round, epoch = self.plan[0]
        numbers = keys.torch_generator("views", self.world.seed, stream, round, self.client.name, epoch)
        for images, labels in super().__iter__():
            seen = self.views(self.world.pixels.bytes(images), numbers)
            yield [self.world.pixels.inputs(view, images) for view in seen], labels


def adam(parameters: Any, lr: float, weight_decay: float = 0.0) -> optim.SGD:
    return optim.SGD(parameters, lr, weight_decay=1e-5)


class Script:
    """A script's functions, and the statements of its round."""

    def __init__(self, file: Path):
        tree = ast.parse(file.read_text())
        main = next(
            node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        )
        rounds = next(
            node
            for node in main.body
            if isinstance(node, ast.For) and ast.unparse(node.target) == "epoch_index"
        )
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        body = [node for node in rounds.body if not any(word in ast.unparse(node) for word in LEFT_OUT)]
        self.functions, self.body = (
            compile(ast.Module(part, []), str(file), "exec") for part in (functions, body)
        )

    def run(
        self,
        federation: World,
        nets: list,
        feeds: list[Feed],
        public: Any,
        before: Callable[[dict], None] = lambda space: None,
        **given: Any,
    ) -> list:
        """The networks after every round. before: what happens first in each."""
        names = ("CrossEntropyLoss", "KLDivLoss", "Module")
        layers = types.SimpleNamespace(**{name: getattr(nn, name) for name in names}, DataParallel=Parallel)
        space = {
            "torch": torch, "nn": layers, "F": F, "np": np,
            "optim": types.SimpleNamespace(Adam=adam, SGD=optim.SGD),
            "copy": copy, "random": random, "mean": np.mean, "exp": np.exp, "N_Participants": len(nets),
            "net_list": nets, "device": torch.device("cpu"), "device_ids": None, "public_train_dl": public,
            "logger": types.SimpleNamespace(info=lambda *_: None), "public_train_ds": range(1),
            "local_loss_list": [], "acc_list": [], "net_dataidx_map": list(range(len(nets))),
            "TestBatchSize": BATCH, "col_loss_list": [],
            "Private_Dataset_Name": "", "Private_Dataset_Dir": "", "TrainBatchSize": BATCH,
            "Pariticpant_Params": {"loss_funnction": "CE", "optimizer_name": "Adam", "learning_rate": RATE},
            "CommunicationEpoch": 10 ** 6,
            "get_dataloader": lambda dataidxs=None, **_: (feeds[dataidxs], None, range(10), None),
        } | given  # fmt: skip
        exec(self.functions, space)
        results = []
        for number in range(1, ROUNDS + 1):
            public.round, space["epoch_index"] = number, number - 1
            for feed in feeds:
                feed.plan.clear()
                feed.plan.extend(local(number, 1))
            before(space)
            exec(self.body, space)
            results.append(copy.deepcopy(list(space["net_list"])))
        return results


def test_images() -> tuple[Tensor, Tensor]:
    return data((40,), (tuple(range(CLASSES)),))[0]


torch.Tensor.cuda = lambda self, *_, **__: self  # theirs know no other device
