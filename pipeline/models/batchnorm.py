"""A small network with BatchNorm, for FedBN."""

from torch import nn

from pipeline.models.layers import conv_bn, pooled

WIDTHS = (16, 32, 64)


def cnn3_bn(channels: int) -> tuple[nn.Sequential, int]:
    """Features (B, 64), never negative, and their width: three 3 x 3 convolutions with BatchNorm, 2 x 2
    max-pooling between them. FedBN's for digits has wider ones of 5 x 5 and hidden linear layers."""
    first, second, third = WIDTHS
    return pooled(
        [
            conv_bn(channels, first, 3),
            nn.MaxPool2d(2),
            conv_bn(first, second, 3),
            nn.MaxPool2d(2),
            conv_bn(second, third, 3),
        ]
    ), third
