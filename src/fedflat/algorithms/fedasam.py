"""FedASAM: Caldarola, Caputo, Ciccone, Improving Generalization in FL by Seeking Flat Minima, ECCV 2022.

    e = rho T^2 g(x)/||T g(x)||,   T = |x| + eta

T = 1 for tensors of fewer than two dimensions, the biases and norms; with `scale="all"` T = |x| + eta for every tensor,
as FedSoL's baseline has it with eta = 0. The norm is over all tensors. The paper's average of server models over the
last quarter of the rounds is no part of the method here.
"""

from typing import Annotated, Literal

import torch
from torch import Tensor

from fedflat.core import Algorithm, Part, unit

from .registry import NonNegative, Searched, register

Scale = Literal["weights", "all"]


class AdaptiveAscent(Part):
    """rho T^2 g/||T g||: climb the client's own loss, further along large weights."""

    rho: float = 0.7
    eta: float = 0.2
    scale: Scale = "weights"

    def perturb(self, step, me, got):
        T = step.layout.per_tensor(self._size, step.x)
        return self.rho * T * unit(T * step.grad(step.x))

    def _size(self, x: Tensor) -> Tensor:
        return x.abs() + self.eta if self.scale == "all" or x.ndim > 1 else torch.ones_like(x)


@register
def fedasam(
    rho: Annotated[NonNegative, Searched((0.1, 0.5, 1.0, 2.0), "FedSoL, Table 4, with scale='all', eta=0")] = 0.7,
    eta: NonNegative = 0.2,
    scale: Scale = "weights",
) -> Algorithm:
    """FedSAM in a neighbourhood that scales with the weights."""
    return Algorithm(AdaptiveAscent(rho, eta, scale))
