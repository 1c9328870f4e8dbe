"""A small federation for tests: made-up clients around a given network, or around a miniature's."""

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.engine import federation as engine
from pipeline.engine.handle import Batch
from pipeline.engine.phase import Client, Present
from pipeline.engine.state import Clients, Params, State, tensors_of
from pipeline.engine.trained import Trained, Watch
from pipeline.engine.world import World
from pipeline.models import Network
from pipeline.schema import ACROSS, MINIATURE, Cell, Model, Optimiser, Scenario, Training, load_paper, papers

# a linear softmax of two classes, worked by hand
TINY = {"head.weight": [[0.5, -0.2], [0.1, 0.3]], "head.bias": [0, 0.1]}
MLP = {
    "features.1.weight": [[1.0, 0], [0, 1.0]],
    "features.1.bias": [0, 0.1],
    **TINY,
}  # a ReLU layer below it
B1 = ([[1.0, 2.0], [-1.0, 0.5]], [0, 1])
B2 = ([[0.5, -1.0], [2.0, 1.0]], [1, 0])
CNN4 = Model("cnn4")


def training(**changes) -> Training:
    return Training(**{"rounds": 3, "batch_size": 16, "optimiser": Optimiser(lr=0.1), **changes})


def image_clients(
    sizes=(20, 33, 7), model=CNN4, side=16, seed=0, dtype=torch.float32, one_class=False
) -> list[Client]:
    """Clients with random grey images; a model for all or one each. `one_class`: client k holds class k."""
    rng = torch.Generator().manual_seed(seed)
    models = model if isinstance(model, list) else [model] * len(sizes)
    return [
        Client(
            f"c{k}",
            "only",
            models[k],
            torch.randn(n, 1, side, side, generator=rng).to(dtype),
            torch.full((n,), k % 10) if one_class else torch.randint(0, 10, (n,), generator=rng),
        )
        for k, n in enumerate(sizes)
    ]


def image_world(
    sizes=(20, 33, 7), seed=0, model=CNN4, dtype=torch.float32, one_class=False, **changes
) -> World:
    clients = image_clients(sizes, model, dtype=dtype, one_class=one_class)
    return World.create(clients, training(**changes), classes=10, seed=seed)


def executor_world(
    executor="stacked", monkeypatch=None, seed=0, *, sizes, draw=0, model=CNN4, dtype=torch.float64, **changes
) -> World:
    """As `image_world`, on an executor. draw: of images, of `sizes` that begin elsewhere."""
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    clients = image_clients(sizes[draw:] + sizes[:draw], model, seed=draw, dtype=dtype)
    public = changes.pop("public", None)
    return World.create(clients, training(**changes), 10, seed, public=public)


def linear() -> Network:
    return Network(nn.Flatten(1), nn.Linear(2, 2))


def mlp() -> Network:
    return Network(nn.Sequential(nn.Flatten(1), nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))


def tiny_world(
    monkeypatch, *clients, batches_in_order=True, network=linear, dtype=torch.float32, classes=2, **changes
) -> World:
    """Clients of 2-vectors under a linear softmax or another network; batches of 2 in the order given."""
    monkeypatch.setattr(engine, "build", lambda *_: network())
    if batches_in_order:
        monkeypatch.setattr(torch, "randperm", lambda n, generator=None: torch.arange(n))
    made = [
        Client(
            f"c{k}", "only", Model("tiny"), torch.tensor(x, dtype=dtype).reshape(-1, 2, 1, 1), torch.tensor(y)
        )
        for k, (x, y) in enumerate(clients)
    ]
    return World.create(made, training(**{"batch_size": 2, **changes}), classes=classes, seed=0)


def params(values: dict, dtype=torch.float32) -> Params:
    return Params((name, torch.tensor(value, dtype=dtype)) for name, value in values.items())


NUMBERS = (Tensor, np.ndarray, int, float)


def difference(a, b) -> float:
    """The largest absolute difference of two tensors, arrays, numbers, sequences or states; infinite between
    other shapes, names or kinds. NaN equals NaN."""
    if isinstance(a, NUMBERS) or isinstance(b, NUMBERS):
        a, b = (torch.as_tensor(value).detach().double() for value in (a, b))
        if a.shape != b.shape:
            return math.inf
        gaps = torch.where(a.isnan() & b.isnan() | (a == b), 0.0, (a - b).abs())
        return float(gaps.nan_to_num(math.inf).max()) if gaps.numel() else 0.0
    if dataclasses.is_dataclass(a):
        a, b = vars(a), vars(b)
    if isinstance(a, dict):
        pairs = [(a[name], b[name]) for name in a] if a.keys() == b.keys() else None
    elif isinstance(a, (list, tuple, Clients)):
        pairs = list(zip(a, b)) if len(a) == len(b) else None
    else:
        return 0.0 if a == b else math.inf
    return math.inf if pairs is None else max((difference(x, y) for x, y in pairs), default=0.0)


def same(a, b, within: float = 0.0) -> bool:
    """Bit for bit, or up to an absolute difference."""
    return difference(a, b) <= within


def close(actual, wanted, within: float = 1e-6) -> None:
    """Assert that tensors, arrays or states have values; `wanted` may be a list."""
    if isinstance(actual, NUMBERS) or isinstance(wanted, NUMBERS):
        actual, wanted = (torch.as_tensor(value, dtype=torch.float64) for value in (actual, wanted))
    gap = difference(actual, wanted)
    assert gap <= within, f"{actual} differs from {wanted} by {gap}"


def finite(value) -> bool:
    return all(leaf.isfinite().all() for leaf in tensors_of(value) if leaf.is_floating_point())


def on_both(act) -> list:
    """What an act without arguments, which makes its world, returns on either executor."""
    import pytest  # not on every machine where benchmarks/gpu_check.py runs

    ends = []
    for executor in ("sequential", "stacked"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FEDREPRO_EXECUTOR", executor)
            ends.append(act())
    return ends


def rows(*values) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def known(*flags) -> Tensor:
    return torch.tensor(flags, dtype=torch.bool)


def run(method, world: World, rounds: int = 3):
    """The method's state after some rounds."""
    return watched(method, world, rounds)[0]


def watched(method, world: World, rounds: int = 3) -> tuple[State, Trained | None]:
    """The method's state after some rounds, and what the last one's local training left."""
    state = method.init(world)
    for number in range(1, rounds + 1):
        state, trained = one_round(method, state, world.at(number))
    return state, trained


def one_round(method, state: State, world: World) -> tuple[State, Trained | None]:
    """The world's round: the method's state after it, and what its local training left."""
    watch = Watch(world.executor)
    return method.round(state, world.at(world.round, watch)), watch.trained


def miniature_cells() -> dict[str, Cell]:
    """algorithm -> a cell of a miniature that runs it: a paper's methods before the others."""
    actual = {}
    for scenario in (ACROSS, MINIATURE):
        for paper in papers():
            miniature = load_paper(paper).miniature
            for method in miniature.others if scenario == ACROSS else miniature.methods:
                cell = Cell(paper, scenario, method)
                actual[cell.resolve()[1]] = cell
    return actual


def miniature_world(
    scenario: Scenario, rounds: int, device="cpu", sizes=(9, 17, 4), classes: int = 4, empty=()
) -> World:
    """What a miniature sets, around made-up images; the clients in `empty` have none."""
    numbers, data = torch.Generator().manual_seed(0), scenario.data

    def images(n):
        made = torch.rand(n, data.channels, data.size, data.size, generator=numbers)
        return made.contiguous(memory_format=torch.channels_last).to(device)

    def labels(n):
        return torch.randint(0, classes, (n,), generator=numbers).to(device)

    networks = list((scenario.models or {"": scenario.model}).values())
    clients = [
        Client(f"c{k}", f"c{k}", networks[k % len(networks)], images(n), labels(n))
        for k, n in enumerate(sizes)
    ]
    clients = Present(clients, [k for k in range(len(clients)) if k not in empty])
    training = dataclasses.replace(
        scenario.training, rounds=rounds, batch_size=8, local_epochs=1, pretraining=0
    )
    public = (
        None
        if scenario.public is None
        else (images(20), dataclasses.replace(scenario.public, batch_size=8, epochs=1))
    )
    heldout, test = Batch(images(9), labels(9)), Batch(images(9), labels(9))
    return World.create(
        clients, training, classes, 0, device, data=data, public=public, heldout=heldout, test=test
    )


SPHERE, GAUSSIAN = Model("fedlsa"), Model("cnn4_gaussian")
BN = {"model": Model("cnn3_bn"), "batch_size": 8}


def one_class_world(**changes):
    """Client k holds class k alone; the last one a single image."""
    clients = [
        dataclasses.replace(c, labels=torch.full_like(c.labels, k))
        for k, c in enumerate(image_clients((20, 33, 7, 1)))
    ]
    return World.create(clients, training(**changes), 10, 0)


def pictures(sizes=(20, 33, 7), model=CNN4, **changes) -> World:
    """Clients whose pixels lie in [0, 1]."""
    clients = [dataclasses.replace(c, images=c.images.sigmoid()) for c in image_clients(sizes, model)]
    return World.create(clients, training(**changes), 10, 0)
