"""Weights name the objective: with "samples" every mean follows the clients' sizes, with "uniform" none does.

Over the active clients a mean has the weights p_i, over the population q_i, clients that are not active contributing
no change.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

Weighting = Literal["samples", "uniform"]


class Weights:
    """p_i over the active clients and q_i over the population."""

    def __init__(self, sizes: Sequence[int], weighting: Weighting = "samples"):
        self.sizes = np.asarray(sizes, dtype=np.int64)
        self.weighting: Weighting = weighting
        self.total = int(self.sizes.sum())

    def active(self, clients: Sequence[int]) -> list[float]:
        """p_i."""
        if self.weighting == "uniform":
            return [1 / len(clients)] * len(clients)
        total = int(self.sizes[list(clients)].sum())
        return [int(self.sizes[i]) / total for i in clients]

    def population(self, client: int, weighting: Weighting | None = None) -> float:
        """q_i."""
        if (weighting or self.weighting) == "uniform":
            return 1 / len(self.sizes)
        return int(self.sizes[client]) / self.total
