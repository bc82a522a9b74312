"""A multi-layer perceptron for small inputs."""

__all__ = ["MLP"]

from collections.abc import Sequence

from torch import nn


class MLP(nn.Sequential):
    """Flattens its input; ReLU after every hidden layer, then a linear head."""

    def __init__(self, inputs: int, hidden: Sequence[int] = (64, 32), classes: int = 10) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        super().__init__(*layers, nn.Linear(inputs, classes))
