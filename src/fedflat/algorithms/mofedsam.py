"""MoFedSAM: Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022.

    e = rho g(x)/||g(x)||,   D = alpha g(x + e) + (1 - alpha) m,   m as FedCM

Departures of published code: m is multiplied by 1 - alpha in place at every step, so that it dies out inside a round.
"""

from fedflat.core import Algorithm

from .fedcm import ClientMomentum
from .fedsam import LocalAscent
from .registry import NonNegative, Share, register


@register
def mofedsam(rho: NonNegative = 0.1, alpha: Share = 0.1) -> Algorithm:
    """FedSAM whose steps mostly repeat what all clients did in the last round."""
    return Algorithm(LocalAscent(rho), ClientMomentum(alpha))
