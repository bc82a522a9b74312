"""FedSoL: Lee et al., FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in FL, CVPR 2024.

    g_p = gradient at x of L_p(x; w),   e = rho Lambda * g_p/||g_p||,   x <- x - eta gradient of the loss at x + e

L_p is the divergence from the received model, KL(softmax(z_w/tau) || softmax(z_x/tau)), or any other proximal force.
Lambda_m = |x_m - w_m|/||x_m - w_m|| for each tensor m (equation 11). While x equals w, g_p is noise and e is 0.
Departures of published code: Lambda has unit norm along the first axis of each tensor (`adaptive="columns"`).
"""

from typing import Literal

import torch
from torch import Tensor

from fedflat.core import Algorithm, Part, unit

from .distillation import kl
from .feddyn import Dual
from .fedprox import Proximity
from .registry import NonNegative, Positive, register
from .scaffold import ControlVariates

Adaptive = bool | Literal["columns"]
Layers = Literal["all", "head", "body"]


class Preservation(Part):
    """KL(softmax(z_w/tau) || softmax(z_x/tau)): keep what the received model knows."""

    tau: float = 3.0

    def term(self, out, step, me, got):
        return kl(step.outputs(step.w).logits, out.logits, self.tau)


class AscendAlong(Part):
    """rho Lambda * g_p/||g_p||: climb along a proximal force, then descend the loss alone."""

    force: Part
    rho: float = 2.0
    adaptive: Adaptive = True
    layers: Layers = "all"

    @property
    def inner(self):
        return (self.force,)

    def perturb(self, step, me, got):
        head = step.layout.head
        only = {"all": None, "head": lambda name: name in head, "body": lambda name: name not in head}[self.layers]
        g = step.force(self.force, only)
        away = step.x - step.w
        if self.adaptive:
            radius = step.layout.per_tensor(by_column if self.adaptive == "columns" else by_tensor, away)
        else:
            radius = (away != 0).any()
        return self.rho * unit(g) * radius


def by_tensor(away: Tensor) -> Tensor:
    """|a| / ||a||, 0 where the tensor has not moved."""
    return unit(away).abs()


def by_column(away: Tensor) -> Tensor:
    """|a| with unit norm along the first axis, a bias as a whole; 0 where a column has not moved."""
    norm = torch.linalg.vector_norm(away, dim=0, keepdim=True)
    return away.abs() * torch.where(norm > 0, norm, torch.inf).reciprocal()


FORCES = {
    "kl": Preservation,
    "prox": lambda tau: Proximity(),
    "scaffold": lambda tau: ControlVariates(),
    "dyn": lambda tau: Dual(lam=1.0),  # its length does not matter to e, only to nothing else
}


@register
def fedsol(
    rho: NonNegative = 2.0,
    tau: Positive = 3.0,
    adaptive: Adaptive = True,
    layers: Layers = "all",
    proximal: Literal["kl", "prox", "scaffold", "dyn"] = "kl",
) -> Algorithm:
    """Perturb along the proximal force, so that learning does not undo what the received model knows."""
    return Algorithm(AscendAlong(FORCES[proximal](tau), rho, adaptive, layers))
