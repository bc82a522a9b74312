"""Textbook loops: every algorithm once more, written with plain autograd, to check the library against.

Vectors are lists with one tensor per parameter. Each class below is one algorithm: `direction` is its local step before
clipping, weight decay and momentum, `server` its server rule. `run` is the outer loop, `local_round` the local SGD.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Tensors = list[Tensor]
Weights = dict[int, float]  # client -> weight
Vectors = dict[int, Tensors]  # client -> vector


@dataclass
class Setting:
    """Everything of an experiment but the model and the algorithm."""

    clients: list[tuple[Tensor, Tensor]]  # (x, y) per client
    schedule: list[list[int]]  # active clients of each round
    batches: Callable[[int, int], list[Tensor]]  # (round from 1, client) -> index tensors of its minibatches, in order
    lr: Callable[[int], float]  # rate of round t, t from 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    weighting: str = "samples"  # or "uniform"
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy  # mean over the minibatch


# ---- vectors as lists of tensors -------------------------------------------------------------------------------------


def each(formula: Callable[..., Tensor], *vectors: Tensors) -> Tensors:
    """Apply one formula to every parameter tensor."""
    return [formula(*tensors) for tensors in zip(*vectors, strict=True)]


def zeros(v: Tensors) -> Tensors:
    return each(torch.zeros_like, v)


def norm(v: Tensors) -> float:
    """Euclidean norm over all tensors jointly."""
    return math.sqrt(sum(float(t.square().sum()) for t in v))


def unit(v: Tensors) -> Tensors:
    """v / ||v||, and 0 for ||v|| < 1e-12."""
    length = norm(v)
    return zeros(v) if length < 1e-12 else each(lambda t: t / length, v)


def clipped(v: Tensors, clip: float | None) -> Tensors:
    """v * min(1, clip / ||v||)"""
    length = norm(v)
    return v if clip is None or length <= clip else each(lambda t: t * (clip / length), v)


def weighted_sum(weights: Weights, vectors: Vectors) -> Tensors:
    """Sum of weights[i] * vectors[i] over the clients i that `vectors` holds."""
    return each(lambda *tensors: sum(weights[i] * t for i, t in zip(vectors, tensors, strict=True)), *vectors.values())


def weights(sizes: dict[int, int], weighting: str) -> Weights:
    """p_i when `sizes` holds the active clients, q_i when it holds all of them."""
    if weighting == "samples":
        return {i: n / sum(sizes.values()) for i, n in sizes.items()}
    if weighting == "uniform":
        return {i: 1 / len(sizes) for i in sizes}
    raise ValueError(f"weighting is 'samples' or 'uniform', not {weighting!r}")


# ---- models ----------------------------------------------------------------------------------------------------------


def read(tensors: Iterable[Tensor]) -> Tensors:
    return [t.detach().clone() for t in tensors]


def write(targets: Iterable[Tensor], values: Tensors) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)


def statistics(net: nn.Module) -> Tensors:
    """The floating-point buffers: BatchNorm's running means and variances."""
    return [b for b in net.buffers() if b.is_floating_point()]


ACTIVATIONS = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.RReLU, nn.SELU, nn.Sigmoid, nn.SiLU, nn.Softplus, nn.Softshrink,
    nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold,
)  # fmt: skip


@contextmanager
def hidden_activations(net: nn.Module) -> Iterator[Tensors]:
    """Collects the outputs of the activation modules during a forward pass."""
    modules = [m for m in net.modules() if isinstance(m, ACTIVATIONS)]
    if not modules:
        raise ValueError("MAN needs a model with activation modules")
    outputs: Tensors = []
    hooks = [m.register_forward_hook(lambda module, args, output: outputs.append(output)) for m in modules]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def in_head(net: nn.Module) -> list[bool]:
    """For every parameter tensor, whether it belongs to the last nn.Linear module."""
    linear = [m for m in net.modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise ValueError("the model has no nn.Linear module to call its head")
    head = {id(p) for p in linear[-1].parameters()}
    return [id(p) in head for p in net.parameters()]


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(student)) of two batches of logits, mean over the batch."""
    log_p, log_q = teacher.log_softmax(dim=1), student.log_softmax(dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """The logits of the C-1 classes that are not the label."""
    others = torch.arange(logits.shape[1], device=y.device) != y[:, None]
    return logits[others].view(len(y), -1)


class Client:
    """Client i in one local round: the model received, a copy to compute with, the minibatch in hand."""

    def __init__(self, i: int, server: nn.Module, setting: Setting) -> None:
        self.i, self.loss = i, setting.loss
        self.data_x, self.data_y = setting.clients[i]
        self.received = copy.deepcopy(server).train()
        self.net = copy.deepcopy(server).train()
        self.w = read(server.parameters())
        self.x, self.y = self.data_x, self.data_y

    def take(self, rows: Tensor) -> None:
        self.x, self.y = self.data_x[rows], self.data_y[rows]

    def gradient(self, point: Tensors, loss: Callable[[], Tensor], update_buffers: bool = True) -> Tensors:
        """Gradient of loss() with the parameters of `net` at `point`."""
        buffers = read(self.net.buffers())
        write(self.net.parameters(), point)
        self.net.zero_grad()
        loss().backward()
        if not update_buffers:
            write(self.net.buffers(), buffers)
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.net.parameters()]

    def g(self, point: Tensors, man: float = 0.0, update_buffers: bool = True) -> Tensors:
        """Minibatch gradient of the client's own loss, with MAN's term when man > 0."""

        def own_loss() -> Tensor:
            if man == 0.0:
                return self.loss(self.net(self.x), self.y)
            with hidden_activations(self.net) as activations:
                loss = self.loss(self.net(self.x), self.y)
            return loss + man / 2 * sum(a.square().mean() for a in activations)

        return self.gradient(point, own_loss, update_buffers)

    @torch.no_grad()
    def received_logits(self) -> Tensor:
        return self.received(self.x)


# ---- algorithms ------------------------------------------------------------------------------------------------------


class Algorithm:
    """What the outer loop asks of an algorithm. `w0` gives the shapes, `q` the population weights q_i."""

    def open(self, w: Tensors, active: list[int]) -> None:
        """The server's work before the local rounds."""

    def start(self, i: int, w: Tensors) -> Tensors:
        """x_0"""
        return w

    def direction(self, client: Client, x: Tensors) -> Tensors:
        """D"""
        raise NotImplementedError

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        """The client's work after its local round; lr_sum = K_i * eta."""

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        """w+ from the end points x_K and the displacements D = x_K - x_0 of the active clients, of weights p."""
        raise NotImplementedError


class FedAvg(Algorithm):
    def __init__(self, w0: Tensors, q: Weights, man: float = 0.0) -> None:
        self.man = man

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return client.g(x, self.man)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        return weighted_sum(p, x_K)


class FedProx(Algorithm):
    def __init__(self, w0: Tensors, q: Weights, mu: float = 1.0) -> None:
        self.mu = mu

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return each(lambda g, x, w: g + self.mu * (x - w), client.g(x), x, client.w)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        return weighted_sum(p, x_K)


class Scaffold(Algorithm):
    def __init__(self, w0: Tensors, q: Weights, man: float = 0.0) -> None:
        self.q, self.man = q, man
        self.c = zeros(w0)
        self.c_i = {i: zeros(w0) for i in q}
        self.dc: Vectors = {}

    def open(self, w: Tensors, active: list[int]) -> None:
        self.dc = {}

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return each(lambda g, c, c_i: g + c - c_i, client.g(x, self.man), self.c, self.c_i[client.i])

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        old = self.c_i[i]
        new = each(lambda c_i, c, x_0, x_K: c_i - c - (x_K - x_0) / lr_sum, old, self.c, x_0, x_K)
        self.dc[i] = each(lambda new, old: new - old, new, old)
        self.c_i[i] = new

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.c = each(lambda c, dc: c + dc, self.c, weighted_sum(self.q, self.dc))
        return weighted_sum(p, x_K)


class FedDyn(Algorithm):
    def __init__(self, w0: Tensors, q: Weights, lam: float = 0.1, man: float = 0.0) -> None:
        self.q, self.lam, self.man = q, lam, man
        self.h = {i: zeros(w0) for i in q}

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return each(
            lambda g, h, x, w: g + self.lam * h + self.lam * (x - w),
            client.g(x, self.man),
            self.h[client.i],
            x,
            client.w,
        )

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        self.h[i] = each(lambda h, x_0, x_K: h + (x_K - x_0), self.h[i], x_0, x_K)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        return each(lambda x, h: x + h, weighted_sum(p, x_K), weighted_sum(self.q, self.h))


class FedSAM(Algorithm):
    """`ascent_updates_buffers=True` is the wrong variant whose ascent pass moves the running statistics too."""

    def __init__(
        self, w0: Tensors, q: Weights, rho: float = 0.1, man: float = 0.0, ascent_updates_buffers: bool = False
    ) -> None:
        self.rho, self.man, self.ascent_updates_buffers = rho, man, ascent_updates_buffers

    def direction(self, client: Client, x: Tensors) -> Tensors:
        g = client.g(x, self.man, update_buffers=self.ascent_updates_buffers)
        e = each(lambda u: self.rho * u, unit(g))
        return client.g(each(lambda x, e: x + e, x, e), self.man)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        return weighted_sum(p, x_K)


class FedNSAM(Algorithm):
    """Starts at the look-ahead point; the perturbation is constant during the round."""

    def __init__(self, w0: Tensors, q: Weights, rho: float = 0.05, gamma: float = 0.85) -> None:
        self.rho, self.gamma = rho, gamma
        self.m = zeros(w0)

    def start(self, i: int, w: Tensors) -> Tensors:
        return each(lambda w, m: w + self.gamma * m, w, self.m)

    def direction(self, client: Client, x: Tensors) -> Tensors:
        e = each(lambda u: -self.rho * u, unit(self.m))
        return client.g(each(lambda x, e: x + e, x, e))

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        self.m = each(lambda m, Dbar: self.gamma * m + Dbar, self.m, weighted_sum(p, D))
        return each(lambda w, m: w + m, w, self.m)


class FedNSAMLookahead(FedNSAM):
    """The second form: starts at w and looks ahead in every gradient; the same unless there is weight decay."""

    def start(self, i: int, w: Tensors) -> Tensors:
        return w

    def direction(self, client: Client, x: Tensors) -> Tensors:
        y = each(lambda x, m, u: x + self.gamma * m - self.rho * u, x, self.m, unit(self.m))
        return client.g(y)


class FedSoL(Algorithm):
    """Climbs the proximal loss L_p = KL(softmax(z_w/tau) || softmax(z_x/tau)), then descends cross-entropy there."""

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        rho: float = 2.0,
        tau: float = 3.0,
        adaptive: bool | str = True,
        layers: str = "all",
    ) -> None:
        if adaptive not in (True, False, "columns"):
            raise ValueError(f"adaptive is True, 'columns' or False, not {adaptive!r}")
        if layers not in ("all", "head", "body"):
            raise ValueError(f"layers is 'all', 'head' or 'body', not {layers!r}")
        self.rho, self.tau, self.adaptive, self.layers = rho, tau, adaptive, layers

    def direction(self, client: Client, x: Tensors) -> Tensors:
        return client.g(each(lambda x, e: x + e, x, self.perturbation(client, x)))

    def perturbation(self, client: Client, x: Tensors) -> Tensors:
        """e = rho * Lambda o unit(g_p), and 0 while x equals w exactly."""
        if all(torch.equal(x, w) for x, w in zip(x, client.w, strict=True)):
            return zeros(x)
        z_w = client.received_logits()
        g_p = client.gradient(x, lambda: kl(z_w / self.tau, client.net(client.x) / self.tau), update_buffers=False)
        if self.layers != "all":
            kept = [head == (self.layers == "head") for head in in_head(client.net)]
            g_p = [g if keep else torch.zeros_like(g) for g, keep in zip(g_p, kept, strict=True)]
        Lambda = each(self.radius, x, client.w)
        return each(lambda L, u: self.rho * L * u, Lambda, unit(g_p))

    def radius(self, x: Tensor, w: Tensor) -> Tensor:
        """Lambda_m of one tensor; 0 where it has not moved."""
        moved = (x - w).abs()
        if not self.adaptive:
            return torch.ones_like(moved)
        if self.adaptive == "columns" and moved.dim() > 1:
            columns = moved.flatten(start_dim=1).unbind(dim=1)
            return torch.stack([unit([column])[0] for column in columns], dim=1).view_as(moved)
        return unit([moved])[0]

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        return weighted_sum(p, x_K)


class FedScar(Algorithm):
    """Steps 1 to 7 of algorithms.md 4.11."""

    def __init__(
        self,
        w0: Tensors,
        q: Weights,
        alpha: float = 0.1,
        gamma_c: float = 0.9,
        beta: float = 0.06,
        rho: float = 0.0,
    ) -> None:
        self.q, self.alpha, self.gamma_c, self.beta, self.rho = q, alpha, gamma_c, beta, rho
        self.b = {i: zeros(w0) for i in q}
        self.h = {i: zeros(w0) for i in q}
        self.bbar = zeros(w0)
        self.x_last: Vectors = {}

    def open(self, w: Tensors, active: list[int]) -> None:
        for j in self.b:  # 1: every client
            self.b[j] = each(lambda b: self.gamma_c * b, self.b[j])
        for i in active:  # 2: the active clients that have trained before
            if i in self.x_last:
                v = each(lambda w, x_last: w - x_last, w, self.x_last[i])
                self.b[i] = each(lambda b, u: b + self.alpha * u, self.b[i], unit(v))
        self.bbar = weighted_sum(self.q, self.b)  # 3

    def start(self, i: int, w: Tensors) -> Tensors:  # 4
        x_0 = each(lambda w, b: w + b, w, self.b[i])
        self.x_last.setdefault(i, x_0)
        return x_0

    def direction(self, client: Client, x: Tensors) -> Tensors:  # 5
        if self.rho > 0:
            u = unit(client.g(x, update_buffers=False))
            g = client.g(each(lambda x, u: x + self.rho * u, x, u))
        else:
            g = client.g(x)
        prox = unit(each(lambda x, x_last: x - x_last, x, self.x_last[client.i]))
        return each(
            lambda g, h, b, bbar, prox: g + self.beta * (h + b) + (bbar - b) + self.beta / 2 * prox,
            g,
            self.h[client.i],
            self.b[client.i],
            self.bbar,
            prox,
        )

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:  # 6
        self.h[i] = each(lambda h, x_0, x_K: h + x_K - x_0, self.h[i], x_0, x_K)
        self.x_last[i] = x_K

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:  # 7
        h_minus_b = {i: each(lambda h, b: h - b, self.h[i], self.b[i]) for i in self.h}
        return each(lambda x, d: x + self.beta * d, weighted_sum(p, x_K), weighted_sum(self.q, h_minus_b))


class FedNTD(Algorithm):
    """CE + beta * tau^2 * KL(softmax(z_w/tau) || softmax(z_x/tau)) over the classes that are not the label."""

    def __init__(self, w0: Tensors, q: Weights, beta: float = 1.0, tau: float = 1.0) -> None:
        self.beta, self.tau = beta, tau

    def direction(self, client: Client, x: Tensors) -> Tensors:
        z_w = not_true(client.received_logits(), client.y)

        def loss() -> Tensor:
            logits = client.net(client.x)
            z_x = not_true(logits, client.y)
            return client.loss(logits, client.y) + self.beta * self.tau**2 * kl(z_w / self.tau, z_x / self.tau)

        return client.gradient(x, loss)

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        return weighted_sum(p, x_K)


ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "fedsam": FedSAM,
    "fednsam": FedNSAM,
    "fednsam_lookahead": FedNSAMLookahead,
    "fedsol": FedSoL,
    "fedscar": FedScar,
    "fedntd": FedNTD,
}


# ---- the loops -------------------------------------------------------------------------------------------------------


def local_round(
    algorithm: Algorithm, client: Client, x_0: Tensors, batches: list[Tensor], lr: float, setting: Setting
) -> Tensors:
    """x_K: SGD from x_0 with the algorithm's direction D."""
    x = x_0
    buf: Tensors | None = None
    for rows in batches:
        client.take(rows)
        D = algorithm.direction(client, x)
        D = clipped(D, setting.clip)
        D = each(lambda D, x: D + setting.weight_decay * x, D, x)
        buf = D if buf is None else each(lambda buf, D: setting.momentum * buf + D, buf, D)
        x = each(lambda x, buf: x - lr * buf, x, buf)
    return x


def run(name: str, model: nn.Module, setting: Setting, **hyper) -> nn.Module:
    """A trained copy of the model after all rounds."""
    server = copy.deepcopy(model)
    sizes = {i: len(y) for i, (_, y) in enumerate(setting.clients)}
    q = weights(sizes, setting.weighting)
    algorithm = ALGORITHMS[name](read(server.parameters()), q, **hyper)

    for t, active in enumerate(setting.schedule):
        w, lr = read(server.parameters()), setting.lr(t)
        p = weights({i: sizes[i] for i in active}, setting.weighting)
        x_K: Vectors = {}
        D: Vectors = {}
        buffers: Vectors = {}

        algorithm.open(w, active)
        for i in active:
            client = Client(i, server, setting)
            batches = setting.batches(t + 1, i)
            x_0 = algorithm.start(i, w)
            x_K[i] = local_round(algorithm, client, x_0, batches, lr, setting)
            D[i] = each(lambda x_K, x_0: x_K - x_0, x_K[i], x_0)
            algorithm.finish(i, x_0, x_K[i], len(batches) * lr)
            buffers[i] = read(statistics(client.net))

        write(server.parameters(), algorithm.server(w, p, x_K, D))
        write(statistics(server), weighted_sum(p, buffers))
    return server
