"""FedOpt: Reddi et al., Adaptive Federated Optimization, ICLR 2021; FedAvgM is Hsu et al., 2019.

    D = mean_S D_i
    FedAvgM      m+ = beta m + D,                 w+ = w + eta_g m+
    others       m+ = b1 m + (1 - b1) D,          w+ = w + eta_g m+ / (sqrt(v+) + eps)
    FedAdam      v+ = b2 v + (1 - b2) D^2
    FedYogi      v+ = v - (1 - b2) D^2 sign(v - D^2)
    FedAdagrad   v+ = v + D^2

The moments start at 0 and are not corrected for it. Departures of published code: bias correction, eps inside the root,
BatchNorm's statistics sent through the moments.
"""

from typing import Literal

from fedflat.core import Algorithm, Part, vector

from .registry import Fraction, Positive, register

SECOND_MOMENT = {
    "adam": lambda v, square, b2: b2 * v + (1 - b2) * square,
    "yogi": lambda v, square, b2: v - (1 - b2) * square * (v - square).sign(),
    "adagrad": lambda v, square, b2: v + square,
}


class ServerMomentum(Part):
    """m = beta m + D: the server keeps moving where it has moved before."""

    beta: float = 0.9
    eta_g: float = 1.0

    server_keeps = {"m": vector}

    def aggregate(self, w, srv, replies):
        srv.m = self.beta * srv.m + replies.mean(lambda r: r.moved)
        return w + self.eta_g * srv.m


class AdaptiveServer(Part):
    """eta_g m / (sqrt(v) + eps): the server steps far in the coordinates that have seldom moved."""

    second: Literal["adam", "yogi", "adagrad"] = "adam"
    b1: float = 0.9
    b2: float = 0.99
    eps: float = 1e-3
    eta_g: float = 0.1

    server_keeps = {"m": vector, "v": vector}

    def aggregate(self, w, srv, replies):
        moved = replies.mean(lambda r: r.moved)
        srv.m = self.b1 * srv.m + (1 - self.b1) * moved
        srv.v = SECOND_MOMENT[self.second](srv.v, moved.square(), self.b2)
        return w + self.eta_g * srv.m / (srv.v.sqrt() + self.eps)


@register
def fedavgm(beta: Fraction = 0.9, eta_g: Positive = 1.0) -> Algorithm:
    """The server has momentum."""
    return Algorithm(ServerMomentum(beta, eta_g))


@register
def fedadam(b1: Fraction = 0.9, b2: Fraction = 0.99, eps: Positive = 1e-3, eta_g: Positive = 0.1) -> Algorithm:
    """The server is Adam."""
    return Algorithm(AdaptiveServer("adam", b1, b2, eps, eta_g))


@register
def fedyogi(b1: Fraction = 0.9, b2: Fraction = 0.99, eps: Positive = 1e-3, eta_g: Positive = 0.1) -> Algorithm:
    """The server is Yogi, whose second moment shrinks slowly."""
    return Algorithm(AdaptiveServer("yogi", b1, b2, eps, eta_g))


@register
def fedadagrad(b1: Fraction = 0.0, eps: Positive = 1e-3, eta_g: Positive = 0.1) -> Algorithm:
    """The server is Adagrad, whose second moment never shrinks."""
    return Algorithm(AdaptiveServer("adagrad", b1, eps=eps, eta_g=eta_g))
