"""A network with parts of its own for the table, and a plain sequence of layers for the signal."""

from torch import Tensor, nn


class Perceptron(nn.Module):
    """What stays at a client in FedPer is its `head`, here of two layers."""

    def __init__(self, columns: int, classes: int):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(columns, 16), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def perceptron(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Perceptron(shape[0], classes)


def waves(channels: int, classes: int) -> nn.Module:
    """The last linear layer is the head."""
    return nn.Sequential(
        nn.Conv1d(channels, 16, 7, stride=2),
        nn.ReLU(),
        nn.Conv1d(16, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * 29, classes),
    )
