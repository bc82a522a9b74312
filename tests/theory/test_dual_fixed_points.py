"""SCAFFOLD, FedDyn and FedDC rest at the optimum of the objective that the weights name.

Holds with all clients, of unequal sizes and with unequal numbers of steps, for either weighting. The mixed form of
published code, sample weights for the models and uniform ones for the duals, rests at the uniform optimum: at a fixed
point no client moves, and what makes them rest is that the duals, gradients up to a factor, sum to zero in their own
weights. FedAvg rests at neither.
"""

import pytest
from quadratics import Quadratics

PROBLEM = Quadratics.drawn(3, (1, 4, 2), condition=2.0, spread=2.0, seed=4)  # two, four and two steps a round
METHODS = ["scaffold", "feddyn(lam=1.0)", "feddc(lam=1.0)"]


def distances(name, weighting="samples"):
    """How far a method ends from the weighted and from the uniform optimum."""
    w = PROBLEM.train(name, rounds=45, epochs=2, batch_size=2, lr=0.25, weighting=weighting).vector
    return {objective: float((w - PROBLEM.optimum(objective)).norm()) for objective in ("samples", "uniform")}


def test_the_two_optima_differ():
    assert (PROBLEM.optimum("samples") - PROBLEM.optimum("uniform")).norm() > 0.3


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("name", METHODS)
def test_the_fixed_point_is_the_optimum_of_the_named_objective(name, weighting):
    assert distances(name, weighting)[weighting] < 1e-6


@pytest.mark.parametrize("name", ["scaffold(dual_weights='uniform')", "feddyn(lam=1.0, dual_weights='uniform')"])
def test_the_mixed_form_rests_at_the_uniform_optimum(name):
    off = distances(name)
    assert off["uniform"] < 1e-6
    assert off["samples"] > 0.3


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedavg_rests_at_neither(weighting):
    assert min(distances("fedavg", weighting).values()) > 0.01
