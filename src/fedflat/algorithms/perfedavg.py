"""PerFedAvg: Fallah et al., Personalized FL with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach, 2020.

    x <- x - eta g(x - alpha g(x; B1); B2)

The first-order form; a step draws two minibatches. Departures of published code: one momentum buffer for both half
steps, and the round's rate in the place of alpha.
"""

from fedflat.core import Algorithm, Part

from .registry import NonNegative, register


class AdaptationStep(Part):
    """-alpha g(x; B1): take the gradient where one step of fine-tuning leads."""

    alpha: float = 0.01

    batches = 2

    def perturb(self, step, me, got):
        return -self.alpha * step.grad(step.x, batch=0)


@register
def perfedavg(alpha: NonNegative = 0.01) -> Algorithm:
    """Train a model that is good after one step of fine-tuning."""
    return Algorithm(AdaptationStep(alpha))
