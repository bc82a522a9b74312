"""Problems small enough to work out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from textbook import Setting, run
from torch import Tensor, nn


class Line(nn.Module):
    """theta * x, one scalar parameter."""

    def __init__(self, theta: float = 0.0) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta * x


class Logits(nn.Module):
    """The same logits for every sample."""

    def __init__(self, theta: Sequence[float]) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta.expand(len(x), -1)


def half_square(outputs: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (outputs - y).square().mean()


def quadratics(
    targets: Sequence[float],
    schedule: list[list[int]],
    *,
    slopes: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    lr: float = 0.5,
    **options,
) -> Setting:
    """Client i has F_i(theta) = (slope_i * theta - target_i)^2 / 2, gradient slope_i * (slope_i * theta - target_i)."""
    count = len(targets)
    slopes, sizes, steps = slopes or [1.0] * count, sizes or [1] * count, steps or [1] * count
    double = torch.float64
    return Setting(
        clients=[
            (torch.full((n,), a, dtype=double), torch.full((n,), y, dtype=double))
            for n, a, y in zip(sizes, slopes, targets, strict=True)
        ],
        schedule=schedule,
        batches=lambda t, i: [torch.arange(sizes[i])] * steps[i],
        lr=lambda t: lr,
        loss=half_square,
        **options,
    )


def final(name: str, setting: Setting, theta: float = 0.0, **hyper) -> float:
    return run(name, Line(theta), setting, **hyper).theta.item()


def classification(momentum: float = 0.9, weight_decay: float = 0.0, rounds: int = 3) -> Setting:
    """Three clients of unequal size with random data, partial participation, short last minibatches."""
    generator = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(n, 4, generator=generator, dtype=torch.float64),
            torch.randint(3, (n,), generator=generator),
        )
        for n in (7, 4, 10)
    ]
    return Setting(
        clients=clients,
        schedule=[[0, 1], [1, 2], [0, 2], [0, 1, 2]][:rounds],
        batches=lambda t, i: list(torch.arange(len(clients[i][1])).roll(t).split(3)),
        lr=lambda t: 0.3 * 0.9**t,
        momentum=momentum,
        weight_decay=weight_decay,
        clip=1.0,
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.allclose(p, q, rtol=0, atol=1e-12) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def softmax(z: Sequence[float]) -> list[float]:
    total = sum(math.exp(a) for a in z)
    return [math.exp(a) / total for a in z]


def one_client(steps: int, label: int = 0) -> Setting:
    clients = [(torch.zeros(2, 1, dtype=torch.float64), torch.tensor([label, label]))]
    return Setting(clients, [[0]], lambda t, i: [torch.arange(2)] * steps, lambda t: 1.0)
