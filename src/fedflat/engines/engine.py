"""What an engine is: it decides where, and how many at once, clients do their work. It changes no number."""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from fedflat.core import SGD, AdamW, Algorithm, Job, Minibatches, Reply, Task, local_round
from fedflat.core.local import Values
from fedflat.errors import FedflatError, RunError
from fedflat.seeds import drawing

OWN_BUFFERS = "buffers"  # under this name a client keeps BatchNorm statistics of its own


@dataclass(frozen=True)
class Work:
    """What a client does with a job: everything that stays the same from round to round."""

    algorithm: Algorithm
    task: Task
    sgd: SGD | AdamW
    data: Callable[[int, int], Minibatches]  # (client, round) -> minibatches
    seed: int
    own_buffers: bool = False

    def __call__(self, job: Job, memory: Values | None) -> tuple[Reply, Values]:
        """One client's round; whatever the model draws at random comes from (seed, round, client)."""
        memory = dict(memory) if memory else None
        if memory and self.own_buffers:
            job = replace(job, buffers=memory.pop(OWN_BUFFERS))
        with drawing(self.seed, "model", job.round, job.client, device=job.w.device):
            try:
                reply, memory = local_round(
                    self.algorithm, self.task, self.sgd, job, memory, self.data(job.client, job.round)
                )
            except Exception as error:
                told = error if isinstance(error, FedflatError | RunError) else _told(error, job)
                told.add_note(f"(client {job.client}, round {job.round})")
                if told is error:
                    raise
                raise told from error
        if self.own_buffers:
            memory[OWN_BUFFERS] = dict(reply.buffers)
        return reply, memory


def _told(error: Exception, job: Job) -> FedflatError | RunError:
    """A model's own error as every engine raises it."""
    if "more than 1 value per channel" in str(error):
        return FedflatError(
            f"client {job.client}: BatchNorm has no statistics of a minibatch with one sample; "
            "choose a batch_size that leaves no single sample over, or a model with GroupNorm"
        )
    return RunError(f"{type(error).__name__}: {error}")


Assignments = Iterable[tuple[Job, Values | None]]
Results = Iterator[tuple[Reply, Values]]


class Engine(Protocol):
    """One method deep: `train` maps the work over a round's jobs; results may come in any order."""

    @property
    def name(self) -> str:
        """What is recorded in the run."""
        ...

    def open(self, work: Work) -> None:
        """Get ready for many rounds of this work."""
        ...

    def train(self, assignments: Assignments) -> Results:
        """Do the work of one round."""
        ...

    def close(self) -> None:
        """Let go of everything; may be called at any time, and twice."""
        ...


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """A client's round runs on one thread, because the number of threads changes the last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def keep_pages() -> None:
    """Ask glibc to keep freed memory: temporaries as long as the model cost page faults above all."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
            mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
