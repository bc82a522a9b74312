"""Textbook: FedSoL with every proximal loss and the ablations of its Table 6."""

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
    in_head,
    kl,
    masked,
    torch,
    unit,
    weighted_sum,
    zeros,
)
from textbook_servers import FedAvg, FedNova
from textbook_terms import MOON

ABLATIONS = ("A0", "A1", "A2", "A3", "A4", "A5", "A6")


class FedSoL(Algorithm):
    """D = grad CE(x + e), e = rho Lambda o unit(g_p), g_p = grad L_p(x), and e = 0 while x equals w exactly.

    `proximal` names L_p; what client and server keep, and the server's rule, are those of the method in brackets
    (Table 7's "Combined"), the correction itself never enters D:

        kl        KL(softmax(z_w/tau) || softmax(z_x/tau))                  [FedAvg]
        prox      g_p = x - w                                               [FedAvg]
        scaffold  g_p = c - c_i          c_i+ = c_i - c - D_i/(K_i eta)     [SCAFFOLD]
        dyn       g_p = h_i + x - w      h_i += D_i                         [FedDyn: w+ = mean_S x_K + mean_N h]
        moon      the contrastive loss of temperature moon_tau              [MOON]
        nova      g_p = dbar - d_i       d_i = -D_i/(eta a_i) of the client's last round, 0 before it,
                                         dbar = sum_N q_i d_i               [FedNova], eta = (sum of rates)/K_i

    `ablation` (Table 6), with e_p = e as above, e_c = rho Lambda o unit(g_l + g_p), g_l = grad CE(x); D is the gradient

        A0  CE(x)                           A4  CE(x + e_c) + beta L_p(x + e_c)
        A1  CE(x + e_p), FedSoL             A5  CE(x) + L_p(x)
        A2  CE(x) + beta L_p(x + e_p)       A6  CE(x + e_p) + beta L_p(x)
        A3  CE(x + e_p) + beta L_p(x + e_p)

    The mask of `layers` is applied before unit() and Lambda after it, in e_p and e_c alike, and never to L_p's gradient
    in D. MAN's term belongs to CE, in g_l and in D.
    """

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        rho: float = 2.0,
        tau: float = 3.0,
        adaptive: bool | str = True,
        layers: str = "all",
        proximal: str = "kl",
        ablation: str = "A1",
        beta: float = 1.0,
        moon_tau: float = 0.5,
    ) -> None:
        if adaptive not in (True, False, "columns"):
            raise ValueError(f"adaptive is True, 'columns' or False, not {adaptive!r}")
        if layers not in ("all", "head", "body"):
            raise ValueError(f"layers is 'all', 'head' or 'body', not {layers!r}")
        if ablation not in ABLATIONS:
            raise ValueError(f"ablation is one of {', '.join(ABLATIONS)}, not {ablation!r}")
        self.q, self.rho, self.tau, self.adaptive, self.layers = q, rho, tau, adaptive, layers
        self.proximal, self.ablation, self.beta = proximal, ablation, beta
        self.method = {
            "kl": FedAvg,
            "prox": FedAvg,
            "scaffold": Scaffold,
            "dyn": FedDyn,
            "moon": MOON,
            "nova": FedNova,
        }[proximal](w0, q)
        if proximal == "moon":
            self.method.tau = moon_tau
        self.d = {i: zeros(w0) for i in q}
        self.dbar = zeros(w0)

    def force(self, client: Client, x: Tensors) -> Tensors:
        """The gradient of L_p at x."""
        i = client.i
        if self.proximal == "kl":
            z_w = client.logits(client.w)
            return client.gradient(x, lambda: kl(z_w / self.tau, client.net(client.x) / self.tau), update_buffers=False)
        if self.proximal == "prox":
            return each(lambda x, w: x - w, x, client.w)
        if self.proximal == "scaffold":
            return each(lambda c, c_i: c - c_i, self.method.c, self.method.c_i[i])
        if self.proximal == "dyn":
            return each(lambda h, x, w: h + x - w, self.method.h[i], x, client.w)
        if self.proximal == "moon":
            return self.method.force(client, x)
        return each(lambda dbar, d: dbar - d, self.dbar, self.d[i])

    def direction(self, client: Client, x: Tensors) -> Tensors:
        def CE(point: Tensors) -> Tensors:
            return client.g(point)

        def L_p(point: Tensors) -> Tensors:
            return self.force(client, point)

        def up(e: Tensors) -> Tensors:
            return each(lambda x, e: x + e, x, e)

        def plus(g: Tensors, beta: float, g_p: Tensors) -> Tensors:
            return each(lambda g, g_p: g + beta * g_p, g, g_p)

        beta = self.beta
        if self.ablation == "A0":
            return CE(x)
        if self.ablation == "A5":
            return plus(CE(x), 1.0, L_p(x))
        if self.ablation == "A4":
            e_c = self.perturbation(client, x, combined=True)
            return plus(CE(up(e_c)), beta, L_p(up(e_c)))
        e_p = self.perturbation(client, x)
        if self.ablation == "A1":
            return CE(up(e_p))
        if self.ablation == "A2":
            return plus(CE(x), beta, L_p(up(e_p)))
        if self.ablation == "A3":
            return plus(CE(up(e_p)), beta, L_p(up(e_p)))
        return plus(CE(up(e_p)), beta, L_p(x))  # A6

    def perturbation(self, client: Client, x: Tensors, combined: bool = False) -> Tensors:
        """e_p, or e_c if combined"""
        if all(torch.equal(x, w) for x, w in zip(x, client.w, strict=True)):
            return zeros(x)
        g = self.force(client, x)
        if combined:
            g = each(lambda g_l, g_p: g_l + g_p, client.g(x, update_buffers=False), g)
        if self.layers != "all":
            g = masked(g, [head == (self.layers == "head") for head in in_head(client.net)])
        Lambda = each(self.radius, x, client.w)
        return each(lambda L, u: self.rho * L * u, Lambda, unit(g))

    def radius(self, x: Tensor, w: Tensor) -> Tensor:
        """Lambda_m of one tensor; 0 where it has not moved."""
        moved = (x - w).abs()
        if not self.adaptive:
            return torch.ones_like(moved)
        if self.adaptive == "columns" and moved.dim() > 1:
            columns = moved.flatten(start_dim=1).unbind(dim=1)
            return torch.stack([unit([column])[0] for column in columns], dim=1).view_as(moved)
        return unit([moved])[0]

    def open(self, w: Tensors, active: list[int]) -> None:
        self.method.open(w, active)

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        self.method.momentum, self.method.K, self.method.lr_sum = self.momentum, self.K, self.lr_sum
        self.method.finish(i, x_0, x_K, lr_sum)
        if self.proximal == "nova":
            eta_a = lr_sum / self.K[i] * self.method.a(i)
            self.d[i] = each(lambda x_0, x_K: -(x_K - x_0) / eta_a, x_0, x_K)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.dbar = weighted_sum(self.q, self.d)
        return self.method.server(w, p, x_K, D)


ALGORITHMS = {"fedsol": FedSoL}
