"""Sanity tests of the textbook loops with many options, FedSoL and FedScar: values worked out by hand on quadratics."""

from __future__ import annotations

import pytest
import torch
from by_hand import Line, classification, final, network, quadratics
from textbook import ALGORITHMS, Client, each, norm, trained
from torch import nn

# ---- FedSoL: in one dimension e = rho * sign(g_p), and 0 in the first step -------------------------------------------


def test_fedsol_prox():
    # 0, 2; g_p = 2, G = 2.1 - 4, x = 2.95.
    setting = quadratics([4.0], [[0]], steps=[2])
    assert final("fedsol", setting, rho=0.1, proximal="prox") == pytest.approx(2.95, abs=1e-12)


def test_fedsol_scaffold():
    # 1: g_p = 0: 0, 2, 3; c_0 = -3, c = -1.5.  2: .5; g_p = -1.5, G = 2.4, x = -.7; c_1 = 1.5 + 3.7, c = -1.5 + 2.6.
    # 3: 1.65; g_p = 1.1 + 3, G = -2.25, x = 2.775.
    setting = quadratics([4.0, -2.0], [[0], [1], [0]], steps=[2, 2])
    assert final("fedsol", setting, rho=0.1, proximal="scaffold") == pytest.approx(2.775, abs=1e-12)


def test_fedsol_dyn():
    # 1: 0, 2; g_p = 2, G = -1.9, x = 2.95 = h, w = 5.9.  2: 4.95; g_p = 2.95 - .95, G = 1.05, x = 4.425,
    # h = 2.95 - 1.475.
    setting = quadratics([4.0], [[0], [0]], steps=[2])
    assert final("fedsol", setting, rho=0.1, proximal="dyn") == pytest.approx(4.425 + 1.475, abs=1e-12)


def test_fedsol_nova():
    # 1: D = 3 and 4, a = 2 and 1, w = 1.5 * (1.5 + 4) / 2 = 4.125; d = -3 and -8, dbar = -5.5.
    # 2: 4.0625; g_p = -5.5 + 3, G = -.0375, x = 4.08125; one client is its own average.
    setting = quadratics([4.0, 8.0], [[0, 1], [0]], steps=[2, 1])
    assert final("fedsol", setting, rho=0.1, proximal="nova") == pytest.approx(4.08125, abs=1e-12)


def test_fedsol_moon():
    # The force is what MOON adds to the gradient, over mu; D is the gradient rho away along it.
    client = Client(0, network(), classification())
    x = each(lambda w: w + torch.linspace(-0.3, 0.4, w.numel(), dtype=w.dtype).view_as(w), client.w)
    previous = each(lambda w: 0.8 * w - 0.05, client.w)
    moon = ALGORITHMS["moon"]([], {}, mu=0.7, tau=0.5)
    sol = ALGORITHMS["fedsol"]([], {}, rho=0.4, adaptive=False, proximal="moon")
    moon.x_prev[0] = sol.method.x_prev[0] = previous
    added = each(lambda a, b: a - b, moon.direction(client, x), client.g(x))
    force = sol.force(client, x)
    assert norm(force) > 1e-3
    assert norm(each(lambda a, f: a - 0.7 * f, added, force)) < 1e-12
    length = norm(force)
    expected = client.g(each(lambda x, f: x + 0.4 * f / length, x, force))
    assert norm(each(lambda a, b: a - b, sol.direction(client, x), expected)) < 1e-12


@pytest.mark.parametrize(
    ("ablation", "expected"),
    [
        ("A0", 1 + 0.25 * 3),
        ("A1", 1 + 0.25 * 2.9),
        ("A2", 1 + 0.25 * (3 - 0.55)),
        ("A3", 1 + 0.25 * (2.9 - 0.55)),
        ("A4", 1 + 0.25 * (3.1 - 0.45)),
        ("A5", 1 + 0.25 * (3 - 1)),
        ("A6", 1 + 0.25 * (2.9 - 0.5)),
    ],
)
def test_fedsol_ablations(ablation: str, expected: float):
    # At x = 1: g_l = -3, g_p = 1, e_p = .1, e_c = .1 * sign(-2).
    setting = quadratics([4.0], [[0]], steps=[2], lr=0.25)
    hyper = {"rho": 0.1, "proximal": "prox", "ablation": ablation, "beta": 0.5}
    assert final("fedsol", setting, **hyper) == pytest.approx(expected, abs=1e-12)


def test_fedsol_climbs_without_the_activations():
    # relu(2 theta), target 2, MAN adds 8 theta.  g = 2 (1 - 2) + 4, x = .5 - .2; g_p = x - w = -.2, e = -.1, which
    # MAN would turn; g = 2 (.4 - 2) + 1.6 = -1.6.
    model = nn.Sequential(Line(0.5), nn.ReLU())
    setting = quadratics([2.0], [[0]], slopes=[2.0], steps=[2], lr=0.1)
    found = trained("fedsol", model, setting, rho=0.1, proximal="prox", man=2.0)[0]
    assert found[0].theta.item() == pytest.approx(0.46, abs=1e-12)


# ---- FedScar ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hyper", "expected"),
    [
        # 1: x = h_0 = 2, w = 2.2.  2: client 1 goes from 2.2 to .1, h_1 = -2.1, w = .09, v_0 = .09 - 2.
        # 3: b_0 = -.191, x_0 = -.101, D = -4.101 + .2 * 1.809 + .0955 - .1 = -3.7437, x = 1.77085, h_0 = 3.87185,
        #    w = 1.77085 + .1 * (3.87185 + .191 - 2.1).
        ({"length": "displacement"}, 1.967135),
        # sigma = .5 * |2 + 2.1| + .5 * 0 = 2.05, b_0 = -.205, x_0 = -.115, D = -4.115 + .359 + .1025 - .1 = -3.7535,
        # x = 1.76175, h_0 = 3.87675, w = 1.76175 + .1 * (3.87675 + .205 - 2.1).
        ({"length": "sigma"}, 1.959925),
        # b_0 = -.1, x_0 = -.01, D = -4.01 + .38 + .05 + .2 * (-.01 - .09) = -3.6, x = 1.79, h_0 = 3.8,
        # w = 1.79 + .1 * (3.8 + .1 - 2.1).
        ({"prox": "received"}, 1.97),
        # x_0 = .09, D = -3.91 + .4 - .1, x = 1.895, h_0 = 3.805, w = 1.895 + .1 * (3.805 - 2.1).
        ({"ablation": "scar2"}, 2.0655),
        # 1: 2.  2: 0.  3: b_0 = -.1, x_0 = -.1, D = -4.1 + .5 * (-.05 + .1), x = 1.9375, w = 1.9375 + .05.
        ({"ablation": "scarl", "tau": 0.5}, 1.9875),
    ],
)
def test_fedscar_options(hyper: dict, expected: float):
    setting = quadratics([4.0, -2.0], [[0], [1], [0]], weighting="uniform")
    hyper = {"alpha": 0.1, "gamma_c": 0.5, "beta": 0.2, **hyper}
    assert final("fedscar", setting, **hyper) == pytest.approx(expected, abs=1e-12)


def test_fedscar_shifts_by_the_whole_mean():
    # 1: w = 2 + 1.  2: x = .5, h_1 = -2.5, w = .5 + (2 - 2.5) / 2.
    setting = quadratics([4.0, -2.0], [[0], [1]])
    assert final("fedscar", setting, beta=0.2, server_scale=1) == pytest.approx(0.25, abs=1e-12)


def test_fedscar_sigma_keeps_the_last_displacement_of_absent_clients():
    # q = 1/4, 3/4.  1: D_0 = 2 = mean - w.  2: D_1 = -2.1, mean - w = -2.1: sigma = .25 * 4.1.
    setting = quadratics([4.0, -2.0], [[0], [1]], sizes=[1, 3])
    for rounds, sigma in ((1, 0.0), (2, 0.25 * 4.1)):
        setting.schedule = [[0], [1]][:rounds]
        method = trained("fedscar", Line(), setting, length="sigma", beta=0.4)[1]
        assert method.sigma == pytest.approx(sigma, abs=1e-12)
