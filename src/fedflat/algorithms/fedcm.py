"""FedCM: Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021.

    D = alpha g + (1 - alpha) m,   m+ = -sum_S p_i D_i / sum of client i's rates

m is the mean direction of the last round in units of a gradient, 0 in the first. Departures of published code: m is
divided by a nominal number of steps and not by the client's own, or scaled in place at every step until it dies out.
"""

from fedflat.core import Algorithm, Part, vector

from .registry import Share, register


class ClientMomentum(Part):
    """alpha g + (1 - alpha) m: every step mostly repeats what all clients did in the last round."""

    assumes_sgd = True

    alpha: float = 0.1

    server_keeps = server_sends = {"m": vector}

    def blend(self, g, step, me, got):
        return self.alpha * g + (1 - self.alpha) * got.m

    def update(self, w, srv, replies):
        srv.m = -replies.mean(lambda r: r.moved / r.lr_sum)
        return w


@register
def fedcm(alpha: Share = 0.1) -> Algorithm:
    """The global direction enters every local step."""
    return Algorithm(ClientMomentum(alpha))
