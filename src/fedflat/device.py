"""Everything that depends on the device: which one, and how precisely it computes."""

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any

import torch

from .errors import FedflatError


def device_of(name: str, precision: str) -> torch.device:
    """The device of a run; "auto" is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise FedflatError(f"device = {name!r}: it is auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise FedflatError(f"device = {name!r}: it is auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FedflatError(f"device = {name!r}: torch sees no GPU here")
    if precision == "tf32" and device.type != "cuda":
        raise FedflatError("precision = 'tf32': only a GPU has it; use float32 or bf16 on the CPU")
    return device


def autocast(device: torch.device, precision: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """The context of a forward pass."""
    if precision == "bf16":
        return functools.partial(torch.autocast, device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext


@contextlib.contextmanager
def exact(precision: str) -> Generator[None]:
    """Full float32 unless TF32 was asked for; torch's own default lets convolutions use it."""
    places: tuple[Any, Any] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.allow_tf32 = value
