"""Who is active in a round: a pure function of the round, the number of clients and the seed.

FedSoL and FedNTD draw a fixed number of clients without replacement (`Fixed`), FL-Simulator and FedDyn let every client
toss its own coin (`Bernoulli`), and a `Schedule` replays any list of rounds.
"""

__all__ = ["Bernoulli", "Fixed", "Participation", "Schedule", "participation"]

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TypeGuard

import numpy as np

from fedflat.errors import FedflatError
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

    >>> participation(None, clients=100), participation(0.25, clients=100)
    (Fixed(count=10), Fixed(count=25))
    """
    rule = _rule(spec, clients)
    if isinstance(rule, Fixed) and rule.count > clients:
        raise FedflatError(
            f"participation: {rule.count} active clients of {clients}; a round cannot have more than there are"
        )
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
    if isinstance(spec, list | tuple) and all(isinstance(ids, list | tuple | range | np.ndarray) for ids in spec):
        return Schedule(tuple(tuple(ids) for ids in spec))
    raise FedflatError(
        "participation must be a fraction, a count, a list of rounds such as [[0, 2], [1]] or a "
        f"Participation, not {spec!r}"
    )


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


def _draw(rng: np.random.Generator, clients: int, count: int) -> list[int]:
    return sorted(rng.choice(clients, count, replace=False, shuffle=False).tolist())
