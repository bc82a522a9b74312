"""FedGamma: Dai et al., FedGAMMA: Federated Learning With Global Sharpness-Aware Minimization, IEEE TNNLS 2024.

    e = rho g(x)/||g(x)||,   D = g(x + e) + c - c_i,   controls as SCAFFOLD

It is `fedsam+scaffold`; both gradients are taken on the same minibatch.
"""

from fedflat.core import Algorithm, Weighting

from .fedsam import LocalAscent
from .registry import NonNegative, register
from .scaffold import ControlVariates


@register
def fedgamma(rho: NonNegative = 0.1, dual_weights: Weighting | None = None) -> Algorithm:
    """FedSAM whose drift is corrected by control variates."""
    return Algorithm(LocalAscent(rho), ControlVariates(dual_weights))
