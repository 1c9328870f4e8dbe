"""SGD and Adam on torch's functional forms, for one model or for many stacked ones.

The classes of torch.optim do the same arithmetic, but making the first one imports torch's compiler: 1.5 s of CPU in
every worker, more than a miniature cell trains.
"""
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from pipeline.params import Optimiser

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Steps:
    """A fresh optimiser over some tensors. SGD with momentum (no damping, no Nesterov) or Adam (betas 0.9, 0.999,
    eps 1e-8); weight decay joins the gradient."""

    def __init__(self, settings: Optimiser, parameters: Sequence[Tensor]):
        self.settings = settings
        self.parameters = list(parameters)
        self.buffers: list[Tensor | None] = [None] * len(self.parameters)      # SGD: momentum
        self.moments: list[tuple[Tensor, Tensor, Tensor]] = []                 # Adam: first, second, step count
        if settings.name == "adam":
            self.moments = [(torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())) for p in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Move every parameter that has a gradient; the others, and their moments, stay."""
        used = [k for k, gradient in enumerate(gradients) if gradient is not None]
        parameters, gradients = [self.parameters[k] for k in used], [gradients[k] for k in used]
        s = self.settings
        if s.name == "adam":
            first, second, count = map(list, zip(*(self.moments[k] for k in used))) if used else ([], [], [])
            adam(parameters, gradients, first, second, [], count, foreach=False, amsgrad=False, beta1=BETA1, beta2=BETA2,
                 lr=s.lr, weight_decay=s.weight_decay, eps=EPS, maximize=False)
            return
        buffers = [self.buffers[k] for k in used]
        sgd(parameters, gradients, buffers, foreach=False, weight_decay=s.weight_decay, momentum=s.momentum, lr=s.lr,
            dampening=0.0, nesterov=False, maximize=False)
        for k, buffer in zip(used, buffers):
            self.buffers[k] = buffer


class StackedSteps:
    """The same for tensors with a leading client dimension, of which a step moves some rows; counts are per client."""

    def __init__(self, settings: Optimiser, parameters: dict[str, Tensor], clients: int):
        self.settings, self.parameters = settings, parameters
        moments = 2 if settings.name == "adam" else int(settings.momentum > 0)
        self.moments = [{name: torch.zeros_like(p) for name, p in parameters.items()} for _ in range(moments)]
        device = next(iter(parameters.values())).device
        self.count = torch.zeros(clients, dtype=torch.float64, device=device)

    @torch.no_grad()
    def step(self, gradients: dict[str, Tensor], rows: "Rows") -> None:
        """gradients: name -> (rows, ...)."""
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
        scale = (1 - BETA2 ** count).sqrt().to(gradient.dtype)
        return first / (1 - BETA1 ** count).to(gradient.dtype) / (second.sqrt() / scale + EPS)


class Rows:
    """Some clients of a stack: a leading slice where they are one, else an index. Reads and writes stay on the device."""

    def __init__(self, chosen: list[int], device: torch.device):
        self.count = len(chosen)
        self.prefix = chosen == list(range(len(chosen)))
        self.index = None if self.prefix else torch.tensor(chosen, device=device)

    def read(self, stack: Tensor) -> Tensor:
        return stack[:self.count] if self.prefix else stack.index_select(0, self.index)

    def write(self, stack: Tensor, values: Tensor) -> None:
        if self.prefix:
            stack[:self.count] = values
        else:
            stack.index_copy_(0, self.index, values)
