"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.

    D = g + lam h_i + lam (x - w),   h_i+ = h_i + x_K - w,   w+ = sum_S p_i x_K,i + sum_N q_i h_i+

h_i is the paper's gradient state in units of displacement: grad_i = -lam h_i. Departures of published code: a form
without the quadratic term, and first terms and duals that are weighted differently.
"""

from fedflat.core import Algorithm, Part, Weighting, vector

from .registry import Positive, register


class Dual(Part):
    """lam (h_i + x - w): h_i remembers how far client i has always pulled away."""

    lam: float = 0.1
    dual_weights: Weighting | None = None
    quadratic: bool = True

    client_keeps = server_keeps = {"h": vector}

    def pull(self, step, me, got):
        return self.lam * (me.h + step.x - step.w if self.quadratic else me.h)

    def finish(self, run, me, got):
        me.h = me.h + run.moved

    def update(self, w, srv, replies):
        srv.h = srv.h + replies.over_all(lambda r: r.moved, self.dual_weights)
        return w + srv.h


@register
def feddyn(lam: Positive = 0.1, dual_weights: Weighting | None = None) -> Algorithm:
    """Each client's dual makes the stationary points of all local objectives agree."""
    return Algorithm(Dual(lam, dual_weights))
