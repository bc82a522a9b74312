"""Samples that stay on disk: only the rows of a minibatch are read, and the next ones while a step computes.

A `Stream` takes the place of a tensor x wherever samples are held. What it gives depends on the rows alone, and `ahead`
yields in the order in which it was asked, so a streamed run is the same on every engine, and the same as a resident one
with the same statistics.
"""

__all__ = ["Stream", "ahead"]

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK = 1024  # rows read at once where all are wanted
SAMPLED = 16384  # rows whose pixels stand for all in the channels' statistics
DEPTH = 4  # minibatches that are read ahead


class Stream:
    """Rows of samples behind a function that reads some of them; `name` tells apart what is read."""

    def __init__(
        self,
        read: Callable[[Ints], Tensor],
        rows: Ints,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        name: str,
        device: torch.device | str = "cpu",
    ):
        """`read` takes places of its own, of which `rows` are the ones held here; `shape` is that of one sample."""
        self.read, self.rows, self.name = read, rows, name
        self.shape, self.dtype, self.device = torch.Size((len(rows), *shape)), dtype, torch.device(device)

    @classmethod
    def of(cls, array: NDArray[Any]) -> "Stream":
        """The rows of a memory-mapped array.

        >>> stream = Stream.of(np.arange(6, dtype=np.float32).reshape(3, 2))
        >>> stream[torch.tensor([2, 0])]
        tensor([[4., 5.],
                [0., 1.]])
        """
        kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
        name = f"{getattr(array, 'filename', '')} {getattr(array, 'offset', 0)} {array.shape} {array.dtype}"

        def read(rows: Ints) -> Tensor:
            return torch.from_numpy(np.array(array[rows]))

        return cls(read, np.arange(len(array)), array.shape[1:], kind, name)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any) -> Tensor:
        """These rows, read now; a single one is not of interest."""
        rows = rows.numpy(force=True) if isinstance(rows, Tensor) else rows
        return self.read(self.rows[rows]).to(self.device)

    def only(self, rows: Ints) -> "Stream":
        """The stream of some of these rows."""
        return Stream(self.read, self.rows[rows], tuple(self.shape[1:]), self.dtype, self.name, self.device)

    def to(self, device: torch.device | str) -> "Stream":
        """The same, read onto another device."""
        return Stream(self.read, self.rows, tuple(self.shape[1:]), self.dtype, self.name, device)

    @property
    def ndim(self) -> int:
        """Axes, that of the samples included."""
        return len(self.shape)

    def is_floating_point(self) -> bool:
        """Whether samples are of a floating type."""
        return self.dtype.is_floating_point

    def chunks(self, rows: Ints | None = None) -> Iterator[Tensor]:
        """Some tensors that stand for all of these rows: evenly spaced ones, or all where they are few."""
        rows = np.arange(len(self)) if rows is None else rows
        chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLED)).astype(np.int64)]
        return ahead(self.__getitem__, np.split(chosen, range(CHUNK, len(chosen), CHUNK)))

    def fingerprint(self) -> Tensor:
        """32 bytes that other files or other rows would change, short of reading what is in them."""
        digest = hashlib.sha256(self.name.encode())
        digest.update(np.ascontiguousarray(self.rows).view(np.uint8).data)
        return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def ahead(read: Callable[[Item], Result], items: Iterable[Item], depth: int = DEPTH) -> Iterator[Result]:
    """read(item) for each item in order, while the next ones are being read in threads of their own.

    >>> list(ahead(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(depth, "fedflat reads") as threads:
        begun: deque[Future[Result]] = deque()
        for item in items:
            begun.append(threads.submit(read, item))
            if len(begun) > depth:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
