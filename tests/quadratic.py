"""Two clients whose losses are parabolas, so that rounds can be worked by hand."""

import torch
from federation import B1, B2, TINY, close, params, tiny_world

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Clients, Params, State, zeros
from pipeline.engine.trained import Trained
from pipeline.engine.world import World
from pipeline.methods.base import Method

DOUBLE = torch.float64


UNIFORM = {"averaging": "uniform"}


def double(values) -> torch.Tensor:
    return torch.as_tensor(values, dtype=DOUBLE)


def instead_of_training(monkeypatch, models: Clients) -> None:
    """What every local phase from now on comes to."""
    monkeypatch.setattr(World, "local_epochs", lambda *_, **__: Trained(models, []))


def quadratic(self, model: Handle, batch: Batch, server_state, client_state):
    a, t = batch.images[:, 0, 0, 0].mean(), batch.images[:, 1, 0, 0].mean()
    return a / 2 * (model.params["head.bias"][0] - t) ** 2


def line(monkeypatch, **changes):
    monkeypatch.setattr(Method, "loss", quadratic)
    return tiny_world(monkeypatch, ([[1.0, 2.0]] * 3, [0] * 3), ([[4.0, -1.0]], [0]), dtype=DOUBLE, **changes)


def from_zero(method, world, rounds: int) -> State:
    """The state after so many rounds from y = 0."""
    state = method.init(world)
    state = State({**state, "model": zeros(state.model)})
    for number in range(1, rounds + 1):
        state = method.round(state, world.at(number))
    return state


def y(model: Params) -> float:
    return float(model["head.bias"][0])


def ys(models: Clients) -> list[float]:
    return [y(model) for model in models]


def server_steps(monkeypatch, method, *wanted) -> State:
    """Assert where a method's server goes from x = (1, 0) by changes of (.2, -.1) and (-.1, 0); its state."""
    world = tiny_world(monkeypatch, B1, B2, dtype=DOUBLE)
    state = State({**method.init(world), "model": params({**TINY, "head.bias": [1.0, 0.0]}, DOUBLE)})
    for change, bias in zip(([0.2, -0.1], [-0.1, 0.0]), wanted, strict=True):
        moved = state.model.joined({"head.bias": state.model["head.bias"] + double(change)})
        instead_of_training(monkeypatch, world.everyone(moved))
        state = method.round(state, world)
        close(state.model["head.bias"], bias)
        close(state.model["head.weight"], TINY["head.weight"])  # a change of zero moves nothing
    return state
