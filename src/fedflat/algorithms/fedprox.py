"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

    F_i(x) + mu/2 ||x - w||^2

Departures of published code: in several the term is the norm and not its square, whose gradient is a unit vector, or
it is built from detached numbers and has no gradient at all.
"""

from typing import Annotated

from fedflat.core import Algorithm, Part

from .registry import NonNegative, Searched, register


class Proximity(Part):
    """mu (x - w): stay near the received model."""

    mu: float = 1.0

    def pull(self, step, me, got):
        return self.mu * (step.x - step.w)


@register
def fedprox(mu: Annotated[NonNegative, Searched((0.1, 0.5, 1.0, 2.0), "FedSoL, Table 4")] = 1.0) -> Algorithm:
    """A proximal term holds the clients near the received model."""
    return Algorithm(Proximity(mu))
