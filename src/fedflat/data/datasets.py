"""Data sets by name, held as they were published: uint8 pixels, normalised only when a minibatch needs them.

`digits` are the 1797 handwritten digits of 8x8 pixels that scikit-learn carries along, so it needs no download. Their
levels 0..16 are rescaled to 0..255 and rounded; every fifth sample, from the first one, is a test sample.
"""

__all__ = ["Dataset", "load", "names"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from fedflat.names import find


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test samples: x is uint8 NCHW, y int64 and indexes `classes`."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: tuple[str, ...]

    def __repr__(self) -> str:
        shape = "x".join(str(length) for length in self.train[0].shape[1:])
        return (
            f"Dataset({self.name}: {len(self.train[1])} training and {len(self.test[1])} test samples "
            f"of {shape}, {len(self.classes)} classes)"
        )


def load(name: str) -> Dataset:
    """The data set of that name, in any usual spelling.

    >>> load("Digits")
    Dataset(digits: 1437 training and 360 test samples of 1x8x8, 10 classes)
    """
    return _LOADERS[find("data set", name, _LOADERS)]()


def names() -> list[str]:
    """The names that `load` knows."""
    return list(_LOADERS)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    bunch = cast(Any, load_digits())
    x = torch.as_tensor(bunch.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    y = torch.as_tensor(bunch.target, dtype=torch.int64)
    test = torch.arange(len(y)) % 5 == 0
    return Dataset("digits", (x[~test], y[~test]), (x[test], y[test]), tuple("0123456789"))


_LOADERS: dict[str, Callable[[], Dataset]] = {"digits": _digits}
