"""Local SGD: clip -> + weight decay at x -> momentum -> step, in this order (PyTorch's momentum, reset every round)."""

from dataclasses import dataclass
from typing import Any

import torch

from .vectors import Vector


def bounded(d: Vector, mask: Vector | None, clip: float | None) -> Vector:
    """The direction where it is trained, no longer than the clip."""
    if mask is not None:
        d = d * mask
    return d if clip is None else d * (clip / torch.linalg.vector_norm(d)).clamp(max=1.0)


@dataclass(frozen=True)
class SGD:
    """The local optimiser. `clip` bounds the norm of the whole direction, corrections included, decay excluded."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None

    def start(self, w: Vector) -> Vector | None:
        """The velocity before the first step."""
        return torch.zeros_like(w) if self.momentum else None

    def direction(self, d: Vector, x: Vector, mask: Vector | None) -> Vector:
        """The direction after masking, clipping and decay."""
        d = bounded(d, mask, self.clip)
        if self.weight_decay:
            d = torch.add(d, x if mask is None else x * mask, alpha=self.weight_decay)
        return d

    def move(self, x: Vector, velocity: Vector | None, d: Vector, lr: Any, mask: Vector | None) -> None:
        """Step x, in place, along the velocity that the direction has entered."""
        if velocity is not None:
            d = velocity.mul_(self.momentum).add_(d)
        if isinstance(lr, torch.Tensor):
            x.addcmul_(d, -lr)
        else:
            x.add_(d, alpha=-lr)
