"""Sanity tests of the textbook loops, the further methods: values worked out by hand, mostly on scalar quadratics."""

from __future__ import annotations

import math

import pytest
import torch
from by_hand import Line, Logits, final, half_square, one_client, quadratics, softmax
from textbook import ALGORITHMS, Setting, run, trained
from torch import Tensor, nn


def state(name: str, setting: Setting, **hyper):
    return trained(name, Line(), setting, **hyper)[1]


# ---- server rules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("momentum", "expected"), [(0.0, 4.8125), (0.5, 6.1625)])
def test_fednova(momentum: float, expected: float):
    # p = 1/4, 3/4, D = 2 and 6, a = 1 and 2: w = 1.75 * (.25 * 2 + .75 * 6/2).  With momentum .5 client 1 goes 0, 4, 8
    # and a = 1, 1.5 + 1: w = 2.125 * (.25 * 2 + .75 * 8/2.5).
    setting = quadratics([4.0, 8.0], [[0, 1]], sizes=[1, 3], steps=[1, 2], momentum=momentum)
    assert final("fednova", setting) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("mu", [0.3, 0.9])
def test_fednova_counts_gradients_as_the_closed_form_does(mu: float):
    nova = ALGORITHMS["fednova"]([], {})
    nova.momentum, nova.K = mu, {0: 7}
    assert nova.a(0) == pytest.approx((7 - mu * (1 - mu**7) / (1 - mu)) / (1 - mu), abs=1e-12)


def test_fedavgm():
    # m = 2, w = 1; Dbar = 1.5, m = 1 + 1.5, w = 1 + 1.25.
    assert final("fedavgm", quadratics([4.0], [[0], [0]]), beta=0.5, eta_g=0.5) == pytest.approx(2.25, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "hyper", "second", "expected"),
    [
        # Dbar = 2: m = 1, v = 1, w = .5.  Dbar = .5: m = .5 + .25; v = .75 + .0625; Yogi's v = 1 - .0625.
        ("fedadam", {"b1": 0.5, "b2": 0.75}, 1, 0.5 + 0.75 / (math.sqrt(0.8125) + 1)),
        ("fedyogi", {"b1": 0.5, "b2": 0.75}, 1, 0.5 + 0.75 / (math.sqrt(0.9375) + 1)),
        # Dbar = 1.75: m = .5 + .875, Yogi's v = 1 + .25 * 3.0625.
        ("fedyogi", {"b1": 0.5, "b2": 0.75}, 0, 0.5 + 1.375 / (math.sqrt(1.765625) + 1)),
        # m = 2, v = 4, w = 2/3; Dbar = 5/12, v = 4 + 25/144.
        ("fedadagrad", {}, 1, 2 / 3 + 5 / 12 / (math.sqrt(601 / 144) + 1)),
    ],
)
def test_server_optimisers(name: str, hyper: dict, second: int, expected: float):
    setting = quadratics([4.0, 1.5], [[0], [second]])
    assert final(name, setting, eps=1.0, eta_g=1.0, **hyper) == pytest.approx(expected, abs=1e-12)


def test_fedcm():
    # p = 1/4, 3/4.  1: x = 1, and 2, 3.5; w = 2.875, m = -(.25 * 1/.5 + .75 * 3.5/1) = -3.125.
    # 2: D = .5 * -1.125 - .5 * 3.125 = -2.125, x = 3.9375.
    setting = quadratics([4.0, 8.0], [[0, 1], [0]], sizes=[1, 3], steps=[1, 2])
    assert final("fedcm", setting, alpha=0.5) == pytest.approx(3.9375, abs=1e-12)


def test_fedacg():
    # 1: 0, 2, then g + beta (x - x_0) = -2 + 1: 2.5 = m = w.
    # 2: x_0 = 3.75, 3.875, then -.125 + .0625: 3.90625; m = 1.25 + .15625.
    setting = quadratics([4.0], [[0], [0]], steps=[2])
    assert final("fedacg", setting, gamma=0.5, beta=0.5) == pytest.approx(3.90625, abs=1e-12)


def test_fedswa():
    # Rates .5 and .25 + .125: 0, 2, 2.75; w = 1.5 * 2.75.
    assert final("fedswa", quadratics([4.0], [[0]], steps=[2]), rho=0.5) == pytest.approx(4.125, abs=1e-12)


def test_fedmoswa():
    # 1: 2.75, sum of rates .875, c_0 = -22/7, c = -11/7.  2: D = .75 - 11/7, x = 177/56; g = 65/56, D = 65/56 - 88/56,
    # x = 185.625/56; c_1 = 11/7 - 31.625/49 = 45.375/49, c = -77/49 + .5 * (45.375 + 77)/49.
    setting = quadratics([4.0, 2.0], [[0], [1]], steps=[2, 2])
    hyper = {"rho": 0.5, "alpha": 1.0, "gamma": 0.5}
    assert final("fedmoswa", setting, **hyper) == pytest.approx(185.625 / 56, abs=1e-12)
    assert state("fedmoswa", setting, **hyper).c[0].item() == pytest.approx(-15.8125 / 49, abs=1e-12)


def test_local():
    model, method = trained("local", Line(1.0), quadratics([4.0, 8.0], [[0], [1], [0]]))
    assert model.theta.item() == 1.0
    assert [method.x[i][0].item() for i in (0, 1)] == [2.5 + 0.75, 4.5]


# ---- duals -----------------------------------------------------------------------------------------------------------


def test_feddyn_with_uniform_duals():
    # q = 1/4, 3/4.  1: x = h_0 = 2, w = 2 + 1.  2: D = -1 + 1, x = 3, h_0 = 2; x = 2.5, h_1 = -.5;
    # w = .75 + 1.875 + (2 - .5) / 2.
    setting = quadratics([4.0, 2.0], [[0], [0, 1]], sizes=[1, 3])
    assert final("feddyn", setting, lam=0.5, dual_weights="uniform") == pytest.approx(3.375, abs=1e-12)


def test_feddc():
    # q = 1/4, 3/4.  1: x = h_0 = 2, c_0 = -4, c = -1, w = 2.5.  2: D = .5 - 1, x = 2.75, h_1 = .25, c_1 = 1 - .5,
    # c = -1 + .375, w = 2.75 + .5 + .1875.  3: D = -.5625 - .625 + 4 + 1 = 3.8125, x = 1.53125, h_0 = .09375,
    # w = 1.53125 + .0234375 + .1875.
    setting = quadratics([4.0, 2.0], [[0], [1], [0]], sizes=[1, 3])
    assert final("feddc", setting, lam=0.5) == pytest.approx(1.7421875, abs=1e-12)


def test_fedgamma():
    # q = 1/4, 3/4.  1: G = -1.1, x = .55, c_0 = -1.1, c = -.275.  2: D = -2.45 - .1 - .275, x = .55 + 1.4125.
    setting = quadratics([1.0, 3.0], [[0], [1]], sizes=[1, 3])
    assert final("fedgamma", setting, rho=0.1) == pytest.approx(1.9625, abs=1e-12)


def test_fedspeed():
    # 1: 0, 2.05, then -2.05 + 1.025: 2.5625 = h, w = 5.125.
    # 2: D = 1.225 + 1.28125, x = 3.871875; -.228125 + 1.28125 - .6265625 = .4265625, x = 3.65859375, h = 1.09609375.
    setting = quadratics([4.0], [[0], [0]], steps=[2])
    assert final("fedspeed", setting, rho=0.1, lam=0.5) == pytest.approx(4.7546875, abs=1e-12)


@pytest.mark.parametrize(("sign", "expected"), [(-1, 3.359375), (1, 5.359375)])
def test_fedsmoo(sign: int, expected: float):
    # 1: e = -1, mu = -1, D = -5, x = 2.5; gt = -1.5 + 1, e = -1, mu = -2, D = -2.5 + 1.25, x = 3.125 = h, w = 6.25,
    #    s = -1.
    # 2: gt = 2.25 + 2 +- 1, e = 1, mu = -2 + 1 + 1 = 0, D = 3.25 + 1.5625, x = 3.84375, g = -.15625; with the minus
    #    gt = -.15625 + 1, e = 1, D = .84375 + 1.5625 - 1.203125, x = 3.2421875, h = .1171875;
    #    with the plus gt = -.15625 - 1, e = -1, D = -1.15625 + .359375, x = 4.2421875, h = 1.1171875.
    setting = quadratics([4.0], [[0], [0]], steps=[2])
    assert final("fedsmoo", setting, rho=1.0, lam=0.5, sign=sign) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("weighting", "s"), [("samples", 0.3), ("uniform", 0.0)])
def test_fedsmoo_agrees_with_the_weights_of_the_objective(weighting: str, s: float):
    # mu = -.3 and .3, of weights 1/4, 3/4 or of equal ones.
    setting = quadratics([4.0, -4.0], [[0, 1]], sizes=[1, 3], weighting=weighting)
    assert state("fedsmoo", setting, rho=0.3).s[0].item() == pytest.approx(s, abs=1e-12)


def test_fedgmt():
    # The gradient of gamma tau^2 KL is gamma tau (softmax(z_x / tau) - softmax(z_E / tau)); E lags behind w.
    w, y, alpha, gamma, tau, lam = [0.0, 0.5, 1.0], [1.0, 0.0, 0.0], 0.7, 0.6, 2.0, 0.3
    E, h = list(w), [0.0, 0.0, 0.0]
    for _ in range(3):
        s, s_x, s_E = softmax(w), softmax([a / tau for a in w]), softmax([a / tau for a in E])
        D = [s[j] - y[j] + gamma * tau * (s_x[j] - s_E[j]) + lam * h[j] for j in range(3)]
        x = [a - d for a, d in zip(w, D, strict=True)]
        h = [a - d for a, d in zip(h, D, strict=True)]
        w = [a + b for a, b in zip(x, h, strict=True)]
        E = [alpha * a + (1 - alpha) * b for a, b in zip(E, w, strict=True)]
    setting = one_client(steps=1)
    setting.schedule = [[0]] * 3
    model = run("fedgmt", Logits([0.0, 0.5, 1.0]), setting, alpha=alpha, gamma=gamma, tau=tau, lam=lam)
    assert model.theta.tolist() == pytest.approx(w, abs=1e-12)


def test_fedgloss():
    # 1: 0, 2.1, then -2.1 + 1.05: 2.625 = h = Dbar, w = 5.25.
    # 2: w~ = 5.15, D = 1.15 + .2 + 1.3125, x = 3.81875; -.18125 - .2 + 1.3125 - .665625 = .265625, x = 3.6859375,
    #    Dbar = -1.4640625, h = 1.1609375.
    setting = quadratics([4.0], [[0], [0]], steps=[2])
    hyper = {"rho": 0.1, "rho_l": 0.2, "beta": 2.0}
    assert final("fedgloss", setting, **hyper) == pytest.approx(5.25 - 1.4640625 + 1.1609375, abs=1e-12)


def test_fedgloss_ramp():
    # 1: both radii .001: G = -4.001, x = 2.0005 = h, w = 4.001.  2: rho = .051, rho_l = .101: w~ = 3.95,
    # D = -.05 - .101 + 1.00025 = .84925, x = 3.525375, Dbar = -.424625, h = 1.575875.
    setting = quadratics([4.0], [[0], [0]])
    hyper = {"rho": 0.101, "rho_l": 0.201, "beta": 2.0, "ramp": 2}
    assert final("fedgloss", setting, **hyper) == pytest.approx(4.001 - 0.424625 + 1.575875, abs=1e-12)
    method = ALGORITHMS["fedgloss"]([], {}, ramp=2)
    radii = []
    for method.t in range(4):
        radii.append(method.radius(0.101))
    assert radii == pytest.approx([0.001, 0.051, 0.101, 0.101], abs=1e-15)
    assert method.radius(0.0) == 0.0


# ---- perturbations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hyper", "weight", "bias"),
    [
        # T = (1.5, 1), T g = -(1.5, 1), e = -.1 * (2.25, 1): out 2.675.
        ({"rho": 0.1 * math.sqrt(3.25), "eta": 0.5}, 1.1325, 2.1325),
        # T = (1, 2), T g = -(1, 2), e = -.1 * (1, 4): out 2.5.
        ({"rho": 0.1 * math.sqrt(5), "eta": 0.0, "scale": "all"}, 1.15, 2.15),
    ],
)
def test_fedasam(hyper: dict, weight: float, bias: float):
    # out = 1 * 1 + 2, target 4, both gradients -1.
    model = nn.Linear(1, 1).double()
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(2.0)
    clients = [(torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 4.0, dtype=torch.float64))]
    setting = Setting(clients, [[0]], lambda t, i: [torch.arange(1)], lambda t: 0.1, loss=half_square)
    found = run("fedasam", model, setting, **hyper)
    assert [found.weight.item(), found.bias.item()] == pytest.approx([weight, bias], abs=1e-12)


def test_mofedsam():
    # 1: D = .5 * -4.1, x = 1.025, m = -2.05.  2: G = -2.975 - .1, D = -1.5375 - 1.025, x = 1.025 + 1.28125.
    setting = quadratics([4.0], [[0], [0]])
    assert final("mofedsam", setting, rho=0.1, alpha=0.5) == pytest.approx(2.30625, abs=1e-12)


def test_fedlesam():
    # 1: w = 2.  2: client 1, new: w = 1.  3: client 0 last received 0: e = rho unit(0 - 1), G = .9 - 4, x = 1 + 1.55.
    setting = quadratics([4.0, 0.0], [[0], [1], [0]])
    assert final("fedlesam", setting, rho=0.1) == pytest.approx(2.55, abs=1e-12)


def test_fedlesam_s():
    # 1: w = 2, c_0 = -4, c = -2.  2: D = 4 - 2, w = 1, c_1 = 2 + 2, c = 0.  3: D = -3.1 + 4, x = 1 - .45.
    setting = quadratics([4.0, -2.0], [[0], [1], [0]])
    assert final("fedlesam_s", setting, rho=0.1) == pytest.approx(0.55, abs=1e-12)


def test_fedlesam_d():
    # 1: x = h_0 = 2, w = 3.  2: x = 1, h_1 = -2, w = 1.  3: D = -3.1 + 1, x = 2.05, h_0 = 3.05, w = 2.05 + .525.
    setting = quadratics([4.0, -1.0], [[0], [1], [0]])
    assert final("fedlesam_d", setting, rho=0.1, lam=0.5) == pytest.approx(2.575, abs=1e-12)


def test_fednsam_with_local_ascent():
    # 1: G = -4.1, w = m = 2.05.  2: x_0 = 3.075, G = -.925 - .1, D = .5125, m = 1.025 + .5125, w = 2.05 + 1.5375.
    setting = quadratics([4.0], [[0], [0]])
    assert final("fednsam", setting, gamma=0.5, rho=0.1, ascent="local") == pytest.approx(3.5875, abs=1e-12)


@pytest.mark.parametrize(("rounds", "expected"), [(1, 1.775), (2, 5.68828125), (3, 7.9121787109375)])
def test_fedwmsam(rounds: int, expected: float):
    # 1: D = -2, x = 1; delta = 0 - 1, G = 1 - .1 - 4, D = -1.55, x = 1.775; c_0 = m = -1.775, c = -.8875, a = .5.
    # 2: (1-a) m_1 = .5 * (-1.775 - .8875) = -1.33125.  D = .5 * -6.225 - 1.33125, x = 3.996875;
    #    delta = 1.775 + .5 * 2.6625 - 3.996875 < 0, D = .5 * -4.103125 - 1.33125, x = 5.68828125.
    #    1 + cos(D_1, m) = 0, a = .25 + .05.  c_1 = .8875 - 3.91328125 = -3.02578125, c = -2.400390625, m = -3.91328125.
    # 3: (1-a) m_0 = .7 m + .3 (c - c_0) = -2.739296875 - .1876171875 = -2.9269140625.
    #    D = .3 * 1.68828125 - 2.9269140625, x = 6.89849609375; delta = .5 * 2.9269140625 / .7 - 1.21 > 0,
    #    D = .3 * 2.99849609375 - 2.9269140625 = -2.027365234375, x = 7.9121787109375.
    setting = quadratics([4.0, 8.0], [[0], [1], [0]][:rounds], steps=[2, 2])
    assert final("fedwmsam", setting, rho=0.1, alpha0=0.5, lam=0.5) == pytest.approx(expected, abs=1e-12)
    if rounds == 2:
        assert state("fedwmsam", setting, rho=0.1, alpha0=0.5, lam=0.5).a == pytest.approx(0.3, abs=1e-12)


def test_fedwmsam_away():
    # As above, but e = +.1 in the second step: D = .5 * -2.9, x = 1.725.
    setting = quadratics([4.0], [[0]], steps=[2])
    assert final("fedwmsam", setting, rho=0.1, alpha0=0.5, away=True) == pytest.approx(1.725, abs=1e-12)


@pytest.mark.parametrize(("active", "a"), [([1], 0.7), ([0, 1], 0.5)])
def test_fedwmsam_trusts_gradients_more_when_clients_oppose_the_momentum(active: list[int], a: float):
    # 1: w = 100, m = -200.  2: D_1 = -.5 * (.5 * 500 - 100) goes along m: 1 + cos = 2, clipped to .9;
    # D_0 = .5 * (.5 * 300 + 100) against it: 0, and the mean with weights 3/4, 1/4 is .5.
    setting = quadratics([400.0, -400.0], [[0], active], sizes=[3, 1])
    hyper = {"rho": 0.0, "alpha0": 0.5, "lam": 0.5, "control": False}
    assert state("fedwmsam", setting, **hyper).a == pytest.approx(a, abs=1e-12)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5])
def test_fedgf(rounds: int):
    # 1: c = 0: G = -4.1, x = 2.05, far.  2: c = 1: w~ = 1.85, G = -2.15, x = 3.125, far.  3: c = 1: w~ = 2.925,
    # x = 3.6625, near.  4: c = 1/2: y = .5 * 3.4625 + .5 * 3.5625, x = 3.6625 + .24375, near.
    # 5: c = 0: G = -.09375 - .1, x = 4.003125.
    expected = [2.05, 3.125, 3.6625, 3.90625, 4.003125][rounds - 1]
    setting = quadratics([4.0], [[0]] * rounds)
    hyper = {"rho": 0.1, "rho_g": 0.2, "threshold": 1.0, "window": 2}
    assert final("fedgf", setting, **hyper) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("weighting", "far"), [("samples", False), ("uniform", True)])
def test_fedgf_weights_the_divergence(weighting: str, far: bool):
    # ||x - w|| = 2 and 0: .5 with weights 1/4, 3/4, or 1.
    setting = quadratics([4.0, 0.0], [[0, 1]], sizes=[1, 3], weighting=weighting)
    assert state("fedgf", setting, rho=0.0, threshold=0.75).exceeded == [far]


def test_perfedavg():
    # B1: g = -4, y = 0 + .25 * 4.  B2: g = 1 - 8, x = 3.5.  The third minibatch has no partner.
    clients = [(torch.ones(2, dtype=torch.float64), torch.tensor([4.0, 8.0], dtype=torch.float64))]
    rows = [torch.tensor([0]), torch.tensor([1]), torch.tensor([0])]
    setting = Setting(clients, [[0]], lambda t, i: rows, lambda t: 0.5, loss=half_square)
    assert final("perfedavg", setting, alpha=0.25) == pytest.approx(3.5, abs=1e-12)


# ---- terms and parts of models ---------------------------------------------------------------------------------------


class Circle(nn.Module):
    """The point of the unit circle at the angle theta."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        angle = self.theta * x
        return torch.cat([angle.cos(), angle.sin()], dim=1)


def test_moon():
    # Features are unit vectors, loss slope * sin theta; the contrastive loss is log(1 + exp(u)),
    # u = (cos(theta - prev) - cos(theta - w)) / tau.
    head = nn.Linear(2, 1, bias=False).double().requires_grad_(False)
    head.weight.copy_(torch.tensor([[0.0, 1.0]]))
    slopes, mu, tau, w = [1.0, -2.0], 0.7, 0.4, 0.0
    previous = [0.0, 0.0]
    for _ in range(2):
        ends = []
        for slope, prev in zip(slopes, previous, strict=True):
            x = w
            for _ in range(2):
                u = (math.cos(x - prev) - math.cos(x - w)) / tau
                pull = (math.sin(x - w) - math.sin(x - prev)) / tau / (1 + math.exp(-u))
                x -= 0.5 * (slope * math.cos(x) + mu * pull)
            ends.append(x)
        previous, w = ends, sum(ends) / 2
    one = torch.ones(1, 1, dtype=torch.float64)
    setting = Setting(
        [(one, slope * one) for slope in slopes],
        [[0, 1], [0, 1]],
        lambda t, i: [torch.arange(1)] * 2,
        lambda t: 0.5,
        loss=lambda out, y: (out * y).mean(),
    )
    model = run("moon", nn.Sequential(Circle(), head), setting, mu=mu, tau=tau)
    assert model[0].theta.item() == pytest.approx(w, abs=1e-12)


def test_fedbabu():
    # D = (2 * -2, -2): without its second entry it is clipped to -2, plus .5 * 1; x = 1 + .75.  The head stays.
    model = nn.Sequential(Line(1.0), nn.Linear(1, 1, bias=False).double())
    nn.init.constant_(model[1].weight, 2.0)
    clients = [(torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 4.0, dtype=torch.float64))]
    setting = Setting(clients, [[0]], lambda t, i: [torch.arange(1)], lambda t: 0.5, 0.0, 0.5, 2.0, loss=half_square)
    found = run("fedbabu", model, setting)
    assert [found[0].theta.item(), found[1].weight.item()] == pytest.approx([1.75, 2.0], abs=1e-12)
