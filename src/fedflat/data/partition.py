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
`quantity:alpha`   Li et al. (2022): sizes from Dir(alpha), classes not looked at; everybody first gets 10 (n//N).
`natural`          who holds what comes with the data: `groups` names the client of each sample.

What changes any of them is added to its word, as in `lda:0.1+longtail:0.5+noise:0.1+rotate:90`:

`longtail:f`       FedGMT, FedScar (`imb_factor`): before they are dealt, of C classes the one in place c keeps a random
                   share f**(c/(C-1)) of its samples, and one at least.
`noise:s`          every client's inputs have noise, of a level of its own up to s; see skew.py.
`rotate:a`         every client's images are turned by a random multiple of a degrees; see skew.py.

Departures from published code: in `lda` and `quantity` what rounding leaves goes to the last client that may still
receive, not to the last client; `quantity` does not draw again until the smallest client is large enough; in
`dirichlet` and `pathological` no client gets a sample twice while its class has others; in `shards` the size is the
largest that yields N*s shards of one class each, and what the cut leaves over, nothing or little in balanced classes,
is not used.
"""

__all__ = ["partition"]

import contextlib
import re
from math import inf
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflat.data.groups import coded
from fedflat.data.tables import RULES, Ints, Rule
from fedflat.errors import FedflatError
from fedflat.names import canonical, find
from fedflat.seeds import generator

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def partition(labels: Tensor, spec: str, clients: int | None = None, seed: int = 0, groups: Any = None) -> list[Tensor]:
    """The samples of each client, as sorted index tensors.

    `groups`, the client of each sample, is what `natural` goes by; it takes all of them, or `clients` random ones.

    >>> labels = torch.tensor([0, 1, 0, 1, 0, 1])
    >>> sorted(labels[part].tolist() for part in partition(labels, "shards:1", clients=2))
    [[0, 0, 0], [1, 1, 1]]
    >>> partition(labels, "natural", groups=["Ann", "Bob", "Bob", "Ann", "Bob", "Bob"])
    [tensor([0, 3]), tensor([1, 2, 4, 5])]
    """
    word, y = _parse(spec), _checked(labels)
    rows = _longtail(y, word.modifiers["longtail"], seed) if "longtail" in word.modifiers else np.arange(len(y))
    if word.rule.table is None:
        samples, owners, count = _natural(rows, groups, len(y), clients, seed)
    else:
        count = _count(clients, len(rows))
        samples, owners = _dealt(y[rows], word, count, generator(seed, "partition"))
        samples = rows[samples]
    ends = np.cumsum(np.bincount(owners, minlength=count))
    return [torch.from_numpy(part) for part in np.split(samples[np.lexsort((samples, owners))], ends[:-1])]


def _dealt(y: Ints, word: "_Word", clients: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Samples and their owners."""
    assert word.rule.table is not None
    pools = _pools(y if word.rule.by_class else np.zeros_like(y))
    table = word.rule.table(np.array([len(pool) for pool in pools]), word.parameter, clients, rng)
    samples = np.concatenate([_deal(pool, demand, rng) for pool, demand in zip(pools, table.T, strict=True)])
    return samples, np.concatenate([np.repeat(np.arange(clients), demand) for demand in table.T])


def _natural(rows: Ints, groups: Any, n: int, clients: int | None, seed: int) -> tuple[Ints, Ints, int]:
    """Some samples, their owners and how many owners there are."""
    if groups is None:
        raise FedflatError("partition 'natural' needs data that say which client each sample comes from; these do not")
    known, owners = np.unique(coded(groups, n, "the natural clients")[0][rows], return_inverse=True)
    if clients is None:
        return rows, owners, len(known)
    if _count(clients, n) > len(known):
        raise FedflatError(f"partition 'natural': the data have {len(known)} clients, not {clients}")
    places = np.full(len(known), -1)
    chosen = generator(seed, "partition").choice(len(known), clients, replace=False, shuffle=False)
    places[np.sort(chosen)] = np.arange(clients)
    here = places[owners] >= 0
    return rows[here], places[owners][here], clients


def _longtail(y: Ints, factor: float, seed: int) -> Ints:
    """The samples that a long tail leaves, in order; no class loses its last one."""
    rng, pools = generator(seed, "longtail"), _pools(y)
    shares = factor ** (np.arange(len(pools)) / max(1, len(pools) - 1))
    kept = [max(1, round(len(pool) * share)) for pool, share in zip(pools, shares, strict=True)]
    return np.sort(np.concatenate([rng.permutation(pool)[:k] for pool, k in zip(pools, kept, strict=True)]))


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


class _Word(NamedTuple):
    name: str
    rule: Rule
    parameter: float
    modifiers: dict[str, float]


_SHORT = {"pat": "pathological", "path": "pathological"}
_MODIFIERS = {"longtail": "0.5", "noise": "0.1", "rotate": "90"}


def spelled(spec: str) -> str:
    """The one spelling of a partition.

    >>> spelled("Pat:3.0"), spelled("IID"), spelled("lda:.1 + Rotate:90 + long-tail:0.5")
    ('pathological:3', 'iid', 'lda:0.1+longtail:0.5+rotate:90')
    """
    word = _parse(spec)
    base = word.name if word.rule.example is None else f"{word.name}:{word.parameter:g}"
    return "+".join([base, *(f"{name}:{value:g}" for name, value in word.modifiers.items())])


def modifiers(spec: str) -> dict[str, float]:
    """What is added to a partition's word, and its numbers."""
    return _parse(spec).modifiers


def is_natural(spec: str) -> bool:
    """Whether the data say who holds what."""
    return _parse(spec).rule.table is None


def _parse(spec: str) -> _Word:
    base, *added = re.split(r"\+(?=\s*[A-Za-z])", str(spec))
    name, colon, text = base.partition(":")
    name = _SHORT.get(canonical(name), name)
    if canonical(name) == "dir":
        raise FedflatError(
            f"partition {spec!r} is ambiguous since code bases disagree on it: say dirichlet:{text or 0.1} "
            f"(equal sizes, classes refilled) or lda:{text or 0.1} (unequal sizes, every sample once)"
        )
    if canonical(name) in _MODIFIERS:
        raise FedflatError(f"partition {spec!r}: {name} is added to a partition, as in lda:0.1+{base}")
    name = find("partition", name, RULES)
    rule, value = RULES[name], 0.0
    if rule.example is not None:
        value = _number(spec, name, text, rule.example)
    elif colon:
        raise FedflatError(f"partition {spec!r}: {name} takes no parameter")
    return _Word(name, rule, value, _added(spec, added))


def _added(spec: str, words: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition(":")
        name = find("addition to a partition", name, _MODIFIERS)
        if name in found:
            raise FedflatError(f"partition {spec!r} has {name} twice")
        found[name] = value = _number(spec, name, text, _MODIFIERS[name], whole=False)
        if name == "longtail" and value > 1:
            raise FedflatError(
                f"partition {spec!r}: longtail is the share that the rarest class keeps, at most 1; "
                f"for an imbalance of {value:g} to 1 say longtail:{1 / value:g}"
            )
        if name == "rotate" and 360 % value:
            raise FedflatError(f"partition {spec!r}: rotate takes an angle that divides 360, as in rotate:90")
    return {name: found[name] for name in _MODIFIERS if name in found}


def _number(spec: str, name: str, text: str, example: str, whole: bool | None = None) -> float:
    whole = example.isdigit() if whole is None else whole
    try:
        value = float(text)
    except ValueError:
        value = -inf
    if not 0 < value < inf or (whole and value % 1):
        kind = "whole number" if whole else "number"
        raise FedflatError(f"partition {spec!r}: {name} takes a positive {kind}, as in {name}:{example}")
    return value


def _checked(labels: object) -> Ints:
    if not isinstance(labels, Tensor):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            labels = torch.as_tensor(labels)
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.dtype not in INTEGERS:
        found = f"{labels.dim()}-D {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise FedflatError(f"the labels must be a 1-D tensor of integers, not {found}")
    return labels.numpy(force=True).astype(np.int64)


def _count(clients: Any, samples: int) -> int:
    if isinstance(clients, bool) or not isinstance(clients, Integral) or int(clients) < 1:
        raise FedflatError(f"the number of clients must be a positive integer, not {clients!r}")
    if int(clients) > samples:
        raise FedflatError(f"{clients} clients cannot share {samples} samples: there must be a sample for each")
    return int(clients)
