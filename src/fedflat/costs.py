"""What a run costs: counted from the messages really sent and the gradients really taken, never asserted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from .core import Algorithm, Minibatches, Reply, Server, Weights
from .engines import Work


@dataclass
class Totals:
    """What has been sent and computed so far."""

    jobs: int = 0
    steps: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    gradients: int = 0
    forwards: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a round."""
        self.jobs += row["active"]
        for name in ("steps", "bytes_down", "bytes_up", "gradients", "forwards"):
            setattr(self, name, getattr(self, name) + row[name])

    def relative(self, model: int) -> dict[str, float | None]:
        """Models down and up per client and round, gradients and further forwards per step; `model` in bytes."""
        if not self.steps:
            return dict.fromkeys(("down", "up", "gradients", "forwards"))
        return {
            "down": self.bytes_down / self.jobs / model,
            "up": self.bytes_up / self.jobs / model,
            "gradients": self.gradients / self.steps,
            "forwards": self.forwards / self.steps,
        }


def flops(work: Work, weights: Weights, one_step: Minibatches) -> float | None:
    """The arithmetic of one local step, FedAvg's being 1; None where torch cannot count the model's operators."""
    plain, _ = probe(replace(work, algorithm=Algorithm()), weights, one_step)
    return probe(work, weights, one_step)[0] / plain if plain else None


def probe(work: Work, weights: Weights, one_step: Minibatches) -> tuple[int, Reply]:
    """A local step at rate 0, which moves nothing: its arithmetic, and the reply with its counts."""
    (job,) = Server(work.algorithm, work.task, weights).open([0], 1, 0.0)
    with FlopCounterMode(display=False) as counter:
        reply, _ = replace(work, data=lambda client, round: one_step, own_buffers=False)(job, None)
    return counter.get_total_flops(), reply
