"""Augmentation of training minibatches: crop, flip, cutout, in batched tensor operations.

One word says what and in which order, as the code bases' transforms read: "crop:4+flip+normalise+cutout:16". What
stands before `normalise` sees pixels, where 0 is black; what stands behind it sees normalised numbers, where 0 is the
mean colour. Where `normalise` is not named it comes last.

`crop:p`      p rows and columns of zeros on every side, then a random window of the old size
`flip`        left and right exchanged, with probability 1/2
`cutout:s`    zeros in a square of s x s pixels around a random pixel, cut off at the border (DeVries and Taylor 2017)
`flip:0.3`, `crop:4:0.5`, `cutout:16:0.5` set the probability, which is 1 for crop and cutout; `crop:4:reflect` has the
image's reflection around it in place of zeros.

What the published code does:

FL-Simulator (FedSMOO, FedLESAM), CIFAR    "normalise+flip+crop:4:0.5"
FedSoL, CIFAR-10 and MNIST                 "crop:4+flip+normalise+cutout:16"
FedSoL, SVHN                               "crop:4+flip"
FedSoL, CINIC-10                           "crop:4:reflect+flip"
FedSoL, PathMNIST and TissueMNIST          "flip"

What a sample goes through is a row of whole numbers, drawn for a whole local round from (seed, round, client) sample by
sample in the order of the minibatches. So the draws of the k-th minibatch do not depend on the engine or on how many
follow it, all gradients of a step see the same ones, and an operation is a pure function of two tensors that can be
vmapped, compiled or captured.
"""

__all__ = ["Augmentation", "augmentation"]

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedflat.errors import FedflatError
from fedflat.names import find

Ints = NDArray[np.int64]
Uniforms = NDArray[np.float64]  # (samples, draws), in [0, 1)
NORMALISE = "normalise"


class Operation(Protocol):
    """What may happen to each image of a minibatch."""

    draws: int  # uniform numbers for each sample
    columns: int  # whole numbers that come of them

    def plan(self, u: Uniforms, height: int, width: int) -> list[Ints]:
        """Columns of whole numbers, one number for each sample, from uniform ones."""
        ...

    def __call__(self, x: Tensor, *columns: Tensor) -> Tensor:
        """The images as planned; their last two axes are rows and columns."""
        ...


@dataclass(frozen=True)
class Crop:
    """A window of the old size in the image and a border of zeros or reflections; off, it is the image itself."""

    border: int
    probability: float = 1.0
    reflect: bool = False
    draws, columns = 3, 2

    def plan(self, u: Uniforms, height: int, width: int) -> list[Ints]:
        if self.reflect and self.border >= min(height, width):
            raise FedflatError(f"{self}: a border of {self.border} cannot mirror images of {height}x{width} pixels")
        starts = (u[:, :2] * (2 * self.border + 1)).astype(np.int64)
        return list(np.where(u[:, 2:] < self.probability, starts, self.border).T)

    def __call__(self, x: Tensor, *columns: Tensor) -> Tensor:
        size, x = x.shape, x if self.reflect else functional.pad(x, [self.border] * 4)
        for axis, start in zip((-2, -1), columns, strict=True):
            places, last = _each(start, x) + _along(axis, size[axis], x), size[axis] - 1
            if self.reflect:
                places = last - (last - (places - self.border).abs()).abs()
            shape = list(x.shape)
            shape[axis] = size[axis]
            x = x.gather(axis, places.expand(shape))
        return x

    def __str__(self) -> str:
        word = f"crop:{self.border}" + ("" if self.probability == 1 else f":{self.probability:g}")
        return word + ":reflect" * self.reflect


@dataclass(frozen=True)
class Flip:
    """Left and right exchanged."""

    probability: float = 0.5
    draws, columns = 1, 1

    def plan(self, u: Uniforms, height: int, width: int) -> list[Ints]:
        return [(u[:, 0] < self.probability).astype(np.int64)]

    def __call__(self, x: Tensor, *columns: Tensor) -> Tensor:
        return torch.where(_each(columns[0], x) > 0, x.flip(-1), x)

    def __str__(self) -> str:
        return "flip" + ("" if self.probability == 0.5 else f":{self.probability:g}")


@dataclass(frozen=True)
class Cutout:
    """Zeros in a square; where it stays off, the square lies outside."""

    size: int
    probability: float = 1.0
    draws, columns = 3, 2

    def plan(self, u: Uniforms, height: int, width: int) -> list[Ints]:
        corners = (u[:, :2] * (height, width)).astype(np.int64) - self.size // 2
        return list(np.where(u[:, 2:] < self.probability, corners, -2 * self.size).T)

    def __call__(self, x: Tensor, *columns: Tensor) -> Tensor:
        inside = torch.ones((), dtype=torch.bool, device=x.device)
        for axis, start in zip((-2, -1), columns, strict=True):
            place = _along(axis, x.shape[axis], x) - _each(start, x)
            inside = inside & (place >= 0) & (place < self.size)
        return x.masked_fill(inside, 0)

    def __str__(self) -> str:
        return f"cutout:{self.size}" + ("" if self.probability == 1 else f":{self.probability:g}")


def _each(column: Tensor, x: Tensor) -> Tensor:
    """One number for each image, shaped to meet all of its pixels."""
    return column.view(-1, *[1] * (x.ndim - 1))


def _along(axis: int, length: int, x: Tensor) -> Tensor:
    """0, 1, 2, ... along one of the last two axes."""
    places = torch.arange(length, device=x.device)
    return places[:, None] if axis == -2 else places


@dataclass(frozen=True)
class Augmentation:
    """What happens to pixels, and what to numbers after they are normalised."""

    before: tuple[Operation, ...]
    after: tuple[Operation, ...] = ()

    def draws(self, sizes: Sequence[int], size: Sequence[int], rng: np.random.Generator) -> list[Tensor]:
        """For each minibatch of a local round, of images of one size, a tensor (samples, columns) of whole numbers."""
        operations = [*self.before, *self.after]
        ends = list(accumulate(op.draws for op in operations))
        u = rng.random((sum(sizes), ends[-1]))
        plans = [op.plan(u[:, end - op.draws : end], *size) for op, end in zip(operations, ends, strict=True)]
        rows = np.stack([column for plan in plans for column in plan], axis=1)
        return list(torch.from_numpy(rows).split(list(sizes)))

    def early(self, x: Tensor, draws: Tensor) -> Tensor:
        """Pixels as the first operations leave them."""
        return _through(self.before, x, draws, 0)

    def late(self, x: Tensor, draws: Tensor) -> Tensor:
        """Normalised numbers as the operations behind leave them."""
        return _through(self.after, x, draws, sum(op.columns for op in self.before))

    def __str__(self) -> str:
        return "+".join([*map(str, self.before), *([NORMALISE, *map(str, self.after)] if self.after else [])])


def _through(operations: Iterable[Operation], x: Tensor, draws: Tensor, first: int) -> Tensor:
    for op in operations:
        x = op(x, *draws[:, first : first + op.columns].unbind(1))
        first += op.columns
    return x


def augmentation(spec: str | Augmentation | None) -> Augmentation | None:
    """What a word describes; nothing, where there is none.

    >>> str(augmentation("Crop:4+flip:.5+cutout:16+normalize"))
    'crop:4+flip+cutout:16'
    """
    if spec is None or isinstance(spec, Augmentation):
        return spec
    before: list[Operation] = []
    after: list[Operation] | None = None
    for word in re.split(r"\+(?=\s*[A-Za-z])", spec):
        name, *numbers = word.split(":")
        name = find("augmentation", name.replace("normalize", NORMALISE), (*_OPERATIONS, NORMALISE))
        if name != NORMALISE:
            (before if after is None else after).append(_operation(spec, name, numbers))
        elif after is None and not numbers:
            after = []
        else:
            raise FedflatError(f"augment {spec!r}: normalise takes no number and comes once")
    if not before and not after:
        raise FedflatError(f"augment {spec!r} does nothing; leave it out")
    return Augmentation(tuple(before), tuple(after or ()))


def _operation(spec: str, name: str, texts: list[str]) -> Operation:
    kind, form, whole = _OPERATIONS[name]
    mirrored = kind is Crop and texts[-1:] == ["reflect"]
    texts = texts[:-1] if mirrored else texts
    try:
        numbers = [int(text) for text in texts[:whole]] + [float(text) for text in texts[whole:]]
    except ValueError:
        numbers = []
    sizes, probability = numbers[:whole], numbers[whole:]
    if len(sizes) < whole or min(sizes, default=1) < 1 or len(probability) > 1 or len(numbers) != len(texts):
        raise FedflatError(f"augment {spec!r}: {name} is spelled {form}")
    if probability and not 0 < probability[0] <= 1:
        raise FedflatError(f"augment {spec!r}: the probability of {name} is above 0 and at most 1")
    return kind(*numbers, **{"reflect": True} if mirrored else {})


_OPERATIONS: dict[str, tuple[Callable[..., Operation], str, int]] = {
    "crop": (Crop, "crop:4, or crop:4:0.5 with a probability", 1),
    "flip": (Flip, "flip, or flip:0.5 with a probability", 0),
    "cutout": (Cutout, "cutout:16, or cutout:16:0.5 with a probability", 1),
}
