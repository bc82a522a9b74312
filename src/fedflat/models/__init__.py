"""Models by name, as plain modules: activations are modules and the last `nn.Linear` is the head."""

__all__ = ["CNN", "MLP", "build", "default", "names"]

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import nn

from fedflat.errors import FedflatError
from fedflat.models.cnn import CNN
from fedflat.models.mlp import MLP
from fedflat.names import find


def build(name: str, shape: Sequence[int], classes: int, seed: int = 0) -> nn.Module:
    """The model of that name for samples of that shape, C,H,W; its weights depend on the seed and nothing else.

    >>> build("mlp", (1, 8, 8), classes=10)[-1]
    Linear(in_features=32, out_features=10, bias=True)
    """
    builder = _BUILDERS[find("model", name, _BUILDERS)]
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return builder(tuple(shape), classes)


def default(shape: Sequence[int]) -> str:
    """The name of a model that fits samples of that shape: `cnn` for square images beyond 8x8 pixels, else `mlp`."""
    return "cnn" if _is_square(shape) and shape[-1] > 8 else "mlp"


def names() -> list[str]:
    """The names that `build` knows."""
    return list(_BUILDERS)


def _mlp(shape: Sequence[int], classes: int) -> nn.Module:
    return MLP(prod(shape), classes=classes)


def _cnn(shape: Sequence[int], classes: int) -> nn.Module:
    if not _is_square(shape) or shape[-1] < 4:
        raise FedflatError(f"model cnn takes square images C,H,W of at least 4x4 pixels, not samples of shape {shape}")
    return CNN(shape[0], shape[-1], classes)


def _is_square(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and shape[1] == shape[2]


_BUILDERS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {"mlp": _mlp, "cnn": _cnn}
