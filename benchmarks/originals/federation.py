"""The federation that an original and FedRepro both train, from equal weights and on equal batches.

Four clients of unequal size, each with some of the classes only; images 1 x 8 x 8 with a pattern for each
class; a convolution and a hidden layer. All in float64: another order of sums then shows at 1e-16, and no
other formula can hide behind rounding.
"""

import ast
import copy
import math
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline import keys, methods
from pipeline.engine import federation as engine
from pipeline.engine.handle import Batch
from pipeline.engine.phase import Client, order
from pipeline.engine.state import Clients, Params, State
from pipeline.engine.world import World
from pipeline.methods.base import Method
from pipeline.models import Network
from pipeline.schema import Model, Optimiser, Public, Training

CLASSES, WIDTH, SEED, ROUNDS, EPOCHS, BATCH, RATE = 5, 8, 3, 3, 2, 8, 0.1
SIZES = (32, 16, 48, 32)
HELD = ((0, 1, 2, 3, 4), (0, 1, 2), (1, 2, 3, 4), (0, 2, 3))  # the classes of each client
WIDTHS = (9, 12, 10, 14)  # where each client has a network of its own
ROUNDING = 1e-9

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


# -- networks ------------------------------------------------------------------------------------------------


def features(batchnorm: bool, width: int, probabilistic: bool = False) -> nn.Sequential:
    """probabilistic: a mean and a spread of every number, behind which is no ReLU (FedSR)."""
    middle = [nn.BatchNorm2d(3)] if batchnorm else []
    last = [nn.Linear(27, 2 * width)] if probabilistic else [nn.Linear(27, width), nn.ReLU()]
    return nn.Sequential(nn.Conv2d(1, 3, 3), *middle, nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(1), *last)


class Net(nn.Module):
    """Our network with our numbers, under the names that the originals know its parts by."""

    def __init__(self, model: Mapping[str, Tensor]):
        super().__init__()
        width = model["head.weight"].shape[1]
        twice = model.get("features.4.bias", model["head.weight"][0]).numel() == 2 * width
        layers = features("features.1.running_mean" in model, width, twice)
        # Some originals find BatchNorm by a name with bn in it.
        names = [
            ("bn" if isinstance(one, nn.BatchNorm2d) else "layer") + str(i) for i, one in enumerate(layers)
        ]
        self.base = nn.Sequential(OrderedDict(zip(names, layers)))
        self.head = nn.Linear(width, CLASSES)
        renamed = {f"features.{i}.": f"base.{name}." for i, name in enumerate(names)} | {"head.": "head."}
        self.load_state_dict(
            {
                new + name.removeprefix(old): value.clone()
                for name, value in model.items()
                for old, new in renamed.items()
                if name.startswith(old)
            }
        )

    @property
    def classifier(self) -> nn.Module:
        return self.head

    def features(self, images: Tensor) -> Tensor:
        return self.base(images)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.base(images))


# -- our side ------------------------------------------------------------------------------------------------


def data(sizes: Sequence[int] = SIZES, held: Sequence[Sequence[int]] = HELD) -> list[tuple[Tensor, Tensor]]:
    """(images, labels) of every client; each holds all of its classes, and its images are shifted."""
    patterns = torch.randn(CLASSES, 1, 8, 8, generator=torch.Generator().manual_seed(11))
    rng = torch.Generator().manual_seed(SEED)
    clients = []
    for k, (n, classes) in enumerate(zip(sizes, held)):
        labels = torch.tensor(classes)[torch.arange(n) % len(classes)]
        shift = 0.3 * k * torch.randn(1, 8, 8, generator=rng)
        clients.append((patterns[labels] + shift + torch.randn(n, 1, 8, 8, generator=rng), labels))
    return clients


def world(
    parts: list[tuple[Tensor, Tensor]] | None = None,
    *,
    widths: Sequence[int] | None = None,
    batchnorm: bool = False,
    probabilistic: bool = False,
    public: tuple[Tensor, Public] | None = None,
    test: Batch | None = None,
    **training: Any,
) -> World:
    """The federation for our engine. widths: those of the clients' representations, where they differ."""
    engine.build = lambda model, *_: Network(  # type: ignore[attr-defined]
        features(batchnorm, int(model.name), probabilistic), nn.Linear(int(model.name), CLASSES)
    )
    parts = data() if parts is None else parts
    clients = [
        Client(f"client {k}", "only", Model(str(widths[k] if widths else WIDTH)), *part)
        for k, part in enumerate(parts)
    ]
    settings = {"rounds": ROUNDS, "batch_size": BATCH, "local_epochs": EPOCHS} | training
    settings.setdefault("optimiser", Optimiser("sgd", RATE))
    return World.create(clients, Training(**settings), CLASSES, SEED, public=public, test=test)


@dataclass
class Ours:
    """What our method did: its state and the models that it deploys, at first and after every round."""

    method: Method
    states: list[State]
    models: list[Clients]

    @property
    def start(self) -> Params:
        """The model that all clients begin with, or the first one."""
        return self.states[0].get("model", self.models[0][0])


def ours(name: str, world: World, **options: Any) -> Ours:
    """Our method's rounds."""
    method = methods.load(name, options, "against_originals")
    record = Ours(method, [], [])
    for number in range(ROUNDS + 1):
        now = world.at(number)
        state = method.round(record.states[-1], now) if number else method.init(now)
        record.states.append(state)
        record.models.append(method.deployed(state, now))
    return record


# -- what an original gets -----------------------------------------------------------------------------------

Pass = tuple[str, int, int]  # stream, round, epoch: the key of our batches


def local(round: int, epochs: int = EPOCHS) -> list[Pass]:
    """The passes over a client's data of an ordinary local phase."""
    return [("local", round, epoch) for epoch in range(epochs)]


class Feed:
    """Stands for a client's data loader: every pass has the batches of the next of our passes in its plan;
    without a plan (prototypes, statistics) the images come class by class."""

    def __init__(self, world: World, k: int, size: int = BATCH):
        self.world, self.client, self.size = world, world.clients[k], size
        self.plan: deque[Pass] = deque()
        self.dataset = self

    def __len__(self) -> int:
        return math.ceil(len(self.client.labels) / self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        chosen = torch.argsort(self.client.labels, stable=True)
        if self.plan:
            stream, round, epoch = self.plan.popleft()
            key = types.SimpleNamespace(key=(self.world.seed, stream, round))
            chosen = order(key, self.client, epoch)  # type: ignore[arg-type]
        for part in chosen.split(self.size):
            yield self.client.images[part].contiguous(), self.client.labels[part]


def drawn(purpose: str, *parts: Any, n: int) -> Tensor:
    """Our permutation of n things under this key."""
    return torch.randperm(n, generator=keys.torch_generator(purpose, *parts))


class PublicFeed:
    """Stands for the loader of public images; `round` is ours."""

    def __init__(self, world: World):
        self.world, self.round = world, 1

    def __len__(self) -> int:
        return sum(1 for _ in self.world.public_batches())

    def __iter__(self) -> Iterator[tuple[Tensor, None]]:
        for batch in self.world.at(self.round).public_batches():
            yield batch.images.clone(), None


def public_images(n: int = 28) -> tuple[Tensor, Public]:
    """Unlabelled images, more than three batches of them."""
    return 1.5 * torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(5)), Public(
        "made up", n, BATCH
    )


def package(name: str, folder: Path) -> None:
    """A package whose modules can be imported without running its __init__, which wants the original's folder
    to be the working one, and all that its other modules import."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def definitions(file: Path, *names: str, **given: Any) -> types.SimpleNamespace:
    """The named functions and classes of a file that cannot be imported for what else it does or needs;
    `given`: what they use of the rest of it."""
    wanted = [node for node in ast.parse(file.read_text()).body if getattr(node, "name", None) in names]
    space = {
        "torch": torch,
        "nn": nn,
        "F": torch.nn.functional,
        "np": np,
        "copy": copy,
        "__name__": file.stem,
    } | given
    exec(compile(ast.Module(wanted, []), str(file), "exec"), space)
    return types.SimpleNamespace(**space)


# -- comparing -----------------------------------------------------------------------------------------------


def learned(model: Any) -> list[Tensor]:
    """What gradients move of a model, ours or theirs, features first."""
    if isinstance(model, nn.Module):
        return list(model.parameters())
    if isinstance(model, Mapping):  # of a layer first the weight
        names = sorted(model, key=lambda name: (name.rpartition(".")[0], name.endswith("bias")))
        return [model[name] for name in names if name.endswith(("weight", "bias"))]
    return list(model)


def largest_difference(a: Any, b: Any) -> float:
    """The largest absolute difference of two values: tensors, models, or equally long lists of these. A
    difference that is not a number is infinite."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        gap = float((a.detach() - b.detach().reshape(a.shape)).abs().max()) if a.numel() else 0.0
        return math.inf if math.isnan(gap) else gap
    if isinstance(a, Mapping):
        a, b = learned(a), learned(b)
    return max(largest_difference(x, y) for x, y in zip(a, b, strict=True))


@dataclass
class Row:
    """One comparison. effect: difference from the same method without its idea, which gives `difference` a
    scale. verdict: equal, or why it is not."""

    method: str
    compared: str
    difference: float
    verdict: str
    effect: float | None = None
    options: dict[str, Any] | None = None
    remark: str = ""


class Table:
    """The rows of one original; written out as they come."""

    def __init__(self):
        self.rows: list[Row] = []

    def add(
        self,
        method: str,
        compared: str,
        a: Any,
        b: Any,
        *,
        without: Any = None,
        limit: float = ROUNDING,
        differs: str = "",
        remark: str = "",
        **options: Any,
    ) -> None:
        """Compare a (ours) with b (theirs). without: ours without the method's idea. Of an `Ours` the models
        after every round are meant. differs: why they do, on purpose ("reading") or by an error of theirs
        ("their error")."""
        a, without = (one.models[1:] if isinstance(one, Ours) else one for one in (a, without))
        difference = largest_difference(a, b)
        verdict = "equal" if difference <= limit else differs or "unexplained"
        effect = None if without is None else largest_difference(a, without)
        self.rows.append(Row(method, compared, difference, verdict, effect, options or None, remark))
