"""Trains as `sequential`, with the convolutions of small networks in one C++ kernel: quicker on a CPU.

It is chosen by FEDREPRO_EXECUTOR=compiled. Numbers are those of `sequential` up to rounding
(docs/decisions/compiled-convolutions.md).
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.engine.sequential import Sequential
from pipeline.errors import ParamError
from pipeline.models.compiled import POOL, conv_relu_pool, covers, unavailable
from pipeline.models.outside import Given
from pipeline.models.small import STACKS
from pipeline.schema import Model


@dataclass
class Compiled(Sequential):
    """Trains the clients of a phase one after another, with compiled convolutions.

    The networks of `models.small` are changed in place, so whoever evaluates them uses the compiled
    convolutions too; the names and shapes of their parameters stay. All other networks are torch's.

    Raises ParamError where the device is no CPU, or where the kernel cannot be built: torch in its place
    would give other numbers under the same name.
    """

    def __post_init__(self) -> None:
        if self.device.type != "cpu":
            raise ParamError(f"FEDREPRO_EXECUTOR: 'compiled' is for a CPU, and the device is {self.device}")
        why = unavailable()
        if why:
            raise ParamError(f"FEDREPRO_EXECUTOR: {why}")
        for model, network in self.networks.items():
            if _is_small(model):
                join_convolutions(network.features.get_submodule("encoder"))


def _is_small(model: Model) -> bool:
    """Whether `models.small` made the network, and neither a paper nor a user."""
    return model.name in STACKS and not model.paper and not isinstance(model, Given)


def join_convolutions(encoder: nn.Module) -> None:
    """Let each convolution of an encoder compute its pooling and ReLU, too; the layers behind it do nothing.

    encoder  of `models.small`, a sequence of layers in which pooling and ReLU follow each convolution; it is
             changed in place
    """
    assert isinstance(encoder, nn.Sequential)
    for place, layer in enumerate(encoder):
        if isinstance(layer, nn.Conv2d):
            layer.__class__ = ConvReluPool
            encoder[place + 1] = nn.Identity()
            encoder[place + 2] = nn.Identity()


class ConvReluPool(nn.Conv2d):
    """A convolution with ReLU and 2 x 2 max pooling, compiled where `models.compiled.covers` says that it may
    be."""

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, (H - 4) // 2, (W - 4) // 2)"""
        if self.bias is not None and covers(images, self.weight, self.bias):
            return conv_relu_pool(images, self.weight, self.bias)
        return F.relu(F.max_pool2d(super().forward(images), POOL))
