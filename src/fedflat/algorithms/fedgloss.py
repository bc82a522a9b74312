"""FedGloSS: Caldarola et al., Beyond Local Sharpness: Communication-Efficient Global SAM for FL, CVPR 2025.

    server       w~ = w - rho Dbar/||Dbar||,  Dbar of the last round
    client       from w~:  D = g(x + e) + h_i/beta + (x - w~)/beta,  e = rho_l g(x)/||g(x)||,   h_i += x_K - w~
    server       w+ = w + Dbar + mean_N h,  Dbar measured from w~

It is FedDyn with lam = 1/beta, run from a perturbed model; the perturbation is undone afterwards. With `ramp` = T > 0
both radii grow from .001 linearly over T rounds. Departures of published code: the server's dual is divided by the
number of active clients once more, and its ramp follows the clients' radius.
"""

from typing import Annotated, Any

from pydantic import Field

from fedflat.core import Algorithm, Part, Weighting, scalar, unit, vector

from .feddyn import Dual
from .fedsam import LocalAscent
from .registry import NonNegative, Positive, register

Rounds = Annotated[int, Field(ge=0)]


class ServerAscent(Part):
    """-rho Dbar/||Dbar||: the server climbs back before it sends the model, at nobody's cost."""

    rho: float = 0.15
    ramp: int = 0

    server_keeps = {"e": vector, "t": scalar}

    def broadcast(self, w, srv, client, sent):
        return w + srv.e

    def update(self, w, srv, replies):
        srv.t = srv.t + 1
        srv.e = -radius(self.rho, srv.t, self.ramp) * unit(replies.mean(lambda r: r.moved))
        return w


class RampedAscent(Part):
    """rho_t g(x)/||g(x)||: climb the client's own loss, as far as the server says."""

    rho: float = 0.15
    ramp: int = 1

    server_keeps = {"t": scalar}
    server_sends = {"rho": scalar}

    def broadcast(self, w, srv, client, sent):
        sent.rho = radius(self.rho, srv.t, self.ramp)
        return w

    def perturb(self, step, me, got):
        return got.rho * unit(step.grad(step.x))

    def update(self, w, srv, replies):
        srv.t = srv.t + 1
        return w


def radius(rho: float, t: Any, ramp: int) -> Any:
    """The radius of round t, from 0."""
    return 0.001 + (rho - 0.001) * (t / ramp).clamp(max=1) if ramp and rho else rho


@register
def fedgloss(
    rho: NonNegative = 0.15,
    rho_l: NonNegative = 0.15,
    beta: Positive = 10.0,
    ramp: Rounds = 0,
    dual_weights: Weighting | None = None,
) -> Algorithm:
    """Sharpness-aware at the server; `rho_l` = 0 leaves the clients plain SGD, at half the gradients."""
    ascent = (RampedAscent(rho_l, ramp) if ramp else LocalAscent(rho_l),) if rho_l else ()
    return Algorithm(ServerAscent(rho, ramp), *ascent, Dual(1 / beta, dual_weights))
