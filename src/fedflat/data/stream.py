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
from dataclasses import dataclass, replace
from functools import cached_property
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
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows of samples behind a function that reads some of them."""

    read: Callable[[Ints], Tensor]  # samples by places of its own
    rows: Ints  # the places that are held here
    form: tuple[int, ...]  # of one sample
    dtype: torch.dtype
    name: str  # tells apart what is read
    threads: int = DEPTH
    device: torch.device = CPU

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
        return replace(self, rows=self.rows[rows])

    def to(self, device: torch.device) -> "Stream":
        """The same, read onto another device."""
        return replace(self, device=device)

    @property
    def shape(self) -> torch.Size:
        """That of the tensor for which this stands."""
        return torch.Size((len(self.rows), *self.form))

    @property
    def ndim(self) -> int:
        """Axes, that of the samples included."""
        return 1 + len(self.form)

    def is_floating_point(self) -> bool:
        """Whether samples are of a floating type."""
        return self.dtype.is_floating_point

    def chunks(self, rows: Ints | None = None) -> Iterator[Tensor]:
        """Some tensors that stand for all of these rows: evenly spaced ones, or all where they are few."""
        rows = np.arange(len(self)) if rows is None else rows
        chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLED)).astype(np.int64)]
        return ahead(self.__getitem__, np.split(chosen, range(CHUNK, len(chosen), CHUNK)), self.threads)

    @cached_property
    def fingerprint(self) -> Tensor:
        """32 bytes that other files or other rows would change, short of reading what is in them."""
        digest = hashlib.sha256(self.name.encode())
        digest.update(np.ascontiguousarray(self.rows).view(np.uint8).data)
        return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def ahead(read: Callable[[Item], Result], items: Iterable[Item], threads: int = DEPTH) -> Iterator[Result]:
    """read(item) for each item in order, while the next ones are read in so many threads.

    >>> list(ahead(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(threads, "fedflat reads") as pool:
        begun: deque[Future[Result]] = deque()
        for item in items:
            begun.append(pool.submit(read, item))
            if len(begun) > DEPTH:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
