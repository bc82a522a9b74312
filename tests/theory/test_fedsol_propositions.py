"""FedSoL's Propositions 1 and 2 (Lee et al., CVPR 2024, equations 8 and 9 and appendix L).

Write g_l for the local gradient, g_p for the proximal one, ^ for unit length, H for the local Hessian, gamma for the
rate and g_u = g_l(x + e) for FedSoL's direction, e = rho g_p^.

1. The change of the proximal loss is -gamma (<g_l, g_p> + rho g_p^' H g_p), and where the local loss is convex the
   second term is not negative. Holds: exactly <g_u, g_p> on quadratics, up to O(rho^2) on networks. The sign is the
   fixed radius' alone: Algorithm 1's adaptive radius can turn it even where the loss is convex.
2. The change of the local loss is FedAvg's at x + (rho/2) e. Holds, up to gamma rho^2/4 ||H g_p^||^2 on quadratics, for
   the shift (rho/2) g_p^ of the proof; as printed, where e has length rho already, it holds for rho = 1 only. That
   local learning is "almost identical" to FedAvg's does not follow: the two differ in first order of rho.
"""

import math
from itertools import pairwise

import pytest
import torch
from federations import population
from quadratics import Quadratics, watched
from torch import nn

import fedflat as ff
from fedflat.algorithms import Preservation
from fedflat.core import SGD, Batch, Server, Step, Task, Weights, unit
from fedflat.core.local import begin
from fedflat.core.local import step as local_step

LR = 0.1


def quadratic_steps(rho, look):
    """FedSoL with L_p = ||x - w||^2 / 2 and the fixed radius; one round, its steps away from w."""
    problem = Quadratics.drawn(4, (3,), spread=3.0)
    algorithm, seen = watched(ff.algorithms.fedsol(rho=rho, adaptive=False, proximal="prox"), look)
    problem.train(algorithm, rounds=1, steps=13, lr=LR)
    return problem, seen[1:]


@pytest.mark.parametrize("rho", [0.3, 1.0, 2.0])
def test_the_bracket_of_proposition_1_is_exact_on_quadratics(rho):
    """And the change of the proximal loss differs from it by gamma^2/2 ||g_u||^2, which equation 7 leaves out."""
    problem, steps = quadratic_steps(rho, lambda step, e, d: (step.x.clone(), step.w, d, step.grad(step.x)))
    for (x, w, g_u, g_l), (after, _, _, _) in pairwise(steps):
        g_p = x - w
        curvature = unit(g_p) @ problem.A[0] @ g_p
        bracket = g_l @ g_p + rho * curvature
        assert curvature > 0
        assert math.isclose(g_u @ g_p, bracket, rel_tol=1e-12)
        change = ((after - w).square().sum() - (x - w).square().sum()) / 2
        assert math.isclose(change, -LR * bracket + LR**2 / 2 * g_u.square().sum(), rel_tol=1e-12)


def test_the_adaptive_radius_can_turn_the_sign_of_proposition_1_on_a_convex_loss():
    v = torch.tensor([3.0, -1.0], dtype=torch.float64)
    A = torch.outer(v, v) + 0.01 * torch.eye(2, dtype=torch.float64)
    away = torch.tensor([1.0, 2.0], dtype=torch.float64)  # where the first step leads
    problem = Quadratics(A[None], torch.linalg.solve(A, away / LR)[None], (1,))
    found = {}
    for adaptive in (True, False):
        algorithm, seen = watched(
            ff.algorithms.fedsol(rho=0.5, adaptive=adaptive, proximal="prox"),
            lambda step, e, d: (step.x - step.w, d - step.grad(step.x)),
        )
        problem.train(algorithm, rounds=1, steps=2, lr=LR)
        g_p, added = seen[1]
        torch.testing.assert_close(g_p, away)
        found[adaptive] = float(added @ g_p)
    assert math.isclose(found[True], 0.5 * float((away * away.abs()) @ A @ away) / 5)
    assert found[True] < -0.09
    assert found[False] > 0.2


@pytest.mark.parametrize("rho", [0.3, 1.0, 2.0])
def test_the_remainder_of_proposition_2_on_quadratics(rho):
    def look(step, e, d):
        half, printed = step.x + rho / 2 * unit(e), step.x + rho / 2 * e
        return unit(e), d, step.grad(step.x), step.grad(half), step.grad(printed)

    problem, steps = quadratic_steps(rho, look)
    for g_p, g_u, g_l, half, printed in steps:
        bent = problem.A[0] @ g_p
        fedsol = -LR * g_l @ g_u
        remainder = LR * rho**2 / 4 * bent.square().sum()
        assert math.isclose(fedsol + LR * half.square().sum(), remainder, rel_tol=1e-9)
        off = -LR * (rho - rho**2) * g_l @ bent + LR * rho**4 / 4 * bent.square().sum()
        assert math.isclose(fedsol + LR * printed.square().sum(), off, rel_tol=1e-9)
        assert (abs(off - remainder) < 1e-12) == (rho == 1.0)


def test_fedsol_stops_short_of_the_local_optimum_by_its_radius():
    """On a parabola it rests where x + e is the optimum, a distance of rho before it; FedAvg arrives."""
    one = torch.ones(1, 1, dtype=torch.float64)
    problem = Quadratics(one[None], 5 * one, (1,))
    short = problem.train("fedsol(rho=2.0, adaptive=False, proximal='prox')", rounds=1, steps=200)
    plain = problem.train("fedavg", rounds=1, steps=200)
    assert math.isclose(short.vector, 3.0, abs_tol=1e-6)
    assert math.isclose(plain.vector, 5.0, abs_tol=1e-6)


def smooth():
    """A network without kinks: at one, the residual would be of first order."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def walked(rho):
    """A client of a network, three steps of FedSoL away from what it received, and its next step with this rho."""
    x, y = population()[4]
    batch = Batch(x, y)
    task = Task(smooth())
    run = None
    for radius, count in ((0.1, 3), (rho, 0)):
        algorithm = ff.algorithms.fedsol(rho=radius, adaptive=False)
        (job,) = Server(algorithm, task, Weights([len(y)])).open([0], 1, 0.3)
        here = None if run is None else run.x
        run = begin(algorithm, task, SGD(), job, None, 3)
        run.x = run.x if here is None else here
        for k in range(count):
            local_step(run, (batch,), k)
    return task, batch, Step(run, (batch,), 0)


@pytest.mark.parametrize("proposition", [1, 2])
def test_the_residual_on_a_network_is_of_second_order_in_the_radius(proposition):
    """Halving rho divides what the propositions leave out by four, and what they say by two."""
    residuals, terms = [], []
    for rho in (0.02, 0.01, 0.005, 0.0025):
        task, batch, step = walked(rho)

        def loss(v, task=task, batch=batch):
            return batch.mean(task.loss(task.forward(v, batch.x, task.buffers).logits, batch.y))

        x = step.x.clone()
        g_l, g_p = step.grad(x), step.force(Preservation())
        g_u = step.descent(x + step.perturbation())
        bent = torch.autograd.functional.hvp(loss, x, unit(g_p))[1]
        if proposition == 1:
            terms.append(float(rho * bent @ g_p))
            residuals.append(float(g_u @ g_p - g_l @ g_p) - terms[-1])
        else:
            terms.append(float(g_l @ (g_u - g_l)))
            residuals.append(float(g_l @ g_u - step.grad(x + rho / 2 * unit(g_p)).square().sum()))
    assert all(3.5 < a / b < 4.5 for a, b in pairwise(residuals))
    assert all(1.7 < a / b < 2.3 for a, b in pairwise(terms))


def look_at_curvature(step, e, d):
    """Of a step: g_p^' H g_p^ by central differences, and what the perturbation adds to <g_l, g_p^>, which is third."""
    h, g_p, g_l = 1e-4, unit(step.force(Preservation())), step.grad(step.x)
    bent = (step.grad(step.x + h * g_p) - step.grad(step.x - h * g_p)) / (2 * h)
    return float(g_p @ bent), float((d - g_l) @ g_p), float(g_l @ g_p)


@pytest.mark.parametrize(
    ("hyper", "curved"),
    [({"rho": 0.1, "adaptive": False}, (0.7, 0.95)), ({}, (0.65, 0.95)), ({"rho": 2.0, "adaptive": False}, (0.2, 0.7))],
    ids=["radius 0.1", "default", "radius 2"],
)
def test_how_often_the_curvature_along_the_proximal_gradient_is_positive(hyper, curved):
    """Steps of training on digits, LDA 0.1: mostly with a small radius, not always, and seldom with a large one.

    The proposition's consequence is sturdier than its reason: the perturbation adds to <g_l, g_p> nearly always.
    """
    algorithm, seen = watched(ff.algorithms.fedsol(**hyper), look_at_curvature)
    ff.simulate(
        algorithm,
        lambda seed: ff.models.build("mlp", (1, 8, 8), 10).double(),
        ff.data.Federation(ff.data.load("digits"), "lda:0.1", clients=8),
        rounds=3,
        participation=3,
        steps=8,
        batch_size=20,
        lr=LR,
        engine="serial",
        device="cpu",
    )
    curvature, added, conflict = torch.tensor([s for k, s in enumerate(seen) if k % 8]).T
    low, high = curved
    assert low < (curvature >= 0).float().mean() < high
    assert (added >= 0).float().mean() > (0.8 if hyper.get("rho") == 0.1 else 0.95)
    assert (conflict < 0).float().mean() > 0.9
