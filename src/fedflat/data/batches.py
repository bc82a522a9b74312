"""The minibatches of a local round, as the papers count them: epochs of fresh permutations, the last batch short."""

__all__ = ["minibatches"]

from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from fedflat.errors import FedflatError


def minibatches(
    n: int,
    batch_size: int | None,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    rng: np.random.Generator,
) -> list[NDArray[np.int64]]:
    """The indices of each minibatch of n samples, for so many epochs or exactly so many steps.

    Steps are the first ones of as many epochs as it takes. A full batch, batch_size None or at least n, is always
    0..n-1 in order, so that its gradient does not depend on rng.

    >>> [len(batch) for batch in minibatches(5, 2, steps=4, rng=np.random.default_rng(0))]
    [2, 2, 1, 2]
    """
    if (epochs is None) == (steps is None):
        raise FedflatError(f"say either epochs or steps, not epochs={epochs} and steps={steps}")
    for name, value in {"n": n, "batch_size": batch_size, "epochs": epochs, "steps": steps}.items():
        if value is not None and (not isinstance(value, Integral) or value < 1):
            raise FedflatError(f"minibatches: {name} must be a positive integer, not {value!r}")
    size = n if batch_size is None else min(batch_size, n)
    count = steps or (epochs or 0) * -(-n // size)
    batches: list[NDArray[np.int64]] = []
    while len(batches) < count:
        order = np.arange(n) if size == n else rng.permutation(n)
        batches += [order[start : start + size] for start in range(0, n, size)]
    return batches[:count]
