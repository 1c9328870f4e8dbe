"""ResNets beside torchvision's."""

import pytest
import torch
from federation import close
from model_inputs import images, trained
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from pipeline.models.resnet import BLOCKS


@pytest.mark.parametrize("name", list(BLOCKS))
def test_resnets_agree_with_torchvision(name):
    """torchvision's ResNet with a 3 x 3 stem and no max-pooling creates the same layers in the same order."""
    network, x = trained(name), images(name)
    other = ResNet(BasicBlock, list(BLOCKS[name]), num_classes=5)
    other.conv1, other.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    other.load_state_dict(dict(zip(other.state_dict(), network.state_dict().values(), strict=True)))
    with torch.no_grad():
        close(network(x), other.eval()(x), 1e-5)
