"""What a client trains on in a round: its minibatches, gathered, augmented and prepared when they are needed."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .core import Batch
from .data.inputs import Inputs
from .data.population import Samples


class LocalData:
    """The minibatches of one local round; too few for a step are used again."""

    def __init__(
        self,
        samples: Samples,
        rows: Sequence[Any],
        inputs: Inputs,
        per_step: int,
        draws: Sequence[Tensor] | None = None,
    ):
        """`draws` is how the images of each minibatch are augmented."""
        self.samples, self.inputs, self.per_step, self.draws = samples, inputs, per_step, draws
        joined = torch.from_numpy(np.concatenate(rows)).to(samples.y.device)  # one wait for the device, not one a step
        self.rows = joined.split([len(r) for r in rows])

    def __len__(self) -> int:
        return max(1, len(self.rows) // self.per_step)

    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        order = [j % len(self.rows) for j in range(len(self) * self.per_step)]
        read = self.samples.minibatches(self.rows[j] for j in order)
        return zip(*[map(self._batch, order, read)] * self.per_step, strict=True)

    def _batch(self, j: int, samples: tuple[Tensor, Tensor]) -> Batch:
        x, y = samples
        return Batch(self.inputs(x, None if self.draws is None else self.draws[j]), y)
