"""FedScar: a personal start point, injected into every client's round, spreads the clients around the global model.

    every round          b_j <- gamma_c b_j for all j,   b_i += alpha v_i/||v_i||,  v_i = w - x_last,i  (active, seen)
    client, from w + b_i D = g + beta (h_i + b_i) + (mean_N b - b_i) + beta/2 (x - x_last,i)/||x - x_last,i||
    after                h_i += x_K - x_0,   w+ = sum_S p_i x_K,i + beta mean_N(h - b)

The server knows what it sent and what came back, so it mirrors b_i and x_last,i; a client receives its start point and
one personal vector. This is the official code with rho = 0; the poster's sign of h diverges.
"""

from fedflat.core import Algorithm, Part, model, table, unit, vector

from .fedsam import LocalAscent
from .registry import NonNegative, Positive, register


class Scars(Part):
    """b_i: where client i has been behind the others, its next round starts ahead."""

    alpha: float = 0.1
    gamma_c: float = 0.9
    beta: float = 0.06

    server_keeps = {"b": table, "last": table, "h": vector}
    server_sends = {"lean": vector}
    client_keeps = {"h": vector, "last": model}

    def prepare(self, w, srv, active):
        srv.b.decay(self.gamma_c)
        for i in active:
            if i in srv.last:
                srv.b.set(i, srv.b.get(i) + self.alpha * unit(w - srv.last.get(i)))

    def broadcast(self, w, srv, client, sent):
        b = srv.b.get(client)
        sent.lean = self.beta * b + (srv.b.mean() - b)
        return w + b

    def pull(self, step, me, got):
        return self.beta * me.h + got.lean + self.beta / 2 * unit(step.x - me.last)

    def finish(self, run, me, got):
        me.h, me.last = me.h + run.moved, run.x

    def aggregate(self, w, srv, replies):
        for r in replies:
            srv.last.set(r.client, w + srv.b.get(r.client) + r.moved)
        srv.h = srv.h + replies.over_all(lambda r: r.moved)
        return w + replies.mean(lambda r: srv.b.get(r.client) + r.moved) + self.beta * (srv.h - srv.b.mean())


@register
def fedscar(
    alpha: NonNegative = 0.1, gamma_c: Positive = 0.9, beta: NonNegative = 0.06, rho: NonNegative = 0.0
) -> Algorithm:
    """Personal start points and duals; `rho` > 0 adds SAM's ascent, as the published example does."""
    scars = Scars(alpha, gamma_c, beta)
    return Algorithm(scars, LocalAscent(rho)) if rho else Algorithm(scars)
