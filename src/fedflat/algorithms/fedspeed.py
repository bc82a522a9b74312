"""FedSpeed: Sun et al., FedSpeed: Larger Local Interval, Less Communication Round, ICLR 2023.

    e = rho g(x)/||g(x)||,   D = g(x + e) + lam h_i + lam (x - w),   duals and server as FedDyn

This is the published code; the paper's e = rho g(x) has no fixed length, and its gradient is a mixture with g(x).
Departures of published code: the quadratic term is split, so that clipping acts on one half of it.
"""

from fedflat.core import Algorithm, Weighting

from .feddyn import Dual
from .fedsam import LocalAscent
from .registry import NonNegative, Positive, register


@register
def fedspeed(rho: NonNegative = 0.1, lam: Positive = 0.1, dual_weights: Weighting | None = None) -> Algorithm:
    """FedSAM whose local objectives are made to agree by duals."""
    return Algorithm(LocalAscent(rho), Dual(lam, dual_weights))
