"""The official file formats, each read as it was published: a reader takes an entry and what was found of it."""

__all__ = ["READERS"]

from collections.abc import Callable
from functools import partial

from fedflat.data.cache import Found
from fedflat.data.catalogue import Entry
from fedflat.data.dataset import Dataset
from fedflat.data.formats import cifar, csv, idx, images, mat, npz, plays

Reader = Callable[[Entry, Found], Dataset]

READERS: dict[str, Reader] = {
    "idx": idx.read,
    "cifar10-binary": partial(cifar.binary, labels=1),
    "cifar100-binary": partial(cifar.binary, labels=2),
    "cifar10-python": partial(cifar.python, key=b"labels"),
    "cifar100-python": partial(cifar.python, key=b"fine_labels"),
    "mat": mat.read,
    "npz": npz.read,
    "cinic": images.cinic,
    "tiny-imagenet": images.tiny,
    "csv": csv.read,
    "plays": plays.read,
}
