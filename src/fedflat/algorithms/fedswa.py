"""FedSWA and FedMoSWA: Liu et al., Improving Generalization in FL with Highly Heterogeneous Data, ICML 2025.

    eta_k = eta (1 - k/K) + rho eta k/K for k = 0..K-1,   w+ = w + alpha (sum_S p_i x_K,i - w)
    FedMoSWA   D = g + c - c_i,   c_i+ = c_i - c - D_i / sum of rates,   c+ = c + gamma sum_S p_i (c_i+ - c)

The rate starts afresh every round. Departures of published code: twice the rate, falling to 0, with alpha = 1; FedMoSWA
at a constant rate.
"""

from fedflat.core import Algorithm, Part, once, vector

from .registry import Fraction, NonNegative, Positive, register


class WeightAveraging(Part):
    """eta -> rho eta in a round, then alpha times as far as the mean: fall into a valley, then step across it."""

    rho: float = 0.1
    alpha: float = 1.5

    def rate(self, lr, k, K):
        return lr * (1 - k / K) + self.rho * lr * (k / K)

    def aggregate(self, w, srv, replies):
        return w + self.alpha * replies.mean(lambda r: r.moved)


class MomentumControls(Part):
    """c - c_i, where c follows the active clients' controls at the pace gamma."""

    assumes_sgd = True

    gamma: float = 0.2

    server_keeps = server_sends = client_keeps = {"c": vector}
    client_sends = {"ci": vector}

    @once
    def pull(self, step, me, got):
        return got.c - me.c

    def finish(self, run, me, got):
        me.c = me.c - got.c - run.moved / run.lr_sum
        return {"ci": me.c}

    def update(self, w, srv, replies):
        srv.c = srv.c + self.gamma * (replies.mean(lambda r: r.ci) - srv.c)
        return w


@register
def fedswa(rho: Fraction = 0.1, alpha: Positive = 1.5) -> Algorithm:
    """Stochastic weight averaging: a falling rate on the clients, a long step on the server."""
    return Algorithm(WeightAveraging(rho, alpha))


@register
def fedmoswa(rho: Fraction = 0.1, alpha: Positive = 1.5, gamma: NonNegative = 0.2) -> Algorithm:
    """FedSWA with control variates that have momentum."""
    return Algorithm(WeightAveraging(rho, alpha), MomentumControls(gamma))
