"""ResNets for small images as FCCL+ and RAHFL use them (3 x 3 stem, no max-pooling), and a small network with
BatchNorm, for FedBN."""

from torch import nn

from pipeline.models.layers import Sum, conv_bn, pooled

BLOCKS = {
    "resnet10": (1, 1, 1, 1),
    "resnet12": (2, 1, 1, 1),
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
}
WIDTHS, STRIDES = (64, 128, 256, 512), (1, 2, 2, 2)


def resnet(name: str, channels: int) -> tuple[nn.Sequential, int]:
    """Features of a ResNet, (B, channels, H, W) -> (B, 512), never negative; and their width."""
    layers, width = [conv_bn(channels, WIDTHS[0], 3)], WIDTHS[0]
    for outputs, stride, blocks in zip(WIDTHS, STRIDES, BLOCKS[name], strict=True):
        for block in range(blocks):
            layers.append(_basic_block(width, outputs, stride if block == 0 else 1))
            width = outputs
    return pooled(layers), width


def _basic_block(inputs, outputs, stride):
    body = nn.Sequential(conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs, 3, activation=None))
    same = stride == 1 and inputs == outputs
    shortcut = nn.Identity() if same else conv_bn(inputs, outputs, 1, stride, activation=None)
    return nn.Sequential(Sum([body, shortcut]), nn.ReLU())


def cnn3_bn(channels: int) -> tuple[nn.Sequential, int]:
    """Features (B, 64), never negative, and their width: three 3 x 3 convolutions with BatchNorm, 2 x 2
    max-pooling between them. FedBN's for digits has wider ones of 5 x 5 and hidden linear layers."""
    first, second = conv_bn(channels, 16, 3), conv_bn(16, 32, 3)
    return pooled([first, nn.MaxPool2d(2), second, nn.MaxPool2d(2), conv_bn(32, 64, 3)]), 64
