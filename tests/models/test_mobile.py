"""Layers of the mobile networks by hand."""

import torch
from federation import close

from pipeline.models.mobile import Shuffle, SqueezeExcitation


def test_channels_are_shuffled_between_groups():
    channels = torch.arange(6.0).view(1, 6, 1, 1)
    assert Shuffle(2)(channels).flatten().tolist() == [0, 3, 1, 4, 2, 5]
    assert torch.equal(Shuffle(1)(channels), channels)


def test_squeeze_and_excitation_by_hand():
    """Channel means are 2 and 1, so that the hidden unit is 3 sigmoid(3)."""
    layer = SqueezeExcitation(2, hidden=1)
    for p, values in zip(layer.parameters(), ([1.0, 1.0], [0.0], [1.0, 0.0], [0.0, 0.0]), strict=True):
        p.data = torch.tensor(values).view_as(p)
    x = torch.tensor([[1.0, 3.0], [-2.0, 4.0]]).view(1, 2, 1, 2)
    gate = torch.sigmoid(3 * torch.sigmoid(torch.tensor(3.0)))
    close(layer(x), torch.stack([x[0, 0] * gate, x[0, 1] * 0.5]).unsqueeze(0), 1e-5)
