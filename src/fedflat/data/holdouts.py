"""Samples that are held out before anything is dealt: for validation, and for the clients' own tests.

By sample, every class gives its share (for clients' tests of natural data: every client); by group, whole groups are
taken, so that no patient or site is in training and in a test at once.
"""

__all__ = ["aligned", "hold_out", "within"]

import numpy as np
from numpy.typing import NDArray

from fedflat.errors import FedflatError

Ints = NDArray[np.int64]


def hold_out(rows: Ints, strata: Ints, fraction: float, groups: Ints | None, rng: np.random.Generator) -> Ints:
    """About this fraction of the rows, sorted: of each stratum alike, or of whole groups."""
    if groups is not None:
        return np.sort(rows[_of_groups(groups, fraction, rng)])
    ends = np.cumsum(np.bincount(strata))
    return np.sort(rows[_of_strata(strata, np.diff(np.rint(ends * fraction), prepend=0), rng)])


def within(rows: Ints, clients: Ints, fraction: float, groups: Ints | None, rng: np.random.Generator) -> Ints:
    """About this fraction of each client's rows, sorted; at least one sample or group of each, and never all."""
    sizes = np.bincount(clients)
    if groups is not None:
        pieces = np.split(np.argsort(clients, kind="stable"), np.cumsum(sizes)[:-1])
        return np.sort(np.concatenate([rows[p[_of_groups(groups[p], fraction, rng)]] for p in pieces]))
    if sizes.min() < 2:
        raise FedflatError("client_test needs two samples of each natural client, one to train and one to test")
    return np.sort(rows[_of_strata(clients, np.clip(np.rint(sizes * fraction), 1, sizes - 1), rng)])


def aligned(parts: list[Ints], labels: Ints, pool: Ints, ratio: float, rng: np.random.Generator) -> list[Ints]:
    """Rows of the pool for each client, in the proportions of its own classes, `ratio` times as many as it trains on.

    A class whose pool is used up is dealt again, so two clients may be tested on one sample; no client has it twice.
    """
    _, codes = np.unique(labels, return_inverse=True)
    classes = int(codes.max()) + 1
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cells = np.bincount(owners * classes + codes[np.concatenate(parts)], minlength=len(parts) * classes)
    running = np.cumsum(cells.reshape(len(parts), classes), axis=1)
    total = np.maximum(np.rint(running[:, -1:] * ratio), 1)
    wanted = np.diff(np.rint(running / running[:, -1:] * total).astype(np.int64), axis=1, prepend=0)
    pools = [pool[codes[pool] == c] for c in range(classes)]
    wanted = np.minimum(wanted, [len(p) for p in pools])
    if not wanted.sum(axis=1).all():
        client = int(wanted.sum(axis=1).argmin())
        raise FedflatError(f"client_test holds out no sample of client {client}'s classes; take a larger share")
    dealt = [_cycled(rng.permutation(p), demand) for p, demand in zip(pools, wanted.T, strict=True)]
    holders = np.concatenate([np.repeat(np.arange(len(parts)), demand) for demand in wanted.T])
    rows = np.concatenate(dealt)
    return np.split(rows[np.lexsort((rows, holders))], np.cumsum(wanted.sum(axis=1))[:-1])


def _cycled(pool: Ints, demand: Ints) -> Ints:
    """The pool, over and over; since nobody wants more than all of it, nobody gets a sample twice."""
    return np.resize(pool, demand.sum())


def _of_strata(strata: Ints, shares: NDArray[np.float64], rng: np.random.Generator) -> Ints:
    """The places of so many random members of each stratum."""
    order = rng.permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    sizes = np.bincount(strata)
    rank = np.arange(len(strata)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return order[rank < np.repeat(shares, sizes)]


def _of_groups(groups: Ints, fraction: float, rng: np.random.Generator) -> Ints:
    """The places of whole random groups, together as near as can be to a fraction of all places."""
    known, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(known) < 2:
        raise FedflatError("holding out whole groups needs two groups at least, one to train and one to hold out")
    order = rng.permutation(len(known))
    held = np.cumsum(sizes[order])[:-1]
    count = int(np.abs(held - fraction * len(groups)).argmin()) + 1
    chosen = np.zeros(len(known), dtype=bool)
    chosen[order[:count]] = True
    return np.flatnonzero(chosen[codes])
