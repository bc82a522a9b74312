"""Samples as they were found in somebody's own data, before labels and clients are counted."""

__all__ = ["Found", "gathered", "pixels"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from fedflat.data.stream import DEPTH, Stream, ahead
from fedflat.errors import FedflatError

Ints = NDArray[np.int64]
RESIDENT = 2**31  # bytes of samples that are kept in memory unless it is said
CHUNK = 64  # samples decoded by one thread at once


@dataclass(frozen=True)
class Found:
    """Samples, their labels and, where they are known, the classes' names, the clients and test samples beside them."""

    x: Tensor | Stream
    y: NDArray[Any]
    classes: Sequence[str] | None = None
    clients: NDArray[Any] | None = None
    test: "Found | None" = None

    def only(self, rows: Ints) -> "Found":
        """Some of the samples."""
        x = self.x.only(rows) if isinstance(self.x, Stream) else self.x[torch.from_numpy(rows)]
        return Found(x, self.y[rows], self.classes, None if self.clients is None else self.clients[rows])

    def tested(self, test: "Found") -> "Found":
        """The same with test samples beside them."""
        return replace(self, test=test)


def gathered(
    one: Callable[[int], Tensor], count: int, name: str, stream: bool | None, threads: int = DEPTH
) -> Tensor | Stream:
    """Samples 0 to count - 1, each made by a function: all of them now, or a stream of them where they are too many."""
    first = one(0)

    def read(rows: Ints) -> Tensor:
        samples = [one(int(row)) for row in rows]
        for row, sample in zip(rows, samples, strict=True):
            if sample.shape != first.shape or sample.dtype != first.dtype:
                raise FedflatError(
                    f"{name}: sample {row} is {sample.dtype} of shape {tuple(sample.shape)}, but the first one is "
                    f"{first.dtype} of shape {tuple(first.shape)}; of images `size` may make one size"
                )
        return torch.stack(samples)

    if stream is None:
        stream = count * prod(first.shape) * first.element_size() > RESIDENT
    if stream:
        return Stream(read, np.arange(count), tuple(first.shape), first.dtype, name, threads)
    x = first.new_empty(count, *first.shape)
    chunks = np.split(np.arange(count), range(CHUNK, count, CHUNK))
    done = 0
    for piece in ahead(read, chunks, threads):
        x[done : done + len(piece)] = piece
        done += len(piece)
    return x


def pixels(image: Image.Image, mode: str, size: int | None) -> Tensor:
    """An image as uint8, C,H,W, of mode L or RGB; cut and resized to a square of `size` where this is given."""
    if image.mode[0] in "IF":
        raise FedflatError(f"an image has more than 8 bits a channel (mode {image.mode}); hand it over in an array")
    image = image.convert(mode)
    if size is not None and image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())
