"""FedDC: Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction, CVPR 2022.

    D = g + c - c_i + lam h_i + lam (x - w),   w+ = sum_S p_i x_K,i + sum_N q_i h_i+

The controls c, c_i are SCAFFOLD's, the drift h_i and the server's rule FedDyn's. Departures of published code:
a nominal number of steps and the first round's rate in c_i; corrections that are detached from the gradient.
"""

from fedflat.core import Algorithm, Weighting

from .feddyn import Dual
from .registry import Positive, register
from .scaffold import ControlVariates


@register
def feddc(lam: Positive = 0.1, dual_weights: Weighting | None = None) -> Algorithm:
    """Control variates correct the gradients, duals the models."""
    return Algorithm(ControlVariates(dual_weights), Dual(lam, dual_weights))
