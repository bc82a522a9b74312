"""idx, plain or gzipped, of MNIST and Fashion-MNIST: two zero bytes, type 8 (uint8), number of axes, lengths, data."""

__all__ = ["read"]

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from fedflat.data.cache import Found
from fedflat.data.catalogue import Entry
from fedflat.data.dataset import Dataset
from fedflat.data.verify import damaged


def read(entry: Entry, found: Found) -> Dataset:
    """Images and labels of the training set, then those of the test set."""
    x, y, x_test, y_test = (
        _array(found.path / file.name, (entry.train, entry.test)[place // 2], entry.shape[1:] if place % 2 == 0 else ())
        for place, file in enumerate(found.layout.files)
    )
    return Dataset(entry.name, (x.unsqueeze(1), y.long()), (x_test.unsqueeze(1), y_test.long()), entry.classes)


def _array(path: Path, count: int, shape: tuple[int, ...]) -> Tensor:
    """The array in a file, if it has the shape that was published; so no header decides how much memory it takes."""
    shape = (count, *shape)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        try:
            head = stream.read(4 + 4 * len(shape))
            if head != struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape):
                raise damaged(path, f"is not an idx file of {'x'.join(map(str, shape))} bytes")
            data = torch.empty(prod(shape), dtype=torch.uint8)
            buffer, filled = data.numpy().data, 0
            while filled < len(data) and (more := stream.readinto(buffer[filled:])):  # type: ignore[union-attr]
                filled += more
            ended = not stream.read(1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise damaged(path, f"is cut short or not gzip ({error})") from None
    if filled < len(data) or not ended:
        raise damaged(path, f"does not hold the {len(data):,} bytes that its header announces")
    return data.view(shape)
