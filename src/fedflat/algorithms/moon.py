"""MOON: Li et al., Model-Contrastive Federated Learning, CVPR 2021.

    loss - mu log( e^{cos(f_x, f_w)/tau} / (e^{cos(f_x, f_w)/tau} + e^{cos(f_x, f_last)/tau}) )

f is the input of the model's last linear layer; last is the client's previous end point, at its first participation the
received model. Departures of published code: a projection head in front of f; tau = 1.
"""

from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedflat.core import Algorithm, Outputs, Part, model
from fedflat.errors import FedflatError

from .registry import NonNegative, Positive, Searched, register


class ModelContrast(Part):
    """Features more like the received model's than like those of the client's own last model."""

    mu: float = 0.1
    tau: float = 0.5

    client_keeps = {"last": model}

    def term(self, out, step, me, got):
        near, far = (cosine(out, step.outputs(other)) / self.tau for other in (step.w, me.last))
        return self.mu * (torch.logaddexp(near, far) - near)

    def finish(self, run, me, got):
        me.last = run.x


def cosine(a: Outputs, b: Outputs) -> Tensor:
    """The cosine between the features that two models give a sample."""
    if a.features is None or b.features is None:
        raise FedflatError("moon needs a model with an nn.Linear layer, whose inputs are the features that it compares")
    return cosine_similarity(a.features.flatten(1), b.features.flatten(1))


@register
def moon(
    mu: Annotated[NonNegative, Searched((0.1, 0.5), "FedSoL, Table 4")] = 0.1,
    tau: Annotated[Positive, Searched((0.5, 1.0), "FedSoL, Table 4")] = 0.5,
) -> Algorithm:
    """A contrastive term holds the features near those of the received model."""
    return Algorithm(ModelContrast(mu, tau))
