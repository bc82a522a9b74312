"""From uint8 pixels to what a model sees: scaled to [0, 1], then zero mean and unit variance per channel."""

__all__ = ["channel_statistics", "normalise"]

from collections.abc import Iterable

import torch
from torch import Tensor

from fedflat.errors import FedflatError

CHUNK = 4096  # images counted at once


def channel_statistics(arrays: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and deviation (float64) of each channel of uint8 images, N,C,H,W or N,H,W, scaled to [0, 1].

    Both come from one histogram per channel: exact integers, whatever the order and the chunks, and no float copy of an
    image. The deviation of a constant channel is 1.

    >>> channel_statistics([torch.tensor([[[0, 255]]], dtype=torch.uint8)])
    (tensor([0.5000], dtype=torch.float64), tensor([0.5000], dtype=torch.float64))
    """
    counts: Tensor | None = None
    for array in arrays:
        if array.dtype != torch.uint8 or array.dim() not in (3, 4):
            raise FedflatError(
                f"images must be uint8 of shape N,C,H,W or N,H,W, not {array.dtype} with {array.dim()} axes"
            )
        for chunk in _with_channels(array).split(CHUNK):
            found = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in chunk.unbind(1)])
            if counts is not None and len(found) != len(counts):
                raise FedflatError(f"some images have {len(counts)} channels and others {len(found)}")
            counts = found if counts is None else counts + found
    if counts is None or not counts.any():
        raise FedflatError("channel statistics need at least one image")
    levels = torch.arange(256, dtype=torch.float64, device=counts.device) / 255
    shares = counts / counts.sum(dim=1, keepdim=True).double()
    mean = shares @ levels
    std = (shares * (levels - mean[:, None]) ** 2).sum(dim=1).sqrt()
    return mean, std.where((counts > 0).sum(dim=1) > 1, 1.0)


def normalise(x: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
    """The images x / 255, less the mean, over the deviation, as NCHW of that dtype; all tensors on one device."""
    x = _with_channels(x).to(dtype, copy=True)
    return x.div_(255).sub_(mean.to(dtype)[:, None, None]).div_(std.to(dtype)[:, None, None])


def _with_channels(x: Tensor) -> Tensor:
    return x.unsqueeze(1) if x.dim() == 3 else x
