"""Own data that come row by row: a Hugging Face `datasets.Dataset`, or a torch data set of pairs (x, y)."""

__all__ = ["columns", "items"]

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedflat.data.found import Found, gathered, pixels
from fedflat.errors import FedflatError

INPUTS = ("image", "img", "x", "input", "inputs", "features", "pixel_values", "input_ids")
LABELS = ("label", "labels", "y", "target", "class")
GREY = ("1", "L")


def columns(source: Any, inputs: str | None, y: Any, clients: Any, size: int | None, stream: bool | None) -> Found:
    """A Hugging Face data set; it lies in memory-mapped files, so that it streams well."""
    known = list(source.column_names)
    named = [column for column in known if hasattr(source.features[column], "names")]
    label = _column(known, y, [*(named if len(named) == 1 else ()), *LABELS], "y")
    rest = [column for column in known if column not in {label, *([clients] if isinstance(clients, str) else [])}]
    x = _column(rest, inputs, rest if len(rest) == 1 else INPUTS, "inputs")
    if isinstance(clients, str):
        clients = np.asarray(source[_column(known, clients, (), "clients")][:])
    of_label = source.features[label]
    names = list(of_label.names) if hasattr(of_label, "names") else None
    labels = np.asarray(source[label][:])
    name = f"{getattr(source, '_fingerprint', type(source).__name__)} {x} {size}"
    if not len(source):
        raise FedflatError("own data: there is no sample")
    one = _converter(lambda row: source[row][x], f"column {x!r}", size)
    return Found(gathered(one, len(source), name, stream), labels, names, clients)


def items(source: Any, clients: Any, size: int | None, stream: bool | None) -> Found:
    """A torch data set, or any sequence, of pairs (x, y); it is gone through once for its labels."""
    if not len(source):
        raise FedflatError("own data: there is no sample")
    first = source[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise FedflatError(f"own data: a data set has to give pairs (x, y), not {type(first).__name__}")
    labels: dict[int, Any] = {}

    def raw(row: int) -> Any:
        x, labels[row] = source[row]
        return x

    x = gathered(
        _converter(raw, "x", size), len(source), f"{type(source).__qualname__} {len(source)} {size}", stream, 1
    )
    y = [labels[row] if row in labels else source[row][1] for row in range(len(source))]
    return Found(x, np.asarray(y), getattr(source, "classes", None), None if clients is None else np.asarray(clients))


def _converter(raw: Any, what: str, size: int | None) -> Any:
    """A function of the row that gives its x as a tensor; images are grey where the first one is."""
    first = raw(0)
    mode = "L" if isinstance(first, Image.Image) and first.mode in GREY else "RGB"

    def one(row: int) -> Tensor:
        value = raw(row)
        if isinstance(value, Image.Image):
            return pixels(value, mode, size)
        try:
            found = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        except (TypeError, ValueError):
            raise FedflatError(
                f"own data: {what} holds {type(value).__name__}, and a model takes numbers; texts have to be made "
                "token ids of one length first"
            ) from None
        return found.float() if found.dtype == torch.float64 else found

    return one


def _column(known: list[str], asked: Any, guesses: Any, what: str) -> str:
    if isinstance(asked, str):
        if asked in known:
            return asked
        raise FedflatError(f"own data: there is no column {asked!r}; there are {', '.join(known)}")
    for name in guesses:
        if name in known:
            return name
    raise FedflatError(f"own data: say by {what}= which of the columns {', '.join(known)} it is")
