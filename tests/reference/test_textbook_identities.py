"""Identities between textbook loops: what one method becomes when a part of it is switched off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from by_hand import classification, network, same
from textbook import ALGORITHMS, Setting, run, trained
from torch import nn

Method = tuple[str, dict]


def first_round() -> Setting:
    return classification(rounds=1)


def single_steps() -> Setting:
    """Each round one step of each client."""
    setting = classification(weight_decay=0.01)
    setting.batches = lambda t, i: [torch.arange(len(setting.clients[i][1]))]
    return setting


def first_single_step() -> Setting:
    setting = single_steps()
    setting.schedule = setting.schedule[:1]
    return setting


def one_client() -> Setting:
    setting = classification(weight_decay=0.01)
    setting.clients, setting.schedule = setting.clients[:1], [[0]] * 4
    return setting


def everybody() -> Setting:
    setting = classification(weight_decay=0.01)
    setting.schedule = [[0, 1, 2]] * 4
    return setting


def everything() -> Setting:
    return classification(weight_decay=0.01, rounds=4)


FEDAVG: Method = ("fedavg", {})
OFF: list[tuple[Method, Method, Callable[[], Setting]]] = [
    (("fednova", {}), FEDAVG, single_steps),
    (("fednova", {}), FEDAVG, one_client),
    (("fedavgm", {"beta": 0.0}), FEDAVG, everything),
    (("fedavgm", {"beta": 0.6}), ("fedacg", {"gamma": 0.6, "beta": 0.0}), first_round),
    (("fedyogi", {}), ("fedadam", {}), first_round),
    (("fedadagrad", {"eps": 0.1}), ("fedadam", {"b1": 0.0, "b2": 0.0, "eps": 0.1}), first_round),
    (("fedcm", {"alpha": 1.0}), FEDAVG, everything),
    (("fedacg", {"gamma": 0.0, "beta": 0.0}), FEDAVG, everything),
    (("fedswa", {"rho": 1.0, "alpha": 1.0}), FEDAVG, everything),
    (("fedmoswa", {"rho": 1.0, "alpha": 1.0, "gamma": 1.0}), ("scaffold", {}), everybody),
    (("fedmoswa", {"gamma": 0.7}), ("fedswa", {}), first_round),
    (("moon", {"mu": 0.0}), FEDAVG, everything),
    (("moon", {"mu": 0.9}), FEDAVG, first_round),
    (("feddc", {"lam": 0.2}), ("feddyn", {"lam": 0.2}), one_client),
    (("feddc", {"lam": 0.2}), ("feddyn", {"lam": 0.2}), first_round),
    (("feddyn", {"lam": 0.2, "dual_weights": "uniform"}), ("feddyn", {"lam": 0.2}), one_client),
    (("mofedsam", {"rho": 0.0}), ("fedcm", {}), everything),
    (("mofedsam", {"alpha": 1.0}), ("fedsam", {}), everything),
    (("fedgamma", {"rho": 0.0}), ("scaffold", {}), everything),
    (("fedspeed", {"rho": 0.0}), ("feddyn", {}), everything),
    (("fedsmoo", {"rho": 0.0}), ("feddyn", {}), everything),
    (("fedsmoo", {"rho": 0.3}), ("fedspeed", {"rho": 0.3}), first_single_step),
    (("fedsmoo", {"rho": 0.3, "sign": 1}), ("fedsmoo", {"rho": 0.3}), first_round),
    (("fedlesam", {"rho": 0.0}), FEDAVG, everything),
    (("fedlesam", {"rho": 0.5}), FEDAVG, first_round),
    (("fedlesam_s", {"rho": 0.0}), ("scaffold", {}), everything),
    (("fedlesam_d", {"rho": 0.0}), ("feddyn", {}), everything),
    (("fedgmt", {"gamma": 0.0, "lam": 0.2}), ("feddyn", {"lam": 0.2, "quadratic": False}), everything),
    (("fedgloss", {"rho": 0.0, "rho_l": 0.0, "beta": 4.0}), ("feddyn", {"lam": 0.25}), everything),
    (("fedgloss", {"rho": 0.0, "rho_l": 0.3, "beta": 4.0}), ("fedspeed", {"rho": 0.3, "lam": 0.25}), everything),
    (("fedgloss", {"rho": 0.0, "rho_l": 0.0, "ramp": 3}), ("feddyn", {"lam": 0.1}), everything),
    (("fednsam", {"rho": 0.0}), ("fedacg", {"beta": 0.0}), everything),
    (("fednsam", {"rho": 0.0, "ascent": "local"}), ("fednsam", {"rho": 0.0}), everything),
    (("fednsam", {"rho": 0.3, "gamma": 0.0, "ascent": "local"}), ("fedsam", {"rho": 0.3}), everything),
    (("fedasam", {"rho": 0.0}), FEDAVG, everything),
    (("fedasam", {"rho": 1e-13, "eta": 1e12, "scale": "all"}), ("fedsam", {"rho": 0.1}), first_round),
    (("fedwmsam", {"rho": 0.0, "control": False, "lam": 0.0}), ("fedcm", {"alpha": 0.1}), everything),
    (("fedwmsam", {"rho": 0.0}), ("fedcm", {"alpha": 0.1}), first_round),
    (("fedwmsam", {"rho": 0.3, "away": True}), ("fedwmsam", {"rho": -0.3}), everything),
    (("fedgf", {"rho": 0.3, "threshold": 1e9}), ("fedsam", {"rho": 0.3}), everything),
    (("fedgf", {"rho": 0.3, "threshold": 0.0}), ("fedsam", {"rho": 0.3}), first_round),
    (("fedsol", {"ablation": "A0"}), FEDAVG, everything),
    (("fedsol", {"ablation": "A2", "beta": 0.0}), FEDAVG, everything),
    (("fedsol", {"ablation": "A3", "beta": 0.0}), ("fedsol", {}), everything),
    (("fedsol", {"ablation": "A6", "beta": 0.0}), ("fedsol", {}), everything),
    (("fedsol", {"ablation": "A5", "proximal": "prox"}), ("fedprox", {"mu": 1.0}), everything),
    (("fedsol", {"ablation": "A3", "rho": 0.0}), ("fedsol", {"ablation": "A5"}), everything),
    (("fedsol", {"ablation": "A4", "rho": 0.0}), ("fedsol", {"ablation": "A5"}), everything),
    (("fedsol", {"rho": 0.0, "proximal": "scaffold"}), FEDAVG, everything),
    (("fedsol", {"rho": 0.0, "proximal": "moon"}), FEDAVG, everything),
    (("fedsol", {"rho": 0.0, "proximal": "nova"}), ("fednova", {}), everything),
    (("fedsol", {"rho": 0.0, "proximal": "dyn"}), ("feddyn", {"lam": 0.0}), everything),
    (("fedscar", {"alpha": 0.0}), ("fedscar", {"ablation": "scar2"}), everything),
    (("fedscar", {"alpha": 0.0, "ablation": "scarl"}), FEDAVG, everything),
    (
        ("fedscar", {"alpha": 0.0, "beta": 0.2, "prox": "received", "server_scale": 1}),
        ("feddyn", {"lam": 0.2}),
        everything,
    ),
    (
        ("fedscar", {"alpha": 0.0, "beta": 0.2, "prox": "received", "server_scale": 1, "rho": 0.3}),
        ("fedspeed", {"lam": 0.2, "rho": 0.3}),
        everything,
    ),
]


@pytest.mark.parametrize(
    ("special", "known", "setting"), OFF, ids=[f"{a[0]}{a[1]}-{b[0]}-{c.__name__}" for a, b, c in OFF]
)
def test_switched_off(special: Method, known: Method, setting: Callable[[], Setting]):
    found, expected = (run(name, network(), setting(), **hyper) for name, hyper in (special, known))
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=1e-10)


OPTIONS: list[Method] = [
    *((name, {}) for name in ALGORITHMS if name not in ("fedavg", "local")),
    ("fedsmoo", {"sign": 1}),
    ("fedwmsam", {"away": True}),
    ("fedasam", {"scale": "all", "eta": 0.0, "rho": 0.5}),
    ("feddyn", {"dual_weights": "uniform"}),
    ("fednsam", {"ascent": "local"}),
    ("fedgloss", {"ramp": 2}),
    *(("fedsol", {"proximal": proximal}) for proximal in ("prox", "scaffold", "dyn", "moon", "nova")),
    *(("fedsol", {"ablation": ablation}) for ablation in ("A2", "A3", "A4", "A5", "A6")),
    *(("fedscar", {"length": length}) for length in ("sigma", "displacement")),
    ("fedscar", {"prox": "received"}),
    ("fedscar", {"server_scale": 1}),
    ("fedscar", {"ablation": "scar2"}),
    ("fedscar", {"ablation": "scarl"}),
]


def vector(name: str, **hyper) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run(name, network(), everything(), **hyper).parameters()])


def test_every_option_makes_a_difference():
    found = {str(method): vector(method[0], **method[1]) for method in [FEDAVG, *OPTIONS]}
    assert all(v.isfinite().all() for v in found.values())
    names = list(found)
    twins = [(a, b) for i, a in enumerate(names) for b in names[:i] if (found[a] - found[b]).abs().max() < 1e-9]
    assert twins == []


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "local"])
def test_man_makes_a_difference_to_every_method(name: str):
    assert (vector(name) - vector(name, man=0.5)).abs().max() > 1e-6


def test_local_is_fedavg_of_one_client_each():
    setting = everything()
    model, method = trained("local", network(), setting)
    assert same(model, network())
    for i in range(3):
        alone = everything()
        rounds = [t for t, active in enumerate(setting.schedule) if i in active]
        alone.schedule = [[i]] * len(rounds)
        alone.batches = lambda t, i, rounds=rounds: setting.batches(rounds[t - 1] + 1, i)
        alone.lr = lambda t, rounds=rounds: setting.lr(rounds[t])
        expected = run("fedavg", network(), alone)
        for found, p in zip(method.x[i], expected.parameters(), strict=True):
            torch.testing.assert_close(found, p.detach(), rtol=0, atol=1e-12)


def test_the_head_of_fedbabu_stays_and_its_body_moves():
    before, after = network(), run("fedbabu", network(), everything())
    assert same(before[2], after[2])
    assert not same(before[0], after[0])


@pytest.mark.parametrize(
    "name",
    [
        "fedasam", "mofedsam", "fedgamma", "fedspeed", "fedsmoo", "fedgmt", "fedgloss", "fedgf", "perfedavg", "moon",
        "fedsol",
    ],
)  # fmt: skip
def test_one_pass_of_a_step_updates_the_running_statistics(name: str):
    # As FedAvg on the minibatches of the updates, the second of each pair for PerFedAvg.
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    setting = classification(rounds=2)
    step = 2 if name == "perfedavg" else 1

    def every(t: int, i: int) -> list[torch.Tensor]:
        return list(torch.arange(len(setting.clients[i][1])).roll(t).tensor_split(2)) * 2

    setting.batches = every
    found = run(name, model, setting)
    setting.batches = lambda t, i: every(t, i)[step - 1 :: step]
    expected = run("fedavg", model, setting)
    torch.testing.assert_close(found[0].running_mean, expected[0].running_mean, rtol=0, atol=1e-12)
