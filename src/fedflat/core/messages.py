"""What travels between server and client, and how many bytes of tensors that is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from .task import Buffers
from .vectors import Vector

Named = Mapping[str, Mapping[str, Tensor]]  # part -> name -> value


def size(tensors: Iterable[Tensor]) -> int:
    """The payload of some tensors in bytes."""
    return sum(t.numel() * t.element_size() for t in tensors)


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

    @property
    def bytes(self) -> int:
        """The payload in bytes."""
        return size([self.w, *every(self.got), *self.buffers.values()])


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

    @property
    def bytes(self) -> int:
        """The payload in bytes."""
        return size([self.moved, *every(self.uploads), *self.buffers.values()])
