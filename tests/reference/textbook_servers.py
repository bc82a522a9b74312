"""Textbook: averaging, server optimisers, server momentum, averaging with a schedule, no averaging."""

from __future__ import annotations

from textbook_loop import Algorithm, Client, Tensors, Vectors, Weights, each, weighted_sum, zeros


class FedAvg(Algorithm):
    """D = g(x); w+ = mean_S x_K"""


class FedNova(Algorithm):
    """w+ = w + tau_eff * sum p_i D_i / a_i, tau_eff = sum p_i a_i.

    a_i is the sum of the weights that D_i gives to the client's gradients, in units of the rate: the gradient of step j
    (from 1) enters the buffers of the steps j, ..., K_i, with weights 1, mu, mu^2, ... Weight decay leaves a_i alone.
    """

    def a(self, i: int) -> float:
        mu, K = self.momentum, self.K[i]
        return sum(mu ** (k - j) for j in range(1, K + 1) for k in range(j, K + 1))

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        tau_eff = sum(p[i] * self.a(i) for i in D)
        mean = weighted_sum({i: p[i] / self.a(i) for i in D}, D)
        return each(lambda w, d: w + tau_eff * d, w, mean)


class FedAvgM(Algorithm):
    """m = beta m + Dbar; w+ = w + eta_g m"""

    def __init__(self, w0: Tensors, q: Weights, beta: float = 0.9, eta_g: float = 1.0) -> None:
        self.beta, self.eta_g = beta, eta_g
        self.m = zeros(w0)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.m = each(lambda m, Dbar: self.beta * m + Dbar, self.m, weighted_sum(p, D))
        return each(lambda w, m: w + self.eta_g * m, w, self.m)


class FedAdam(Algorithm):
    """m = b1 m + (1-b1) Dbar; v = b2 v + (1-b2) Dbar^2; w+ = w + eta_g m / (sqrt v + eps); no bias correction."""

    def __init__(
        self, w0: Tensors, q: Weights, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3, eta_g: float = 0.1
    ) -> None:
        self.b1, self.b2, self.eps, self.eta_g = b1, b2, eps, eta_g
        self.m, self.v = zeros(w0), zeros(w0)

    def second_moment(self, Dbar: Tensors) -> Tensors:
        return each(lambda v, Dbar: self.b2 * v + (1 - self.b2) * Dbar**2, self.v, Dbar)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        Dbar = weighted_sum(p, D)
        self.m = each(lambda m, Dbar: self.b1 * m + (1 - self.b1) * Dbar, self.m, Dbar)
        self.v = self.second_moment(Dbar)
        return each(lambda w, m, v: w + self.eta_g * m / (v.sqrt() + self.eps), w, self.m, self.v)


class FedYogi(FedAdam):
    """FedAdam with v = v - (1-b2) Dbar^2 sign(v - Dbar^2)"""

    def second_moment(self, Dbar: Tensors) -> Tensors:
        return each(lambda v, Dbar: v - (1 - self.b2) * Dbar**2 * (v - Dbar**2).sign(), self.v, Dbar)


class FedAdagrad(FedAdam):
    """FedAdam with v = v + Dbar^2 and b1 = 0"""

    def __init__(self, w0: Tensors, q: Weights, b1: float = 0.0, eps: float = 1e-3, eta_g: float = 0.1) -> None:
        super().__init__(w0, q, b1=b1, eps=eps, eta_g=eta_g)

    def second_moment(self, Dbar: Tensors) -> Tensors:
        return each(lambda v, Dbar: v + Dbar**2, self.v, Dbar)


class FedCM(Algorithm):
    """D = alpha G + (1-alpha) m, m = -sum p_i D_i / (K_i eta_i) of the last round, 0 in round 1.

    With a rate that changes within a round, K_i eta_i is the sum of the client's rates.
    """

    def __init__(self, w0: Tensors, q: Weights, alpha: float = 0.1) -> None:
        self.alpha = alpha
        self.m = zeros(w0)

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return each(lambda G, m: self.alpha * G + (1 - self.alpha) * m, self.gradient(client, x), self.m)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.m = weighted_sum({i: -p[i] / self.lr_sum[i] for i in D}, D)
        return weighted_sum(p, x_K)


class FedACG(Algorithm):
    """x_0 = w + gamma m; D = G + beta (x - x_0); m = gamma m + Dbar; w+ = w + m. D_i is measured from x_0."""

    def __init__(self, w0: Tensors, q: Weights, gamma: float = 0.85, beta: float = 0.01) -> None:
        self.gamma, self.beta = gamma, beta
        self.m = zeros(w0)

    def start(self, i: int, w: Tensors) -> Tensors:
        self.x_0 = each(lambda w, m: w + self.gamma * m, w, self.m)
        return self.x_0

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return each(lambda G, x, x_0: G + self.beta * (x - x_0), self.gradient(client, x), x, self.x_0)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.m = each(lambda m, Dbar: self.gamma * m + Dbar, self.m, weighted_sum(p, D))
        return each(lambda w, m: w + m, w, self.m)


class FedSWA(Algorithm):
    """eta_k = eta (1 - k/K) + (k/K) rho eta, k from 0, afresh each round; w+ = w + alpha (mean_S x_K - w)"""

    def __init__(self, w0: Tensors, q: Weights, rho: float = 0.1, alpha: float = 1.5) -> None:
        self.rho, self.alpha = rho, alpha

    def rate(self, lr: float, k: int, K: int) -> float:
        return lr * (1 - k / K) + (k / K) * self.rho * lr

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        return each(lambda w, x: w + self.alpha * (x - w), w, weighted_sum(p, x_K))


class FedMoSWA(FedSWA):
    """FedSWA with controls: D = G + c - c_i; c_i+ = c_i - c + (w - x_K) / sum_k eta_k; c += gamma mean_S (c_i+ - c).

    mean_S has the weights p_i, and the c that is subtracted in it is the one before the update.
    """

    def __init__(self, w0: Tensors, q: Weights, rho: float = 0.1, alpha: float = 1.5, gamma: float = 0.2) -> None:
        super().__init__(w0, q, rho, alpha)
        self.gamma = gamma
        self.c = zeros(w0)
        self.c_i = {i: zeros(w0) for i in q}

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return each(lambda G, c, c_i: G + c - c_i, self.gradient(client, x), self.c, self.c_i[client.i])

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        self.c_i[i] = each(lambda c_i, c, w, x_K: c_i - c + (w - x_K) / lr_sum, self.c_i[i], self.c, x_0, x_K)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        new = weighted_sum(p, {i: self.c_i[i] for i in D})
        self.c = each(lambda c, new: c + self.gamma * (new - c), self.c, new)
        return super().server(w, p, x_K, D)


class Local(Algorithm):
    """Every client trains a model of its own, from w^0; nothing is averaged and the server's model stays w^0.

    Only parameters are a client's own here; running statistics are averaged as everywhere else in these loops.
    """

    def __init__(self, w0: Tensors, q: Weights) -> None:
        self.x = dict.fromkeys(q, w0)

    def start(self, i: int, w: Tensors) -> Tensors:
        return self.x[i]

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        self.x[i] = x_K

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        return w


ALGORITHMS = {
    "fedavg": FedAvg,
    "fednova": FedNova,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedcm": FedCM,
    "fedacg": FedACG,
    "fedswa": FedSWA,
    "fedmoswa": FedMoSWA,
    "local": Local,
}
