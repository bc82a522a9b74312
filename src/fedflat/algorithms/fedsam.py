"""FedSAM: Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022.

    e = rho g(x)/||g(x)||,   x <- x - eta g(x + e)

Both gradients are taken on the same minibatch. Departures of published code: gradients that are not cleared between
the two passes; x restored by subtracting e, which leaves rounding behind.
"""

from typing import Annotated

from fedflat.core import Algorithm, Part, unit

from .registry import NonNegative, Searched, register


class LocalAscent(Part):
    """rho g(x)/||g(x)||: climb the client's own loss before descending."""

    rho: float = 0.1

    def perturb(self, step, me, got):
        return self.rho * unit(step.grad(step.x))


@register
def fedsam(
    rho: Annotated[
        NonNegative, Searched((0.1, 0.5, 1.0, 2.0), "FedSoL, Table 4"), Searched((0.001, 0.01, 0.1), "FedGMT's code")
    ] = 0.1,
) -> Algorithm:
    """Every client descends from the worst point near it."""
    return Algorithm(LocalAscent(rho))
