"""FedACG: Kim et al., Communication-Efficient Federated Learning with Accelerated Client Gradient, CVPR 2024.

    x_0 = w + gamma m,   D = g + beta (x - x_0),   m+ = gamma m + mean_S(x_K - x_0),   w+ = w + m+

The server sends x_0 and nothing else. Departures of published code: the proximal term is detached from the gradient.
"""

from fedflat.core import Algorithm, Part, vector

from .registry import Fraction, NonNegative, register


class AcceleratedStart(Part):
    """w + gamma m: clients start where the server's momentum is going, and stay near."""

    gamma: float = 0.85
    beta: float = 0.01

    server_keeps = {"m": vector}

    def broadcast(self, w, srv, client, sent):
        return w + self.gamma * srv.m

    def pull(self, step, me, got):
        return self.beta * (step.x - step.x0)

    def aggregate(self, w, srv, replies):
        srv.m = self.gamma * srv.m + replies.mean(lambda r: r.moved)
        return w + srv.m


@register
def fedacg(gamma: Fraction = 0.85, beta: NonNegative = 0.01) -> Algorithm:
    """The server sends a model that looks ahead."""
    return Algorithm(AcceleratedStart(gamma, beta))
