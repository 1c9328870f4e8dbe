"""One client's model as a method sees it inside a loss or a step."""
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from pipeline.engine.state import Params
from pipeline.models import Network


class Batch(NamedTuple):
    """Images (B, C, H, W) and labels (B,) in int64."""
    images: Tensor
    labels: Tensor


class Handle:
    """A model: callable (images -> logits), with `features`, `head` and trainable `params`.

    model(x) is model.head(model.features(x)); dropout, where the network has it, belongs to the head.
    `tensors` (names as in the state dict) replace the network's own parameters and buffers.
    """

    def __init__(self, network: Network, tensors: Mapping[str, Tensor] | None = None, trainable: set[str] | None = None):
        self._network, self._tensors = network, tensors
        self._known: tuple[Tensor, Tensor] | None = None
        named = dict(network.named_parameters()) if tensors is None else tensors
        wanted = {name for name, p in network.named_parameters() if p.requires_grad} if trainable is None else trainable
        self.params = Params((name, value) for name, value in named.items() if name in wanted)

    def features(self, images: Tensor) -> Tensor:
        """Representations (B, d), before dropout."""
        if self._known is not None and images is self._known[0]:
            return self._known[1]
        return self._call(self._network.features, "features.", images)

    def know(self, images: Tensor, representations: Tensor) -> None:
        """These very images have these representations, as long as the features do not learn."""
        self._known = images, representations

    def head(self, representations: Tensor) -> Tensor:
        """Logits (B, classes)."""
        return self._call(self._network.head, "head.", self._network.dropout(representations))

    def __call__(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))

    def other(self, model: Params) -> "Teacher":
        """The same network holding another model (the server's, an older one) as a constant, in evaluation mode."""
        return Teacher(self._network, model, set())

    def at(self, params: Mapping[str, Tensor]) -> "Handle":
        """This model with other trainable parameters."""
        return Handle(self._network, {**self._tensors, **params}, set(self.params))

    def gradient(self, loss: Callable[["Handle", Batch], Tensor], batch: Batch) -> Params:
        """d loss(model, batch) / d params. For steps (World.local_steps), whose models are values."""
        return Params(torch.func.grad(lambda params: loss(self.at(params), batch))(dict(self.params)))

    def _call(self, module, prefix, x):
        if self._tensors is None:
            return module(x)
        inside = {name.removeprefix(prefix): value for name, value in self._tensors.items() if name.startswith(prefix)}
        return functional_call(module, inside, (x,))


class Teacher(Handle):
    """A model that is only looked at: no gradient, no dropout, BatchNorm with its running statistics."""

    def _call(self, module, prefix, x):
        training = self._network.training
        self._network.eval()
        try:
            with torch.no_grad():
                return super()._call(module, prefix, x)
        finally:
            self._network.train(training)
