"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

    F_i(x) + mu/2 ||x - w||^2

Departures of published code: in several the term is the norm and not its square, whose gradient is a unit vector, or
it is built from detached numbers and has no gradient at all.
"""

from fedflat.core import Algorithm, Part

from .registry import NonNegative, register


class Proximity(Part):
    """mu (x - w): stay near the received model."""

    mu: float = 1.0

    def pull(self, step, me, got):
        return self.mu * (step.x - step.w)


@register
def fedprox(mu: NonNegative = 1.0) -> Algorithm:
    """A proximal term holds the clients near the received model."""
    return Algorithm(Proximity(mu))
