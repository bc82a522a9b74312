"""SCAFFOLD: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.

    D = g + c - c_i,   c_i+ = c_i - c - D_i / sum of rates,   c+ = c + sum_S q_i (c_i+ - c_i)

This is option II, with each client's own number of steps. Departures of published code: the division by the rate is
forgotten, the correction is detached from the gradient, or a round makes one minibatch an epoch.
"""

from fedflat.core import Algorithm, Part, Weighting, once, vector

from .registry import register


class ControlVariates(Part):
    """c - c_i: replace the client's drift by the average drift."""

    assumes_sgd = True

    dual_weights: Weighting | None = None

    server_keeps = server_sends = client_keeps = {"c": vector}
    client_sends = {"dc": vector}

    @once
    def pull(self, step, me, got):
        return got.c - me.c

    def finish(self, run, me, got):
        old, me.c = me.c, me.c - got.c - run.moved / run.lr_sum
        return {"dc": me.c - old}

    def update(self, w, srv, replies):
        srv.c = srv.c + replies.over_all(lambda r: r.dc, self.dual_weights)
        return w


@register
def scaffold(dual_weights: Weighting | None = None) -> Algorithm:
    """Control variates cancel the clients' drift; `dual_weights="uniform"` is the mixed form of published code."""
    return Algorithm(ControlVariates(dual_weights))
