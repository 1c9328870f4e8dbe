"""GoogLeNet for small images as in FCCL+'s code: 3 x 3 stem, BatchNorm, 5 x 5 as two 3 x 3."""

from functools import partial

from torch import nn

from pipeline.models.layers import Recomputed, conv_bn, pooled

# Outputs of the branches: 1 x 1; 3 x 3 (reduction, output); 5 x 5 (reduction, output); max-pooling.
STAGES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
STEM = 192

_conv = partial(conv_bn, bias=True)


def googlenet(channels: int) -> tuple[nn.Sequential, int]:
    """Features (B, 1024), never negative, and their width."""
    layers: list[nn.Module] = [_conv(channels, STEM, 3)]
    width = STEM
    for stage, blocks in enumerate(STAGES):
        if stage > 0:
            layers.append(nn.MaxPool2d(3, 2, 1))
        for one, reduced3, three, reduced5, five, pool in blocks:
            layers.append(
                Recomputed(
                    [  # keeping all activations would take 42 MB per 32 x 32 image
                        _conv(width, one, 1),
                        nn.Sequential(_conv(width, reduced3, 1), _conv(reduced3, three, 3)),
                        nn.Sequential(
                            _conv(width, reduced5, 1), _conv(reduced5, five, 3), _conv(five, five, 3)
                        ),
                        nn.Sequential(nn.MaxPool2d(3, 1, 1), _conv(width, pool, 1)),
                    ]
                )
            )
            width = one + three + five + pool
    return pooled(layers), width
