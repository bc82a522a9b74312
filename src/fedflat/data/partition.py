"""Who holds which sample: the partitions under which the papers report their tables.

A partition is a table of counts, how many samples of each class each client holds. The rules differ only in how they
draw the table; then every class deals out its shuffled samples, and starts again should they run out.

`iid`              sizes differ by at most one; classes are not looked at.
`lda:alpha`        FedSoL, FedNTD: each class is split over the clients by Dir(alpha), a client that already holds its
                   n/N samples gets no more, and the draw is repeated until everybody has 10 (n//N, if that is less).
`dirichlet:alpha`  FL-Simulator (FedSMOO, FedLESAM): every client has n//N samples and a class prior from Dir(alpha);
                   a class that runs out starts again, so clients may share samples.
`shards:s`         FedSoL: each class is cut into shards of one size, and every client gets s of them at random.
`pathological:c`   FL-Simulator: every client has n//N samples of c random classes with a uniform prior, refilled too.

Departures from published code: in `lda` what rounding leaves goes to the last client that may still receive, not to the
last client; in `dirichlet` and `pathological` no client gets a sample twice while its class has others; in `shards` the
size is the largest that yields N*s shards of one class each, and what the cut leaves over, nothing or little in
balanced classes, is not used.
"""

__all__ = ["partition"]

import contextlib
from bisect import bisect_right
from collections.abc import Callable
from math import inf
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflat.errors import FedflatError
from fedflat.names import canonical, find
from fedflat.seeds import generator

Ints = NDArray[np.int64]
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

LEAST = 10  # samples that lda wants every client to have
SHARES = 200_000_000  # shares that lda may draw before it gives up, some seconds; CIFAR-10 at lda:0.05 takes a tenth
BLOCK = 1 << 16  # shares that lda draws at once


def partition(labels: Tensor, spec: str, clients: int, seed: int = 0) -> list[Tensor]:
    """The samples of each client, as sorted index tensors.

    >>> labels = torch.tensor([0, 1, 0, 1, 0, 1])
    >>> sorted(labels[part].tolist() for part in partition(labels, "shards:1", clients=2))
    [[0, 0, 0], [1, 1, 1]]
    """
    rule, parameter = _parse(spec)
    y, clients = _checked(labels, clients)
    pools = _pools(y if rule.by_class else np.zeros_like(y))
    rng = generator(seed, "partition")
    table = rule.table(np.array([len(pool) for pool in pools]), parameter, clients, rng)
    samples = np.concatenate([_deal(pool, demand, rng) for pool, demand in zip(pools, table.T, strict=True)])
    owners = np.concatenate([np.repeat(np.arange(clients), demand) for demand in table.T])
    ends = np.cumsum(table.sum(axis=1))
    return [torch.from_numpy(part) for part in np.split(samples[np.lexsort((samples, owners))], ends[:-1])]


def _pools(labels: Ints) -> list[Ints]:
    """The samples of each class that occurs."""
    _, sizes = np.unique(labels, return_counts=True)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])


def _deal(pool: Ints, demand: Ints, rng: np.random.Generator) -> Ints:
    """`demand[i]` samples of one class for each client in turn, from a pool that is refilled when empty."""
    ends = np.cumsum(demand)
    rounds, dealt = [rng.permutation(pool)], len(pool)
    while dealt < ends[-1]:
        client = np.searchsorted(ends, dealt, side="right")
        held = dealt - (ends[client] - demand[client])  # by the client in whose hands the pool ran out
        fresh = max(len(pool) - held, 0)  # so the samples that it does not hold come first
        last = rounds[-1]
        rounds.append(np.concatenate([rng.permutation(last[:fresh]), rng.permutation(last[fresh:])]))
        dealt += len(pool)
    return np.concatenate(rounds)[: ends[-1]]


# The tables: (size of each class, parameter, clients, rng) -> counts of shape (clients, classes).


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


class _Rule(NamedTuple):
    table: Callable[[Ints, float, int, np.random.Generator], Ints]
    example: str | None  # of its parameter, of which there may be none
    by_class: bool = True


_RULES = {
    "iid": _Rule(_iid, None, by_class=False),
    "lda": _Rule(_lda, "0.1"),
    "dirichlet": _Rule(_dirichlet, "0.1"),
    "shards": _Rule(_shards, "2"),
    "pathological": _Rule(_pathological, "3"),
}
_SHORT = {"pat": "pathological", "path": "pathological"}


def spelled(spec: str) -> str:
    """The one spelling of a partition.

    >>> spelled("Pat:3.0"), spelled("IID")
    ('pathological:3', 'iid')
    """
    rule, parameter = _parse(spec)
    name = next(name for name, known in _RULES.items() if known is rule)
    return name if rule.example is None else f"{name}:{parameter:g}"


def _parse(spec: str) -> tuple[_Rule, float]:
    name, colon, text = str(spec).partition(":")
    name = _SHORT.get(canonical(name), name)
    if canonical(name) == "dir":
        raise FedflatError(
            f"partition {spec!r} is ambiguous since code bases disagree on it: say dirichlet:{text or 0.1} "
            f"(equal sizes, classes refilled) or lda:{text or 0.1} (unequal sizes, every sample once)"
        )
    name = find("partition", name, _RULES)
    rule = _RULES[name]
    if rule.example is None:
        if colon:
            raise FedflatError(f"partition {spec!r}: {name} takes no parameter")
        return rule, 0.0
    whole = rule.example.isdigit()
    try:
        value = float(text)
    except ValueError:
        value = -inf
    if not 0 < value < inf or (whole and value % 1):
        kind = "whole number" if whole else "number"
        raise FedflatError(f"partition {spec!r}: {name} takes a positive {kind}, as in {name}:{rule.example}")
    return rule, value


def _checked(labels: object, clients: Any) -> tuple[Ints, int]:
    if not isinstance(labels, Tensor):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            labels = torch.as_tensor(labels)
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.dtype not in INTEGERS:
        found = f"{labels.dim()}-D {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise FedflatError(f"the labels must be a 1-D tensor of integers, not {found}")
    if isinstance(clients, bool) or not isinstance(clients, Integral) or int(clients) < 1:
        raise FedflatError(f"the number of clients must be a positive integer, not {clients!r}")
    y, count = labels.numpy(force=True).astype(np.int64), int(clients)
    if count > len(y):
        raise FedflatError(f"{count} clients cannot share {len(y)} samples: there must be a sample for each")
    return y, count
