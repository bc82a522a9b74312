"""Where two algorithms have to be one: each row is an identity, held to 1e-12 in float64."""

import pytest
import textbook
import torch
from federations import NAMES, SCHEDULE, SIZES, network, population, train
from test_reference import Case, batches

import fedflat as ff

IDENTITIES = [
    ("fedprox(mu=0.0)", "fedavg"),
    ("fedsam(rho=0.0)", "fedavg"),
    ("fednsam(gamma=0.0, rho=0.0)", "fedavg"),
    ("fedsol(rho=0.0)", "fedavg"),
    ("fedsol(rho=0.0, adaptive='columns')", "fedavg"),
    ("fedsol(rho=0.0, adaptive=False)", "fedavg"),
    ("fedscar(alpha=0.0, beta=0.0)", "fedavg"),
    ("fedntd(beta=0.0)", "fedavg"),
    ("man(zeta=0.0)", "fedavg"),
    ("fedsam+man(zeta=0.0)", "fedsam"),
    ("fednsam+man(zeta=0.0)", "fednsam"),
    ("fedsol+man(zeta=0.0)", "fedsol"),
    ("fedsam(rho=0.0)+scaffold", "scaffold"),
    ("fedsam(rho=0.0)+feddyn", "feddyn"),
    ("scaffold+feddyn", "feddyn+scaffold"),
    ("fedsam+scaffold", "scaffold+fedsam"),
    ("fedscar(rho=0.1)", "fedscar+fedsam(rho=0.1)"),
    ("scaffold", "scaffold(dual_weights='samples')"),
]
FIRST_ROUND = ["scaffold", "fednsam", "fedscar(beta=0.0)"]


@pytest.mark.parametrize(("left", "right"), IDENTITIES, ids=[f"{a} = {b}" for a, b in IDENTITIES])
def test_identity(left, right):
    torch.testing.assert_close(train(left).vector, train(right).vector, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", FIRST_ROUND)
def test_the_first_round_is_fedavg(name):
    torch.testing.assert_close(train(name, rounds=1).vector, train("fedavg", rounds=1).vector, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "fedavg"])
def test_every_algorithm_differs_from_fedavg(name):
    assert (train(name).vector - train("fedavg").vector).abs().max() > 1e-6


def test_the_two_forms_of_fednsam_agree():
    setting = textbook.Setting(population(), SCHEDULE, batches(Case("mini-batch")), lambda t: 0.2, momentum=0.8)
    model = textbook.run("fednsam_lookahead", network(), setting, rho=0.05, gamma=0.85)
    found = train("fednsam", lr_decay=1.0, weight_decay=0.0, clip=None).vector
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(("name", "key"), [("feddyn", "Dual.h"), ("scaffold", "ControlVariates.c")])
def test_the_servers_dual_is_the_population_mean_of_the_clients(name, key, weighting):
    seen = []
    result = train(name, weighting=weighting, callbacks=[lambda round, row, state: seen.append(state)])
    part, value = key.split(".")
    q = [n / sum(SIZES) if weighting == "samples" else 1 / len(SIZES) for n in SIZES]
    mean = sum(q[i] * memory[key] for i, memory in result.memories.items())
    torch.testing.assert_close(seen[-1].server.kept[part][value], mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("name", ["scaffold", "feddyn(lam=1.0)", "fedavg"])
def test_the_fixed_point_is_the_optimum_of_the_named_objective(name, weighting):
    """Quadratic clients a_i/2 (x - b_i)^2 of unequal sizes: the duals remove FedAvg's bias."""
    a, b, n = torch.tensor([[1.0, 4.0, 0.5], [-2.0, 1.0, 3.0], [1.0, 6.0, 2.0]], dtype=torch.float64)
    p = n / n.sum() if weighting == "samples" else torch.full_like(n, 1 / 3)
    optimum = (p * a * b).sum() / (p * a).sum()
    clients = [
        (ai.sqrt().expand(int(ni), 1), (ai.sqrt() * bi).expand(int(ni), 1)) for ai, bi, ni in zip(a, b, n, strict=True)
    ]
    model = torch.nn.Linear(1, 1, bias=False).double()
    result = ff.simulate(
        name,
        model,
        clients,
        loss=lambda outputs, y: (outputs - y).square().flatten() / 2,
        rounds=400,
        steps=5,
        batch_size=None,
        lr=0.05,
        participation=1.0,
        weighting=weighting,
        engine="serial",
        device="cpu",
    )
    distance = float((result.vector - optimum).abs())
    assert distance > 1e-3 if name == "fedavg" else distance < 1e-8
