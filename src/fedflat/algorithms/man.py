"""MAN: minimise the norm of the activations, which bounds the top eigenvalue of the layers' Hessians. WACV 2024.

    loss + zeta/2 * sum over hidden activation layers of the mean square of their output

The term belongs to the client's own loss, so with SAM it is in the ascent too.
"""

import torch

from fedflat.core import Algorithm, Part
from fedflat.errors import FedflatError

from .registry import NonNegative, register


class SmallActivations(Part):
    """zeta/2 sum_l mean(a_l^2): quiet layers are flat layers."""

    zeta: float = 0.15

    def term(self, out, step, me, got):
        if not out.activations:
            raise FedflatError("man needs hidden activation modules such as nn.ReLU; this model has none that it uses")
        return self.zeta / 2 * torch.stack([a.flatten(1).square().mean(1) for a in out.activations]).sum(0)


@register
def man(zeta: NonNegative = 0.15) -> Algorithm:
    """A modifier: add the activations' mean square to the loss of any algorithm."""
    return Algorithm(SmallActivations(zeta))
