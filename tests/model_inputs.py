"""Networks with some training behind them, and images for them."""

from functools import cache

import torch

from pipeline.models import build
from pipeline.schema import Model


def count(tensors):
    return sum(t.numel() for t in tensors)


def images(name, batch=3, size=16, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((batch, 192) if name == "vit_head" else (batch, 3, size, size), generator=generator)


@cache
def trained(name):
    """A network in eval mode whose BatchNorm statistics are not the initial ones; not to be changed."""
    torch.manual_seed(7)
    network = build(Model(name), 3, 16, 5)
    with torch.no_grad():
        network(images(name, batch=8, seed=2))
    return network.eval()
