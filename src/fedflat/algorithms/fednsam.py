"""FedNSAM: global Nesterov momentum looks ahead and gives the direction of ascent, consistent over all clients.

    x_0 = w + gamma m,   e = -rho m/||m||,   m+ = gamma m + mean_S(x_K - x_0),   w+ = w + m+

The momentum is constant in a round, so starting at w + gamma m is the same as evaluating every gradient there, except
for weight decay. `ascent="local"` is the later published code, which climbs along the client's own gradient instead.
Departures of published code: an inert step under newer PyTorch, and a momentum that forgets.
"""

from typing import Literal

from fedflat.core import Algorithm, Part, once, unit, vector

from .fedacg import AcceleratedStart
from .fedsam import LocalAscent
from .registry import Fraction, NonNegative, register


class GlobalNesterov(Part):
    """One server momentum: look-ahead and direction of ascent."""

    gamma: float = 0.85
    rho: float = 0.05

    server_keeps = server_sends = {"m": vector}

    def start(self, w, me, got):
        return w + self.gamma * got.m

    @once
    def perturb(self, step, me, got):
        return -self.rho * unit(got.m)  # m descends, so -m climbs

    def aggregate(self, w, srv, replies):
        srv.m = self.gamma * srv.m + replies.mean(lambda r: r.moved)
        return w + srv.m


@register
def fednsam(
    rho: NonNegative = 0.05, gamma: Fraction = 0.85, ascent: Literal["global", "local"] = "global"
) -> Algorithm:
    """The server's Nesterov momentum decides where every client looks."""
    if ascent == "local":
        return Algorithm(AcceleratedStart(gamma, beta=0.0), LocalAscent(rho))
    return Algorithm(GlobalNesterov(gamma, rho))
