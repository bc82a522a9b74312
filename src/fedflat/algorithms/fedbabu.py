"""FedBABU: Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022.

    D = g on the body, 0 on the head: the last linear layer keeps its initial value

The head is not sent. Departures of published code: weight decay that shrinks the frozen head.
"""

from fedflat.core import Algorithm, Part
from fedflat.errors import FedflatError

from .registry import register


class BodyOnly(Part):
    """Train everything but the last linear layer."""

    def trainable(self, layout):
        if not layout.head:
            raise FedflatError("fedbabu needs a model with an nn.Linear layer: the last one is the head it freezes")
        return lambda name: name not in layout.head


@register
def fedbabu() -> Algorithm:
    """The clients share a body; heads are fine-tuned after training."""
    return Algorithm(BodyOnly())
