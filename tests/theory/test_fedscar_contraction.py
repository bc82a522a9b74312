"""FedScar (poster, ICML 2026): the injected bias contracts geometrically, and clients agree on a flat optimum.

Holds: b_i contracts by gamma_c a round while its client is away, and never passes alpha/(1 - gamma_c). Does not hold
for the published code, which is the default: what it injects has constant length, and so has its proximal pull, and
each of the two alone keeps the model away from the optimum. The poster's forms, an injection as long as the deviation
("variance-aware") and the squared prox, together leave no such floor. The poster's sign of the dual diverges.
"""

import math
from itertools import pairwise

import pytest
import torch
from quadratics import Quadratics

import fedflat as ff
from fedflat import Algorithm, Part, vector
from fedflat.algorithms import Scars

PROBLEM = Quadratics.drawn(3, (2,) * 6, condition=4.0, seed=2)
BETA = 0.4


def test_an_injection_contracts_and_is_bounded():
    rows = []
    schedule = [[0, 1, 2], [0, 1, 3], [0, 4], [0, 5], [0, 1], [0, 3]]
    PROBLEM.train(
        ff.algorithms.fedscar(),
        rounds=20,
        participation=schedule,
        steps=1,
        callbacks=[lambda round, row, state: rows.append([state.server.kept["Scars"]["b"].get(i) for i in range(6)])],
    )
    for t, (before, after) in enumerate(pairwise(rows), start=1):
        for i in set(range(6)) - set(schedule[t % 6]):
            torch.testing.assert_close(after[i], 0.9 * before[i], rtol=1e-12, atol=0)
        for i in schedule[t % 6]:
            if t > 5:
                assert math.isclose((after[i] - 0.9 * before[i]).norm(), 0.1, rel_tol=1e-9)
    assert float(rows[7][2].norm()) > 0.03
    longest = max(float(b.norm()) for row in rows for b in row)
    assert 0.3 < longest <= 0.1 / (1 - 0.9)


def floor(hyper):
    """The mean distance to the optimum in the last twenty rounds."""
    path = PROBLEM.path(ff.algorithms.fedscar(beta=BETA, **hyper), rounds=80, participation=3, lr=0.4, steps=2)
    return float((path[-20:] - PROBLEM.optimum()).norm(dim=1).mean())


@pytest.mark.parametrize(
    ("hyper", "low", "high"),
    [
        ({}, 0.02, 0.15),  # found .057
        ({"prox": "received"}, 0.01, 0.06),  # .025
        ({"alpha": 0.01, "prox": "received"}, 0.0008, 0.006),  # .0022
        ({"alpha": 0.0}, 0.015, 0.1),  # .042
        ({"alpha": 0.0, "prox": "received"}, 0.0, 5e-4),  # 8e-5, and falling
        ({"length": "displacement", "prox": "received"}, 0.0, 5e-4),  # 3e-5
        ({"length": "sigma", "prox": "received"}, 0.0, 5e-4),  # 5e-5
    ],
    ids=lambda value: ", ".join(f"{k}={v}" for k, v in value.items()) or "default" if isinstance(value, dict) else "",
)
def test_what_has_constant_length_leaves_a_floor(hyper, low, high):
    assert low <= floor(hyper) < high


class PosterDual(Part):
    """beta (h_i + x - w) with h_i += sign (x_K - x_0) / scale; the poster has sign -1 and scale eta K."""

    sign: float
    scaled: bool
    beta: float = BETA

    client_keeps = server_keeps = {"h": vector}
    client_sends = {"change": vector}

    def pull(self, step, me, got):
        return self.beta * (me.h + step.x - step.w)

    def finish(self, run, me, got):
        change = self.sign * run.moved / (run.lr_sum if self.scaled else 1)
        me.h = me.h + change
        return {"change": change}

    def update(self, w, srv, replies):
        srv.h = srv.h + replies.over_all(lambda r: r.change)
        return w + self.beta * srv.h


def test_the_posters_sign_of_the_dual_diverges():
    def path(sign, scaled, rounds=40):
        algorithm = Algorithm(Scars(own=2 * BETA, scale=BETA), PosterDual(sign, scaled))
        return PROBLEM.path(algorithm, rounds=rounds, participation=3, lr=0.4, steps=2)

    usual = PROBLEM.path(ff.algorithms.fedscar(beta=BETA, prox="received"), rounds=40, participation=3, lr=0.4, steps=2)
    torch.testing.assert_close(path(1.0, False), usual, rtol=0, atol=1e-12)
    for scaled in (False, True):
        away = (path(-1.0, scaled) - PROBLEM.optimum()).norm(dim=1)
        assert away[39] > 20 * away[15] > 10
