"""AdamW in place of local SGD: clip -> moments -> decay beside them -> step (PyTorch's defaults, reset every round)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .sgd import bounded
from .vectors import Vector

Moments = tuple[Vector, Vector, Tensor]  # of first and second order, and the number of steps


@dataclass(frozen=True)
class AdamW:
    """For every method that does not take `moved` for a sum of gradients: see `Part.assumes_sgd`."""

    weight_decay: float = 0.0
    clip: float | None = None
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    momentum: ClassVar[float] = 0.0

    def start(self, w: Vector) -> Moments:
        """The moments before the first step."""
        return torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(w[0])

    def direction(self, d: Vector, x: Vector, mask: Vector | None) -> Vector:
        """The direction after masking and clipping."""
        return bounded(d, mask, self.clip)

    def move(self, x: Vector, moments: Moments, d: Vector, lr: Any, mask: Vector | None) -> None:
        """Step x, in place."""
        m, v, t = moments
        m.mul_(self.b1).add_(d, alpha=1 - self.b1)
        v.mul_(self.b2).addcmul_(d, d, value=1 - self.b2)
        t.add_(1)
        step = m / (1 - self.b1**t) / ((v / (1 - self.b2**t)).sqrt() + self.eps)
        if self.weight_decay:
            step = step + self.weight_decay * (x if mask is None else x * mask)
        x.sub_(lr * step)
