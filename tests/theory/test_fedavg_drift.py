"""FedAvg's drift, and the objective inconsistency that FedNova (Wang et al., NeurIPS 2020) claims to remove.

On quadratics K_i steps from w take client i to b_i + (I - eta A_i)^K_i (w - b_i). So FedAvg rests where
sum p_i M_i (w - b_i) = 0 with M_i = I - (I - eta A_i)^K_i, and FedNova where sum p_i M_i / K_i (w - b_i) = 0. Holds: as
eta falls, FedAvg with unequal K_i tends to the optimum of sum p_i K_i F_i, and FedNova to that of sum p_i F_i. Does not
hold: for a given eta FedNova is not at that optimum either; what is left is the drift, of first order in eta, that
equal K_i leave too.
"""

from itertools import pairwise

import pytest
import torch
from quadratics import Quadratics

PROBLEM = Quadratics.drawn(3, (2, 6, 4), condition=3.0, spread=2.0, seed=2)
UNEQUAL = {"epochs": 2, "batch_size": 2}
STEPS = (2, 6, 4)


def fixed_point(method, lr):
    p = PROBLEM.weights()
    if method == "fednova":
        p = p / torch.tensor(STEPS)
    return PROBLEM.zero_of(p[:, None, None] * PROBLEM.contractions(lr, STEPS))


@pytest.mark.parametrize("steps", [1, 4])
def test_the_fixed_point_of_fedavg_with_equal_steps(steps):
    """One step leaves no drift; four do, in first order of the rate."""
    rates = (0.2, 0.1, 0.05)
    points = [PROBLEM.zero_of(PROBLEM.weights()[:, None, None] * PROBLEM.contractions(lr, steps)) for lr in rates]
    found = PROBLEM.train("fedavg", rounds=80, steps=steps, lr=0.6).vector
    expected = PROBLEM.zero_of(PROBLEM.weights()[:, None, None] * PROBLEM.contractions(0.6, steps))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
    drift = [float((w - PROBLEM.optimum()).norm()) for w in points]
    if steps == 1:
        assert max(drift) < 1e-12
    else:
        assert drift[0] > 0.01
        assert all(1.7 < a / b < 2.3 for a, b in pairwise(drift))


@pytest.mark.parametrize("method", ["fedavg", "fednova"])
def test_the_fixed_point_with_unequal_steps(method):
    found = PROBLEM.train(method, rounds=60, lr=0.2, **UNEQUAL).vector
    torch.testing.assert_close(found, fixed_point(method, 0.2), rtol=0, atol=1e-7)


def test_fednova_removes_the_objective_inconsistency_and_leaves_the_drift():
    p, steps = PROBLEM.weights(), torch.tensor(STEPS)
    stretched = PROBLEM.zero_of((p * steps)[:, None, None] * PROBLEM.A)
    inconsistency = float((stretched - PROBLEM.optimum()).norm())
    assert inconsistency > 0.1
    to_stretched = [float((fixed_point("fedavg", lr) - stretched).norm()) for lr in (0.2, 0.1, 0.05)]
    to_optimum = [float((fixed_point("fednova", lr) - PROBLEM.optimum()).norm()) for lr in (0.2, 0.1, 0.05)]
    for off in (to_stretched, to_optimum):
        assert all(1.6 < a / b < 2.4 for a, b in pairwise(off))
        assert 0.01 < off[0] < inconsistency


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_fednova_counts_what_momentum_adds(momentum):
    """At a small rate a client's weight is its gradients' reach, so with momentum too the named optimum is kept."""
    settings = {"lr": 0.02 * (1 - momentum), "momentum": momentum, **UNEQUAL}
    off = {}
    for method in ("fedavg", "fednova"):
        start = fixed_point(method, 1e-6)
        off[method] = float((PROBLEM.train(method, start, rounds=40, **settings).vector - PROBLEM.optimum()).norm())
    assert off["fednova"] < 0.03 < 0.1 < off["fedavg"]
