"""FedLESAM: Fan et al., Locally Estimated Global Perturbations are Better than Local Perturbations, ICML 2024.

    e = rho (w_prev - w)/||w_prev - w||,   D = g(x + e)

w_prev is the model that the client received when it was last active; at its first round e is 0. -S corrects the drift
by SCAFFOLD's controls, -D by FedDyn's duals. With `displacement="round"` the server sends the model of the round
before, which is what the published code means to do. Departures of that code: the flat displacement is indexed by the
number of a tensor, so that each tensor climbs along one scalar; ports give each tensor the vector's leading entries.
"""

from typing import Literal

from fedflat.core import Algorithm, Part, Weighting, model, once, unit

from .feddyn import Dual
from .registry import NonNegative, Positive, register
from .scaffold import ControlVariates

Displacement = Literal["own", "round"]


class GlobalAscent(Part):
    """rho (w_prev - w)/||.||: climb back the way that the model has come since the client's last round."""

    rho: float = 0.1

    client_keeps = {"received": model}

    @once
    def perturb(self, step, me, got):
        return self.rho * unit(me.received - step.w)

    def finish(self, run, me, got):
        me.received = run.w


class RoundAscent(Part):
    """rho (w_prev - w)/||.||: climb back the way that the model has come in the last round."""

    rho: float = 0.1

    server_keeps = {"before": model, "now": model}
    server_sends = {"before": model}

    def prepare(self, w, srv, active):
        srv.before, srv.now = srv.now, w

    @once
    def perturb(self, step, me, got):
        return self.rho * unit(got.before - step.w)


def ascent(rho: float, displacement: Displacement) -> Part:
    """FedLESAM's perturbation."""
    return GlobalAscent(rho) if displacement == "own" else RoundAscent(rho)


@register
def fedlesam(rho: NonNegative = 0.1, displacement: Displacement = "own") -> Algorithm:
    """The way the global model has come estimates the global ascent, without a gradient for it."""
    return Algorithm(ascent(rho, displacement))


@register
def fedlesam_s(
    rho: NonNegative = 0.1, displacement: Displacement = "own", dual_weights: Weighting | None = None
) -> Algorithm:
    """FedLESAM with SCAFFOLD's control variates."""
    return Algorithm(ascent(rho, displacement), ControlVariates(dual_weights))


@register
def fedlesam_d(
    rho: NonNegative = 0.1,
    lam: Positive = 0.1,
    displacement: Displacement = "own",
    dual_weights: Weighting | None = None,
) -> Algorithm:
    """FedLESAM with FedDyn's duals."""
    return Algorithm(ascent(rho, displacement), Dual(lam, dual_weights))
