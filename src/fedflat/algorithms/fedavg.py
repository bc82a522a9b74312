"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

    x <- x - eta g(x),   w+ = sum_i p_i x_K,i

It is the round with no part in it.
"""

from fedflat.core import Algorithm

from .registry import register


@register
def fedavg() -> Algorithm:
    """Average the clients' models."""
    return Algorithm()
