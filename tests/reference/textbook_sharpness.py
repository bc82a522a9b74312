"""Textbook: perturbations of the point where a client takes its gradient. Those of FedSoL are in textbook_sol.py."""

from __future__ import annotations

from textbook_duals import FedDyn, Scaffold
from textbook_loop import (
    Algorithm,
    Client,
    Tensor,
    Tensors,
    Vectors,
    Weights,
    each,
    norm,
    torch,
    unit,
    weighted_sum,
    zeros,
)
from textbook_servers import FedCM


class FedSAM(Algorithm):
    """D = g(x + rho unit(g(x))).

    `ascent_updates_buffers=True` is the wrong variant whose ascent pass moves the running statistics too.
    """

    def __init__(self, w0: Tensors, q: Weights, rho: float = 0.1, ascent_updates_buffers: bool = False) -> None:
        self.rho, self.ascent_updates_buffers = rho, ascent_updates_buffers

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        u = unit(client.g(x, update_buffers=self.ascent_updates_buffers))
        return client.g(each(lambda x, u: x + self.rho * u, x, u))


class FedASAM(Algorithm):
    """e = rho T^2 g / ||T g||, the norm over all tensors.

    scale="weights": T = |x| + eta for tensors of two or more dimensions, 1 for the others; "all": |x| + eta for all.
    """

    def __init__(self, w0: Tensors, q: Weights, rho: float = 0.7, eta: float = 0.2, scale: str = "weights") -> None:
        if scale not in ("weights", "all"):
            raise ValueError(f"scale is 'weights' or 'all', not {scale!r}")
        self.rho, self.eta, self.scale = rho, eta, scale

    def T(self, x: Tensor) -> Tensor:
        return x.abs() + self.eta if self.scale == "all" or x.dim() >= 2 else torch.ones_like(x)

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        T = each(self.T, x)
        u = unit(each(lambda T, g: T * g, T, client.g(x, update_buffers=False)))
        return client.g(each(lambda x, T, u: x + self.rho * T * u, x, T, u))


class MoFedSAM(FedCM):
    """FedCM with G = g(x + rho unit(g(x)))"""

    def __init__(self, w0: Tensors, q: Weights, rho: float = 0.1, alpha: float = 0.1) -> None:
        super().__init__(w0, q, alpha)
        self.rho = rho

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        return client.sam(x, self.rho)


class GlobalAscent:
    """FedLESAM's G = g(x + rho unit(w_prev - w)): w_prev the model that the client received when it was last active.

    displacement="round": w_prev is the server's model of the round before, for all clients alike.
    """

    def ascend(self, rho: float, displacement: str) -> None:
        if displacement not in ("own", "round"):
            raise ValueError(f"displacement is 'own' or 'round', not {displacement!r}")
        self.rho, self.displacement = rho, displacement
        self.w_prev: Vectors = {}
        self.models: list[Tensors] = []

    def open(self, w: Tensors, active: list[int]) -> None:
        self.models.append(w)
        super().open(w, active)

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        last = self.w_prev.get(client.i, client.w)
        w_prev = last if self.displacement == "own" else self.models[-2:][0]
        e = each(lambda u: self.rho * u, unit(each(lambda w_prev, w: w_prev - w, w_prev, client.w)))
        return client.g(each(lambda x, e: x + e, x, e))

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        self.w_prev[i] = x_0
        super().finish(i, x_0, x_K, lr_sum)


class FedLESAM(GlobalAscent, Algorithm):
    """D = G"""

    def __init__(self, w0: Tensors, q: Weights, rho: float = 0.1, displacement: str = "own") -> None:
        self.ascend(rho, displacement)


class FedLESAMS(GlobalAscent, Scaffold):
    """SCAFFOLD with FedLESAM's G"""

    def __init__(
        self, w0: Tensors, q: Weights, rho: float = 0.1, displacement: str = "own", dual_weights: str | None = None
    ) -> None:
        super().__init__(w0, q, dual_weights)
        self.ascend(rho, displacement)


class FedLESAMD(GlobalAscent, FedDyn):
    """FedDyn with FedLESAM's G"""

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        rho: float = 0.1,
        lam: float = 0.1,
        displacement: str = "own",
        dual_weights: str | None = None,
    ) -> None:
        super().__init__(w0, q, lam, dual_weights)
        self.ascend(rho, displacement)


class FedNSAM(Algorithm):
    """x_0 = w + gamma m; e = -rho unit(m); m = gamma m + Dbar, D_i measured from x_0; w+ = w + m.

    ascent="local" climbs along the client's own gradient instead, e = rho unit(g(x)).
    """

    def __init__(self, w0: Tensors, q: Weights, rho: float = 0.05, gamma: float = 0.85, ascent: str = "global") -> None:
        if ascent not in ("global", "local"):
            raise ValueError(f"ascent is 'global' or 'local', not {ascent!r}")
        self.rho, self.gamma, self.ascent = rho, gamma, ascent
        self.m = zeros(w0)

    def start(self, i: int, w: Tensors) -> Tensors:
        return each(lambda w, m: w + self.gamma * m, w, self.m)

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        if self.ascent == "local":
            return client.sam(x, self.rho)
        e = each(lambda u: -self.rho * u, unit(self.m))
        return client.g(each(lambda x, e: x + e, x, e))

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.m = each(lambda m, Dbar: self.gamma * m + Dbar, self.m, weighted_sum(p, D))
        return each(lambda w, m: w + m, w, self.m)


class FedNSAMLookahead(FedNSAM):
    """The second form: starts at w and looks ahead in every gradient; the same unless there is weight decay."""

    def start(self, i: int, w: Tensors) -> Tensors:
        return w

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        y = each(lambda x, m, u: x + self.gamma * m - self.rho * u, x, self.m, unit(self.m))
        return client.g(y)


class FedWMSAM(Algorithm):
    """Momentum made personal by control variates, and a perturbation towards where it would lead the server's model.

    In gradient units, with m = c = c_i = 0 and a = alpha0 at first; eta is the round's rate, k counts steps from 0:

        m_i     = m + a/(1-a) (c - c_i)
        delta   = (w - eta k m_i) - x_k                    the predicted model minus the local one; 0 at k = 0
        e       = rho unit(delta), away=True: -rho unit(delta)
        D       = a g(x_k + e) + (1-a) m_i                 = a (g + c - c_i) + (1-a) m
        c_i+    = c_i - c - D_i / (K_i eta)                SCAFFOLD's option II, literally
        a+      = (1-lam) a + lam clip(mean_S [1 - cos(-D_i, m)], .1, .9), with the old m; a+ = a while m = 0
        c      += sum_S q_i (c_i+ - c_i)
        m       = -sum_S p_i D_i / (K_i eta)
        w+      = mean_S x_K

    The client sends x_K (and K_i eta); m, c, c_i and a live at the server, which sends w, m_i and a. The mean in a+ is
    taken with p_i and clipped afterwards. a+ is the published code's: clients that move against the momentum (-D_i far
    from m) raise the weight of the gradient. The formula in the text, mean cos(m, m_k), would lower it.
    `control=False` keeps c = c_i = 0.
    """

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        rho: float = 0.01,
        alpha0: float = 0.1,
        lam: float = 0.01,
        away: bool = False,
        control: bool = True,
    ) -> None:
        self.q, self.rho, self.a, self.lam, self.away, self.control = q, rho, alpha0, lam, away, control
        self.m, self.c = zeros(w0), zeros(w0)
        self.c_i = {i: zeros(w0) for i in q}

    def direction(self, client: Client, x: Tensors) -> Tensors:
        a, k, eta = self.a, client.k, client.lr
        m_i = each(lambda m, c, c_i: m + a / (1 - a) * (c - c_i), self.m, self.c, self.c_i[client.i])
        delta = each(lambda w, m_i, x: (w - eta * k * m_i) - x, client.w, m_i, x)
        rho = -self.rho if self.away else self.rho
        G = client.g(each(lambda x, u: x + rho * u, x, unit(delta)))
        return each(lambda G, m_i: a * G + (1 - a) * m_i, G, m_i)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        if norm(self.m) >= 1e-12:
            u = unit(self.m)
            cos = {i: sum(float((d * u).sum()) for d, u in zip(unit(D[i]), u, strict=True)) for i in D}  # D_i with m
            mean = sum(p[i] * (1 + cos[i]) for i in D)
            self.a = (1 - self.lam) * self.a + self.lam * min(max(mean, 0.1), 0.9)
        if self.control:
            dc = {i: each(lambda c, d: -c - d / self.lr_sum[i], self.c, D[i]) for i in D}  # c_i+ - c_i
            for i in D:
                self.c_i[i] = each(lambda c_i, dc: c_i + dc, self.c_i[i], dc[i])
            self.c = each(lambda c, dc: c + dc, self.c, weighted_sum(self.q, dc))
        self.m = weighted_sum({i: -p[i] / self.lr_sum[i] for i in D}, D)
        return weighted_sum(p, x_K)


class FedGF(Algorithm):
    """D = g(y), y = c w~ + (1-c) (x + rho unit(g(x))); w~ = w + rho_g unit(-Dbar of the last round).

    c is the fraction of the last `window` rounds (of all the rounds so far, if fewer) whose divergence
    mean_S ||x_K - w|| was above `threshold`, 0 in round 1; mean_S has the weights p_i. rho_g = rho unless given.
    """

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        rho: float = 0.1,
        rho_g: float | None = None,
        threshold: float = 0.2,
        window: int = 10,
    ) -> None:
        self.rho, self.rho_g, self.threshold, self.window = rho, rho if rho_g is None else rho_g, threshold, window
        self.Dbar = zeros(w0)
        self.exceeded: list[bool] = []

    def open(self, w: Tensors, active: list[int]) -> None:
        self.w_tilde = each(lambda w, u: w - self.rho_g * u, w, unit(self.Dbar))
        last = self.exceeded[-self.window :]
        self.c = sum(last) / len(last) if last else 0.0

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        u = unit(client.g(x, update_buffers=False))
        return client.g(
            each(lambda w_tilde, x, u: self.c * w_tilde + (1 - self.c) * (x + self.rho * u), self.w_tilde, x, u)
        )

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.exceeded.append(sum(p[i] * norm(D[i]) for i in D) > self.threshold)
        self.Dbar = weighted_sum(p, D)
        return weighted_sum(p, x_K)


class PerFedAvg(Algorithm):
    """D = g(x - alpha g(x; B1); B2), first order; a step takes two minibatches, (B1, B2), (B3, B4), ...

    An odd one at the end of the round is not used. K_i counts steps. The first pass leaves running statistics alone.
    """

    batches = 2

    def __init__(self, w0: Tensors, q: Weights, alpha: float = 0.01) -> None:
        self.alpha = alpha

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        B1, B2 = client.minibatches
        client.take(B1)
        g = client.g(x, update_buffers=False)
        client.take(B2)
        return client.g(each(lambda x, g: x - self.alpha * g, x, g))


ALGORITHMS = {
    "fedsam": FedSAM,
    "fedasam": FedASAM,
    "mofedsam": MoFedSAM,
    "fedlesam": FedLESAM,
    "fedlesam_s": FedLESAMS,
    "fedlesam_d": FedLESAMD,
    "fednsam": FedNSAM,
    "fednsam_lookahead": FedNSAMLookahead,
    "fedwmsam": FedWMSAM,
    "fedgf": FedGF,
    "perfedavg": PerFedAvg,
}
