"""SVHN's cropped digits as MATLAB files: X is 32x32x3xN uint8, y holds 1 to 10, where 10 stands for the digit 0."""

__all__ = ["read"]

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedflat.data.cache import Found
from fedflat.data.catalogue import Entry
from fedflat.data.dataset import Dataset
from fedflat.data.verify import damaged
from fedflat.errors import FedflatError


def read(entry: Entry, found: Found) -> Dataset:
    """The training set and the test set, without the `extra` one."""
    train, test = (
        _pair(found.path / file.name, count)
        for file, count in zip(found.layout.files, (entry.train, entry.test), strict=True)
    )
    return Dataset(entry.name, train, test, entry.classes)


def _pair(path: Path, count: int) -> tuple[Tensor, Tensor]:
    from scipy.io import loadmat, whosmat

    try:
        held = {name: (shape, kind) for name, shape, kind in cast(Any, whosmat(path))}
        if held.get("X") != ((32, 32, 3, count), "uint8") or held.get("y", ((),))[0] != (count, 1):
            raise damaged(path, f"does not hold X of 32x32x3x{count} bytes and y of {count}x1")
        arrays = loadmat(path, variable_names=["X", "y"])
    except (ValueError, TypeError, OSError, KeyError, NotImplementedError, MemoryError, ArithmeticError) as error:
        if isinstance(error, FedflatError):
            raise
        raise damaged(path, f"is not a MATLAB file ({error or type(error).__name__})") from None
    x = np.ascontiguousarray(arrays["X"].transpose(3, 2, 0, 1))
    return torch.from_numpy(x), torch.from_numpy(arrays["y"][:, 0].astype(np.int64) % 10)
