"""Engines: where clients train, and how many at once."""

import os
from typing import Any

from fedflat.errors import FedflatError

from .engine import Engine, Work
from .processes import Processes, available
from .serial import Serial

__all__ = ["Engine", "Processes", "Serial", "Work", "choose"]

STEP_SECONDS = 2e-4  # what a step costs besides arithmetic
FLOPS = 5e10  # arithmetic of one core
FORK_SECONDS = 1.0  # what workers have to save before they pay


def choose(engine: Any, *, cuda: bool, active: int, steps: int, flops: float) -> Engine:
    """The engine that was asked for; "auto" predicts, from counts and never from a clock, whether workers pay.

    `steps` is the number of local steps of the whole run, `flops` the arithmetic of one.
    """
    chosen = _named(engine, cuda, active, steps, flops)
    if cuda and isinstance(chosen, Processes):
        raise FedflatError("engine 'processes' works on the CPU; use engine='serial' with device='cuda'")
    return chosen


def _named(engine: Any, cuda: bool, active: int, steps: int, flops: float) -> Engine:
    if not isinstance(engine, str):
        if all(callable(getattr(engine, method, None)) for method in ("open", "train", "close")):
            return engine
        raise FedflatError(f"engine is 'auto', 'serial', 'processes' or an Engine, not {engine!r}")
    name, _, count = engine.partition(":")
    if name == "auto":
        seconds = steps * (STEP_SECONDS + flops / FLOPS)
        workers = min(active, os.cpu_count() or 1)
        pays = seconds * (1 - 1 / workers) > FORK_SECONDS
        return Processes(workers) if pays and not cuda and available() else Serial()
    if name == "serial" and not count:
        return Serial()
    if name == "processes" and (not count or count.isdecimal()):
        return Processes(int(count) if count else None)
    raise FedflatError(f"there is no engine '{engine}'; known are: auto, serial, processes, processes:N")
