"""MobileNetV2, EfficientNet and ShuffleNet for 32 x 32 images, as in the code of FCCL+ and RAHFL.

They differ from the networks they are named after; the differences are noted where they are made.
"""

from torch import nn

from pipeline.models.layers import Concat, Sum, conv_bn, pooled

# Columns: expansion, outputs, blocks, stride of the first block.
MOBILENET = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# Columns: expansion, outputs, blocks, kernel, stride of the first block.
EFFICIENTNET = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)
# Columns: outputs, blocks.
SHUFFLENET = ((200, 4), (400, 8), (800, 4))
SHUFFLENET_STEM, SHUFFLENET_GROUPS = 24, 2


def mobilenetv2(channels: int) -> tuple[nn.Sequential, int]:
    """Features (B, 1280) >= 0 and their width. ReLU for ReLU6; no stride in stem and second stage."""
    layers, width = [conv_bn(channels, 32, 3)], 32
    for expansion, outputs, blocks, stride in MOBILENET:
        for block in range(blocks):
            layers.append(_inverted_residual(width, outputs, expansion, stride if block == 0 else 1))
            width = outputs
    return pooled([*layers, conv_bn(width, 1280, 1)]), 1280


def _inverted_residual(inputs, outputs, expansion, stride):
    middle = expansion * inputs
    body = nn.Sequential(
        conv_bn(inputs, middle, 1),
        conv_bn(middle, middle, 3, stride, groups=middle),
        conv_bn(middle, outputs, 1, activation=None),
    )
    if stride > 1:
        return body
    # The original has a shortcut only where the widths agree.
    return Sum([body, nn.Identity() if inputs == outputs else conv_bn(inputs, outputs, 1, activation=None)])


def efficientnet(channels: int) -> tuple[nn.Sequential, int]:
    """Features (B, 320) and their width. B0's blocks without stride in the stem, without the 1280-wide layer
    and without drop-connect."""
    layers, width = [conv_bn(channels, 32, 3, activation=nn.SiLU)], 32
    for expansion, outputs, blocks, kernel, stride in EFFICIENTNET:
        for block in range(blocks):
            layers.append(_squeezed_block(width, outputs, expansion, kernel, stride if block == 0 else 1))
            width = outputs
    return pooled(layers), width


def _squeezed_block(inputs, outputs, expansion, kernel, stride):
    middle = expansion * inputs
    expand = conv_bn(inputs, middle, 1, activation=nn.SiLU)
    body = nn.Sequential(
        expand if expansion > 1 else Unused(expand),
        conv_bn(middle, middle, kernel, stride, groups=middle, activation=nn.SiLU),
        SqueezeExcitation(middle, hidden=inputs // 4),
        conv_bn(middle, outputs, 1, activation=None),
    )
    return Sum([body, nn.Identity()]) if stride == 1 and inputs == outputs else body


class SqueezeExcitation(nn.Module):
    """Weigh every channel of (B, C, H, W) by a gate in (0, 1) computed from all channels' means."""

    def __init__(self, channels: int, hidden: int):
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, hidden, 1),
            nn.SiLU(),
            nn.Conv2d(hidden, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return x * self.gate(x)


class Unused(nn.Module):
    """A frozen layer that belongs to the state but is not called, as in the released code."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer.requires_grad_(False)

    def forward(self, x):
        return x


def shufflenet(channels: int) -> tuple[nn.Sequential, int]:
    """Features (B, 800) of ShuffleNet with two groups, never negative, and their width. A 1 x 1 stem without
    stride or pooling."""
    layers, width = [conv_bn(channels, SHUFFLENET_STEM, 1)], SHUFFLENET_STEM
    for outputs, blocks in SHUFFLENET:
        for block in range(blocks):
            layers.append(_shuffle_unit(width, outputs, first=block == 0))
            width = outputs
    return pooled(layers), width


def _shuffle_unit(inputs, outputs, first):
    # A first unit concatenates its pooled input with the channels that it computes.
    made = outputs - inputs if first else outputs
    middle = made // 4
    groups = 1 if inputs == SHUFFLENET_STEM else SHUFFLENET_GROUPS
    body = nn.Sequential(
        conv_bn(inputs, middle, 1, groups=groups),
        Shuffle(groups),
        conv_bn(middle, middle, 3, 2 if first else 1, groups=middle),
        conv_bn(middle, made, 1, groups=SHUFFLENET_GROUPS, activation=None),
    )
    joined = Concat([body, nn.AvgPool2d(3, 2, 1)]) if first else Sum([body, nn.Identity()])
    return nn.Sequential(joined, nn.ReLU())


class Shuffle(nn.Module):
    """Deal channels out, so that each group of the next layer sees every group of the last."""

    def __init__(self, groups: int):
        super().__init__()
        self.groups = groups

    def forward(self, x):
        return x.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
