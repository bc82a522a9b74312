"""FedSMOO: Sun et al., Dynamic Regularized Sharpness Aware Minimization in FL, ICML 2023.

    e = rho u/||u||,  u = g(x) - mu_i - s,   mu_i <- mu_i + e - s   in every step,   s+ = rho mean_S(mu_i)/||.||
    D = g(x + e) + lam h_i + lam (x - w),   duals and server as FedDyn

The perturbations of all clients are made to agree on s as the models are on w. `sign=1` is the optimality condition's
u = g(x) - mu_i + s; the slides' literal server step turns the ascent into a descent. Departures of published code: an
index that never advances gives every tensor the leading entries of s; lines of mu and s that are commented out.
"""

from typing import Literal

from fedflat.core import Algorithm, Part, Weighting, unit, vector

from .feddyn import Dual
from .registry import NonNegative, Positive, register

Sign = Literal[-1, 1]


class AgreedAscent(Part):
    """rho (g - mu_i - s)/||.||: climb where all clients agree to; mu_i remembers how far client i has departed."""

    rho: float = 0.1
    sign: Sign = -1

    server_keeps = server_sends = {"s": vector}
    client_keeps = client_sends = {"mu": vector}

    def perturb(self, step, me, got):
        e = self.rho * unit(step.grad(step.x) - me.mu + self.sign * got.s)
        me.mu = me.mu + e - got.s
        return e

    def finish(self, run, me, got):
        return {"mu": me.mu}

    def update(self, w, srv, replies):
        srv.s = self.rho * unit(replies.mean(lambda r: r.mu))
        return w


@register
def fedsmoo(
    rho: NonNegative = 0.1, lam: Positive = 0.1, sign: Sign = -1, dual_weights: Weighting | None = None
) -> Algorithm:
    """Duals for the models and duals for the perturbations."""
    return Algorithm(AgreedAscent(rho, sign), Dual(lam, dual_weights))
