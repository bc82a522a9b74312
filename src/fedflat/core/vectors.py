"""Flat vectors: every model, gradient and memory is one tensor of length d in the order of `model.parameters()`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

Vector = Tensor

TINY = 1e-12  # below this length a direction is rounding noise and counts as none


def unit(v: Vector) -> Vector:
    """v / ||v||, the norm over all parameters together; 0 where ||v|| < 1e-12.

    >>> unit(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    >>> unit(torch.zeros(2))
    tensor([0., 0.])
    """
    norm = torch.linalg.vector_norm(v)
    shortest = max(TINY, torch.finfo(v.dtype).tiny)
    return v * torch.where(norm < shortest, torch.zeros_like(norm), norm.reciprocal())


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors that lie one behind the other in a vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    frozen: frozenset[str] = frozenset()
    head: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        """The layout of a model; its head is the last linear layer."""
        named = dict(model.named_parameters())
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        last = {id(p) for p in linear[-1].parameters()} if linear else set[int]()  # a tied one has another's name
        head = frozenset(n for n, p in named.items() if id(p) in last)
        frozen = frozenset(n for n, p in named.items() if not p.requires_grad)
        return cls(tuple(named), tuple(p.shape for p in named.values()), frozen, head)

    @cached_property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    @cached_property
    def length(self) -> int:
        return sum(self.sizes)

    def tensors(self, v: Vector) -> Iterator[tuple[str, Tensor]]:
        """The named tensors of a vector, as views of it."""
        # one split: as many slices would make backward an order of magnitude slower
        for name, part, shape in zip(self.names, v.split(self.sizes), self.shapes, strict=True):
            yield name, part.view(shape)

    def flatten(self, tensors: Iterable[Tensor]) -> Vector:
        """One vector from tensors in the order of `names`."""
        return torch.cat([t.reshape(-1) for t in tensors])

    def per_tensor(self, function: Callable[[Tensor], Tensor], v: Vector) -> Vector:
        """Apply a function that keeps the shape to each tensor of a vector."""
        return self.flatten(function(t) for _, t in self.tensors(v))

    def mask(self, chosen: Callable[[str], bool], like: Vector) -> Vector:
        """1 on the coordinates of the chosen names, 0 elsewhere."""
        return torch.cat([like.new_full((n,), float(chosen(k))) for k, n in zip(self.names, self.sizes, strict=True)])
