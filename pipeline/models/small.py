"""Small networks without BatchNorm, named in STACKS: 5 x 5 convolutions, if any, then linear layers."""

from dataclasses import dataclass
from functools import reduce

from torch import nn

from pipeline.errors import ParamError
from pipeline.models.layers import Normalise

KERNEL, POOL = 5, 2


@dataclass(frozen=True)
class Stack:
    """Widths of a small network.

    encoder    convolutions (each with ReLU and 2 x 2 max-pooling), then hidden linear layers (each with ReLU)
    projector  one linear layer to the representation, ReLU if `relu`, rows at length one if `normalised`;
               twice as wide if `gaussian`: mean and spread of every entry
    """

    convolutions: tuple[int, ...]
    hidden: tuple[int, ...]
    features: int
    relu: bool = True
    normalised: bool = False
    gaussian: bool = False
    inputs: int | None = None  # numbers per sample, where the input is a vector


STACKS = {
    # FedCRL, Sec. V.A; kernels and channels from PFLlib
    "cnn2": Stack((32, 64), (), 128),
    # PFLlib's FedAvgCNN
    "fedavg_cnn": Stack((32, 64), (), 512),
    # FedCCL, MNIST; layers from FedProto's CNNMnist
    "cnn4": Stack((10, 20), (), 128),
    # FedCCL, CIFAR-10; layers from FedProto's CNNCifar
    "cnn5": Stack((6, 16), (120,), 128),
    # FedLSA's baselines
    "lenet": Stack((6, 16), (120,), 84),
    # FedLSA's network: z = encoder(x), h = nor(projector(z)).
    "fedlsa": Stack((6, 16), (120,), 84, relu=False, normalised=True),
    # FedSR's form of the network of FedLSA's baselines.
    "lenet_gaussian": Stack((6, 16), (120,), 84, relu=False, gaussian=True),
    "cnn4_gaussian": Stack((10, 20), (), 128, relu=False, gaussian=True),
    # FCCL+, Table 18; MarsFL's SimpleCNN
    "simple_cnn": Stack((6, 16), (120, 84, 84), 256, relu=False),
    # FedCCL, on the class token of a frozen ViT-Ti/16
    "vit_head": Stack((), (), 128, inputs=192),
}


def small(name: str, channels: int, size: int, features: int | None, relu: bool) -> tuple[nn.Sequential, int]:
    """The features of STACKS[name] and their width.

    features: another width of the representation; relu: False drops the ReLU behind it.
    The result has the parts `encoder` and `projector`; FedLSA's z is `network.features.encoder(x)`.
    Raises ParamError when the convolutions leave no pixel of a `size` x `size` image.
    """
    stack = STACKS[name]
    layers, side = [], size
    for outputs in stack.convolutions:
        # ReLU and maximum commute in value and gradient; after the pooling ReLU has a quarter of the work.
        layers += [nn.Conv2d(channels, outputs, KERNEL), nn.MaxPool2d(POOL), nn.ReLU()]
        channels, side = outputs, (side - KERNEL + 1) // POOL
    if stack.convolutions and side < 1:
        least = reduce(lambda side, _: side * POOL + KERNEL - 1, stack.convolutions, 1)
        raise ParamError(
            f"model {name!r}: images of {size} x {size} pixels are too small, "
            f"the side must be at least {least}"
        )
    layers.append(nn.Flatten(1))
    inputs = stack.inputs or channels * side**2
    for outputs in stack.hidden:
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        inputs = outputs
    width = features or stack.features
    projector = nn.Sequential(nn.Linear(inputs, 2 * width if stack.gaussian else width))
    if stack.relu and relu:
        projector.append(nn.ReLU())
    if stack.normalised:
        projector.append(Normalise())
    parts = nn.Sequential()
    parts.add_module("encoder", nn.Sequential(*layers))
    parts.add_module("projector", projector)
    return parts, width
