"""FedGF: Lee, Yoon, Rethinking the Flat Minima Searching in Federated Learning, ICML 2024.

    server       w~ = w - rho_g Dbar/||Dbar||,  Dbar of the last round
    client       x <- x - eta g(y),   y = c w~ + (1-c) (x + rho g(x)/||g(x)||)

c is the share of the last W rounds in which mean_S ||x_K - w|| exceeded a threshold, 0 in the first round: the further
the clients drift apart, the more they look at the global neighbourhood. rho_g = rho unless it is given.
"""

import math
from typing import Annotated

import torch
from pydantic import Field

from fedflat.core import Algorithm, Part, scalar, unit, vector
from fedflat.errors import FedflatError

from .registry import NonNegative, register


class InterpolatedAscent(Part):
    """c (w~ - x) + (1-c) rho g/||g||: climb between the server's perturbed model and the client's own."""

    rho: float = 0.1
    rho_g: float = 0.1
    threshold: float = 0.2
    window: int = 10

    server_keeps = {"e": vector, "c": scalar, "apart": scalar, "rounds": scalar}
    server_sends = {"e": vector, "c": scalar}

    def prepare(self, w, srv, active):
        bits = 1 - round(math.log2(torch.finfo(w.dtype).eps))
        if self.window > bits:
            raise FedflatError(f"fedgf: numbers of {w.dtype} remember {bits} rounds, not window={self.window}")

    def perturb(self, step, me, got):
        own = self.rho * unit(step.grad(step.x))
        return got.c * (step.w + got.e - step.x) + (1 - got.c) * own

    def update(self, w, srv, replies):
        apart = replies.mean(lambda r: torch.linalg.vector_norm(r.moved)) > self.threshold
        srv.apart = 2 * (srv.apart % 2 ** (self.window - 1)) + apart  # digits: the last rounds, newest first
        srv.rounds = (srv.rounds + 1).clamp(max=self.window)
        digits = srv.apart // 2 ** torch.arange(self.window, device=w.device) % 2
        srv.c = digits.sum() / srv.rounds
        srv.e = -self.rho_g * unit(replies.mean(lambda r: r.moved))
        return w


@register
def fedgf(
    rho: NonNegative = 0.1,
    rho_g: NonNegative | None = None,
    threshold: NonNegative = 0.2,
    window: Annotated[int, Field(ge=1, le=24)] = 10,
) -> Algorithm:
    """The clients' ascent gives way to the server's as they drift apart."""
    return Algorithm(InterpolatedAscent(rho, rho if rho_g is None else rho_g, threshold, window))
