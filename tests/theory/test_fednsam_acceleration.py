"""FedNSAM (arXiv:2602.23827, abstract): a tighter convergence bound than FedSAM "by Nesterov extrapolation".

On heterogeneous quadratics. Holds: at the same rate FedNSAM needs a fraction of the rounds, and with full participation
also where each has the best rate of a grid. Does not hold: with partial participation the rounds that it saves are
those of the larger rate lr/(1 - gamma), at which FedSAM is as fast, and it settles further from the optimum.

The two published forms are one as long as there is no weight decay: start at w + gamma m with e = -rho m^, or start
at w and take every gradient at x + gamma m - rho m^.
"""

import pytest
import torch
from quadratics import Quadratics

from fedflat import Algorithm, Part, once, unit, vector


class LookAhead(Part):
    """The first published form: the look-ahead stands in every gradient."""

    gamma: float = 0.85
    rho: float = 0.05

    server_keeps = server_sends = {"m": vector}

    @once
    def perturb(self, step, me, got):
        return self.gamma * got.m - self.rho * unit(got.m)

    def aggregate(self, w, srv, replies):
        srv.m = self.gamma * srv.m + replies.mean(lambda r: r.moved)
        return w + srv.m


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_two_forms_agree_without_weight_decay(momentum, weight_decay):
    problem = Quadratics.drawn(4, (2, 5, 3, 4), seed=1)
    settings = {"rounds": 8, "participation": 2, "steps": 3, "momentum": momentum, "weight_decay": weight_decay}
    distance = (problem.path("fednsam", **settings) - problem.path(Algorithm(LookAhead()), **settings)).abs().max()
    assert distance > 1e-3 if weight_decay else distance < 1e-12


def rounds_to(problem, excess, algorithm, rounds, **settings):
    """The first round whose model is this little above the minimum of the weighted loss; None if there is none."""
    optimum, A = problem.optimum(), torch.einsum("n,nij->ij", problem.weights(), problem.A)

    def there(round, row, state):
        away = state.vector - optimum
        return bool(away @ A @ away / 2 <= excess)

    start = optimum + 3.0
    history = problem.train(algorithm, start, rounds=rounds, callbacks=[there], **settings).history
    return len(history) if len(history) < rounds else None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_at_the_same_rate_fednsam_needs_a_fraction_of_the_rounds(seed):
    """Two clients of ten a round: 24, 13, 15 rounds against 70, 65, 64. FedSAM at the rate that momentum sums up to,
    lr/(1 - gamma), catches up: 10, 12, 13."""
    problem = Quadratics.drawn(5, (5,) * 10, condition=100.0, seed=seed)
    settings = {"participation": 2, "steps": 3, "seed": seed}
    nsam = rounds_to(problem, 0.1, "fednsam(rho=0.05)", 60, lr=0.05, **settings)
    assert rounds_to(problem, 0.1, "fedsam(rho=0.05)", nsam * 5 // 2, lr=0.05, **settings) is None
    assert rounds_to(problem, 0.1, "fedsam(rho=0.05)", nsam + 5, lr=0.05 / 0.15, **settings) is not None


def ill_conditioned(seed):
    g = torch.Generator().manual_seed(seed)
    curvature = torch.logspace(0, -2, 5, dtype=torch.float64) * (
        0.5 + torch.rand(3, 5, generator=g, dtype=torch.float64)
    )
    return Quadratics(torch.diag_embed(curvature), torch.randn(3, 5, generator=g, dtype=torch.float64), (1,) * 3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_full_participation_fednsam_is_faster_at_the_best_rate_of_each(seed):
    """11, 9, 19 rounds against 31, 28, 92, on a grid of rates up to where the local steps diverge."""
    problem = ill_conditioned(seed)
    rates = 0.3, 0.6, 0.9, 1.2
    nsam = [rounds_to(problem, 0.02, "fednsam(rho=0.05)", 22, lr=lr, steps=2) for lr in rates]
    best = min(rounds for rounds in nsam if rounds is not None)
    assert not any(rounds_to(problem, 0.02, "fedsam(rho=0.05)", 2 * best, lr=lr, steps=2) for lr in rates)


def test_with_partial_participation_fednsam_settles_further_away():
    """At a mean distance of .78 from the optimum, FedSAM of .44: the momentum sums up the sampling noise too."""
    problem = Quadratics.drawn(5, (5,) * 10)
    floor = {}
    for name in ("fednsam(rho=0.05)", "fedsam(rho=0.05)"):
        path = problem.path(name, rounds=80, lr=0.1, participation=2, steps=3)
        floor[name] = float((path[30:] - problem.optimum()).norm(dim=1).mean())
    assert floor["fednsam(rho=0.05)"] > 1.4 * floor["fedsam(rho=0.05)"]
