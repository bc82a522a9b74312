"""The clients' samples, checked once: resident tensors, or streams of what is too large; a minibatch is a gather."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflat.errors import FedflatError

from .augment import Augmentation
from .federation import Federation
from .inputs import Inputs
from .skew import Skew
from .stream import Stream, ahead


@dataclass(frozen=True)
class Samples:
    """Some rows of x and y; `rows` None stands for all. `skew` is what this client's inputs go through."""

    x: Tensor | Stream
    y: Tensor
    rows: Tensor | None = None
    skew: Skew | None = None

    def __len__(self) -> int:
        return len(self.y) if self.rows is None else len(self.rows)

    def take(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """The samples at these places."""
        if self.rows is not None:
            rows = self.rows[rows]
            if self.skew is not None:
                return self.skew(self.x[rows], rows), self.y[rows]
        return self.x[rows], self.y[rows]

    def minibatches(self, rows: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """The samples at each of these places, in order; a stream reads the next ones ahead."""
        return ahead(self.take, rows, self.x.threads) if isinstance(self.x, Stream) else map(self.take, rows)

    def contents(self) -> Iterator[Tensor]:
        """What tells these samples apart from others."""
        yield self.x.fingerprint if isinstance(self.x, Stream) else self.x
        yield self.y
        if self.rows is not None:
            yield self.rows
        if self.skew is not None:
            yield torch.tensor([self.skew.noise, self.skew.rotate, self.skew.seed, self.skew.client])


class Population:
    """All clients: their samples, their sizes, and how inputs are prepared."""

    def __init__(
        self,
        clients: Any,
        dtype: torch.dtype,
        device: torch.device,
        form: Any = None,
        augmentation: Augmentation | None = None,
    ):
        """`form` is the (channels, height, width) that the model asks for, if it does."""
        counted: Tensor | None = None
        if isinstance(clients, Federation):
            x, y = _checked(clients.train, "the training data", device)
            self.clients = [Samples(x, y, rows.to(device), clients.skew(i)) for i, rows in enumerate(clients.parts)]
            arrays = [x]
            counted = clients.kept if len(clients.kept) < len(y) else None
        else:
            self.clients = [Samples(*_checked(pair, f"client {i}", device)) for i, pair in enumerate(_items(clients))]
            arrays = [c.x for c in self.clients]
        self.sizes = [len(c) for c in self.clients]
        if 0 in self.sizes:
            raise FedflatError(f"client {self.sizes.index(0)} has no samples; leave it out or give it some")
        self._check_shapes()
        self.inputs = Inputs(arrays, dtype, device, form, augmentation, counted)

    def __len__(self) -> int:
        return len(self.clients)

    def samples(self, pair: Any, what: str) -> Samples:
        """Samples from outside the training data, such as a test set, that fit it."""
        samples = Samples(*_checked(pair, what, self.clients[0].x.device))
        if not len(samples):
            raise FedflatError(f"{what} has no samples")
        _check_like(samples, self.clients[0], what)
        return samples

    def check_labels(self, classes: int) -> None:
        """Every client's labels have to be classes of the model; where all share one tensor it is read once."""
        shared = self.clients[0].y
        if not all(c.y is shared for c in self.clients) or not _are_classes(shared, classes):
            for i, samples in enumerate(self.clients):
                check_labels(samples, classes, f"client {i}")

    def _check_shapes(self) -> None:
        first = self.clients[0]
        for i, client in enumerate(self.clients):
            if client.x is not first.x:
                _check_like(client, first, f"client {i}")


def check_labels(samples: Samples, classes: int, what: str) -> None:
    """Labels have to be whole numbers from 0 to classes - 1."""
    y = samples.y if samples.rows is None else samples.y[samples.rows]
    if y.is_floating_point():
        raise FedflatError(
            f"{what}: labels are {y.dtype}, but cross-entropy needs whole numbers; or pass your own loss"
        )
    if not _are_classes(y, classes):
        wrong = int(y.min()) if y.min() < 0 else int(y.max())
        raise FedflatError(f"{what} has the label {wrong}, which is outside the model's {classes} classes")


def _are_classes(y: Tensor, classes: int) -> bool:
    return not y.is_floating_point() and bool(y.min() >= 0) and bool(y.max() < classes)


def _items(clients: Any) -> Sequence[Any]:
    if isinstance(clients, str | bytes | Tensor) or not isinstance(clients, Iterable):
        kind = type(clients).__name__
        raise FedflatError(
            f"clients is a sequence of (x, y) pairs, a Federation or a function of the seed, not a {kind}"
        )
    items = list(clients)  # type: ignore[reportUnknownArgumentType]
    if not items:
        raise FedflatError("clients is empty; there has to be at least one client")
    return items


def _checked(pair: Any, what: str, device: torch.device) -> tuple[Tensor | Stream, Tensor]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise FedflatError(f"{what} has to be a pair (x, y), not {type(pair).__name__}")
    x, y = pair
    x = Stream.of(x) if isinstance(x, np.memmap) else x
    try:
        x = x if isinstance(x, Stream) else torch.as_tensor(x).detach()
        y = torch.as_tensor(y).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise FedflatError(f"{what}: x and y have to be tensors or arrays ({error})") from None
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        found = f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}"
        raise FedflatError(f"{what}: x and y need one row for each sample, but {found}")
    for name, tensor in (("x", x), ("y", y)):
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            row = int(
                (~tensor.isfinite()).flatten(1).any(1).nonzero()[0]
                if tensor.ndim > 1
                else (~tensor.isfinite()).nonzero()[0]
            )
            raise FedflatError(f"{what}: {name} holds a NaN or an infinite number in row {row}")
    if not y.is_floating_point():
        y = y.long()
    return x.to(device), y.to(device)


def _check_like(samples: Samples, first: Samples, what: str) -> None:
    for name, tensor, like in (("x", samples.x, first.x), ("y", samples.y, first.y)):
        cast = name == "x" and tensor.is_floating_point() and like.is_floating_point()  # to the model's type, later
        if tensor.shape[1:] != like.shape[1:] or (tensor.dtype != like.dtype and not cast):
            raise FedflatError(
                f"{what}: {name} holds {tensor.dtype} samples of shape {tuple(tensor.shape[1:])}, "
                f"but client 0's are {like.dtype} of shape {tuple(like.shape[1:])}"
            )
