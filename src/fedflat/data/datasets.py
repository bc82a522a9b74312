"""Data sets by name, held as they were published: uint8 pixels, normalised only when a minibatch needs them.

`digits` are the 1797 handwritten digits of 8x8 pixels that scikit-learn carries along, so it needs no download. Their
levels 0..16 are rescaled to 0..255 and rounded; every fifth sample, from the first one, is a test sample. All others
stand in catalogue.py, and docs/data.md describes them.
"""

__all__ = ["Dataset", "load", "names"]

from typing import Any, cast

import torch

from fedflat.data.cache import Found, obtain
from fedflat.data.catalogue import SETS, Entry
from fedflat.data.dataset import Dataset
from fedflat.data.verify import damaged
from fedflat.names import find


def load(name: str, fresh: bool = False) -> Dataset:
    """The data set of that name, in any usual spelling; it is downloaded if it is not here, or if `fresh` says so.

    >>> load("Digits")
    Dataset(digits: 1437 training and 360 test samples of 1x8x8, 10 classes)
    """
    name = find("data set", name, names())
    if name == "digits":
        return _digits()
    from fedflat.data.formats import READERS

    entry = SETS[name]
    found = obtain(entry, fresh)
    data = READERS[found.layout.format](entry, found)
    _check(entry, found, data)
    return data


def names() -> list[str]:
    """The names that `load` knows."""
    return ["digits", *SETS]


def _check(entry: Entry, found: Found, data: Dataset) -> None:
    """Refuse samples that are not in number, shape and labels those of the published set."""
    classes = len(data.classes)
    if classes != entry.count:
        raise damaged(found.path, f"holds {classes} classes where {entry.count} were published")
    for what, (x, y), count in (("training", data.train, entry.train), ("test", data.test, entry.test)):
        if (len(x), *x.shape[1:]) != (count, *entry.shape) or len(y) != count:
            shape = "x".join(map(str, x.shape))
            raise damaged(found.path, f"holds {what} samples {shape} where {count:,} of {entry.shape} were published")
        if count and not 0 <= int(y.min()) <= int(y.max()) < classes:
            raise damaged(found.path, f"holds {what} labels {int(y.min())} to {int(y.max())} for {classes} classes")
    if entry.balanced and len(data.train[1].bincount(minlength=classes).unique()) > 1:
        raise damaged(found.path, "does not hold as many training samples of each class as were published")


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    bunch = cast(Any, load_digits())
    x = torch.as_tensor(bunch.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    y = torch.as_tensor(bunch.target, dtype=torch.int64)
    test = torch.arange(len(y)) % 5 == 0
    return Dataset("digits", (x[~test], y[~test]), (x[test], y[test]), tuple("0123456789"))
