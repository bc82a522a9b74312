"""Every algorithm agrees with its textbook loop to 1e-12 in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import textbook
import torch
from federations import SCHEDULE, SIZES, network, population, train
from torch import nn

from fedflat.data import minibatches
from fedflat.seeds import generator

SEED = 3


@dataclass(frozen=True)
class Case:
    name: str
    batch_size: int | None = 4
    epochs: int = 2
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    weighting: str = "samples"
    lr_decay: float = 1.0


CASES = [
    Case("full batch", batch_size=None, epochs=4),
    Case("mini-batch"),
    Case("momentum", momentum=0.9),
    Case("weight decay", weight_decay=0.05),
    Case("clipping", clip=0.4),
    Case("uniform weights", weighting="uniform"),
    Case("everything", momentum=0.8, weight_decay=0.02, clip=0.5, lr_decay=0.9),
    Case("everything, full batch, uniform", None, 3, 0.8, 0.02, 0.5, "uniform", 0.9),
]
DUALS = (
    "scaffold",
    "feddyn",
    "feddc",
    "fedgmt",
    "fedgamma",
    "fedspeed",
    "fedsmoo",
    "fedlesam-s",
    "fedlesam-d",
    "fedgloss",
)
ALGORITHMS = [
    ("fedavg", {}, "fedavg"),
    ("fedprox", {"mu": 0.7}, "fedprox(mu=0.7)"),
    ("scaffold", {}, "scaffold"),
    ("feddyn", {"lam": 0.2}, "feddyn(lam=0.2)"),
    ("fedsam", {"rho": 0.3}, "fedsam(rho=0.3)"),
    ("fednsam", {"rho": 0.2, "gamma": 0.7}, "fednsam(rho=0.2, gamma=0.7)"),
    ("fedsol", {}, "fedsol"),
    ("fedsol", {"adaptive": "columns", "rho": 0.8}, "fedsol(adaptive='columns', rho=0.8)"),
    ("fedsol", {"adaptive": False, "rho": 0.5}, "fedsol(adaptive=False, rho=0.5)"),
    ("fedsol", {"layers": "head"}, "fedsol(layers=head)"),
    ("fedsol", {"layers": "body", "adaptive": False}, "fedsol(layers=body, adaptive=False)"),
    ("fedscar", {}, "fedscar"),
    ("fedscar", {"alpha": 0.3, "beta": 0.2, "rho": 0.2}, "fedscar(alpha=0.3, beta=0.2, rho=0.2)"),
    ("fedntd", {"beta": 0.8, "tau": 2.0}, "fedntd(beta=0.8, tau=2.0)"),
    ("fedavg", {"man": 0.4}, "man(zeta=0.4)"),
    ("fedsam", {"man": 0.4}, "fedsam+man(zeta=0.4)"),
    ("scaffold", {"man": 0.4}, "scaffold+man(zeta=0.4)"),
    ("feddyn", {"man": 0.4}, "feddyn+man(zeta=0.4)"),
    ("fednova", {}, "fednova"),
    ("feddc", {"lam": 0.3}, "feddc(lam=0.3)"),
    ("fedavgm", {}, "fedavgm"),
    ("fedavgm", {"beta": 0.6, "eta_g": 0.7}, "fedavgm(beta=0.6, eta_g=0.7)"),
    ("fedadam", {}, "fedadam"),
    ("fedadam", {"b1": 0.5, "b2": 0.8, "eps": 0.02, "eta_g": 0.3}, "fedadam(b1=0.5, b2=0.8, eps=0.02, eta_g=0.3)"),
    ("fedyogi", {}, "fedyogi"),
    ("fedyogi", {"b1": 0.5, "b2": 0.6, "eps": 0.02, "eta_g": 0.3}, "fedyogi(b1=0.5, b2=0.6, eps=0.02, eta_g=0.3)"),
    ("fedadagrad", {}, "fedadagrad"),
    ("fedadagrad", {"b1": 0.4, "eps": 0.02, "eta_g": 0.3}, "fedadagrad(b1=0.4, eps=0.02, eta_g=0.3)"),
    ("fedcm", {}, "fedcm"),
    ("fedcm", {"alpha": 0.4}, "fedcm(alpha=0.4)"),
    ("fedacg", {}, "fedacg"),
    ("fedacg", {"gamma": 0.5, "beta": 0.3}, "fedacg(gamma=0.5, beta=0.3)"),
    ("moon", {}, "moon"),
    ("moon", {"mu": 0.9, "tau": 0.3}, "moon(mu=0.9, tau=0.3)"),
    ("fedgmt", {}, "fedgmt"),
    (
        "fedgmt",
        {"alpha": 0.5, "gamma": 0.6, "tau": 2.0, "lam": 0.3},
        "fedgmt(alpha=0.5, gamma=0.6, tau=2.0, lam=0.3)",
    ),
    ("fedswa", {}, "fedswa"),
    ("fedswa", {"rho": 0.4, "alpha": 0.8}, "fedswa(rho=0.4, alpha=0.8)"),
    ("fedmoswa", {}, "fedmoswa"),
    ("fedmoswa", {"rho": 0.4, "alpha": 0.8, "gamma": 0.7}, "fedmoswa(rho=0.4, alpha=0.8, gamma=0.7)"),
    ("perfedavg", {}, "perfedavg"),
    ("perfedavg", {"alpha": 0.3}, "perfedavg(alpha=0.3)"),
    ("fedbabu", {}, "fedbabu"),
    ("local", {}, "local"),
    ("fedcm", {"man": 0.4}, "fedcm+man(zeta=0.4)"),
    ("feddc", {"man": 0.4}, "feddc+man(zeta=0.4)"),
    ("fedgmt", {"man": 0.4}, "fedgmt+man(zeta=0.4)"),
    ("moon", {"man": 0.4}, "moon+man(zeta=0.4)"),
    ("fedasam", {}, "fedasam"),
    ("fedasam", {"rho": 0.4, "eta": 0.05}, "fedasam(rho=0.4, eta=0.05)"),
    ("fedasam", {"rho": 0.5, "eta": 0.0, "scale": "all"}, "fedasam(rho=0.5, eta=0.0, scale=all)"),
    ("mofedsam", {}, "mofedsam"),
    ("mofedsam", {"rho": 0.3, "alpha": 0.4}, "mofedsam(rho=0.3, alpha=0.4)"),
    ("fedgamma", {}, "fedgamma"),
    ("fedgamma", {"rho": 0.3}, "fedgamma(rho=0.3)"),
    ("fedspeed", {}, "fedspeed"),
    ("fedspeed", {"rho": 0.3, "lam": 0.2}, "fedspeed(rho=0.3, lam=0.2)"),
    ("fedsmoo", {}, "fedsmoo"),
    ("fedsmoo", {"rho": 0.3, "lam": 0.2}, "fedsmoo(rho=0.3, lam=0.2)"),
    ("fedsmoo", {"rho": 0.3, "sign": 1}, "fedsmoo(rho=0.3, sign=1)"),
    ("fedlesam", {}, "fedlesam"),
    ("fedlesam", {"rho": 0.5}, "fedlesam(rho=0.5)"),
    ("fedlesam_s", {}, "fedlesam-s"),
    ("fedlesam_s", {"rho": 0.5}, "fedlesam-s(rho=0.5)"),
    ("fedlesam_d", {}, "fedlesam-d"),
    ("fedlesam_d", {"rho": 0.5, "lam": 0.2}, "fedlesam-d(rho=0.5, lam=0.2)"),
    *(
        (name.replace("-", "_"), {"rho": 0.5, "displacement": "round"}, f"{name}(rho=0.5, displacement=round)")
        for name in ("fedlesam", "fedlesam-s", "fedlesam-d")
    ),
    *((name.replace("-", "_"), {"dual_weights": "uniform"}, f"{name}(dual_weights=uniform)") for name in DUALS),
    ("fedgloss", {}, "fedgloss"),
    ("fedgloss", {"rho": 0.3, "rho_l": 0.2, "beta": 4.0}, "fedgloss(rho=0.3, rho_l=0.2, beta=4.0)"),
    ("fedgloss", {"rho": 0.3, "rho_l": 0.0}, "fedgloss(rho=0.3, rho_l=0.0)"),
    ("fedgloss", {"rho": 0.3, "rho_l": 0.2, "ramp": 3}, "fedgloss(rho=0.3, rho_l=0.2, ramp=3)"),
    ("fedgloss", {"rho": 0.0, "rho_l": 0.2, "ramp": 3}, "fedgloss(rho=0.0, rho_l=0.2, ramp=3)"),
    ("fedwmsam", {}, "fedwmsam"),
    (
        "fedwmsam",
        {"rho": 0.3, "alpha0": 0.4, "lam": 0.3, "away": True},
        "fedwmsam(rho=0.3, alpha0=0.4, lam=0.3, away=True)",
    ),
    ("fedwmsam", {"rho": 0.3, "lam": 0.5, "control": False}, "fedwmsam(rho=0.3, lam=0.5, control=False)"),
    ("fedgf", {}, "fedgf"),
    ("fedgf", {"rho": 0.3, "threshold": 0.45}, "fedgf(rho=0.3, threshold=0.45)"),
    (
        "fedgf",
        {"rho": 0.2, "rho_g": 0.4, "threshold": 0.45, "window": 2},
        "fedgf(rho=0.2, rho_g=0.4, threshold=0.45, window=2)",
    ),
    ("fednsam", {"rho": 0.2, "gamma": 0.7, "ascent": "local"}, "fednsam(rho=0.2, gamma=0.7, ascent=local)"),
    ("fedscar", {"alpha": 0.3, "length": "sigma"}, "fedscar(alpha=0.3, length=sigma)"),
    ("fedscar", {"alpha": 0.3, "length": "displacement"}, "fedscar(alpha=0.3, length=displacement)"),
    ("fedscar", {"beta": 0.2, "prox": "received"}, "fedscar(beta=0.2, prox=received)"),
    ("fedscar", {"server_scale": 1}, "fedscar(server_scale=1)"),
    (
        "fedscar",
        {"length": "sigma", "prox": "received", "server_scale": 0.5, "rho": 0.2},
        "fedscar(length=sigma, prox=received, server_scale=0.5, rho=0.2)",
    ),
    ("fedscar", {"ablation": "scar2", "beta": 0.2}, "fedscar(ablation=scar2, beta=0.2)"),
    ("fedscar", {"ablation": "scarl", "alpha": 0.3, "tau": 0.4}, "fedscar(ablation=scarl, alpha=0.3, tau=0.4)"),
    *(
        (
            "fedsol",
            {"proximal": p, "rho": rho, "adaptive": adaptive},
            f"fedsol(proximal={p}, rho={rho}, adaptive={adaptive})",
        )
        for p in ("prox", "scaffold", "dyn", "moon", "nova")
        for rho, adaptive in ((2.0, True), (0.3, False))
    ),
    *(
        ("fedsol", {"ablation": f"A{n}", "proximal": p, **beta}, f"fedsol(ablation=A{n}, proximal={p}, beta={b})")
        for n in range(7)
        for p, b, beta in (("kl", 1.0, {}), ("prox", 0.5, {"beta": 0.5}))
    ),
    *(
        ("fedsol", {"ablation": a, "proximal": p, "layers": "head"}, f"fedsol(ablation={a}, proximal={p}, layers=head)")
        for a, p in (("A2", "dyn"), ("A3", "scaffold"), ("A4", "kl"), ("A5", "nova"), ("A6", "moon"))
    ),
]


def batches(case: Case) -> Callable[[int, int], list[torch.Tensor]]:
    def of(round: int, client: int) -> list[torch.Tensor]:
        rng = generator(SEED, "batches", round, client)
        rows = minibatches(SIZES[client], case.batch_size, epochs=case.epochs, rng=rng)
        return [torch.from_numpy(r) for r in rows]

    return of


def both(
    name: str, hyper: dict[str, Any], expression: str, case: Case, model: nn.Module, **changes: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The vectors of the library and of the textbook; for `local`, whose server learns nothing, all clients' models."""
    clients = population()
    expected, method = textbook.trained(
        name,
        model,
        textbook.Setting(
            clients,
            SCHEDULE,
            batches(case),
            lambda t: 0.2 * case.lr_decay**t,
            momentum=case.momentum,
            weight_decay=case.weight_decay,
            clip=case.clip,
            weighting=case.weighting,
        ),
        **hyper,
    )
    result = train(
        expression,
        model=model,
        clients=clients,
        epochs=case.epochs,
        batch_size=case.batch_size,
        lr_decay=case.lr_decay,
        momentum=case.momentum,
        weight_decay=case.weight_decay,
        clip=case.clip,
        weighting=case.weighting,
        seed=SEED,
        **changes,
    )
    found, models = result.vector, [[*expected.parameters()]]
    if name == "local":
        assert result.memories.keys() == method.x.keys()
        found = torch.cat([memory["Alone.x"] for _, memory in sorted(result.memories.items())])
        models = [x for _, x in sorted(method.x.items())]
    return found, torch.cat([t.detach().flatten() for x in models for t in x])


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize(("name", "hyper", "expression"), ALGORITHMS, ids=[a[2] for a in ALGORITHMS])
def test_the_library_agrees_with_the_textbook(name, hyper, expression, case):
    found, expected = both(name, hyper, expression, case, network())
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("expression", ["fedavg", "fedsam(rho=0.3)"])
def test_batch_norm_statistics_are_averaged_and_the_ascent_leaves_them_alone(expression):
    name, hyper = ("fedsam", {"rho": 0.3}) if "sam" in expression else ("fedavg", {})
    case, model = Case("batch norm", momentum=0.5), network(norm=True)
    clients = population()
    found = train(
        expression, model=model, clients=clients, lr_decay=1.0, momentum=0.5, weight_decay=0.0, clip=None
    ).model.state_dict()
    setting = textbook.Setting(clients, SCHEDULE, batches(case), lambda t: 0.2, momentum=0.5)
    expected = textbook.run(name, model, setting, **hyper).state_dict()
    for key in ("1.running_mean", "1.running_var", "0.weight"):
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=1e-12)
    if name == "fedsam":
        wrong = textbook.run(name, model, setting, **hyper, ascent_updates_buffers=True).state_dict()
        assert (found["1.running_mean"] - wrong["1.running_mean"]).abs().max() > 1e-3
        torch.testing.assert_close(found["0.weight"], wrong["0.weight"], rtol=0, atol=1e-12)
