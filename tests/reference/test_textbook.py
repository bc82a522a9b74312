"""Sanity tests of the textbook loops alone: values worked out by hand, mostly on scalar quadratics."""

from __future__ import annotations

import math

import pytest
import torch
from by_hand import Line, Logits, classification, final, half_square, network, one_client, quadratics, same, softmax
from textbook import Client, FedSoL, Setting, each, norm, run, unit, weights
from torch import nn

# ---- pieces ----------------------------------------------------------------------------------------------------------


def test_norm_is_joint_and_short_vectors_have_no_direction():
    assert norm([torch.tensor([3.0]), torch.tensor([[4.0]])]) == 5.0
    assert [u.item() for u in unit([torch.tensor(3.0), torch.tensor(4.0)])] == pytest.approx([0.6, 0.8])
    assert [u.item() for u in unit([torch.tensor(3e-13), torch.tensor(4e-13)])] == [0.0, 0.0]


def test_weights():
    assert weights({0: 1, 4: 3}, "samples") == {0: 0.25, 4: 0.75}
    assert weights({0: 1, 4: 3}, "uniform") == {0: 0.5, 4: 0.5}
    with pytest.raises(ValueError, match="weighting"):
        weights({0: 1}, "sample")


def test_the_model_given_is_left_alone_and_counters_start_where_they_should():
    model, rates, rounds = Line(), [], []
    setting = quadratics([4.0], [[0], [0]])
    setting.lr = lambda t: rates.append(t) or 0.5
    setting.batches = lambda t, i: rounds.append((t, i)) or [torch.arange(1)]
    assert run("fedavg", model, setting).theta.item() == 3.0
    assert (model.theta.item(), rates, rounds) == (0.0, [0, 1], [(1, 0), (2, 0)])


# ---- local SGD, weights ----------------------------------------------------------------------------------------------


def test_fedavg_clips_then_decays_then_gathers_momentum():
    # g = -4 -> -1; x = .5.  g = -3.5 -> -1, + .1 * .5 = -.95; buf = -.5 - .95 = -1.45; x = .5 + .725.
    setting = quadratics([4.0], [[0]], steps=[2], momentum=0.5, weight_decay=0.1, clip=1.0)
    assert final("fedavg", setting) == pytest.approx(1.225, abs=1e-12)


def test_momentum_starts_afresh_each_round():
    # With one step a round the buffer is D itself: 0 -> 2 -> 3.
    assert final("fedavg", quadratics([4.0], [[0], [0]], momentum=0.9)) == pytest.approx(3.0, abs=1e-12)


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 0.25 * 2 + 0.75 * 4), ("uniform", 3.0)])
def test_fedavg_weights_the_active_clients(weighting: str, expected: float):
    setting = quadratics([4.0, 100.0, 8.0], [[0, 2]], sizes=[1, 5, 3], weighting=weighting)
    assert final("fedavg", setting) == pytest.approx(expected, abs=1e-12)


def test_fedprox():
    # x = 2, then g + mu (x - w) = -2 + .5 * 2 = -1, x = 2.5.
    assert final("fedprox", quadratics([4.0], [[0]], steps=[2]), mu=0.5) == pytest.approx(2.5, abs=1e-12)


# ---- corrections -----------------------------------------------------------------------------------------------------


def test_scaffold():
    # q = 1/4, 3/4.  1: x = .5, c_0 = -1, c = -.25.  2: g = -2.5, D = -2.75, x = 1.875, c_1 = .25 - 2.75 = -2.5,
    # c = -.25 - .75 * 2.5 = -2.125.  3: g = .875, D = .875 - 2.125 + 1 = -.25, x = 2.
    setting = quadratics([1.0, 3.0], [[0], [1], [0]], sizes=[1, 3])
    assert final("scaffold", setting) == pytest.approx(2.0, abs=1e-12)


def test_feddyn_dual_and_quadratic():
    # 1: 0, 2, then g + lam h + lam (x - w) = -2 + 1 = -1: 2.5; h = 2.5, w = 5.
    # 2: 1 + 1.25: 3.875; -.125 + 1.25 - .5625 = .5625: 3.59375; h = 2.5 - 1.40625, w = 3.59375 + 1.09375.
    setting = quadratics([4.0], [[0], [0]], steps=[2])
    assert final("feddyn", setting, lam=0.5) == pytest.approx(4.6875, abs=1e-12)


@pytest.mark.parametrize(("second", "expected"), [([0, 1], 2.75), ([1], 2.5625)])
def test_feddyn_averages_the_duals_of_all_clients(second: list[int], expected: float):
    # q = 1/4, 3/4.  Round 1: x = h_0 = 2, w = 2 + .5.  Round 2, client 1: x = 2.25, h_1 = -.25; alone it gives
    # w = 2.25 + .5 - .1875.  Client 0: D = -1.5 + 1, x = 2.75, h_0 = 2.25; w = .6875 + 1.6875 + .5625 - .1875.
    setting = quadratics([4.0, 2.0], [[0], second], sizes=[1, 3])
    assert final("feddyn", setting, lam=0.5) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(("name", "hyper"), [("scaffold", {}), ("feddyn", {"lam": 1.0})])
def test_corrections_find_the_optimum_of_the_named_objective(name: str, hyper: dict, weighting: str):
    q = {"samples": [0.2, 0.8], "uniform": [0.5, 0.5]}[weighting]
    optimum = (q[0] * 1 * 3 + q[1] * 2 * -1) / (q[0] * 1 + q[1] * 4)
    setting = quadratics(
        [3.0, -1.0], [[0, 1]] * 100, slopes=[1.0, 2.0], sizes=[1, 4], steps=[2, 5], lr=0.1, weighting=weighting
    )
    assert final(name, setting, **hyper) == pytest.approx(optimum, abs=1e-9)
    assert abs(final("fedavg", setting) - optimum) > 0.01


# ---- perturbations ---------------------------------------------------------------------------------------------------


def test_fedsam_climbs_then_decays_at_x():
    # g(1) = -3, e = -.1, g(.9) = -3.1, + .1 * 1 = -3; x = 1 + 1.5.
    setting = quadratics([4.0], [[0]], weight_decay=0.1)
    assert final("fedsam", setting, theta=1.0, rho=0.1) == pytest.approx(2.5, abs=1e-12)


def test_fednsam():
    # 1: w = m = 2.  2: x_0 = 3, e = -.1, g(2.9) = -1.1, D = .55, m = 1.55, w = 3.55.
    # 3: x_0 = 4.325, g(4.225) = .225, D = -.1125, m = .775 - .1125 = .6625, w = 4.2125.
    setting = quadratics([4.0], [[0], [0], [0]])
    assert final("fednsam", setting, gamma=0.5, rho=0.1) == pytest.approx(4.2125, abs=1e-12)


def test_two_forms_of_fednsam_agree_without_weight_decay():
    free, decayed = classification(), classification(weight_decay=0.1)
    assert same(run("fednsam", network(), free), run("fednsam_lookahead", network(), free))
    assert not same(run("fednsam", network(), decayed), run("fednsam_lookahead", network(), decayed))


@pytest.mark.parametrize(
    ("adaptive", "e"), [(True, [0.4, -0.1, -0.1]), (False, [1.2 / 6**0.5, -0.6 / 6**0.5, -0.6 / 6**0.5])]
)
def test_fedsol(adaptive: bool, e: list[float]):
    # From equal logits the first step has e = 0 and moves by (2, -1, -1) / 3; then unit(g_p) = (2, -1, -1) / sqrt 6
    # and Lambda = (2, 1, 1) / sqrt 6, so e = rho (4, -1, -1) / 6, or rho (2, -1, -1) / sqrt 6 with a fixed radius.
    x = [2 / 3, -1 / 3, -1 / 3]
    s = softmax([a + b for a, b in zip(x, e, strict=True)])
    expected = [x[0] - s[0] + 1, x[1] - s[1], x[2] - s[2]]
    trained = run("fedsol", Logits([0.0, 0.0, 0.0]), one_client(steps=2), rho=0.6, adaptive=adaptive)
    assert trained.theta.tolist() == pytest.approx(expected, abs=1e-12)


def test_fedsol_proximal_gradient():
    # (softmax(z_x / tau) - softmax(z_w / tau)) / tau, here at unequal logits.
    w, rho, tau = [0.0, 0.5, 1.0], 0.7, 3.0
    s = softmax(w)
    x = [w[0] - s[0] + 1, w[1] - s[1], w[2] - s[2]]
    g_p = [a - b for a, b in zip(softmax([a / tau for a in x]), softmax([a / tau for a in w]), strict=True)]
    s = softmax([a + rho * g / math.hypot(*g_p) for a, g in zip(x, g_p, strict=True)])
    expected = [x[0] - s[0] + 1, x[1] - s[1], x[2] - s[2]]
    trained = run("fedsol", Logits(w), one_client(steps=2), rho=rho, tau=tau, adaptive=False)
    assert trained.theta.tolist() == pytest.approx(expected, abs=1e-12)


def test_fedsol_radii():
    moved = torch.tensor([[3.0, 0.0, -5.0], [-4.0, 0.0, 12.0]])
    bias = torch.tensor([3.0, -4.0])
    tensor, columns, fixed = (FedSoL([], {}, adaptive=a) for a in (True, "columns", False))
    torch.testing.assert_close(tensor.radius(moved, 0 * moved), moved.abs() / 194**0.5)
    torch.testing.assert_close(tensor.radius(moved, moved), 0 * moved)
    expected = torch.tensor([[3 / 5, 0.0, 5 / 13], [4 / 5, 0.0, 12 / 13]])
    torch.testing.assert_close(columns.radius(moved, 0 * moved), expected)
    torch.testing.assert_close(columns.radius(bias, 0 * bias), torch.tensor([0.6, 0.8]))
    kernel = columns.radius(torch.randn(4, 3, 2, 2), torch.zeros(4, 3, 2, 2))
    torch.testing.assert_close(kernel.square().sum(dim=0), torch.ones(3, 2, 2))
    torch.testing.assert_close(fixed.radius(moved, moved), torch.ones(2, 3))


@pytest.mark.parametrize(("layers", "zero"), [("head", [0, 1]), ("body", [2, 3])])
def test_fedsol_layers_are_masked_before_normalising(layers: str, zero: list[int]):
    client = Client(0, network(), classification())
    x = each(lambda w: w + 0.1 * torch.ones_like(w), client.w)
    x[2] = x[2] + torch.linspace(0, 1, 15, dtype=torch.float64).view(3, 5)
    e = FedSoL([], {}, rho=0.5, adaptive=False, layers=layers).perturbation(client, x)
    assert [m for m in range(4) if norm([e[m]]) == 0] == zero
    assert norm(e) == pytest.approx(0.5, abs=1e-12)


def test_fedscar():
    # 1: x = h_0 = 2, w = 2 + .1 * 2.  2: client 1 goes from 2.2 to .1, h_1 = -2.1, w = .1 + .1 * (2 - 2.1).
    # 3: b_0 = -.1, bbar = -.05, x_0 = -.01, D = -4.01 + .2 * (2 - .1) + .05 - .1 = -3.68, x = 1.83, h_0 = 3.84,
    #    w = 1.83 + .1 * (3.84 + .1 - 2.1) = 2.014.
    # 4: b_0 = -.05, b_1 = .1, bbar = .025, x_0 = 2.114, D = 4.114 + .2 * (-2.1 + .1) - .075 + .1 = 3.739, x = .2445,
    #    h_1 = -3.9695, w = .2445 + .1 * (3.84 + .05 - 3.9695 - .1).
    hyper = {"alpha": 0.1, "gamma_c": 0.5, "beta": 0.2}
    for rounds, expected in enumerate([2.2, 0.09, 2.014, 0.22655], start=1):
        setting = quadratics([4.0, -2.0], [[0], [1], [0], [1]][:rounds], weighting="uniform")
        assert final("fedscar", setting, **hyper) == pytest.approx(expected, abs=1e-12)


def test_fedscar_with_ascent():
    # Round 1: g(0 - rho) = -4.1, x = h = 2.05, w = 2.05 + beta * 2.05.
    setting = quadratics([4.0], [[0]])
    assert final("fedscar", setting, beta=0.2, rho=0.1) == pytest.approx(2.46, abs=1e-12)


# ---- terms -----------------------------------------------------------------------------------------------------------


def test_fedntd():
    # The gradient of beta tau^2 KL on the not-true logits is beta tau (softmax(z_x / tau) - softmax(z_w / tau)).
    w, beta, tau = [0.0, 0.5, 1.0], 0.7, 2.0
    s = softmax(w)
    x = [w[0] - s[0], w[1] - s[1] + 1, w[2] - s[2]]
    q, p = softmax([x[0] / tau, x[2] / tau]), softmax([w[0] / tau, w[2] / tau])
    s = softmax(x)
    expected = [x[0] - s[0] - beta * tau * (q[0] - p[0]), x[1] - s[1] + 1, x[2] - s[2] - beta * tau * (q[1] - p[1])]
    trained = run("fedntd", Logits(w), one_client(steps=2, label=1), beta=beta, tau=tau)
    assert trained.theta.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "zeta", "expected"),
    [
        ("fedavg", 0.5, 1.6),  # g = 2 (2 - 6) + .5 * 4 = -6
        ("scaffold", 0.5, 1.6),
        ("feddyn", 0.5, 1.6 + 0.6),
        ("fedsam", 0.5, 1.66),  # e = -.1, 2 (1.8 - 6) + 1.8 = -6.6
        ("fedsam", 3.0, 0.44),  # MAN turns the ascent: e = +.1, 2 (2.2 - 6) + 13.2 = 5.6
    ],
)
def test_man(name: str, zeta: float, expected: float):
    # relu(2 theta) at theta = 1, target 6: MAN adds zeta * 4 theta to the gradient.
    model = nn.Sequential(Line(1.0), nn.ReLU())
    trained = run(name, model, quadratics([6.0], [[0]], slopes=[2.0], lr=0.1), man=zeta)
    assert trained[0].theta.item() == pytest.approx(expected, abs=1e-12)


def test_man_adds_layers_and_averages_within_each():
    # Outputs 1 and 2 of both activations: the mean square is 2.5 theta^2 each, so the gradient is zeta * 5 theta.
    model = nn.Sequential(Line(1.0), nn.ReLU(), nn.ReLU())
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    setting = Setting([(x, x)], [[0]], lambda t, i: [torch.arange(2)], lambda t: 0.1, loss=half_square)
    assert run("fedavg", model, setting, man=0.2)[0].theta.item() == pytest.approx(0.9, abs=1e-12)


def test_man_refuses_a_model_without_activations():
    with pytest.raises(ValueError, match="activation"):
        run("fedavg", Line(), quadratics([4.0], [[0]]), man=0.1)


# ---- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hyper", "expected"),
    [
        ("fedavg", {}, 0.1 * (0.25 * 4 + 0.75 * 8)),
        ("fedsam", {}, 0.1 * (0.25 * 4 + 0.75 * 8)),
        ("fedsam", {"ascent_updates_buffers": True}, 0.19 * (0.25 * 4 + 0.75 * 8)),
    ],
)
def test_running_means_are_averaged_and_the_ascent_leaves_them_alone(name: str, hyper: dict, expected: float):
    # Batch means 4 and 8, momentum .1: one pass gives .1 of the mean, two give .19.
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)).double()
    clients = [
        (torch.tensor([[3.0], [5.0]], dtype=torch.float64), torch.tensor([0, 1])),
        (torch.tensor([[5.0], [7.0], [9.0], [11.0], [6.0], [10.0]], dtype=torch.float64), torch.tensor([0, 1] * 3)),
    ]
    setting = Setting(clients, [[0, 1]], lambda t, i: [torch.arange(len(clients[i][1]))], lambda t: 0.1)
    trained = run(name, model, setting, **hyper)
    assert trained[0].running_mean.item() == pytest.approx(expected, abs=1e-12)
    setting.schedule = [[0, 1], [0]]
    if name == "fedavg":
        assert run(name, model, setting)[0].running_mean.item() == pytest.approx(0.9 * expected + 0.4, abs=1e-12)


# ---- identities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("fedprox", {"mu": 0.0}),
        ("fedsam", {"rho": 0.0}),
        ("fednsam", {"rho": 0.0, "gamma": 0.0}),
        ("fedsol", {"rho": 0.0}),
        ("fedscar", {"alpha": 0.0, "beta": 0.0}),
        ("fedntd", {"beta": 0.0}),
    ],
)
def test_switched_off_it_is_fedavg(name: str, hyper: dict):
    setting = classification(weight_decay=0.01, rounds=4)
    assert same(run(name, network(), setting, **hyper), run("fedavg", network(), setting))


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("fedprox", {}),
        ("scaffold", {}),
        ("feddyn", {}),
        ("fedsam", {}),
        ("fednsam", {}),
        ("fedsol", {}),
        ("fedsol", {"adaptive": "columns", "layers": "head"}),
        ("fedscar", {}),
        ("fedscar", {"rho": 0.1}),
        ("fedntd", {}),
        ("fedavg", {"man": 0.15}),
    ],
)
def test_switched_on_it_is_not(name: str, hyper: dict):
    setting = classification(weight_decay=0.01, rounds=4)
    trained = run(name, network(), setting, **hyper)
    assert not same(trained, run("fedavg", network(), setting))
    assert all(p.dtype == torch.float64 and p.isfinite().all() for p in trained.parameters())
