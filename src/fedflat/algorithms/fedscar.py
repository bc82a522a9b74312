"""FedScar: a personal start point, injected into every client's round, spreads the clients around the global model.

    every round          b_j <- gamma_c b_j for all j,   b_i += alpha v_i/||v_i||,  v_i = w - x_last,i  (active, seen)
    client, from w + b_i D = g + beta (h_i + b_i) + (mean_N b - b_i) + beta/2 (x - x_last,i)/||x - x_last,i||
    after                h_i += x_K - x_0,   w+ = sum_S p_i x_K,i + beta mean_N(h - b)

The server knows what it sent and what came back, so it mirrors b_i and x_last,i; a client receives its start point and
one personal vector. This is the official code with rho = 0; the poster's sign of h diverges.

`length` of an injection: "constant"; "sigma", alpha times mean_N ||D_j - Dbar|| over everyone's last round; or that of
the "displacement", alpha v_i. `prox="received"`: the poster's beta (x - w). `server_scale` stands before mean_N(h - b).
`ablation="scar2"`: no b. "scarl": neither h nor prox, D = g + tau (mean_N b - b_i), w+ = sum_S p_i x_K,i - mean_N b.
"""

from typing import Literal

import torch

from fedflat.core import Algorithm, Part, model, scalar, table, unit, vector

from .fedsam import LocalAscent
from .registry import NonNegative, Positive, register

Length = Literal["constant", "sigma", "displacement"]
Prox = Literal["last", "received"]


class Scars(Part):
    """b_i: where client i has been behind the others, its next round starts ahead."""

    alpha: float = 0.1
    gamma_c: float = 0.9
    length: Length = "constant"
    own: float = 0.06  # of b_i in the client's direction
    tau: float = 1.0  # of mean_N b - b_i there
    scale: float = 0.06  # of mean_N b in the server's step

    server_keeps = {"b": table, "last": table, "moved": table, "sigma": scalar}
    server_sends = {"lean": vector}

    def prepare(self, w, srv, active):
        srv.b.decay(self.gamma_c)
        for i in (i for i in active if i in srv.last):
            v = w - srv.last.get(i)
            step = {"constant": unit(v), "sigma": srv.sigma * unit(v), "displacement": v}[self.length]
            srv.b.set(i, srv.b.get(i) + self.alpha * step)

    def broadcast(self, w, srv, client, sent):
        b = srv.b.get(client)
        sent.lean = self.own * b + self.tau * (srv.b.mean() - b)
        return w + b

    def pull(self, step, me, got):
        return got.lean

    def aggregate(self, w, srv, replies):
        change = replies.mean(lambda r: srv.b.get(r.client) + r.moved)
        for r in replies:
            srv.last.set(r.client, w + srv.b.get(r.client) + r.moved)
            if self.length == "sigma":
                srv.moved.set(r.client, r.moved)
        srv.sigma = srv.moved.over_all(lambda moved: torch.linalg.vector_norm(moved - change))
        return w + change - self.scale * srv.b.mean()


class TetheredDual(Part):
    """beta h_i + prox: h_i remembers how far client i has moved, the prox holds it to its own last model."""

    beta: float = 0.06
    prox: Prox = "last"
    scale: float = 0.06

    client_keeps = {"h": vector, "last": model}
    server_keeps = {"h": vector}

    def pull(self, step, me, got):
        away = step.x - step.w if self.prox == "received" else unit(step.x - me.last) / 2
        return self.beta * (me.h + away)

    def finish(self, run, me, got):
        me.h, me.last = me.h + run.moved, run.x

    def update(self, w, srv, replies):
        srv.h = srv.h + replies.over_all(lambda r: r.moved)
        return w + self.scale * srv.h


@register
def fedscar(
    alpha: NonNegative = 0.1,
    gamma_c: Positive = 0.9,
    beta: NonNegative = 0.06,
    rho: NonNegative = 0.0,
    length: Length = "constant",
    prox: Prox = "last",
    server_scale: NonNegative | Literal["beta"] = "beta",
    ablation: Literal["scar2", "scarl"] | None = None,
    tau: NonNegative = 0.1,
) -> Algorithm:
    """Personal start points and duals; `rho` > 0 adds SAM's ascent, as the published example does."""
    scale = beta if server_scale == "beta" else server_scale
    own = 2 * beta if prox == "received" else beta  # x - w is x less the start point that was sent, plus b_i
    ascent = (LocalAscent(rho),) if rho else ()
    dual = TetheredDual(beta, prox, scale)
    if ablation == "scar2":
        return Algorithm(dual, *ascent)
    if ablation == "scarl":
        return Algorithm(Scars(alpha, gamma_c, length, own=0.0, tau=tau, scale=1.0), *ascent)
    return Algorithm(Scars(alpha, gamma_c, length, own, scale=scale), dual, *ascent)
