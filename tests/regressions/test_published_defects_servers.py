"""Defects of published code in server rules, momenta, teachers and meta-steps: none of them is in the library.

Each row writes a defective formula as a change of the textbook loop. The library gives the numbers of the right one to
1e-12, and the defective one is visibly somewhere else.
"""

import pytest
import textbook
import torch
from federations import SCHEDULE, SIZES, network, population, train
from test_reference import Case, batches
from textbook_duals import FedDC, FedGMT
from textbook_loop import Algorithm, Setting, each, masked, statistics, weighted_sum, zeros
from textbook_loop import train as textbook_train
from textbook_servers import FedACG, FedAdam, FedCM, FedMoSWA, FedNova, FedSWA
from textbook_sharpness import PerFedAvg
from textbook_terms import FedBABU

RATE = 0.2
NOMINAL = 2 * sum(SIZES) / len(SIZES) / 4  # steps of a client of mean size: epochs * n / batch size, not rounded
PLAIN = {"weight_decay": 0.0, "clip": None}


class CountsSteps(FedNova):
    """a_i = K_i in spite of momentum."""

    def a(self, i):
        return self.K[i]


class SubtractsItsOldGradient(FedNova):
    """g + dbar - d_i with a dbar that is never refreshed."""

    def __init__(self, w0, q):
        self.d = {i: zeros(w0) for i in q}

    def direction(self, client, x):
        return each(lambda g, d: g - d, client.g(x), self.d[client.i])

    def finish(self, i, x_0, x_K, lr_sum):
        self.d[i] = each(lambda x_K, x_0: -(x_K - x_0) / (lr_sum / self.K[i] * self.a(i)), x_K, x_0)


class NominalSteps(FedDC):
    """c_i divides by a nominal number of steps and by the rate of the first round."""

    def finish(self, i, x_0, x_K, lr_sum):
        super().finish(i, x_0, x_K, RATE * NOMINAL)


class DetachedDrift(FedDC):
    """The corrections are numbers when `backward` is called."""

    def direction(self, client, x):
        return self.gradient(client, x)


class BiasCorrected(FedAdam):
    """m and v are divided by 1 - b^t."""

    t = 0

    def server(self, w, p, x_K, D):
        super().server(w, p, x_K, D)
        self.t += 1
        m = each(lambda m: m / (1 - self.b1**self.t), self.m)
        v = each(lambda v: v / (1 - self.b2**self.t), self.v)
        return each(lambda w, m, v: w + self.eta_g * m / (v.sqrt() + self.eps), w, m, v)


class EpsInside(FedAdam):
    """sqrt(v + eps)."""

    def server(self, w, p, x_K, D):
        super().server(w, p, x_K, D)
        return each(lambda w, m, v: w + self.eta_g * m / (v + self.eps).sqrt(), w, self.m, self.v)


class NominalMomentum(FedCM):
    """m divides by a nominal number of steps."""

    def server(self, w, p, x_K, D):
        K, lr = self.K, self.lr_sum
        self.m = weighted_sum({i: -p[i] / (NOMINAL * lr[i] / K[i]) for i in D}, D)
        return weighted_sum(p, x_K)


class DyingMomentum(FedCM):
    """m <- (1 - alpha) m in place, at every step."""

    def direction(self, client, x):
        m = each(lambda m: (1 - self.alpha) ** (client.k + 1) * m, self.m)
        return each(lambda G, m: self.alpha * G + m, client.g(x), m)


class DetachedStart(FedACG):
    """The proximal term is a number when `backward` is called."""

    def direction(self, client, x):
        return self.gradient(client, x)


class WithQuadratic(FedGMT):
    """FedDyn's lam (x - w) is kept."""

    def __init__(self, w0, q, **hyper):
        super().__init__(w0, q, **hyper)
        self.quadratic = True


class ActiveDuals(FedGMT):
    """The dual is averaged over the active clients."""

    def server(self, w, p, x_K, D):
        new = each(lambda x, h: x + h, weighted_sum(p, x_K), weighted_sum(p, {i: self.h[i] for i in D}))
        self.E = each(lambda E, new: self.alpha * E + (1 - self.alpha) * new, self.E, new)
        return new


class TwiceTheRate(FedSWA):
    """2 eta (1 - k/K), and alpha = 1."""

    def __init__(self, w0, q):
        super().__init__(w0, q, rho=0.0, alpha=1.0)

    def rate(self, lr, k, K):
        return 2 * super().rate(lr, k, K)


class ConstantRate(FedMoSWA):
    """The rate does not fall, and the server's step is 0.4."""

    def __init__(self, w0, q):
        super().__init__(w0, q, alpha=0.4)

    def rate(self, lr, k, K):
        return lr


class OneBuffer(PerFedAvg):
    """Both half-steps enter one momentum buffer."""

    def direction(self, client, x):
        mu = self.momentum
        old = self.buffer if client.k else zeros(x)
        B1, B2 = client.minibatches
        client.take(B1)
        entered = each(lambda b, g: mu * b + g, old, client.g(x, update_buffers=False))
        client.take(B2)
        g = client.g(each(lambda x, b: x - self.alpha * b, x, entered))
        self.buffer = each(lambda b, g: mu * b + g, entered, g)
        return each(lambda new, old: new - mu * old, self.buffer, old)  # what makes the loop's buffer this one


class RateForAlpha(PerFedAvg):
    """The round's rate in the place of alpha."""

    def gradient(self, client, x):
        self.alpha = client.lr
        return super().gradient(client, x)


class DecayedHead(Algorithm):
    """The head has no gradient, but weight decay."""

    def direction(self, client, x):
        return masked(client.g(x), FedBABU.trainable(self, client.net))


DEFECTS = [
    ("fednova", {}, CountsSteps, {}),
    ("fednova", {}, SubtractsItsOldGradient, {}),
    ("feddc", {}, NominalSteps, {}),
    ("feddc", {"lam": 0.3}, DetachedDrift, {}),
    ("fedadam", {}, BiasCorrected, {}),
    ("fedadam", {"eps": 0.02}, EpsInside, {}),
    ("fedcm", {}, NominalMomentum, {}),
    ("fedcm", {}, DyingMomentum, {}),
    ("fedacg", {"beta": 0.3}, DetachedStart, {}),
    ("fedgmt", {"lam": 0.3}, WithQuadratic, {}),
    ("fedgmt", {}, ActiveDuals, {}),
    ("fedswa", {}, TwiceTheRate, {}),
    ("fedmoswa", {}, ConstantRate, {}),
    ("perfedavg", {"alpha": 0.3}, OneBuffer, PLAIN),
    ("perfedavg", {}, RateForAlpha, {}),
    ("fedbabu", {}, DecayedHead, {}),
]


def setting(weight_decay: float = 0.02, clip: float | None = 0.5) -> Setting:
    """That of `federations.train`."""
    options = {"momentum": 0.8, "weight_decay": weight_decay, "clip": clip}
    return Setting(population(), SCHEDULE, batches(Case("")), lambda t: RATE * 0.9**t, **options)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(("name", "hyper", "defect", "changes"), DEFECTS, ids=[d[2].__name__ for d in DEFECTS])
def test_the_library_has_the_right_formula_and_the_defect_is_visible(name, hyper, defect, changes):
    expression = f"{name}({', '.join(f'{k}={v}' for k, v in hyper.items())})"
    found = train(expression, **changes).vector
    right = flat(textbook.run(name, network(), setting(**changes), **hyper))
    wrong = flat(textbook_train(defect, network(), setting(**changes), **hyper)[0])
    torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
    assert (found - wrong).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedacg(beta=0.0)"])
def test_running_statistics_do_not_go_through_the_servers_momentum(name):
    """s <- s + beta (s - s_before) + (mean_S s_i - s) would be the momentum of the statistics."""
    means = [torch.zeros(3, dtype=torch.float64)]

    def note(round, row, state):
        means.append(state.server.buffers["1.running_mean"])

    train(name, model=network(norm=True), rounds=2, callbacks=[note])
    hyper = {"beta": 0.0} if "acg" in name else {}
    model = textbook.run(name.partition("(")[0], network(norm=True), two_rounds(), **hyper)
    torch.testing.assert_close(means[2], statistics(model)[0], rtol=0, atol=1e-12)
    wrong = means[2] + 0.9 * (means[1] - means[0])
    assert (means[2] - wrong).abs().max() > 1e-3


def two_rounds() -> Setting:
    first = setting()
    first.schedule = SCHEDULE[:2]
    return first
