"""Per-FedAvg: a global model that one gradient step adapts to each client (Fallah et al. 2020, Algorithm
1)."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pipeline import keys
from pipeline.engine import Batch, Clients, Handle, Logged, Params, State, World
from pipeline.engine.federation import able
from pipeline.engine.optimisers import BETA1, BETA2, EPS
from pipeline.engine.state import entries, zeros
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import NonNegative, Positive


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """Each step takes batches D, D' (and D'' for `hf`) of the scenario's size: d = grad f(w - alpha grad f(w;
    D); D'), then w <- w - beta d, or beta (d - alpha H d) with the Hessian's product by differences at D''.

    A last incomplete chunk is cut evenly; with fewer samples than batches it is left out. Each client is
    scored by a copy of the global model after one adaptation step on one local training batch.
    """

    # fo: first-order, as PFLlib implements it; hf: the paper's Hessian-free form.
    variant: Literal["fo", "hf"] = "fo"
    # adaptation step
    alpha: NonNegative = 0.01
    # meta step
    beta: NonNegative = 0.001
    # of the differences; float32 loses about four digits to it
    delta: Positive = 0.001
    # adam: d goes to Adam, new every round
    meta: Literal["plain", "adam"] = "plain"
    adam_lr: Positive = 0.003
    uniform: bool = False  # the paper's mean over clients; False: weighted by samples, as PFLlib

    def round(self, state: State, world: World) -> State:
        start, count = world.everyone(state.model), 2 if self.variant == "fo" else 3
        moments = _moments(start, world) if self.meta == "adam" else None
        # A client whose images do not make one step is one without data.
        clients = able(world.clients, world.training, world.networks, count)
        world = replace(world, clients=clients, full=world.whole)
        trained = world.local_steps(start, self.step, client_state=moments, batches_per_step=count)
        return State(model=world.average(trained.models, self.uniform))

    def step(
        self, model: Handle, batches: list[Batch], server_state: object, client_state: dict | None
    ) -> tuple[Params, dict | None, Logged]:
        """w after one meta step, Adam's moments, and the loss of the adapted model on D'."""
        adapted = _moved(model.params, model.gradient(self.plain_loss, batches[0]), self.alpha)
        direction, loss = model.at(adapted).gradient_and_loss(self.plain_loss, batches[1])
        if self.variant == "hf":
            direction = _moved(direction, self._hessian_times(model, direction, batches[2]), self.alpha)
        if client_state is None:
            return _moved(model.params, direction, self.beta), None, {"loss": loss}
        return *self._adam(model.params, direction, client_state), {"loss": loss}

    def deployed(self, state: State, world: World) -> Clients:
        """Adapted copies; batches are drawn from (seed, "adaptation", round, client), without dropout."""
        chosen = [self._batch(world, k) for k in range(len(world.clients))]
        adapted = world.each(world.everyone(state.model), self._adapt, client_state=chosen)
        return Clients(state.model if mine is None else state.model.joined(mine) for mine in adapted)

    def _adapt(self, model: Handle, images: Tensor, labels: Tensor, chosen: Tensor) -> Params:
        gradient = model.gradient(self.plain_loss, Batch(images[chosen], labels[chosen]))
        return entries(lambda value, g: (value - self.alpha * g).detach(), model.params, gradient)

    @staticmethod
    def _batch(world: World, client: int) -> Tensor:
        generator = keys.torch_generator("adaptation", world.seed, world.round, world.clients[client].name)
        order = torch.randperm(world.sizes[client], generator=generator)
        return order[: world.training.batch_size].to(world.device)

    def _hessian_times(self, model: Handle, direction: Params, batch: Batch) -> Params:
        """(grad f(w + delta d) - grad f(w - delta d)) / (2 delta). Both in one vmap, which draws one dropout
        mask for the two: with different ones the quotient would be noise over 2 delta."""

        def gradient(sign: Tensor) -> Params:
            there = entries(lambda value, d: value + sign * self.delta * d, model.params, direction)
            return torch.func.grad(lambda params: self.plain_loss(model.at(params), batch))(there)

        # Created on the device, so that nothing is copied.
        signs = 1 - 2 * torch.arange(2, device=batch.images.device, dtype=batch.images.dtype)
        both = torch.func.vmap(gradient, randomness="same")(signs)
        return entries(lambda g: (g[0] - g[1]) / (2 * self.delta), both)

    def _adam(self, params: Params, gradient: Params, client_state: dict) -> tuple[Params, dict]:
        """A step of Adam without in-place changes, for `local_steps`."""
        count = client_state["count"] + 1
        first = entries(lambda g, m: BETA1 * m + (1 - BETA1) * g, gradient, client_state["first"])
        second = entries(lambda g, v: BETA2 * v + (1 - BETA2) * g * g, gradient, client_state["second"])

        def moved(value: Tensor, m: Tensor, v: Tensor) -> Tensor:
            change = m / (1 - BETA1**count) / ((v / (1 - BETA2**count)).sqrt() + EPS)
            return value - self.adam_lr * change.to(value.dtype)

        return entries(moved, params, first, second), {
            "first": client_state["first"].joined(first),
            "second": client_state["second"].joined(second),
            "count": count,
        }


def _moved(params: Params, direction: Params, step: float) -> Params:
    """params - step * direction; a clone keeps the memory format, which makes convolutions fast."""
    return entries(lambda value, d: value.clone().sub_(d, alpha=step), params, direction)


def _moments(models: Clients, world: World) -> State:
    """Adam's, at zero; the count of steps per client."""
    none, steps = Clients(map(zeros, models)), torch.zeros(len(models), dtype=torch.float64)
    return State(first=none, second=none, count=steps.to(world.device))
