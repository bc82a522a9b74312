"""What happens to x on its way into a model, minibatch by minibatch; what is kept stays as it was given.

Images first take the form that the model asks for by an attribute `input_shape`, (channels, height, width): grey ones
are repeated in every channel, and images at most 8 pixels too small, as 28x28 for 32x32, get a black border (zeros,
where they are no pixels); any other size is interpolated. Then training images are augmented, and pixels normalised.
"""

__all__ = ["Inputs"]

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedflat.errors import FedflatError

from .augment import Augmentation
from .normalise import channel_statistics, normalise
from .stream import Stream

BORDER = 8  # pixels that a border may add, half of them on each side


class Inputs:
    """The way of x into the model: form, augmentation, normalised pixels, the model's type."""

    def __init__(
        self,
        training: Sequence[Tensor | Stream],
        dtype: torch.dtype,
        device: torch.device,
        form: Any = None,
        augmentation: Augmentation | None = None,
        rows: Tensor | None = None,
    ):
        """`rows` are those of the first training tensor that pixels are counted in, where it is not all."""
        first = training[0]
        self.dtype, self.augmentation = dtype, augmentation
        self.pixels = first.dtype == torch.uint8 and first.ndim >= 3
        self.form = _asked(form, first)
        self.size = tuple((self.form or first.shape)[-2:])  # rows and columns, where these are images
        if augmentation is not None and first.ndim < 3:
            raise FedflatError(f"augment is for images, not for samples of shape {tuple(first.shape[1:])}")
        if self.pixels:
            arrays = chain.from_iterable(_counted(x, rows) for x in training)
            self.mean, self.std = (s.to(device) for s in channel_statistics(arrays))

    @property
    def statistics(self) -> dict[str, list[float]] | None:
        """Mean and deviation of each channel of pixels in [0, 1], if pixels are normalised."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()} if self.pixels else None

    def draws(self, minibatches: Sequence[Sequence[Any]], rng: np.random.Generator) -> list[Tensor] | None:
        """What each sample of each minibatch of a local round goes through, where there is augmentation."""
        if self.augmentation is None:
            return None
        return self.augmentation.draws([len(rows) for rows in minibatches], self.size, rng)

    def __call__(self, x: Tensor, draws: Tensor | None = None) -> Tensor:
        """The model's input; `draws` is what the images of a training minibatch go through."""
        if self.form is not None:
            x = _formed(x, self.form)
        if draws is None or self.augmentation is None:
            return self._numbers(x)
        draws = draws.to(x.device)
        return self.augmentation.late(self._numbers(self.augmentation.early(x, draws)), draws)

    def _numbers(self, x: Tensor) -> Tensor:
        if self.pixels:
            return normalise(x, self.mean, self.std, self.dtype)
        if x.is_floating_point() or x.dtype in (torch.uint8, torch.bool):
            return x.to(self.dtype)
        return x


def _counted(x: Tensor | Stream, rows: Tensor | None) -> Iterable[Tensor]:
    if isinstance(x, Stream):
        return x.chunks(None if rows is None else rows.numpy(force=True))
    return [x] if rows is None else (x[chunk] for chunk in rows.to(x.device).split(4096))


def _asked(form: Any, x: Tensor | Stream) -> tuple[int, int, int] | None:
    """The form that a model asks for, unless the images have it."""
    if form is None or x.ndim < 3:
        return None
    if not isinstance(form, tuple | list) or len(form) != 3 or not all(isinstance(n, int) and n > 0 for n in form):
        raise FedflatError(f"the model's input_shape has to be (channels, height, width), not {form!r}")
    channels, height, width = form
    given = tuple(x.shape[1:]) if x.ndim > 3 else (1, *x.shape[1:])
    if given[0] not in (1, channels):
        raise FedflatError(
            f"the model asks for images of {'x'.join(map(str, form))}, but the clients' are {'x'.join(map(str, given))}"
        )
    return None if given == (channels, height, width) else (channels, height, width)


def _formed(x: Tensor, form: tuple[int, int, int]) -> Tensor:
    channels, height, width = form
    x = x.unsqueeze(1) if x.ndim == 3 else x
    down, right = height - x.shape[-2], width - x.shape[-1]
    if 0 <= down <= BORDER and 0 <= right <= BORDER:
        x = functional.pad(x, [right // 2, right - right // 2, down // 2, down - down // 2]) if down or right else x
    else:
        pixels = x.dtype == torch.uint8
        resized = functional.interpolate(x.float() if pixels else x, (height, width), mode="bilinear", antialias=True)
        x = resized.round_().clamp_(0, 255).to(torch.uint8) if pixels else resized
    return x.expand(-1, channels, -1, -1)
