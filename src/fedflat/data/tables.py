"""How many samples of each class each client holds: one table of counts for each rule of a partition."""

__all__ = ["RULES", "Ints", "Rule", "Table"]

from bisect import bisect_right
from collections.abc import Callable
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedflat.errors import FedflatError

Ints = NDArray[np.int64]
Table = Callable[[Ints, float, int, np.random.Generator], Ints]  # of (size of each class, parameter, clients, rng)

LEAST = 10  # samples that lda and quantity want every client to have
SHARES = 200_000_000  # shares that lda may draw before it gives up, some seconds; CIFAR-10 at lda:0.05 takes a tenth
BLOCK = 1 << 16  # shares that lda draws at once


def _iid(sizes: Ints, parameter: float, clients: int, rng: np.random.Generator) -> Ints:
    return (sizes + np.arange(clients)[:, None]) // clients


def _lda(sizes: Ints, alpha: float, clients: int, rng: np.random.Generator) -> Ints:
    n, shape = sizes.sum(), (clients, len(sizes))
    least = min(LEAST, n // clients)
    tries = max(1, BLOCK // (clients * len(sizes)))
    for _ in range(max(1, SHARES // (tries * clients * len(sizes)))):
        tables = np.zeros((tries, *shape), dtype=np.int64)
        held = np.zeros((tries, clients), dtype=np.int64)
        for c, size in enumerate(sizes):
            shares = _running_shares(alpha, held.shape, rng, among=held * clients < n)
            tables[..., c] = np.diff((shares * size).astype(np.int64), prepend=0)
            held += tables[..., c]
        if (fair := held.min(axis=1) >= least).any():
            return tables[fair.argmax()]
    raise FedflatError(
        f"lda:{alpha:g} found no split of {n} samples in which each of {clients} clients has {least}: "
        "take a larger alpha, fewer clients, or dirichlet, which gives all clients the same size"
    )


def _dirichlet(sizes: Ints, alpha: float, clients: int, rng: np.random.Generator) -> Ints:
    priors = np.diff(_running_shares(alpha, (clients, len(sizes)), rng), prepend=0)
    return rng.multinomial(sizes.sum() // clients, priors)


def _pathological(sizes: Ints, parameter: float, clients: int, rng: np.random.Generator) -> Ints:
    c, classes = int(parameter), len(sizes)
    if c > classes:
        raise FedflatError(f"pathological:{c} wants {c} classes for each client, but the labels have {classes}")
    counts = rng.multinomial(sizes.sum() // clients, [1 / c] * c, size=clients)
    return rng.permuted(np.pad(counts, ((0, 0), (0, classes - c))), axis=1)


def _shards(sizes: Ints, parameter: float, clients: int, rng: np.random.Generator) -> Ints:
    s, n = int(parameter), int(sizes.sum())
    if clients * s > n:
        raise FedflatError(f"shards:{s} for {clients} clients cuts {clients * s} shards, but there are {n} samples")
    size = bisect_right(range(1, n // (clients * s) + 1), -clients * s, key=lambda size: -(sizes // size).sum())
    cut = np.repeat(np.arange(len(sizes)), sizes // size)
    dealt = rng.permutation(cut)[: clients * s]
    cells = np.repeat(np.arange(clients), s) * len(sizes) + dealt
    return size * np.bincount(cells, minlength=clients * len(sizes)).reshape(clients, len(sizes))


def _quantity(sizes: Ints, alpha: float, clients: int, rng: np.random.Generator) -> Ints:
    n = int(sizes.sum())
    least = min(LEAST, n // clients)
    ends = (_running_shares(alpha, (clients,), rng) * (n - least * clients)).astype(np.int64)
    return (least + np.diff(ends, prepend=0))[:, None]


def _running_shares(
    alpha: float, shape: tuple[int, ...], rng: np.random.Generator, among: NDArray[np.bool_] | bool = True
) -> NDArray[np.float64]:
    """Cumulative Dir(alpha) shares along the last axis, 0 outside `among`, the last one exactly 1.

    A gamma variate is another of shape alpha + 1 times u**(1/alpha); its logarithm never underflows. Given that some
    are left out, the shares of the others have the same law as drawn for them alone.
    """
    alpha = max(alpha, 1e-300)
    logs = np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha
    logs = np.where(among, logs, -inf)
    running = np.cumsum(np.exp(logs - logs.max(axis=-1, keepdims=True)), axis=-1)
    return running / running[..., -1:]


class Rule(NamedTuple):
    """How a partition fills its table of counts, of shape (clients, classes)."""

    table: Table | None  # None: the data say who holds what
    example: str | None  # of its parameter, of which there may be none
    by_class: bool = True


RULES = {
    "iid": Rule(_iid, None, by_class=False),
    "lda": Rule(_lda, "0.1"),
    "dirichlet": Rule(_dirichlet, "0.1"),
    "shards": Rule(_shards, "2"),
    "pathological": Rule(_pathological, "3"),
    "quantity": Rule(_quantity, "0.5", by_class=False),
    "natural": Rule(None, None),
}
