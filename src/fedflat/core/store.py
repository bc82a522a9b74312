"""What is kept between rounds for each client: `Store` for the clients' own memories, `Table` for the server's rows.

Both hold the clients seen so far and nothing for the others, so a population of a million costs nothing to open.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from fedflat.errors import FedflatError

from .memory import fit
from .part import Kind
from .vectors import Vector
from .weights import Weights

Values = dict[str, dict[str, Any]]  # part -> name -> value


class Store:
    """The memories of the clients that have trained."""

    def __init__(self) -> None:
        self._values: dict[int, Values] = {}

    def get(self, client: int) -> Values | None:
        """A client's memory, None before its first round."""
        return self._values.get(client)

    def set(self, client: int, values: Values) -> None:
        """Keep a client's memory."""
        if values:
            self._values[client] = values

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._values))

    def flat(self) -> dict[int, dict[str, Tensor]]:
        """Client -> {"Part.name": value}."""
        return {
            client: {f"{part}.{name}": v for part, kept in self._values[client].items() for name, v in kept.items()}
            for client in self
        }

    def load(self, flat: dict[int, dict[str, Tensor]]) -> None:
        """The inverse of `flat`."""
        for client, named in flat.items():
            values = self._values.setdefault(client, {})
            for key, value in named.items():
                part, _, name = key.partition(".")
                values.setdefault(part, {})[name] = value


class Table:
    """One row for each client, zero until set. `decay` scales all rows, lazily; the population mean is running."""

    def __init__(self, weights: Weights, like: Vector):
        self.weights = weights
        self.rows: dict[int, tuple[Vector, float]] = {}  # a row, and the log of the decay when it was set
        self.log_decay = 0.0
        self.average = like.new_zeros(like.shape)

    def __contains__(self, client: int) -> bool:
        return client in self.rows

    def get(self, client: int) -> Vector:
        """A client's row."""
        if client not in self.rows:
            return self.average.new_zeros(self.average.shape)
        row, since = self.rows[client]
        return row * math.exp(self.log_decay - since)  # a new vector, so that nobody writes into the row

    def set(self, client: int, row: Vector) -> None:
        """Rebind a client's row."""
        row = fit(row, Kind.VECTOR, self.average, "a row of a table")
        if not 0 <= client < len(self.weights.sizes):
            raise FedflatError(f"there is no client {client}; a table has rows from 0 to {len(self.weights.sizes) - 1}")
        q = self.weights.population(client)
        change = row - self.get(client) if client in self.rows else row
        self.average = self.average + q * change
        self.rows[client] = row, self.log_decay

    def decay(self, factor: float) -> None:
        """Multiply every row by a factor > 0."""
        if factor <= 0:
            raise FedflatError(f"a table decays by a factor above 0, not by {factor}")
        self.log_decay += math.log(factor)
        self.average = self.average * factor

    def mean(self) -> Vector:
        """mean_N: the weighted mean over the population, rows never set counting as zero."""
        return self.average

    def over_all(self, value: Callable[[Vector], Tensor]) -> Tensor:
        """mean_N of a value of each row, which is zero for rows never set: sum of q_i times it."""
        total = self.average.new_zeros(())
        return sum((self.weights.population(i) * value(self.get(i)) for i in sorted(self.rows)), start=total)
