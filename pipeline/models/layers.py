"""The building blocks that the networks share, and the network itself: features, then a head."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

LARGE = 1 << 24  # numbers in what a Recomputed is given


class Dropout(nn.Module):
    """Inverted dropout whose mask comes from `generator`; None is torch's global generator.

    A mask then depends on the key that seeded the generator and not on what was drawn before. It is drawn on
    the generator's device, so that a CPU generator gives the same masks on a GPU. Where networks are stepped
    together, `given` (shape -> uniform numbers) takes the generator's place.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p
        self.generator: torch.Generator | None = None
        self.given: Callable[[torch.Size], torch.Tensor] | None = None

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        return x * (self._uniform(x) >= self.p).to(x.dtype) / (1 - self.p)

    def _uniform(self, x):
        if self.given is not None:
            return self.given(x.shape)
        device = x.device if self.generator is None else self.generator.device
        return torch.rand(x.shape, generator=self.generator, device=device).to(x.device)


def set_generator(network: nn.Module, generator: torch.Generator | None) -> None:
    """Let every Dropout of `network` draw its masks from `generator`."""
    for layer in network.modules():
        if isinstance(layer, Dropout):
            layer.generator = generator


class Network(nn.Module):
    """A classifier in two parts, which methods train and average separately.

    features  (B, ...) samples -> representation (B, d), without dropout
    head      representation (B, d) -> logits (B, classes); one linear layer, or a module of which `width` and
              `classes` are given
    width     d
    classes   number of classes
    projector representation (B, d) -> embedding (B, e), where a scenario asks for one; no part of the
              classifier

    Dropout acts between features and head and holds no state, so every key of the state dict begins with
    `features.`, `head.` or `projector.`. Features of more than d numbers describe a distribution (FedSR): the
    first d are its mean.
    """

    def __init__(
        self,
        features: nn.Module,
        head: Any,
        dropout: float = 0.0,
        projector: nn.Module | None = None,
        width: int | None = None,
        classes: int | None = None,
    ):
        super().__init__()
        self.features = features
        self.head = head
        if projector is not None:
            self.projector = projector
        self.dropout = Dropout(dropout)
        self.width = head.in_features if width is None else width
        self.classes = head.out_features if classes is None else classes

    def forward(self, x):
        return self.head(self.dropout(self.features(x)[:, : self.width]))


class Normalise(nn.Module):
    """Rows (B, d) at length one; the zero row stays zero."""

    def forward(self, x):
        return F.normalize(x, dim=1, eps=1e-12)


class Mean(nn.Module):
    """The mean over all pixels, (B, d, 1, 1). (AdaptiveAvgPool2d has no rule for stacked networks.)"""

    def forward(self, x):
        return x.mean((2, 3), keepdim=True)


class Sum(nn.ModuleList):
    """The sum of the branches' outputs for one input."""

    def forward(self, x):
        return reduce(add, (branch(x) for branch in self))


class Concat(nn.ModuleList):
    """The branches' outputs for one input, concatenated along the channels."""

    def forward(self, x):
        return torch.cat([branch(x) for branch in self], dim=1)


class Recomputed(Concat):
    """Concat whose branches are computed once more for their gradient, one at a time, where the input is
    large on a CPU.

    Nothing inside a branch is stored, for the time of one more forward; values, gradients and BatchNorm's
    statistics have the same bits (Chen et al. 2016, gradient checkpointing). For branches that draw nothing.
    """

    def forward(self, x):
        large = x.is_cpu and torch.is_grad_enabled() and x.numel() >= LARGE
        if not large or torch._C._are_functorch_transforms_active():  # these have no rule for checkpoints
            return super().forward(x)
        return torch.cat([_recomputed(branch, x) for branch in self], dim=1)


def _recomputed(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """layer(x), recomputed for the gradient with the tensors that the layer holds now: a functional call has
    put them in, and takes them out before the gradient is computed."""
    parameters, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())

    def run(x):
        made = functional_call(layer, {**parameters, **buffers}, (x,))
        # In the second pass only copies of the buffers change.
        buffers.update((name, value.clone()) for name, value in buffers.items())
        return made

    return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    bias: bool = False,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution that keeps the side (at stride 1), BatchNorm, activation."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=bias),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


def projector(width: int, outputs: int) -> nn.Sequential:
    """RAHFL's: three linear layers without bias, each with BatchNorm, the last one's without weights."""
    return nn.Sequential(
        nn.Linear(width, outputs, bias=False),
        nn.BatchNorm1d(outputs),
        nn.ReLU(),
        nn.Linear(outputs, outputs, bias=False),
        nn.BatchNorm1d(outputs),
        nn.ReLU(),
        nn.Linear(outputs, outputs, bias=False),
        nn.BatchNorm1d(outputs, affine=False),
    )


def pooled(layers: Sequence[nn.Module]) -> nn.Sequential:
    """`layers`, then the mean over all pixels: (B, C, H, W) -> (B, d). At 32 x 32 this is the papers' 4 x 4
    or 8 x 8 pool."""
    return nn.Sequential(*layers, Mean(), nn.Flatten(1))
