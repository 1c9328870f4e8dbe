"""Optimisers for stacked models, and the rows of a stack that a step moves."""

import torch
from torch import Tensor

from pipeline.engine.optimisers import BETA1, BETA2, EPS
from pipeline.schema import Optimiser


class StackedSteps:
    """As optimisers.Steps, for tensors with a leading client dimension, of which a step moves some rows;
    counts are per client."""

    def __init__(self, settings: Optimiser, parameters: dict[str, Tensor], clients: int):
        self.settings, self.parameters = settings, parameters
        moments = 2 if settings.name == "adam" else int(settings.momentum > 0)
        self.moments = [{name: torch.zeros_like(p) for name, p in parameters.items()} for _ in range(moments)]
        device = next(iter(parameters.values())).device
        self.count = torch.zeros(clients, dtype=torch.float64, device=device)

    def restart(self) -> None:
        """Reset the state to that of a new optimiser, in the same memory."""
        for tensor in (self.count, *(moment for moments in self.moments for moment in moments.values())):
            tensor.zero_()

    @torch.no_grad()
    def step(self, gradients: dict[str, Tensor], rows: "Rows") -> None:
        """gradients: name -> (rows, ...). Tensors without one, and their moments, stay."""
        s = self.settings
        rows.write(self.count, rows.read(self.count) + 1)
        for name, gradient in gradients.items():
            value = rows.read(self.parameters[name])
            if s.weight_decay:
                gradient = gradient + s.weight_decay * value
            if s.name == "adam":
                change = self._adam(name, gradient, rows)
            else:
                change = self._sgd(name, gradient, rows)
            rows.write(self.parameters[name], value - s.lr * change)

    def _sgd(self, name: str, gradient: Tensor, rows: "Rows") -> Tensor:
        if not self.moments:
            return gradient
        moment = self.settings.momentum * rows.read(self.moments[0][name]) + gradient
        rows.write(self.moments[0][name], moment)
        return moment

    def _adam(self, name: str, gradient: Tensor, rows: "Rows") -> Tensor:
        count = rows.read(self.count).view(-1, *[1] * (gradient.ndim - 1))
        first = torch.lerp(gradient, rows.read(self.moments[0][name]), BETA1)
        second = BETA2 * rows.read(self.moments[1][name]) + (1 - BETA2) * gradient * gradient
        rows.write(self.moments[0][name], first)
        rows.write(self.moments[1][name], second)
        scale = (1 - BETA2**count).sqrt().to(gradient.dtype)
        return first / (1 - BETA1**count).to(gradient.dtype) / (second.sqrt() / scale + EPS)


class Rows:
    """Some rows of a stack: a leading slice where they are one, else an index. Reads and writes stay on the
    device.

    With `active`, a count on the device, only so many leading rows are written; the others are read and keep
    their values.
    """

    def __init__(self, chosen: list[int], device: torch.device, active: Tensor | None = None):
        self.count = len(chosen)
        self.index = None if chosen == list(range(len(chosen))) else torch.tensor(chosen, device=device)
        self.active, self.place = active, torch.arange(len(chosen), device=device)

    def read(self, stack: Tensor) -> Tensor:
        return stack[: self.count] if self.index is None else stack.index_select(0, self.index)

    def write(self, stack: Tensor, values: Tensor) -> None:
        if self.active is not None:
            moves = (self.place < self.active).view(-1, *[1] * (stack.ndim - 1))
            values = torch.where(moves, values, self.read(stack))
        if self.index is None:
            stack[: self.count] = values
        else:
            stack.index_copy_(0, self.index, values)
