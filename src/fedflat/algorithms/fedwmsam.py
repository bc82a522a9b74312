"""FedWMSAM: Li et al., Fast and Flat FL via Weighted Momentum and Sharpness-Aware Minimization, NeurIPS 2025.

    m_i = m + a/(1-a) (c - c_i),   e = rho delta/||delta||,  delta = (w - eta k m_i) - x
    D   = a g(x + e) + (1-a) m_i,  which is a (g + c - c_i) + (1-a) m
    a+  = (1-lam) a + lam clip(mean_S [1 + cos(D_i, m)], .1, .9)   while m is not 0
    c_i+ = c_i - c - D_i / sum of rates,   c = mean_N c_i,   m+ = -mean_S(D_i / sum of rates)

e points from where client i is to where its momentum would have led the server's model; `away` turns it round, as the
published code has it. The server keeps m, a, c and c_i, and sends m_i and a. a+ is the code's: clients that move
against the momentum raise the weight of their gradients. Departures of published code: the predicted point moves with
the gradient and not against it, and the flat vector is indexed by the number of a tensor.
"""

from typing import Annotated

from pydantic import Field

from fedflat.core import Algorithm, Part, scalar, table, unit, vector

from .registry import Fraction, NonNegative, register


class PersonalMomentum(Part):
    """m_i = m + a/(1-a) (c - c_i): momentum that corrects drift, and says where the model would be by now."""

    assumes_sgd = True

    rho: float = 0.01
    alpha0: float = 0.1
    lam: float = 0.01
    away: bool = False
    control: bool = True

    server_keeps = {"m": vector, "c": table, "gain": scalar}  # a = alpha0 + gain
    server_sends = {"m": vector, "a": scalar}

    def broadcast(self, w, srv, client, sent):
        sent.a = a = self.alpha0 + srv.gain
        sent.m = srv.m + a / (1 - a) * (srv.c.mean() - srv.c.get(client))
        return w

    def perturb(self, step, me, got):
        predicted = step.w - step.lr * step.k * got.m
        return (-self.rho if self.away else self.rho) * unit(predicted - step.x)

    def blend(self, g, step, me, got):
        return got.a * g + (1 - got.a) * got.m

    def update(self, w, srv, replies):
        m, c = unit(srv.m), srv.c.mean()
        against = replies.mean(lambda r: 1 + unit(r.moved) @ m).clamp(0.1, 0.9)
        srv.gain = srv.gain + self.lam * (against - self.alpha0 - srv.gain) * m.any()
        for r in replies if self.control else ():
            srv.c.set(r.client, srv.c.get(r.client) - c - r.moved / r.lr_sum)
        srv.m = -replies.mean(lambda r: r.moved / r.lr_sum)
        return w


@register
def fedwmsam(
    rho: NonNegative = 0.01,
    alpha0: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    lam: Fraction = 0.01,
    away: bool = False,
    control: bool = True,
) -> Algorithm:
    """Personalised momentum blends into the gradient and gives the direction of the perturbation."""
    return Algorithm(PersonalMomentum(rho, alpha0, lam, away, control))
