"""Every random draw of a run is a pure function of (seed, purpose, round, client, ...)."""

import contextlib
import os
import threading
import zlib
from collections.abc import Generator

import numpy as np
import torch

_alone = threading.RLock()


def generator(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """The generator of one purpose: the same arguments give the same stream, others an independent one.

    >>> generator(0, "batches", 3, 7).integers(100) == generator(0, "batches", 3, 7).integers(100)
    np.True_
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *ids])


@contextlib.contextmanager
def drawing(seed: int, purpose: str, *ids: int, device: torch.device | None = None) -> Generator[None]:
    """Inside, what a model draws from torch's generators, the CPU's and the device's, is a function of the arguments.

    Both are left as they were found, and no other is touched. They belong to the whole process, so one thread at a
    time is inside; a thread that draws from them without asking changes the numbers.

    >>> with drawing(0, "model", 3, 7):
    ...     a = torch.rand(1)
    >>> with drawing(0, "model", 3, 7):
    ...     a == torch.rand(1)
    tensor([True])
    """
    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        with torch.cuda.device(device):
            index = torch.cuda.current_device()
        generators.append(torch.cuda.default_generators[index])
    start = int(generator(seed, purpose, *ids).integers(2**62))
    with _alone:
        states = [g.get_state() for g in generators]
        try:
            for g in generators:
                g.manual_seed(start)
            yield
        finally:
            for g, state in zip(generators, states, strict=True):
                g.set_state(state)


def _forked() -> None:
    """A lock that another thread holds at a fork would stay locked in the child."""
    global _alone
    _alone = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
