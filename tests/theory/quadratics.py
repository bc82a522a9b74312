"""Quadratic clients F_i(w) = (w - b_i)' A_i (w - b_i) / 2, on which the claims of the papers have closed forms.

A client of size n holds n equal samples (A_i^{1/2}, A_i^{1/2} b_i), so every minibatch has the gradient of F_i, and a
batch size makes unequal sizes into unequal numbers of steps.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat import Algorithm, Part


class Point(nn.Module):
    """The parameters themselves, seen through the square root of a client's curvature."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(start.clone())

    def forward(self, roots: Tensor) -> Tensor:
        return roots @ self.w


def half_square(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square().sum(1) / 2


@dataclass(frozen=True)
class Quadratics:
    """The clients' A_i, b_i and sizes, and what follows from them."""

    A: Tensor  # (N, d, d)
    b: Tensor  # (N, d)
    sizes: tuple[int, ...]

    @classmethod
    def drawn(cls, d: int, sizes: tuple[int, ...], spread: float = 1.0, condition: float = 10.0, seed: int = 0):
        """Eigenvalues between 1/condition and 1 with axes of each client's own, optima normal with this spread."""
        g = torch.Generator().manual_seed(seed)
        n = len(sizes)
        axes, _ = torch.linalg.qr(torch.randn(n, d, d, generator=g, dtype=torch.float64))
        eigenvalues = condition ** -torch.rand(n, 1, d, generator=g, dtype=torch.float64)
        b = spread * torch.randn(n, d, generator=g, dtype=torch.float64)
        return cls((axes * eigenvalues) @ axes.mT, b, sizes)

    def weights(self, weighting: str = "samples") -> Tensor:
        n = torch.tensor(self.sizes, dtype=torch.float64)
        return n / n.sum() if weighting == "samples" else torch.full_like(n, 1 / len(n))

    def gradients(self, w: Tensor) -> Tensor:
        """One row for each client."""
        return torch.einsum("nij,nj->ni", self.A, w - self.b)

    def zero_of(self, factors: Tensor) -> Tensor:
        """The w with sum_i M_i (w - b_i) = 0."""
        return torch.linalg.solve(factors.sum(0), torch.einsum("nij,nj->i", factors, self.b))

    def optimum(self, weighting: str = "samples") -> Tensor:
        return self.zero_of(self.weights(weighting)[:, None, None] * self.A)

    def contractions(self, lr: float, steps: Any) -> Tensor:
        """I - (I - lr A_i)^{K_i}: the part of w - b_i that K_i steps of descent remove."""
        one = torch.eye(self.A.shape[-1], dtype=torch.float64)
        steps = [steps] * len(self.sizes) if isinstance(steps, int) else steps
        return torch.stack(
            [one - torch.linalg.matrix_power(one - lr * a, k) for a, k in zip(self.A, steps, strict=True)]
        )

    @cached_property
    def clients(self) -> list[tuple[Tensor, Tensor]]:
        values, axes = torch.linalg.eigh(self.A)
        roots = (axes * values.clamp(min=0).sqrt()[:, None]) @ axes.mT
        targets = torch.einsum("nij,nj->ni", roots, self.b)
        return [(r.expand(n, *r.shape), y.expand(n, -1)) for r, y, n in zip(roots, targets, self.sizes, strict=True)]

    def train(self, algorithm: Any, start: Tensor | None = None, **settings: Any) -> ff.Result:
        """Full participation, five exact steps a round, unless changed."""
        start = torch.zeros_like(self.b[0]) if start is None else start
        fixed: dict[str, Any] = {"loss": half_square, "engine": "serial", "device": "cpu"}
        usual = {"rounds": 100, "lr": 0.1, "batch_size": None, "participation": 1.0}
        if "epochs" not in settings:
            usual["steps"] = 5
        return ff.simulate(algorithm, Point(start), self.clients, **{**usual, **fixed, **settings})

    def path(self, algorithm: Any, **settings: Any) -> Tensor:
        """The server's model after each round."""
        seen: list[Tensor] = []
        self.train(algorithm, callbacks=[lambda round, row, state: seen.append(state.vector.clone())], **settings)
        return torch.stack(seen)


class Watching(Part):
    """Keeps what `look(step, e, d)` returns for each step."""

    look: Any
    seen: list

    def observe(self, step, e, d):
        self.seen.append(self.look(step, e, d))


def watched(algorithm: Any, look: Any) -> tuple[Algorithm, list]:
    """An algorithm that is also watched, and the list to which each step adds."""
    seen: list = []
    return ff.algorithms.resolve(algorithm) + Algorithm(Watching(look, seen)), seen


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))
