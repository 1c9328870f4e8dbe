"""The network of FedNTD's experiments (Lee et al. 2022, Appendix B), after McMahan et al. 2017."""

from torch import nn


def two_convolutions(channels: int, size: int) -> tuple[nn.Module, int]:
    side = ((size - 4) // 2 - 4) // 2
    layers = (
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * side * side, 512), nn.ReLU()), 512
