"""A small federation for tests: made-up clients around a given or a linear network."""
import torch
from torch import nn

from pipeline.engine import world as engine
from pipeline.engine.phase import Client
from pipeline.engine.state import Params
from pipeline.engine.world import World
from pipeline.models import Network
from pipeline.schema import Model, Optimiser, Training

TINY = {"head.weight": [[.5, -.2], [.1, .3]], "head.bias": [0, .1]}       # a linear softmax of two classes, worked by hand
MLP = {"features.1.weight": [[1., 0], [0, 1.]], "features.1.bias": [0, .1], **TINY}    # a ReLU layer below it
B1 = ([[1., 2.], [-1., .5]], [0, 1])
B2 = ([[.5, -1.], [2., 1.]], [1, 0])


def training(**changes) -> Training:
    return Training(**{"rounds": 3, "batch_size": 16, "optimiser": Optimiser(lr=0.1), **changes})


def image_clients(sizes=(20, 33, 7), model=Model("cnn4"), side=16, seed=0) -> list[Client]:
    """Clients with random 16 x 16 grey images; a model for all or one per client."""
    rng = torch.Generator().manual_seed(seed)
    models = model if isinstance(model, list) else [model] * len(sizes)
    return [Client(f"c{k}", "only", models[k], torch.randn(n, 1, side, side, generator=rng),
                   torch.randint(0, 10, (n,), generator=rng)) for k, n in enumerate(sizes)]


def image_world(sizes=(20, 33, 7), seed=0, model=Model("cnn4"), **changes) -> World:
    return World(image_clients(sizes, model), training(**changes), classes=10, seed=seed)


def linear() -> Network:
    return Network(nn.Flatten(1), nn.Linear(2, 2))


def mlp() -> Network:
    return Network(nn.Sequential(nn.Flatten(1), nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))


def tiny_world(monkeypatch, *clients, batches_in_order=True, network=linear, dtype=torch.float32, classes=2, **changes) -> World:
    """Clients of 2-vectors under a linear softmax or another network; batches of 2 come in the order given."""
    monkeypatch.setattr(engine, "build", lambda *_: network())
    if batches_in_order:
        monkeypatch.setattr(torch, "randperm", lambda n, generator=None: torch.arange(n))
    made = [Client(f"c{k}", "only", Model("tiny"), torch.tensor(x, dtype=dtype).reshape(-1, 2, 1, 1), torch.tensor(y)) for k, (x, y) in enumerate(clients)]
    return World(made, training(**{"batch_size": 2, **changes}), classes=classes, seed=0)


def params(values: dict, dtype=torch.float32) -> Params:
    return Params((name, torch.tensor(value, dtype=dtype)) for name, value in values.items())


def equal(a: Params, b: Params) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def run(method, world: World, rounds: int = 3):
    """The method's state after some rounds, with the world's round counted as a cell does."""
    state = method.init(world)
    for world.round in range(1, rounds + 1):
        state = method.round(state, world)
    return state
