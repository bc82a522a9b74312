"""Small federations that the tests share: six clients of unequal size, and a schedule of partial participation."""

from typing import Any

import torch
from torch import Tensor, nn

import fedflat as ff

SIZES = (7, 12, 5, 9, 14, 3)  # the last batches are short
SCHEDULE = [[0, 1, 4], [1, 2, 3, 5], [0, 1, 5], [4, 5], [0, 1, 2]]
NAMES = ff.algorithms.names()

Pairs = list[tuple[Tensor, Tensor]]


def network(norm: bool = False) -> nn.Module:
    """A small float64 network with two hidden activation layers, one of them followed by BatchNorm if wanted."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.BatchNorm2d(3) if norm else nn.Identity(),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(12, 5),
            nn.ReLU(),
            nn.Linear(5, 4),
        ).double()


def population(sizes: tuple[int, ...] = SIZES) -> Pairs:
    """Clients whose inputs are shifted against each other."""
    g = torch.Generator().manual_seed(1)
    shift = torch.randn(len(sizes), 1, 1, 1, 1, generator=g, dtype=torch.float64)
    return [
        (torch.randn(n, 1, 4, 4, generator=g, dtype=torch.float64) + s, torch.randint(0, 4, (n,), generator=g))
        for n, s in zip(sizes, shift, strict=True)
    ]


def train(algorithm: Any, **changes: Any) -> ff.Result:
    """Five rounds of mini-batch training with everything switched on, apart from what is changed."""
    settings: dict[str, Any] = {
        "clients": population(),
        "participation": SCHEDULE,
        "rounds": len(SCHEDULE),
        "epochs": 2,
        "batch_size": 4,
        "lr": 0.2,
        "lr_decay": 0.9,
        "momentum": 0.8,
        "weight_decay": 0.02,
        "clip": 0.5,
        "seed": 3,
        "engine": "serial",
        "device": "cpu",
    }
    if "model" not in changes:
        settings["model"] = network()
    return ff.simulate(algorithm, **{**settings, **changes})
