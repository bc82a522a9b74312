"""Where two algorithms have to be one: each row is an identity, held to 1e-12 in float64."""

import pytest
import textbook
import torch
from federations import NAMES, SCHEDULE, SIZES, network, population, train
from test_reference import Case, batches

from fedflat.algorithms import parse

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
    ("fedavgm(beta=0.0)", "fedavg"),
    ("fedcm(alpha=1.0)", "fedavg"),
    ("fedacg(gamma=0.0, beta=0.0)", "fedavg"),
    ("fedacg(gamma=0.7, beta=0.0)", "fednsam(gamma=0.7, rho=0.0)"),
    ("fedacg(gamma=0.0, beta=0.3)", "fedprox(mu=0.3)"),
    ("fedswa(rho=1.0, alpha=1.0)", "fedavg"),
    ("fedmoswa(rho=1.0, alpha=1.0, gamma=0.0)", "MomentumControls(gamma=0.0)"),
    ("fedmoswa", "fedswa+MomentumControls()"),
    ("moon(mu=0.0)", "fedavg"),
    ("fedgmt(gamma=0.0, lam=0.2)", "Dual(lam=0.2, quadratic=False)"),
    ("fedgmt", "fedgmt(dual_weights='samples')"),
    ("feddc(lam=0.2)", "scaffold+feddyn(lam=0.2)"),
    ("fedgmt(gamma=0.0)+fedprox(mu=0.1)", "feddyn(lam=0.1)"),
    ("fedbabu+man(zeta=0.0)", "fedbabu"),
    ("fedasam(rho=0.0)", "fedavg"),
    ("mofedsam(rho=0.0)", "fedcm"),
    ("mofedsam(alpha=1.0)", "fedsam"),
    ("mofedsam(rho=0.3)", "fedcm+fedsam(rho=0.3)"),
    ("fedgamma(rho=0.0)", "scaffold"),
    ("fedgamma(rho=0.3)", "scaffold+fedsam(rho=0.3)"),
    ("fedspeed(rho=0.0)", "feddyn"),
    ("fedspeed(rho=0.3)", "feddyn+fedsam(rho=0.3)"),
    ("fedsmoo(rho=0.0)", "feddyn"),
    ("fedlesam(rho=0.0)", "fedavg"),
    ("fedlesam-s(rho=0.0)", "scaffold"),
    ("fedlesam-d(rho=0.0)", "feddyn"),
    ("fedlesam(rho=0.0, displacement=round)", "fedavg"),
    ("fedlesam-s(rho=0.3)", "fedlesam(rho=0.3)+scaffold"),
    ("fedlesam-d(rho=0.3)", "feddyn+fedlesam(rho=0.3)"),
    ("fedgloss(rho=0.0, rho_l=0.0, beta=4.0)", "feddyn(lam=0.25)"),
    ("fedgloss(rho=0.0, rho_l=0.0, ramp=3)", "feddyn(lam=0.1)"),
    ("fedgloss(rho=0.0, rho_l=0.3, beta=4.0)", "fedspeed(rho=0.3, lam=0.25)"),
    ("fedgloss(rho=0.001, rho_l=0.001, ramp=3)", "fedgloss(rho=0.001, rho_l=0.001)"),
    ("fedwmsam(rho=0.0, control=False, lam=0.0)", "fedcm(alpha=0.1)"),
    ("fedgf(rho=0.3, threshold=1e9)", "fedsam(rho=0.3)"),
    ("fednsam(rho=0.0, ascent=local)", "fednsam(rho=0.0)"),
    ("fednsam(rho=0.3, gamma=0.0, ascent=local)", "fedsam(rho=0.3)"),
    ("fednsam(ascent=local)", "fedacg(beta=0.0)+fedsam(rho=0.05)"),
    ("fedscar(alpha=0.0)", "fedscar(ablation=scar2)"),
    ("fedscar(alpha=0.0, ablation=scarl)", "fedavg"),
    ("fedscar(alpha=0.0, length=sigma)", "fedscar(alpha=0.0, length=displacement)"),
    ("fedscar(alpha=0.0, beta=0.2, prox=received, server_scale=1)", "feddyn(lam=0.2)"),
    ("fedscar(alpha=0.0, beta=0.2, prox=received, server_scale=1, rho=0.3)", "fedspeed(rho=0.3, lam=0.2)"),
    ("fedsol(ablation=A0)", "fedavg"),
    ("fedsol(ablation=A1)", "fedsol"),
    ("fedsol(ablation=A2, beta=0.0)", "fedavg"),
    ("fedsol(ablation=A3, beta=0.0)", "fedsol"),
    ("fedsol(ablation=A6, beta=0.0)", "fedsol"),
    ("fedsol(ablation=A5)", "Preservation()"),
    ("fedsol(ablation=A2, rho=0.0)", "fedsol(ablation=A5)"),
    ("fedsol(ablation=A3, rho=0.0)", "fedsol(ablation=A5)"),
    ("fedsol(ablation=A4, rho=0.0)", "fedsol(ablation=A5)"),
    ("fedsol(ablation=A6, rho=0.0)", "fedsol(ablation=A5)"),
    ("fedsol(ablation=A5, proximal=prox)", "fedprox(mu=1.0)"),
    ("fedsol(ablation=A5, proximal=scaffold)", "scaffold"),
    ("fedsol(ablation=A5, proximal=dyn)", "feddyn(lam=1.0)"),
    ("fedsol(ablation=A5, proximal=moon)", "moon(mu=1.0)"),
    ("fedsol(rho=0.0, proximal=scaffold)", "fedavg"),
    ("fedsol(rho=0.0, proximal=moon)", "fedavg"),
    ("fedsol(rho=0.0, proximal=nova)", "fednova"),
    ("fedsol(proximal=moon, layers=head)", "fedavg"),  # the features do not depend on the head
]
SAME_STEPS = {"epochs": None, "steps": 4}
ONE_CLIENT = {"clients": population()[:1], "participation": [[0]]}
ONE_ROUND = {"rounds": 1}
ONE_STEP = {"rounds": 1, "epochs": None, "steps": 1}
EVERYBODY = {"participation": 1.0}
WHERE = [
    ("fednova", "fedavg", SAME_STEPS),
    ("fednova", "fedavg", ONE_CLIENT),
    ("feddc(lam=0.2)", "feddyn(lam=0.2)", ONE_CLIENT),
    ("feddc(lam=0.2)", "feddyn(lam=0.2)", ONE_ROUND),
    ("fedavgm(beta=0.6)", "fedacg(gamma=0.6, beta=0.0)", ONE_ROUND),
    ("fedyogi", "fedadam", ONE_ROUND),
    ("fedadagrad(b1=0.5, eps=0.1)", "fedadam(b1=0.5, b2=0.0, eps=0.1)", ONE_ROUND),
    ("fedmoswa(rho=1.0, alpha=1.0, gamma=1.0)", "scaffold", EVERYBODY),
    ("fedmoswa", "fedswa", ONE_ROUND),
    ("moon(mu=0.9)", "fedavg", ONE_ROUND),
    ("fedgmt(alpha=1.0)", "fedgmt(alpha=0.0)", ONE_ROUND),
    ("fedasam(rho=1e-13, eta=1e12, scale=all)", "fedsam(rho=0.1)", ONE_ROUND),
    ("fedsmoo(rho=0.3)", "fedspeed(rho=0.3)", ONE_STEP),
    ("fedsmoo(rho=0.3, sign=1)", "fedsmoo(rho=0.3)", ONE_ROUND),
    ("fedlesam", "fedlesam(displacement=round)", EVERYBODY),
    ("fedlesam-s", "fedlesam-s(displacement=round)", EVERYBODY),
    ("fedlesam-d", "fedlesam-d(displacement=round)", EVERYBODY),
    ("fedlesam-d", "feddyn", ONE_ROUND),
    ("fedgloss(rho=0.3, beta=4.0)", "fedspeed(rho=0.15, lam=0.25)", ONE_ROUND),
    ("fedwmsam(rho=0.0)", "fedcm(alpha=0.1)", ONE_ROUND),
    ("fedgf(rho=0.3, threshold=0.0)", "fedsam(rho=0.3)", ONE_ROUND),
]
FIRST_ROUND = [
    "fedlesam",
    "fedlesam-s",
    "fedlesam(displacement=round)",
    "fedavgm",
    "fedacg(beta=0.0)",
    "moon",
    "scaffold",
    "fednsam",
    "fedscar(beta=0.0)",
]


def by_construction(left: str, right: str) -> bool:
    """Whether both sides are the same parts, in any order: such a row pins a spelling and not a formula."""
    return set(parse(left).parts) == set(parse(right).parts)


@pytest.mark.parametrize(("left", "right"), IDENTITIES, ids=[f"{a} = {b}" for a, b in IDENTITIES])
def test_identity(left, right):
    torch.testing.assert_close(train(left).vector, train(right).vector, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("left", "right", "changes"), WHERE, ids=[f"{a} = {b}: {[*c]}" for a, b, c in WHERE])
def test_identity_in_special_runs(left, right, changes):
    torch.testing.assert_close(train(left, **changes).vector, train(right, **changes).vector, rtol=0, atol=1e-12)


def test_perfedavg_without_its_step_is_fedavg_on_every_second_minibatch():
    found = train("perfedavg(alpha=0.0)", batch_size=None, epochs=4).vector
    torch.testing.assert_close(found, train("fedavg", batch_size=None, epochs=2).vector, rtol=0, atol=1e-12)


def test_fedbabu_is_fedavg_of_a_model_with_a_frozen_head():
    model = network()
    model[-1].requires_grad_(False)
    found, expected = train("fedbabu"), train("fedavg", model=model)
    assert torch.equal(found.vector, expected.vector)
    assert {**found.costs, "flops": 1.0} == expected.costs
    assert 0.9 < found.costs["flops"] < 1.0  # in units of FedAvg on its own model, whose head is trained
    assert torch.equal(found.model[-1].weight, model[-1].weight)


def test_local_training_is_fedavg_of_every_client_alone():
    alone = train("local", **ONE_CLIENT).memories[0]["Alone.x"]
    torch.testing.assert_close(alone, train("fedavg", **ONE_CLIENT).vector, rtol=0, atol=1e-12)
    together = train("local", participation=1.0)
    torch.testing.assert_close(together.memories[0]["Alone.x"], alone, rtol=0, atol=1e-12)
    assert torch.equal(together.vector, torch.nn.utils.parameters_to_vector(network().parameters()))


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


def test_what_holds_by_construction_is_told_from_what_does_not():
    assert by_construction("fedspeed(rho=0.3)", "feddyn+fedsam(rho=0.3)")
    assert not by_construction("fedspeed(rho=0.0)", "feddyn")
    assert not by_construction("fedspeed(rho=0.3)", "feddyn+fedsam(rho=0.2)")


DUALS = [
    ("feddyn", "Dual.h"),
    ("scaffold", "ControlVariates.c"),
    ("feddc", "Dual.h"),
    ("feddc", "ControlVariates.c"),
    ("fedgmt", "Dual.h"),
]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(("name", "key"), DUALS)
def test_the_servers_dual_is_the_population_mean_of_the_clients(name, key, weighting):
    seen = []
    result = train(name, weighting=weighting, callbacks=[lambda round, row, state: seen.append(state)])
    part, value = key.split(".")
    q = [n / sum(SIZES) if weighting == "samples" else 1 / len(SIZES) for n in SIZES]
    mean = sum(q[i] * memory[key] for i, memory in result.memories.items())
    torch.testing.assert_close(seen[-1].server.kept[part][value], mean, rtol=0, atol=1e-12)
