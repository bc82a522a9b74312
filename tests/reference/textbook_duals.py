"""Textbook: prox, control variates and dual variables, alone and with a perturbation."""

from __future__ import annotations

from textbook_loop import Algorithm, Client, Tensors, Vectors, Weights, each, kl, unit, weighted_sum, weights, zeros


def population(q: Weights, dual_weights: str | None) -> Weights:
    """The weights of mean_N for controls and duals: q_i, or 1/N with dual_weights="uniform"."""
    if dual_weights not in (None, "uniform"):
        raise ValueError(f"dual_weights is 'uniform' or None, not {dual_weights!r}")
    return weights(dict.fromkeys(q, 1), "uniform") if dual_weights == "uniform" else q


class FedProx(Algorithm):
    """D = G + mu (x - w)"""

    def __init__(self, w0: Tensors, q: Weights, mu: float = 1.0) -> None:
        self.mu = mu

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return each(lambda G, x, w: G + self.mu * (x - w), self.gradient(client, x), x, client.w)


class Scaffold(Algorithm):
    """D = G + c - c_i; c_i+ = c_i - c - D_i / (K_i eta); c += sum_S q_i (c_i+ - c_i)"""

    def __init__(self, w0: Tensors, q: Weights, dual_weights: str | None = None) -> None:
        self.q = population(q, dual_weights)
        self.c = zeros(w0)
        self.c_i = {i: zeros(w0) for i in q}
        self.dc: Vectors = {}

    def open(self, w: Tensors, active: list[int]) -> None:
        self.dc = {}

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return each(lambda G, c, c_i: G + c - c_i, self.gradient(client, x), self.c, self.c_i[client.i])

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        old = self.c_i[i]
        new = each(lambda c_i, c, x_0, x_K: c_i - c - (x_K - x_0) / lr_sum, old, self.c, x_0, x_K)
        self.dc[i] = each(lambda new, old: new - old, new, old)
        self.c_i[i] = new

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.c = each(lambda c, dc: c + dc, self.c, weighted_sum(self.q, self.dc))
        return weighted_sum(p, x_K)


class FedDyn(Algorithm):
    """D = G + lam h_i + lam (x - w); h_i += D_i; w+ = mean_S x_K + mean_N h, h already updated.

    `dual_weights="uniform"` averages h with 1/N instead of q_i; `quadratic=False` leaves lam (x - w) out.
    """

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        lam: float = 0.1,
        dual_weights: str | None = None,
        quadratic: bool = True,
    ) -> None:
        self.q = population(q, dual_weights)
        self.lam, self.quadratic = lam, quadratic
        self.h = {i: zeros(w0) for i in q}

    def direction(self, client: Client, x: Tensors) -> Tensors:
        D = each(lambda G, h: G + self.lam * h, self.gradient(client, x), self.h[client.i])
        return each(lambda D, x, w: D + self.lam * (x - w), D, x, client.w) if self.quadratic else D

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        self.h[i] = each(lambda h, x_0, x_K: h + (x_K - x_0), self.h[i], x_0, x_K)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        return each(lambda x, h: x + h, weighted_sum(p, x_K), weighted_sum(self.q, self.h))


class FedDC(Algorithm):
    """D = G + c - c_i + lam h_i + lam (x - w): controls as SCAFFOLD, duals and server as FedDyn."""

    def __init__(self, w0: Tensors, q: Weights, lam: float = 0.1, dual_weights: str | None = None) -> None:
        self.q, self.lam = population(q, dual_weights), lam
        self.c = zeros(w0)
        self.c_i = {i: zeros(w0) for i in q}
        self.dc: Vectors = {}
        self.h = {i: zeros(w0) for i in q}

    def open(self, w: Tensors, active: list[int]) -> None:
        self.dc = {}

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return each(
            lambda G, c, c_i, h, x, w: G + c - c_i + self.lam * h + self.lam * (x - w),
            self.gradient(client, x),
            self.c,
            self.c_i[client.i],
            self.h[client.i],
            x,
            client.w,
        )

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        self.dc[i] = each(lambda c, x_0, x_K: -c - (x_K - x_0) / lr_sum, self.c, x_0, x_K)  # c_i+ - c_i
        self.c_i[i] = each(lambda c_i, dc: c_i + dc, self.c_i[i], self.dc[i])
        self.h[i] = each(lambda h, x_0, x_K: h + (x_K - x_0), self.h[i], x_0, x_K)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.c = each(lambda c, dc: c + dc, self.c, weighted_sum(self.q, self.dc))
        return each(lambda x, h: x + h, weighted_sum(p, x_K), weighted_sum(self.q, self.h))


class FedGamma(Scaffold):
    """SCAFFOLD with G = g(x + rho unit(g(x)))"""

    def __init__(self, w0: Tensors, q: Weights, rho: float = 0.1, dual_weights: str | None = None) -> None:
        super().__init__(w0, q, dual_weights)
        self.rho = rho

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        return client.sam(x, self.rho)


class FedSpeed(FedDyn):
    """FedDyn with G = g(x + rho unit(g(x)))"""

    def __init__(
        self, w0: Tensors, q: Weights, rho: float = 0.1, lam: float = 0.1, dual_weights: str | None = None
    ) -> None:
        super().__init__(w0, q, lam, dual_weights)
        self.rho = rho

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        return client.sam(x, self.rho)


class FedSMOO(FedDyn):
    """FedDyn with e = rho unit(g(x) - mu_i + sign * s), then mu_i += e - s, in every step; s+ = rho unit(mean_S mu_i).

    sign = -1 is the published code's g - mu_i - s, sign = +1 the optimality condition's s + (g - mu_i).
    """

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        rho: float = 0.1,
        lam: float = 0.1,
        sign: int = -1,
        dual_weights: str | None = None,
    ) -> None:
        super().__init__(w0, q, lam, dual_weights)
        self.rho, self.sign = rho, sign
        self.mu = {i: zeros(w0) for i in q}
        self.s = zeros(w0)

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        g, mu = client.g(x, update_buffers=False), self.mu[client.i]
        e = each(lambda u: self.rho * u, unit(each(lambda g, mu, s: g - mu + self.sign * s, g, mu, self.s)))
        self.mu[client.i] = each(lambda mu, e, s: mu + e - s, mu, e, self.s)
        return client.g(each(lambda x, e: x + e, x, e))

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        mu = weighted_sum(p, {i: self.mu[i] for i in D})
        self.s = each(lambda u: self.rho * u, unit(mu))
        return super().server(w, p, x_K, D)


class FedGMT(FedDyn):
    """Loss + gamma tau^2 KL(softmax(z_E/tau) || softmax(z_x/tau)); D = G + lam h_i; E = alpha E + (1-alpha) w+.

    E starts at w^0; server as FedDyn.
    """

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        alpha: float = 0.95,
        gamma: float = 1.0,
        tau: float = 3.0,
        lam: float = 0.1,
        dual_weights: str | None = None,
    ) -> None:
        super().__init__(w0, q, lam, dual_weights, quadratic=False)
        self.alpha, self.gamma, self.tau = alpha, gamma, tau
        self.E = w0

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        z_E = client.logits(self.E)
        return client.g(x, term=lambda z_x: self.gamma * self.tau**2 * kl(z_E / self.tau, z_x / self.tau))

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        new = super().server(w, p, x_K, D)
        self.E = each(lambda E, new: self.alpha * E + (1 - self.alpha) * new, self.E, new)
        return new


class FedGloSS(Algorithm):
    """FedDyn with lam = 1/beta from w~ = w + rho unit(-Dbar of the last round), which is undone afterwards.

    D = G + h_i/beta + (x - w~)/beta; h_i += x_K - w~; w+ = w + Dbar + mean_N h, Dbar measured from w~; G is SAM's with
    radius rho_l. With ramp = T_s > 0 the radii of round t (from 0) are .001 + (rho - .001) min(1, t/T_s); a radius of 0
    stays 0.
    """

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        rho: float = 0.15,
        rho_l: float = 0.15,
        beta: float = 10.0,
        ramp: int = 0,
        dual_weights: str | None = None,
    ) -> None:
        self.q = population(q, dual_weights)
        self.rho, self.rho_l, self.beta, self.ramp = rho, rho_l, beta, ramp
        self.t = -1
        self.Dbar = zeros(w0)
        self.h = {i: zeros(w0) for i in q}

    def radius(self, rho: float) -> float:
        if self.ramp == 0 or rho == 0:
            return rho
        return 0.001 + (rho - 0.001) * min(1, self.t / self.ramp)

    def open(self, w: Tensors, active: list[int]) -> None:
        self.t += 1
        self.w_tilde = each(lambda w, u: w - self.radius(self.rho) * u, w, unit(self.Dbar))

    def start(self, i: int, w: Tensors) -> Tensors:
        return self.w_tilde

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        return client.sam(x, self.radius(self.rho_l)) if self.rho_l > 0 else client.g(x)

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return each(
            lambda G, h, x, w_tilde: G + h / self.beta + (x - w_tilde) / self.beta,
            self.gradient(client, x),
            self.h[client.i],
            x,
            self.w_tilde,
        )

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        self.h[i] = each(lambda h, x_K, w_tilde: h + x_K - w_tilde, self.h[i], x_K, self.w_tilde)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.Dbar = weighted_sum(p, D)
        return each(lambda w, Dbar, h: w + Dbar + h, w, self.Dbar, weighted_sum(self.q, self.h))


ALGORITHMS = {
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "feddc": FedDC,
    "fedgamma": FedGamma,
    "fedspeed": FedSpeed,
    "fedsmoo": FedSMOO,
    "fedgmt": FedGMT,
    "fedgloss": FedGloSS,
}
