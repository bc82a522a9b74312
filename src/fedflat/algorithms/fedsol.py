"""FedSoL: Lee et al., FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in FL, CVPR 2024.

    g_p = gradient at x of L_p(x; w),   e = rho Lambda * g_p/||g_p||,   x <- x - eta gradient of the loss at x + e

L_p is the divergence from the received model, KL(softmax(z_w/tau) || softmax(z_x/tau)), or any other proximal force.
Lambda_m = |x_m - w_m|/||x_m - w_m|| for each tensor m (equation 11). While x equals w, g_p is noise and e is 0.
Departures of published code: Lambda has unit norm along the first axis of each tensor (`adaptive="columns"`).

With another `proximal` the client's and server's memories and the server's rule are that method's, and its force gives
e and nothing else ("Combined"): "prox" x - w, "scaffold" c - c_i, "dyn" h_i + x - w, "moon" the contrastive gradient,
"nova" dbar - d_i with the mean gradients d_i of the clients' last rounds. As the table says, the state of "scaffold"
and "dyn" is not fed back into D: no force holds the controls and duals, which grow as training goes on.

Table 6, with e_c the perturbation along the sum of the loss's own gradient and g_p; D is the gradient of

    A0 loss(x), which is FedAvg      A2 loss(x) + beta L_p(x + e)       A4 loss(x + e_c) + beta L_p(x + e_c)
    A1 loss(x + e), which is FedSoL  A3 loss(x + e) + beta L_p(x + e)   A5 loss(x) + L_p(x)
                                                                        A6 loss(x + e) + beta L_p(x)
"""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedflat.core import Algorithm, Part, once, table, unit, vector
from fedflat.errors import FedflatError

from .distillation import kl
from .feddyn import Dual
from .fednova import NormalizedAveraging
from .fedprox import Proximity
from .moon import ModelContrast
from .registry import NonNegative, Positive, Searched, register
from .scaffold import ControlVariates

Adaptive = bool | Literal["columns"]
Layers = Literal["all", "head", "body"]
Ablation = Literal["A0", "A1", "A2", "A3", "A4", "A5", "A6"]


class Preservation(Part):
    """KL(softmax(z_w/tau) || softmax(z_x/tau)): keep what the received model knows."""

    tau: float = 3.0

    def term(self, out, step, me, got):
        return kl(step.outputs(step.w).logits, out.logits, self.tau, step.targets)


class MeanGradients(Part):
    """dbar - d_i: the mean gradient of everybody's last round against the client's own."""

    assumes_sgd = True

    server_keeps = {"d": table}
    server_sends = {"drift": vector}

    def broadcast(self, w, srv, client, sent):
        sent.drift = srv.d.mean() - srv.d.get(client)
        return w

    @once
    def pull(self, step, me, got):
        return got.drift

    def update(self, w, srv, replies):
        for r in replies:
            srv.d.set(r.client, -r.moved / r.reach)
        return w


class AscendAlong(Part):
    """rho Lambda * g_p/||g_p||: climb along a proximal force, then descend the loss alone."""

    force: Part
    rho: float = 2.0
    adaptive: Adaptive = True
    layers: Layers = "all"
    combined: bool = False  # along the sum of the force and the loss's own gradient

    @property
    def inner(self):
        return (self.force,)

    def perturb(self, step, me, got):
        head = step.layout.head
        if not head and self.layers != "all":
            raise FedflatError(
                f"fedsol(layers='{self.layers}') needs a model with an nn.Linear, the last one is its head"
            )
        only = {"all": None, "head": lambda name: name in head, "body": lambda name: name not in head}[self.layers]
        g = step.force(self.force, only)
        if self.combined:
            own = step.grad(step.x)
            g = g + (own if only is None else own * step.layout.mask(only, own))
        away = step.x - step.w
        if self.adaptive:
            radius = step.layout.per_tensor(by_column if self.adaptive == "columns" else by_tensor, away)
        else:
            radius = (away != 0).any()
        return self.rho * unit(g) * radius


class Restraint(Part):
    """beta g_p: the proximal force in the update too, at x, at the update's y, or where the perturbation leads."""

    ascend: AscendAlong
    beta: float
    at: Literal["x", "y", "ahead"]

    @property
    def inner(self):
        return (self.ascend.force,) if self.at == "ahead" else (self.ascend,)

    def pull(self, step, me, got):
        at = step.x + self.ascend.perturb(step, me, got) if self.at == "ahead" else getattr(step, self.at)
        return self.beta * step.force(self.ascend.force, at=at)


def by_tensor(away: Tensor) -> Tensor:
    """|a| / ||a||, 0 where the tensor has not moved."""
    return unit(away).abs()


def by_column(away: Tensor) -> Tensor:
    """|a| with unit norm along the first axis, a bias as a whole; 0 where a column has not moved."""
    norm = torch.linalg.vector_norm(away, dim=0, keepdim=True)
    return away.abs() * torch.where(norm > 0, norm, torch.inf).reciprocal()


FORCES = {  # of unit strength: their length does not matter to e
    "kl": Preservation,
    "prox": lambda tau: Proximity(1.0),
    "scaffold": lambda tau: ControlVariates(),
    "dyn": lambda tau: Dual(1.0),
    "moon": lambda tau: ModelContrast(1.0),
    "nova": lambda tau: MeanGradients(),
}


@register
def fedsol(
    rho: Annotated[NonNegative, Searched((0.1, 0.5, 1.0, 2.0), "FedSoL, Table 4")] = 2.0,
    tau: Positive = 3.0,
    adaptive: Adaptive = True,
    layers: Layers = "all",
    proximal: Literal["kl", "prox", "scaffold", "dyn", "moon", "nova"] = "kl",
    ablation: Ablation = "A1",
    beta: NonNegative = 1.0,
) -> Algorithm:
    """Perturb along the proximal force, so that learning does not undo what the received model knows."""
    force = FORCES[proximal](tau)
    ascend = AscendAlong(force, rho, adaptive, layers)
    parts: dict[Ablation, tuple[Part, ...]] = {
        "A0": (),
        "A1": (ascend,),
        "A2": (Restraint(ascend, beta, at="ahead"),),
        "A3": (Restraint(ascend, beta, at="y"),),
        "A4": (Restraint(replace(ascend, combined=True), beta, at="y"),),
        "A5": (force,),
        "A6": (Restraint(ascend, beta, at="x"),),
    }
    rule = (NormalizedAveraging(),) if proximal == "nova" else ()
    return Algorithm(*parts[ablation], *rule)
