"""Feature skew: one client's inputs look different from another's, although their classes are alike.

`noise:s`   Gaussian noise of deviation s * u, u uniform in [0, 1] and the client's own (Li et al. 2022 let the level
            grow with the client's number); pixels count from 0 to 1, are rounded and stay in their range.
`rotate:a`  images are turned counter-clockwise by a random multiple of a degrees (rotated MNIST); by multiples of 90
            exactly, by other angles with linear interpolation and black corners.

A client's level and angle come from (seed, client), the noise of a sample from (seed, client, sample): a client's data
are the same in every round, on every engine and at any batch size, although nothing but the rows is kept.
"""

__all__ = ["Skew"]

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import pi, prod

import torch
from torch import Tensor
from torch.nn import functional

from fedflat.errors import FedflatError
from fedflat.seeds import generator


@dataclass(frozen=True)
class Skew:
    """What one client's inputs go through."""

    noise: float
    rotate: float
    seed: int
    client: int

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        """The inputs of these rows of the training data as the client sees them."""
        if self.angle:
            x = turned(x, self.angle)
        return self._noisy(x, rows) if self.level else x

    @cached_property
    def level(self) -> float:
        """The deviation of the client's noise."""
        return self.noise * float(self._draws[0])

    @cached_property
    def angle(self) -> float:
        """How far the client's images are turned, in degrees."""
        return self.rotate * int(self._draws[1] * round(360 / self.rotate)) if self.rotate else 0.0

    @cached_property
    def _draws(self) -> list[float]:
        return generator(self.seed, "skew", self.client).random(3).tolist()

    def _noisy(self, x: Tensor, rows: Tensor) -> Tensor:
        if not x.is_floating_point() and x.dtype != torch.uint8:
            raise FedflatError(f"noise is for pixels and other numbers, not for inputs of {x.dtype}")
        keys = rows.to(x.device) + int(self._draws[2] * 2**52)
        noise = gaussian(keys, prod(x.shape[1:])).view(x.shape) * self.level
        if x.dtype == torch.uint8:
            return (x + noise * 255).round_().clamp_(0, 255).to(torch.uint8)
        return x + noise.to(x.dtype)


def turned(x: Tensor, degrees: float) -> Tensor:
    """Images turned counter-clockwise.

    >>> turned(torch.tensor([[[1, 2], [3, 4]]]), 90)
    tensor([[[2, 4],
             [1, 3]]])
    """
    if x.ndim < 3:
        raise FedflatError(f"rotate turns images, not samples of shape {tuple(x.shape[1:])}")
    if not degrees % 90 and (x.shape[-1] == x.shape[-2] or not degrees % 180):
        return torch.rot90(x, int(degrees // 90), (-2, -1))
    height, width = x.shape[-2:]
    angle = torch.tensor(degrees * pi / 180, dtype=torch.float64)
    cos, sin = float(angle.cos()), float(angle.sin())
    theta = torch.tensor([[cos, -sin * height / width, 0], [sin * width / height, cos, 0]], device=x.device)
    images = x.reshape(len(x), -1, height, width).float()
    grid = functional.affine_grid(theta.expand(len(x), 2, 3), list(images.shape), align_corners=False)
    seen = functional.grid_sample(images, grid, align_corners=False).view(x.shape)
    return seen.to(x.dtype) if x.is_floating_point() else seen.round_().to(x.dtype)


def gaussian(keys: Tensor, width: int) -> Tensor:
    """A row of `width` standard normal numbers for each integer key, a function of nothing else (Box-Muller)."""
    counters = torch.arange(width, device=keys.device)
    u, v = _uniform(_mixed(keys)[:, None] + counters)
    return (-2 * u.log()).sqrt_() * (2 * pi * v).cos_()


def _uniform(counters: Tensor) -> Iterator[Tensor]:
    bits = _mixed(counters)
    for half in (bits >> 32, bits):
        yield ((half & 0xFFFFFF).float() + 0.5) / 2**24


def _mixed(z: Tensor) -> Tensor:
    """The finaliser of splitmix64, which spreads the bits of 64-bit integers; products overflow on purpose."""
    z = z * -7046029254386353131
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return z ^ ((z >> 31) & 0x1FFFFFFFF)
