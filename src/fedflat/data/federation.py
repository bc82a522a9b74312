"""A data set and who holds which of its samples: what `simulate(clients=...)` takes."""

__all__ = ["Federation"]

from collections.abc import Sequence
from typing import Any, Protocol, overload, runtime_checkable

from torch import Tensor

from fedflat.data.partition import partition as divide
from fedflat.data.partition import spelled
from fedflat.errors import FedflatError

Pair = tuple[Tensor, Tensor]


@runtime_checkable
class Source(Protocol):
    """Anything with the samples of a `Dataset`."""

    @property
    def train(self) -> Pair:
        """Training samples (x, y)."""
        ...

    @property
    def test(self) -> Pair:
        """Test samples (x, y)."""
        ...

    @property
    def classes(self) -> Sequence[Any]:
        """The names of the classes."""
        ...


class Federation(Sequence[Pair]):
    """The clients of a data set, as a sequence of (x, y).

    It holds one copy of the pixels, uint8, and one index tensor per client in `parts`; a client's samples are gathered
    when asked for.

    >>> from fedflat.data.datasets import load
    >>> Federation(load("digits"), "iid", clients=10)
    Federation(digits, iid, 10 clients with 143 to 144 samples)
    """

    def __init__(self, data: Source, partition: str = "lda:0.3", clients: int = 20, seed: int = 0) -> None:
        if not isinstance(data, Source):
            raise FedflatError(
                f"a Federation needs data with .train, .test and .classes, such as load('digits'), not {data!r}"
            )
        if len(data.train[0]) != len(data.train[1]):
            raise FedflatError(f"the training data have {len(data.train[0])} samples but {len(data.train[1])} labels")
        self.data = data
        self.partition = spelled(partition)
        self.parts = divide(data.train[1], partition, clients, seed)

    @property
    def train(self) -> Pair:
        """The training samples of all clients together."""
        return self.data.train

    @property
    def test(self) -> Pair:
        """The test samples, which no client holds."""
        return self.data.test

    @property
    def classes(self) -> Sequence[Any]:
        """The names of the classes."""
        return self.data.classes

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, client: int) -> Pair: ...
    @overload
    def __getitem__(self, client: slice) -> list[Pair]: ...
    def __getitem__(self, client: int | slice) -> Pair | list[Pair]:
        if isinstance(client, slice):
            return [self[i] for i in range(len(self))[client]]
        x, y = self.data.train
        part = self.parts[client]
        return x[part], y[part]

    def __repr__(self) -> str:
        name = getattr(self.data, "name", type(self.data).__name__)
        sizes = [len(part) for part in self.parts]
        return f"Federation({name}, {self.partition}, {len(sizes)} clients with {min(sizes)} to {max(sizes)} samples)"
