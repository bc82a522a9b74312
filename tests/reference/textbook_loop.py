"""The loops that all textbook algorithms share: local SGD, the rounds, and arithmetic on lists of tensors."""

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


@contextmanager
def head_inputs(net: nn.Module) -> Iterator[Tensors]:
    """Collects the inputs of the last nn.Linear module during a forward pass: the features."""
    head = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    inputs: Tensors = []
    hook = head.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    try:
        yield inputs
    finally:
        hook.remove()


class Client:
    """Client i in one local round: the model received, a copy to compute with, the minibatch in hand."""

    k: int  # the step, from 0
    lr: float  # the rate of the round
    minibatches: list[Tensor]  # the rows that this step draws

    def __init__(self, i: int, server: nn.Module, setting: Setting, man: float = 0.0) -> None:
        self.i, self.loss, self.man = i, setting.loss, man
        self.data_x, self.data_y = setting.clients[i]
        self.net = copy.deepcopy(server).train()
        self.other = copy.deepcopy(server).train()  # for other models on the same minibatch
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

    def g(self, point: Tensors, term: Callable[[Tensor], Tensor] | None = None, update_buffers: bool = True) -> Tensors:
        """Minibatch gradient of the client's own loss, with MAN's term when man > 0, plus term(logits)."""

        def own_loss() -> Tensor:
            if self.man == 0.0:
                logits = self.net(self.x)
                loss = self.loss(logits, self.y)
            else:
                with hidden_activations(self.net) as activations:
                    logits = self.net(self.x)
                loss = self.loss(logits, self.y) + self.man / 2 * sum(a.square().mean() for a in activations)
            return loss if term is None else loss + term(logits)

        return self.gradient(point, own_loss, update_buffers)

    def sam(self, x: Tensors, rho: float) -> Tensors:
        """g(x + rho * unit(g(x))), both on the same minibatch."""
        u = unit(self.g(x, update_buffers=False))
        return self.g(each(lambda x, u: x + rho * u, x, u))

    @torch.no_grad()
    def logits(self, point: Tensors) -> Tensor:
        """What the model with these parameters says of the minibatch."""
        write(self.other.parameters(), point)
        return self.other(self.x)

    @torch.no_grad()
    def features(self, point: Tensors) -> Tensor:
        """The input of its last nn.Linear module."""
        with head_inputs(self.other) as inputs:
            self.logits(point)
        return inputs[0]


class Algorithm:
    """What the loops ask of an algorithm. `w0` gives the shapes, `q` the population weights q_i."""

    momentum: float  # of the local SGD
    K: dict[int, int]  # steps of client i in its latest local round
    lr_sum: dict[int, float]  # and the sum of their rates, K_i * eta if the rate is constant
    batches = 1  # minibatches that a step draws; the last one is the update's

    def __init__(self, w0: Tensors, q: Weights) -> None:
        """Nothing to keep."""

    def open(self, w: Tensors, active: list[int]) -> None:
        """The server's work before the local rounds."""

    def start(self, i: int, w: Tensors) -> Tensors:
        """x_0"""
        return w

    def rate(self, lr: float, k: int, K: int) -> float:
        """eta_k, k from 0"""
        return lr

    def trainable(self, net: nn.Module) -> list[bool]:
        """Which parameter tensors may move."""
        return [True for _ in net.parameters()]

    def gradient(self, client: Client, x: Tensors) -> Tensors:
        """G, the gradient of the client's loss at x + e"""
        return client.g(x)

    def direction(self, client: Client, x: Tensors) -> Tensors:
        """D"""
        return self.gradient(client, x)

    def finish(self, i: int, x_0: Tensors, x_K: Tensors, lr_sum: float) -> None:
        """The client's work after its local round."""

    def server(self, w: Tensors, p: Weights, x_K: Vectors, D: Vectors) -> Tensors:
        """w+ from the end points x_K and the displacements D = x_K - x_0 of the active clients, of weights p."""
        return weighted_sum(p, x_K)


def masked(v: Tensors, mask: list[bool]) -> Tensors:
    """v with the tensors that may not move set to zero"""
    return [t if keep else torch.zeros_like(t) for t, keep in zip(v, mask, strict=True)]


def local_round(
    algorithm: Algorithm, client: Client, x_0: Tensors, batches: list[Tensor], lr: float, setting: Setting
) -> tuple[Tensors, list[float]]:
    """x_K and the rates eta_k: SGD from x_0 with the algorithm's direction D. Minibatches left over are not used."""
    n = algorithm.batches
    K = len(batches) // n
    mask = algorithm.trainable(client.net)
    x = x_0
    buf: Tensors | None = None
    rates: list[float] = []
    for k in range(K):
        client.k, client.lr, client.minibatches = k, lr, batches[k * n : (k + 1) * n]
        client.take(client.minibatches[-1])
        D = masked(algorithm.direction(client, x), mask)
        D = clipped(D, setting.clip)
        D = masked(each(lambda D, x: D + setting.weight_decay * x, D, x), mask)
        buf = D if buf is None else each(lambda buf, D: setting.momentum * buf + D, buf, D)
        eta_k = algorithm.rate(lr, k, K)
        x = each(lambda x, buf: x - eta_k * buf, x, buf)
        rates.append(eta_k)
    return x, rates


def train(
    algorithm: Callable[..., Algorithm], model: nn.Module, setting: Setting, man: float = 0.0, **hyper
) -> tuple[nn.Module, Algorithm]:
    """A trained copy of the model after all rounds, and the algorithm with what it kept."""
    server = copy.deepcopy(model)
    sizes = {i: len(y) for i, (_, y) in enumerate(setting.clients)}
    q = weights(sizes, setting.weighting)
    method = algorithm(read(server.parameters()), q, **hyper)
    method.momentum, method.K, method.lr_sum = setting.momentum, {}, {}

    for t, active in enumerate(setting.schedule):
        w, lr = read(server.parameters()), setting.lr(t)
        p = weights({i: sizes[i] for i in active}, setting.weighting)
        x_K: Vectors = {}
        D: Vectors = {}
        buffers: Vectors = {}

        method.open(w, active)
        for i in active:
            client = Client(i, server, setting, man)
            x_0 = method.start(i, w)
            x_K[i], rates = local_round(method, client, x_0, setting.batches(t + 1, i), lr, setting)
            D[i] = each(lambda x_K, x_0: x_K - x_0, x_K[i], x_0)
            method.K[i], method.lr_sum[i] = len(rates), sum(rates)
            method.finish(i, x_0, x_K[i], method.lr_sum[i])
            buffers[i] = read(statistics(client.net))

        write(server.parameters(), method.server(w, p, x_K, D))
        write(statistics(server), weighted_sum(p, buffers))
    return server, method
