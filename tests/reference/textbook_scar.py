"""Textbook: FedScar, its options and its ablations."""

from __future__ import annotations

from textbook_loop import Algorithm, Client, Tensors, Vectors, Weights, each, norm, unit, weighted_sum, zeros


class FedScar(Algorithm):
    """Steps 1 to 7 of algorithms.md 4.11, with the options named there.

    length        b_i += alpha unit(v_i) ("constant"), alpha sigma unit(v_i) ("sigma") or alpha v_i ("displacement");
                  sigma = sum_N q_j ||D_j - (mean_S x_K - w)|| after the latest round, D_j = x_K - x_0 of client j's
                  own last round, 0 for clients that have not trained
    prox          beta/2 unit(x - x_last) ("last") or beta (x - w) ("received")
    server_scale  w+ = mean_S x_K + server_scale * mean_N (h - b), "beta" or 1
    ablation      "scar2": b = 0 throughout. "scarl": no h and no prox: D = g + tau (bbar - b_i), w+ = mean_S x_K - bbar
    """

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        alpha: float = 0.1,
        gamma_c: float = 0.9,
        beta: float = 0.06,
        rho: float = 0.0,
        length: str = "constant",
        prox: str = "last",
        server_scale: str | float = "beta",
        ablation: str | None = None,
        tau: float = 0.1,
    ) -> None:
        if length not in ("constant", "sigma", "displacement"):
            raise ValueError(f"length is 'constant', 'sigma' or 'displacement', not {length!r}")
        if prox not in ("last", "received"):
            raise ValueError(f"prox is 'last' or 'received', not {prox!r}")
        if ablation not in (None, "scar2", "scarl"):
            raise ValueError(f"ablation is 'scar2', 'scarl' or None, not {ablation!r}")
        self.q, self.alpha, self.gamma_c, self.beta, self.rho, self.tau = q, alpha, gamma_c, beta, rho, tau
        self.length, self.prox, self.ablation = length, prox, ablation
        self.server_scale = beta if server_scale == "beta" else float(server_scale)
        self.b = {i: zeros(w0) for i in q}
        self.h = {i: zeros(w0) for i in q}
        self.bbar = zeros(w0)
        self.x_last: Vectors = {}
        self.D_last: Vectors = {}
        self.sigma = 0.0

    def open(self, w: Tensors, active: list[int]) -> None:
        for j in self.b:  # 1: every client
            self.b[j] = each(lambda b: self.gamma_c * b, self.b[j])
        for i in active:  # 2: the active clients that have trained before
            if i in self.x_last and self.ablation != "scar2":
                v = each(lambda w, x_last: w - x_last, w, self.x_last[i])
                self.b[i] = each(lambda b, v: b + self.alpha * v, self.b[i], self.scaled(v))
        self.bbar = weighted_sum(self.q, self.b)  # 3

    def scaled(self, v: Tensors) -> Tensors:
        if self.length == "displacement":
            return v
        sigma = self.sigma if self.length == "sigma" else 1.0
        return each(lambda u: sigma * u, unit(v))

    def start(self, i: int, w: Tensors) -> Tensors:  # 4
        x_0 = each(lambda w, b: w + b, w, self.b[i])
        self.x_last.setdefault(i, x_0)
        return x_0

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        return client.sam(x, self.rho) if self.rho > 0 else client.g(x)

    def direction(self, client: Client, x: Tensors) -> Tensors:  # 5
        g, b, h = self.gradient(client, x), self.b[client.i], self.h[client.i]
        if self.ablation == "scarl":
            return each(lambda g, bbar, b: g + self.tau * (bbar - b), g, self.bbar, b)
        if self.prox == "last":
            u = unit(each(lambda x, x_last: x - x_last, x, self.x_last[client.i]))
            prox = each(lambda u: self.beta / 2 * u, u)
        else:
            prox = each(lambda x, w: self.beta * (x - w), x, client.w)
        return each(
            lambda g, h, b, bbar, prox: g + self.beta * (h + b) + (bbar - b) + prox,
            g,
            h,
            b,
            self.bbar,
            prox,
        )

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:  # 6
        self.h[i] = each(lambda h, x_0, x_K: h + x_K - x_0, self.h[i], x_0, x_K)
        self.x_last[i] = x_K

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:  # 7
        mean = weighted_sum(p, x_K)
        self.D_last.update(D)
        apart = {j: norm(each(lambda d, mean, w: d - (mean - w), self.D_last[j], mean, w)) for j in self.D_last}
        self.sigma = sum(self.q[j] * apart[j] for j in apart)
        if self.ablation == "scarl":
            return each(lambda x, bbar: x - bbar, mean, self.bbar)
        h_minus_b = {i: each(lambda h, b: h - b, self.h[i], self.b[i]) for i in self.h}
        return each(lambda x, d: x + self.server_scale * d, mean, weighted_sum(self.q, h_minus_b))


ALGORITHMS = {"fedscar": FedScar}
