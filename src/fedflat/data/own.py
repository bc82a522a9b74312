"""Data of one's own as a `Dataset`: tensors, arrays, memory maps, Hugging Face and torch data sets, folders.

What does not fit into memory is streamed: a memory-mapped array, and images beyond 2 GiB when they are decoded.
"""

__all__ = ["own"]

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedflat.data.dataset import Dataset
from fedflat.data.folders import folder
from fedflat.data.found import Found
from fedflat.data.holdouts import hold_out
from fedflat.data.rows import columns, items
from fedflat.data.stream import Stream
from fedflat.errors import FedflatError
from fedflat.seeds import generator

TEST = 0.2  # the share that is held out for the test where nothing is said


def own(
    source: Any,
    y: Any = None,
    *,
    test: Any = None,
    clients: Any = None,
    classes: Sequence[str] | None = None,
    inputs: str | None = None,
    size: int | None = None,
    stream: bool | None = None,
    name: str = "own",
    seed: int = 0,
) -> Dataset:
    """Your data, ready for a `Federation`.

    `source` is x, with y beside it (tensors, arrays, lists; a memory-mapped x is read row by row), a Hugging Face or
    torch data set of (x, y), or a folder: of CLASS/image, of CLIENT/CLASS/image, or of CLIENT.npz or CLIENT.csv, in
    train/ and test/ if need be. Images are NCHW or, where the last axis is 1 or 3 channels, NHWC; labels may be names.

    `test` is another source like the first one, (x, y) for instance, or the share to hold out; unless it is said, the
    source's own test data, else a fifth, in each class alike. `clients` says which client each sample comes from, for
    the partition "natural".
    Of a Hugging Face data set y, `inputs` and `clients` may name columns. `size` is that of images which are not all of
    one size; `stream` decodes images when a minibatch asks for them, which is the choice beyond 2 GiB.

    >>> own([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [1.0, 1.0]], ["cat", "dog", "cat", "dog"], test=0.5)
    Dataset(own: 2 training and 2 test samples of 2, 2 classes)
    """

    def read(source: Any, y: Any = None, clients: Any = None) -> Found:
        found = _read(source, y, clients, inputs, size, stream)
        if not 0 < len(found.x) == len(found.y):
            raise FedflatError(f"own data: there are {len(found.x)} samples and {len(found.y)} labels")
        if found.clients is not None and found.clients.shape != (len(found.y),):
            raise FedflatError(f"own data: clients are one id for each of {len(found.y)} samples")
        return found

    train = read(source, y, clients)
    if test is None and train.test is not None:
        held = train.test
    elif test is None or isinstance(test, float | int):
        share = TEST if test is None else float(test)
        train, held = _split(train, share, seed)
    else:
        held = read(test, *(word if isinstance(word, str) else None for word in (y, clients)))
    names, (y_train, y_test) = _labels(train, held, classes)
    ids, owners = _clients(train, held)
    if train.x.shape[1:] != held.x.shape[1:]:
        shapes = tuple(train.x.shape[1:]), tuple(held.x.shape[1:])
        raise FedflatError(f"the training samples have the shape {shapes[0]}, but those for the test {shapes[1]}")
    x: Any = train.x, held.x  # a stream stands for a tensor
    return Dataset(name, (x[0], y_train), (x[1], y_test), names, *owners, client_names=ids)


def _read(source: Any, y: Any, clients: Any, inputs: str | None, size: int | None, stream: bool | None) -> Found:
    if isinstance(source, str | Path):
        return folder(Path(source), size, stream)
    if isinstance(source, Mapping) and "train" in source:
        train = _read(source["train"], y, clients, inputs, size, stream)
        for key in ("test", "validation", "valid"):
            if key in source:
                return train.tested(_read(source[key], y, clients, inputs, size, stream))
        return train
    if hasattr(source, "column_names") and hasattr(source, "features"):
        return columns(source, inputs, y, clients, size, stream)
    if y is None and _is_pair(source):
        source, y = source
    if y is not None:
        return _arrays(source, y, clients)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Tensor | np.ndarray):
        return items(source, clients, size, stream)
    raise FedflatError(
        f"own data are x and y, a folder, or a data set of pairs (x, y), not {type(source).__name__} alone"
    )


def _arrays(x: Any, y: Any, clients: Any) -> Found:
    if isinstance(x, np.memmap):
        x = Stream.of(x)
    elif not isinstance(x, Tensor | Stream):
        try:
            x = torch.from_numpy(np.require(x, requirements="W") if isinstance(x, np.ndarray) else np.asarray(x))
        except (TypeError, ValueError) as error:
            raise FedflatError(f"own data: x is no table of numbers ({error})") from None
    return Found(_channels_first(x), _array(y), None, None if clients is None else _array(clients))


def _channels_first(x: Tensor | Stream) -> Tensor | Stream:
    """NCHW; images of 1 or 3 channels come as NHWC, too."""
    if x.ndim != 4 or x.shape[-1] not in (1, 3) or x.shape[1] in (1, 3):
        return x
    if isinstance(x, Tensor):
        return x.permute(0, 3, 1, 2).contiguous()
    height, width, channels = x.shape[1:]
    read = x.read
    return replace(x, read=lambda rows: read(rows).permute(0, 3, 1, 2), form=(channels, height, width))


def _split(found: Found, share: float, seed: int) -> tuple[Found, Found]:
    if not 0 <= share < 1:
        raise FedflatError(
            f"test is another source, or the share of the samples to hold out, from 0 to 1, not {share!r}"
        )
    rows = np.arange(len(found.y))
    kind = found.y.dtype.kind
    strata = np.unique(found.y, return_inverse=True)[1] if found.y.ndim == 1 and kind != "f" else np.zeros_like(rows)
    held = hold_out(rows, strata, share, None, generator(seed, "test"))
    return found.only(np.setdiff1d(rows, held)), found.only(held)


def _labels(train: Found, test: Found, classes: Sequence[str] | None) -> tuple[tuple[str, ...], list[Tensor]]:
    """The names of the classes, and the labels as places among them."""
    ys = [train.y, test.y]
    known = classes or train.classes
    if train.y.dtype.kind == "f":
        return tuple(known or ()), [torch.from_numpy(y) for y in ys]
    there = np.unique(np.concatenate([y.reshape(-1) for y in ys]))
    if there.dtype.kind in "iub":
        dense = bool(there[0] >= 0) and (len(known) > int(there[-1]) if known else len(there) == int(there[-1]) + 1)
        if dense:
            return tuple(known or map(str, there.tolist())), [torch.from_numpy(y.astype(np.int64)) for y in ys]
    elif there.dtype.kind not in "US":
        raise FedflatError(f"own data: labels are whole numbers, names or decimals, not {there.dtype}")
    names = [str(name) for name in (known or there.tolist())]
    places = {name: place for place, name in enumerate(names)}
    if missing := [name for name in map(str, there.tolist()) if name not in places]:
        raise FedflatError(f"own data: the label {missing[0]!r} is none of the classes {', '.join(names)}")
    lookup = np.array([places[str(name)] for name in there.tolist()])
    return tuple(names), [torch.from_numpy(lookup[np.searchsorted(there, y)]) for y in ys]


def _clients(train: Found, test: Found) -> tuple[tuple[str, ...], list[Tensor | None]]:
    """The names of the natural clients, and whose each sample is."""
    if train.clients is None:
        return (), [None, None]
    given = [found.clients for found in (train, test) if found.clients is not None and len(found.clients)]
    known, places = np.unique(np.concatenate(given), return_inverse=True)
    owners = torch.from_numpy(places)
    of_test = None if test.clients is None else owners[len(train.y) :]
    return tuple(map(str, known.tolist())), [owners[: len(train.y)], of_test]


def _array(values: Any) -> NDArray[Any]:
    return values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)


def _is_pair(source: Any) -> bool:
    return isinstance(source, tuple) and len(source) == 2 and all(isinstance(part, Iterable) for part in source)
