"""Who is active in a round: a pure function of the round, the number of clients and the seed.

FedSoL and FedNTD draw a fixed number of clients without replacement (`Fixed`), FL-Simulator and FedDyn let every client
toss its own coin (`Bernoulli`), clients may take turns (`Cyclic`) or be there in some rounds only (`Available`), and a
`Schedule` replays any list of rounds.

As words: `fixed:10`, `bernoulli:0.1`, `cyclic:10`, and `trace:FILE` or `trace:FILE:10`, at most ten of those who are
there. The file has a row for each round and a column for each client, 1 where the client is there and 0 where it is
not: .npy, or text with or without commas and blanks.
"""

__all__ = ["Available", "Bernoulli", "Cyclic", "Fixed", "Participation", "Schedule", "participation"]

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Integral, Real
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedflat.errors import FedflatError
from fedflat.names import find
from fedflat.seeds import generator


class Participation(ABC):
    """A rule that says who is active."""

    @abstractmethod
    def active(self, round: int, clients: int, seed: int) -> list[int]:
        """The sorted ids of the clients that are active in a round, counted from 1."""


@dataclass(frozen=True)
class Fixed(Participation):
    """The same number of clients in every round, drawn without replacement."""

    count: int

    def __post_init__(self) -> None:
        if not _is_integer(self.count) or self.count < 1:
            raise FedflatError(f"participation: the number of active clients must be at least 1, not {self.count!r}")

    def active(self, round: int, clients: int, seed: int) -> list[int]:
        """`count` of the clients."""
        return _draw(generator(seed, "participation", round), clients, self.count)


@dataclass(frozen=True)
class Bernoulli(Participation):
    """Each client independently with probability `ratio`; a round without clients is drawn again."""

    ratio: float

    def __post_init__(self) -> None:
        if not isinstance(self.ratio, Real) or not 0 < self.ratio <= 1:
            raise FedflatError(f"participation: the ratio must be in (0, 1], not {self.ratio!r}")

    def active(self, round: int, clients: int, seed: int) -> list[int]:
        """A binomial number of the clients: given the number, all sets are equally likely."""
        rng = generator(seed, "participation", round)
        while not (count := rng.binomial(clients, self.ratio)):
            pass
        return _draw(rng, clients, count)


@dataclass(frozen=True)
class Cyclic(Participation):
    """Clients take turns, `count` a round, in an order that the seed draws once: nobody comes twice before all came.

    >>> rule = Cyclic(2)
    >>> sorted(rule.active(1, 6, seed=0) + rule.active(2, 6, seed=0) + rule.active(3, 6, seed=0))
    [0, 1, 2, 3, 4, 5]
    """

    count: int

    def __post_init__(self) -> None:
        if not _is_integer(self.count) or self.count < 1:
            raise FedflatError(f"participation: the number of active clients must be at least 1, not {self.count!r}")

    def active(self, round: int, clients: int, seed: int) -> list[int]:
        """The next ones in the order, which starts again where it ends."""
        turns = np.arange((round - 1) * self.count, round * self.count) % clients
        return sorted(_order(clients, seed)[turns].tolist())


@dataclass(frozen=True, eq=False)
class Available(Participation):
    """Only those who are there: `trace[t, i]` says whether client i is in round t + 1; it repeats when it runs out.

    All of them are active, or `count` drawn of them where there are more.
    """

    trace: NDArray[np.bool_] = field(repr=False)
    count: int | None = None

    def __post_init__(self) -> None:
        trace = np.asarray(self.trace)
        if trace.ndim != 2 or not trace.size or not np.isin(trace, (0, 1)).all():
            raise FedflatError(
                "participation: a trace has a row for each round and a column for each client, with 1 or 0 (there or "
                f"not), not {trace.dtype} of shape {trace.shape}"
            )
        empty = np.flatnonzero(~trace.astype(bool).any(axis=1))
        if len(empty):
            raise FedflatError(f"participation: in round {empty[0] + 1} of the trace no client is there")
        if self.count is not None and (not _is_integer(self.count) or self.count < 1):
            raise FedflatError(f"participation: the number of active clients must be at least 1, not {self.count!r}")
        object.__setattr__(self, "trace", trace.astype(bool))

    def active(self, round: int, clients: int, seed: int) -> list[int]:
        """Clients who are there in this round."""
        there = np.flatnonzero(self.trace[(round - 1) % len(self.trace)])
        if self.count is None or len(there) <= self.count:
            return there.tolist()
        return there[_draw(generator(seed, "participation", round), len(there), self.count)].tolist()


@dataclass(frozen=True)
class Schedule(Participation):
    """Given rounds, repeated when they run out.

    >>> Schedule(((0, 1), (2,))).active(round=3, clients=3, seed=0)
    [0, 1]
    """

    rounds: tuple[tuple[int, ...], ...]

    def active(self, round: int, clients: int, seed: int) -> list[int]:
        """The clients of that round."""
        return sorted(int(i) for i in self.rounds[(round - 1) % len(self.rounds)])


def participation(spec: object, clients: int) -> Participation:
    """What `simulate(participation=...)` accepts, as a rule that fits that many clients.

    >>> participation(None, clients=100), participation(0.25, clients=100), participation("cyclic:5", clients=100)
    (Fixed(count=10), Fixed(count=25), Cyclic(count=5))
    """
    rule = _rule(spec, clients)
    if isinstance(rule, Fixed | Cyclic) and rule.count > clients:
        raise FedflatError(
            f"participation: {rule.count} active clients of {clients}; a round cannot have more than there are"
        )
    if isinstance(rule, Available) and rule.trace.shape[1] != clients:
        raise FedflatError(f"participation: the trace is of {rule.trace.shape[1]} clients, but there are {clients}")
    if isinstance(rule, Schedule):
        _check(rule, clients)
    return rule


def _rule(spec: object, clients: int) -> Participation:
    if isinstance(spec, np.generic | np.ndarray):
        spec = spec.tolist()
    if spec is None:
        return Fixed(min(10, clients))
    if isinstance(spec, Participation):
        return spec
    if _is_integer(spec):
        if spec == 1:
            raise FedflatError(
                "participation: the integer 1 is ambiguous: say 1.0 for every client, or [[i], ...] "
                "for one client a round"
            )
        return Fixed(spec)
    if isinstance(spec, float):
        if not 0 < spec <= 1:
            raise FedflatError(f"participation: a fraction of the clients must be in (0, 1], not {spec!r}")
        return Fixed(max(1, round(spec * clients)))
    if isinstance(spec, str) and not spec[:1].isdecimal():
        return _worded(spec)
    if isinstance(spec, list | tuple) and all(isinstance(ids, list | tuple | range | np.ndarray) for ids in spec):
        return Schedule(tuple(tuple(ids) for ids in spec))
    raise FedflatError(
        "participation must be a fraction, a count, a word such as bernoulli:0.1, a list of rounds such as "
        f"[[0, 2], [1]] or a Participation, not {spec!r}"
    )


def _worded(word: str) -> Participation:
    name, _, rest = word.partition(":")
    name = find("participation", name, _WORDS)
    rule, example = _WORDS[name]
    try:
        return rule(rest)
    except FedflatError:
        raise
    except ValueError:
        raise FedflatError(f"participation {word!r}: say {example}") from None


def _traced(rest: str) -> Participation:
    """FILE or FILE:COUNT."""
    path, colon, count = rest.rpartition(":")
    if not colon or not count.isdecimal():
        path, count = rest, ""
    try:
        if path.endswith(".npy"):
            trace = np.load(path, allow_pickle=False)
        else:
            with open(path) as file:
                lines = ["".join(line.split()).replace(",", "") for line in file]
            trace = np.array([[int(mark) for mark in line] for line in lines if line])
    except OSError as error:
        raise FedflatError(f"participation: cannot read the trace {path!r}: {error.strerror or error}") from None
    except ValueError:
        raise FedflatError(f"participation: the trace {path!r} is no table of 0 and 1, a line for each round") from None
    return Available(trace, int(count) if count else None)


_WORDS: dict[str, tuple[Callable[[str], Participation], str]] = {
    "fixed": (lambda count: Fixed(int(count)), "fixed:10"),
    "bernoulli": (lambda ratio: Bernoulli(float(ratio)), "bernoulli:0.1"),
    "cyclic": (lambda count: Cyclic(int(count)), "cyclic:10"),
    "trace": (_traced, "trace:FILE or trace:FILE:10"),
}


def _check(schedule: Schedule, clients: int) -> None:
    if not schedule.rounds:
        raise FedflatError("participation: a schedule needs at least one round")
    for number, ids in enumerate(schedule.rounds, start=1):
        where = f"participation: round {number} of the schedule"
        if not ids:
            raise FedflatError(f"{where} has no client")
        for i in ids:
            if not _is_integer(i) or not 0 <= i < clients:
                raise FedflatError(f"{where} names client {i!r}, but the clients are 0 to {clients - 1}")
        if len(set(ids)) < len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise FedflatError(f"{where} names client {twice} twice")


def _is_integer(value: object) -> TypeGuard[int]:
    return not isinstance(value, bool) and isinstance(value, Integral)


@lru_cache(maxsize=4)
def _order(clients: int, seed: int) -> NDArray[np.int64]:
    return generator(seed, "participation").permutation(clients)


def _draw(rng: np.random.Generator, clients: int, count: int) -> list[int]:
    return sorted(rng.choice(clients, count, replace=False, shuffle=False).tolist())
