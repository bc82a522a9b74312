"""FedGMT: Li et al., One Arrow, Two Hawks: Sharpness-aware Minimization for FL via Global Model Trajectory, ICML 2025.

    loss + gamma tau^2 KL( softmax(z_E/tau) || softmax(z_x/tau) ),   D = G + lam h_i
    h_i+ = h_i + x_K - w,   w+ = sum_S p_i x_K,i + sum_N q_i h_i+,   E+ = alpha E + (1 - alpha) w+

E starts at w^0. It is FedDyn without its quadratic term and with a teacher. Departures of published code: a
dual that is averaged over the active clients alone.
"""

from typing import Annotated

from fedflat.core import Algorithm, Part, Weighting, model

from .distillation import kl
from .feddyn import Dual
from .registry import Fraction, NonNegative, Positive, Searched, register


class EMATeacher(Part):
    """KL(softmax(z_E/tau) || softmax(z_x/tau)): the mean of the server's past models E teaches the clients."""

    alpha: float = 0.95
    gamma: float = 1.0
    tau: float = 3.0

    server_keeps = server_sends = {"E": model}

    def term(self, out, step, me, got):
        return self.gamma * self.tau**2 * kl(step.outputs(got.E).logits, out.logits, self.tau, step.targets)

    def update(self, w, srv, replies):
        srv.E = self.alpha * srv.E + (1 - self.alpha) * w
        return w


@register
def fedgmt(
    alpha: Annotated[Fraction, Searched((0.95, 0.995, 0.998), "its code")] = 0.95,
    gamma: Annotated[NonNegative, Searched((0.5, 1.0, 2.0), "its code")] = 1.0,
    tau: Positive = 3.0,
    lam: Positive = 0.1,
    dual_weights: Weighting | None = None,
) -> Algorithm:
    """The trajectory of the global model stands in for SAM's ascent."""
    return Algorithm(Dual(lam, dual_weights, quadratic=False), EMATeacher(alpha, gamma, tau))
