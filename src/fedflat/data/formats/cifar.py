"""CIFAR-10 and CIFAR-100, binary and python versions: rows of 3072 bytes, the red, green and blue planes of 32x32.

The python version is a pickle of Python 2 that holds a dictionary, lists, texts and one array of bytes. Its unpickler
knows three names, those of which such an array is made, and has stand-ins of its own behind them: nothing that a file
names is ever imported or called.
"""

__all__ = ["binary", "python"]

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflat.data.cache import Found
from fedflat.data.catalogue import Entry, File
from fedflat.data.dataset import Dataset
from fedflat.data.verify import damaged

PIXELS = 3072
ROWS = 100  # read at once: no second copy of the pixels, and what is read stays in the processor's cache

Pair = tuple[Tensor, Tensor]


def binary(entry: Entry, found: Found, labels: int) -> Dataset:
    """Each row is a label byte, or CIFAR-100's coarse and fine one, and the pixels; read without a second copy."""
    *train, test = found.layout.files
    return _dataset(entry, _rows(found.path, train, labels), _rows(found.path, [test], labels))


def python(entry: Entry, found: Found, key: bytes) -> Dataset:
    """Each file is a dictionary of `data` and labels, CIFAR-100's coarse ones beside the fine."""
    *train, test = found.layout.files
    limit = found.layout.limit
    batches = [_batch(found.path / file.name, key, limit) for file in train]
    x = torch.cat([x for x, _ in batches]) if len(batches) > 1 else batches[0][0]
    return _dataset(entry, (x, torch.cat([y for _, y in batches])), _batch(found.path / test.name, key, limit))


def _dataset(entry: Entry, train: Pair, test: Pair) -> Dataset:
    shaped = [(x.view(-1, 3, 32, 32), y) for x, y in (train, test)]
    return Dataset(entry.name, shaped[0], shaped[1], entry.classes)


def _rows(folder: Path, files: Sequence[File], labels: int) -> Pair:
    width = labels + PIXELS
    sizes = [(folder / file.name).stat().st_size for file in files]
    for file, size in zip(files, sizes, strict=True):
        if not size or size % width:
            raise damaged(folder / file.name, f"has {size:,} bytes, which are not rows of {width}")
    x = np.empty((sum(sizes) // width, PIXELS), np.uint8)
    y = np.empty(len(x), np.int64)
    start = 0
    for file in files:
        with (folder / file.name).open("rb", buffering=0) as stream:
            while chunk := stream.read(ROWS * width):
                rows = np.frombuffer(chunk, np.uint8).reshape(-1, width)
                end = start + len(rows)
                x[start:end], y[start:end] = rows[:, labels:], rows[:, labels - 1]
                start = end
    return torch.from_numpy(x), torch.from_numpy(y)


def _batch(path: Path, key: bytes, limit: int) -> Pair:
    if path.stat().st_size > limit:
        raise damaged(path, f"is larger than the {limit:,} bytes of this data set")
    with path.open("rb") as stream:
        try:
            found = _Unpickler(stream, encoding="bytes").load()
            pixels = found[b"data"].array()
            labels = np.array(found[key])
        except Exception as error:  # a damaged pickle can raise anything
            raise damaged(path, f"is not a batch of CIFAR ({error or type(error).__name__})") from None
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS or labels.shape != pixels.shape[:1] or labels.dtype != np.int64:
        raise damaged(path, f"holds {labels.shape} labels and pixels of shape {pixels.shape}")
    return torch.from_numpy(pixels.copy()), torch.from_numpy(labels)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy.core.multiarray", "_reconstruct"): _Array.begin,
            ("numpy", "ndarray"): _Array,
            ("numpy", "dtype"): _Kind,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no official file does")
        return known[module, name]


class _Kind:
    """Stands in for a dtype, and remembers its name."""

    def __init__(self, name: bytes, *rest: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment say nothing of bytes."""


class _Array:
    """Stands in for an array, and remembers its shape and bytes."""

    state: tuple[Any, ...] = ()

    @staticmethod
    def begin(*arguments: object) -> "_Array":
        return _Array()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> NDArray[np.uint8]:
        """The bytes in that shape."""
        _, shape, kind, by_columns, data = self.state
        if not isinstance(kind, _Kind) or kind.name != b"u1" or not isinstance(data, bytes):
            raise TypeError("its array is not one of bytes")
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if by_columns else "C")
