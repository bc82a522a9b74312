"""FedNTD: Lee et al., Preservation of the Global Knowledge by Not-True Distillation in FL, NeurIPS 2022.

    loss + beta tau^2 KL( softmax(z_w/tau) || softmax(z_x/tau) ) over the classes that are not the true one

z_w are the logits of the received model. The divergence is a mean over the minibatch.
"""

from typing import Annotated

import torch
from torch import Tensor

from fedflat.core import Algorithm, Part
from fedflat.errors import FedflatError

from .distillation import kl
from .registry import NonNegative, Positive, Searched, register


class NotTrueDistillation(Part):
    """Keep what the received model says of the classes that are not the sample's."""

    beta: float = 1.0
    tau: float = 1.0

    def term(self, out, step, me, got):
        teacher = not_true(step.outputs(step.w).logits, step.targets)
        student = not_true(out.logits, step.targets)
        return self.beta * self.tau**2 * kl(teacher, student, self.tau, step.targets)


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """The logits without the true class."""
    if logits.ndim != 2 or logits.shape[1] < 3 or y.ndim != 1 or y.is_floating_point():
        raise FedflatError(
            f"fedntd needs outputs (samples, classes) of three classes or more and one class a sample as label, "
            f"not outputs {tuple(logits.shape)} and labels {tuple(y.shape)} ({y.dtype})"
        )
    columns = torch.arange(logits.shape[1] - 1, device=logits.device)
    return logits.gather(1, columns + (columns >= y[:, None]).long())


@register
def fedntd(
    beta: Annotated[NonNegative, Searched((0.5, 1.0), "FedSoL, Table 4")] = 1.0,
    tau: Annotated[Positive, Searched((1.0, 3.0), "FedSoL, Table 4")] = 1.0,
) -> Algorithm:
    """Distil the received model's opinion of the other classes."""
    return Algorithm(NotTrueDistillation(beta, tau))
