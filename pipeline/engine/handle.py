"""What a loss gets: a client's model (features, head, parameters), other models and the batch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pipeline import keys
from pipeline.engine.state import Params
from pipeline.errors import TrainingError
from pipeline.models import Dropout, Network


class Batch(NamedTuple):
    """A mini-batch.

    images: (B, C, H, W), or other samples (B, ...)
    labels: (B,) int64
    views: further views of the same images, if the method asked for some
    """

    images: Tensor
    labels: Tensor
    views: tuple[Tensor, ...] = ()


def drawn(generator: torch.Generator, draw: Callable[..., Tensor], shape: torch.Size) -> Tensor:
    """Random numbers of one client, from its generator on the CPU.

    draw: torch.rand or torch.randn
    """
    return draw(shape, generator=generator)


class Handle:
    """A client's model in a loss: `model(images)` gives logits; it has `features`, `head` and trainable
    `params`.

    model(x) is model.head(model.features(x)). If the features describe a distribution (FedSR), the head gets
    only their first d numbers, the mean. Dropout, if the network has it, belongs to the head.

    network: the architecture, and the parameters if no `tensors` are given
    tensors: parameters and buffers by their names in the state dict, used instead of the network's
    trainable: names of `params`; None: all that need a gradient
    draws: draws(torch.rand or torch.randn, shape) draws the client's random numbers; None: the same numbers
        at every evaluation
    client: index of the client whose model is scored
    stacked: True under torch.func, where each tensor stands for those of many clients
    """

    def __init__(
        self,
        network: Network,
        tensors: Mapping[str, Tensor] | None = None,
        trainable: set[str] | None = None,
        draws: Callable[[Callable, torch.Size], Tensor] | None = None,
        client: int | None = None,
        stacked: bool = False,
    ):
        self._network, self._tensors, self._draws, self._stacked = network, tensors, draws, stacked
        self.client = client
        self._cached: tuple[Tensor, Tensor] | None = None
        named = dict(network.named_parameters()) if tensors is None else tensors
        if trainable is None:
            trainable = {name for name, p in network.named_parameters() if p.requires_grad}
        self.params = Params((name, value) for name, value in named.items() if name in trainable)

    def features(self, images: Tensor) -> Tensor:
        """Representations (B, d), before dropout."""
        if self._cached is not None and images is self._cached[0]:
            return self._cached[1]
        return self._call(self._network.features, "features.", images)

    def cache_features(self, images: Tensor, representations: Tensor) -> None:
        """Remember the representations of this very tensor, for phases in which the features do not train."""
        self._cached = images, representations

    def head(self, representations: Tensor) -> Tensor:
        """Logits (B, classes)."""
        return self._call(self._network.head, "head.", self._network.dropout(representations))

    @property
    def classes(self) -> int:
        return self._network.classes

    def __call__(self, images: Tensor) -> Tensor:
        return self.head(self.features(images)[:, : self._network.width])

    def project(self, representations: Tensor) -> Tensor:
        """Embeddings (B, e): the output of the network's projector (schema.Model.projector)."""
        if not hasattr(self._network, "projector"):
            raise TrainingError("this method needs a projector: give its row `model: {projector: <width>}`")
        return self._call(self._network.projector, "projector.", representations)

    def other(self, model: Params, training: bool = False) -> "Teacher":
        """The same network with another model's values, as a constant: without gradient and dropout.

        model: for example the server's model, or an older one
        training: BatchNorm uses the batch's statistics instead of the running ones, which stay unchanged
        """
        return Teacher(self._network, model, training)

    def at(self, params: Mapping[str, Tensor]) -> "Handle":
        """This model with other trainable parameters."""
        tensors = {**(self._tensors or {}), **params}
        return Handle(self._network, tensors, set(self.params), self._draws, stacked=self._stacked)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers with the shape of `like`: the client's own, and the same under every
        executor."""
        return self._numbers(torch.randn, like)

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers uniform on [0, 1), drawn in the same way."""
        return self._numbers(torch.rand, like)

    def _numbers(self, draw: Callable[..., Tensor], like: Tensor) -> Tensor:
        if self._draws is None:  # outside training: the same numbers at every evaluation
            self._draws = partial(drawn, keys.torch_generator("evaluation"))
        return self._draws(draw, like.shape).to(like)

    def input_gradient(self, loss: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """d loss(images) / d images, as a constant, with the model in evaluation mode.

        The parameters get no gradient from it, and BatchNorm's statistics stay unchanged.

        loss: images -> scalar
        images: (B, C, H, W)
        """
        with _mode(self._network, lambda layer: False):
            if self._tensors is not None:
                return torch.func.grad(loss)(images.detach()).detach()
            with torch.enable_grad():
                leaf = images.detach().requires_grad_()
                return torch.autograd.grad(loss(leaf), leaf)[0]

    def gradient(self, loss: Callable[["Handle", Batch], Tensor], batch: Batch) -> Params:
        """d loss(model, batch) / d params, for the steps of World.local_steps, in which models are plain
        values."""
        return self.gradient_and_loss(loss, batch)[0]

    def gradient_and_loss(
        self, loss: Callable[["Handle", Batch], Tensor], batch: Batch
    ) -> tuple[Params, Tensor]:
        """The same gradient, and the loss."""
        if self._stacked:
            if self._network.training and any(name.endswith("running_mean") for name in self._tensors or ()):
                raise TrainingError(
                    "local_steps cannot be stacked on networks with BatchNorm: set "
                    "FEDREPRO_EXECUTOR=sequential"
                )
            return torch.func.grad_and_value(lambda params: loss(self.at(params), batch))(self.params)
        # Plain autograd is a tenth faster than torch.func.
        leaves = {name: param.detach().requires_grad_() for name, param in self.params.items()}
        with torch.enable_grad():
            value = loss(self.at(leaves), batch)
        return Params(
            zip(leaves, torch.autograd.grad(value, list(leaves.values()), materialize_grads=True))
        ), value.detach()

    def _call(self, module, prefix, x):
        return module(x) if self._tensors is None else functional_call(module, self._inside(prefix), (x,))

    def _inside(self, prefix: str) -> dict[str, Tensor]:
        named = (self._tensors or {}).items()
        return {name.removeprefix(prefix): value for name, value in named if name.startswith(prefix)}


class Teacher(Handle):
    """A model that is only evaluated, never trained; see Handle.other."""

    def __init__(self, network: Network, model: Params, training: bool):
        super().__init__(network, model, set())
        self._training = training

    def head(self, representations: Tensor) -> Tensor:
        return self._call(self._network.head, "head.", representations)

    def _call(self, module, prefix, x):
        inside = self._inside(prefix)
        if self._training:  # BatchNorm writes its statistics into what it is given
            inside = {name: value.clone() for name, value in inside.items()}
        with (
            torch.no_grad(),
            _mode(self._network, lambda layer: self._training and not isinstance(layer, Dropout)),
        ):
            return functional_call(module, inside, (x,))


@contextmanager
def _mode(network: Network, training: Callable[[nn.Module], bool]) -> Iterator[None]:
    """Puts every layer into the mode that `training` gives, and restores the former one afterwards."""
    before = {layer: layer.training for layer in network.modules()}
    try:
        for layer in before:
            layer.training = training(layer)
        yield
    finally:
        for layer, was in before.items():
            layer.training = was
