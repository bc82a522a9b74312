"""Engines: where clients train, and how many at once."""

import os
from collections.abc import Callable
from typing import Any

import torch

from fedflat.errors import FedflatError

from .engine import Engine, Work
from .processes import Processes, available
from .serial import Serial

__all__ = ["Engine", "Processes", "Serial", "Work", "choose"]

PASS_SECONDS = 4e-4  # what a gradient costs besides arithmetic
FLOPS = 5e10  # arithmetic of one core
FORK_SECONDS = 0.5  # what workers have to save before they pay


def choose(engine: Any, *, cuda: bool, active: int, work: Callable[[], tuple[float, float]]) -> Engine:
    """The engine that was asked for; "auto" predicts, from counts and never from a clock, whether workers pay.

    `active` clients train side by side; `work` counts the gradients of the whole run and their arithmetic.
    """
    chosen = _named(engine, cuda, active, work)
    if cuda and isinstance(chosen, Processes):
        raise FedflatError("engine 'processes' works on the CPU; say device='cpu' too, or engine='serial'")
    return chosen


def on_cpu(engine: Any) -> bool:
    """Whether this engine was asked for and works on the CPU only."""
    return isinstance(engine, Processes) or (isinstance(engine, str) and engine.partition(":")[0] == "processes")


def _named(engine: Any, cuda: bool, active: int, work: Callable[[], tuple[float, float]]) -> Engine:
    if not isinstance(engine, str):
        if all(callable(getattr(engine, method, None)) for method in ("open", "train", "close")):
            return engine
        raise FedflatError(f"engine is 'auto', 'serial', 'processes' or an Engine, not {engine!r}")
    name, _, count = engine.partition(":")
    if name == "auto":
        beside_gpu = cuda or torch.cuda.is_available()  # where no fork takes a gradient after `work` has taken one
        workers = min(active, len(os.sched_getaffinity(0))) if available() and not beside_gpu else 1
        if workers == 1:
            return Serial()
        gradients, flops = work()
        seconds = gradients * PASS_SECONDS + flops / FLOPS
        return Processes(workers) if seconds * (1 - 1 / workers) > FORK_SECONDS else Serial()
    if name == "serial" and not count:
        return Serial()
    if name == "processes" and (not count or count.isdecimal()):
        return Processes(int(count) if count else None)
    raise FedflatError(f"there is no engine '{engine}'; known are: auto, serial, processes, processes:N")
