"""FedNova: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous FL, NeurIPS 2020.

    w+ = w + (sum_S p_i a_i) sum_S p_i D_i / a_i,   D_i = x_K,i - w

a_i is the sum of the weights that gradients have in D_i: the number of steps without momentum, more with it. Departures
of published code: a_i = K_i in spite of momentum; a correction whose server part is never refreshed, so that a client
subtracts its own old mean gradient.
"""

from fedflat.core import Algorithm, Part

from .registry import register


class NormalizedAveraging(Part):
    """(sum p_i a_i) sum p_i D_i/a_i: a client that steps more often does not weigh more."""

    assumes_sgd = True

    def aggregate(self, w, srv, replies):
        return w + replies.mean(lambda r: r.reach) * replies.mean(lambda r: r.moved / r.reach)


@register
def fednova() -> Algorithm:
    """Average how far the clients move per unit of gradient."""
    return Algorithm(NormalizedAveraging())
