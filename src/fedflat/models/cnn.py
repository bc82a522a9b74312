"""The CNN of McMahan et al. (2017), FedSoL's "FedAvgNet"."""

__all__ = ["CNN"]

from torch import nn


class CNN(nn.Sequential):
    """Two 5x5 convolutions (32 and 64, ReLU, 2x2 max-pool), a hidden layer of 512 and a linear head; square images."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__(
            nn.Conv2d(channels, 32, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (size // 4) ** 2, 512),
            nn.ReLU(),
            nn.Linear(512, classes),
        )
