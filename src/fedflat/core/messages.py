"""What travels between server and client, and how many bytes of tensors that is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from .task import Buffers
from .vectors import Vector

Named = Mapping[str, Mapping[str, Tensor]]  # part -> name -> value


def size(tensors: Iterable[Tensor]) -> int:
    """Some tensors in bytes."""
    return sum(t.numel() * t.element_size() for t in tensors)


def payload(values: Iterable[Tensor], coordinates: int) -> int:
    """Scalars and vectors in bytes, of a vector the coordinates that may differ from what the receiver has."""
    return sum((coordinates if t.ndim else 1) * t.element_size() for t in values)


def every(named: Named) -> Iterable[Tensor]:
    """All values, of all parts."""
    return (value for values in named.values() for value in values.values())


@dataclass(frozen=True)
class Job:
    """Server to client: the model, and what each part sends beside it."""

    client: int
    round: int
    lr: float
    w: Vector
    got: Named
    buffers: Buffers
    coordinates: int  # of a vector that travel; the others are frozen

    @property
    def bytes(self) -> int:
        """What is sent, in bytes."""
        return payload([self.w, *every(self.got)], self.coordinates) + size(self.buffers.values())


@dataclass(frozen=True)
class Reply:
    """Client to server: how far the model moved, and each part's uploads; and what the round cost."""

    client: int
    moved: Vector
    uploads: Named
    buffers: Buffers
    loss: Tensor  # summed over the steps
    steps: int
    lr_sum: float
    reach: float
    gradients: int
    forwards: int
    coordinates: int

    @property
    def bytes(self) -> int:
        """What is sent, in bytes."""
        return payload([self.moved, *every(self.uploads)], self.coordinates) + size(self.buffers.values())
