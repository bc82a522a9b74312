"""How data differ from client to client: figures of a partition, and a picture of it."""

__all__ = ["draw", "figures"]

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedflat.errors import FedflatError

Counts = NDArray[np.int64]


def figures(labels: Tensor, parts: Sequence[Tensor], classes: int) -> dict[str, Any]:
    """Sizes, label entropies and effective numbers, those of equal things that would be as uneven.

    With n_i samples at client i, p_i = n_i/n and q_ic the share of class c there: effective clients 1 / sum_i p_i**2,
    entropy H_i = -sum_c q_ic log q_ic in nats, effective classes exp(H_i); the last two as means over clients.

    >>> import torch
    >>> found = figures(torch.tensor([0, 0, 1, 1]), [torch.tensor([0, 1]), torch.tensor([2, 3])], classes=2)
    >>> found["entropy"], found["effective_clients"], found["effective_classes"]
    (0.0, 2.0, 1.0)
    """
    counts = _counts(labels, parts, classes)
    sizes = counts.sum(axis=1)
    entropies = _entropy(counts)
    dealt = np.concatenate([part.numpy() for part in parts])
    distinct = len(np.unique(dealt))
    return {
        "clients": len(parts),
        "classes": classes,
        "samples": len(labels),
        "least": int(sizes.min()),
        "median": float(np.median(sizes)),
        "most": int(sizes.max()),
        "repeated": len(dealt) - distinct,
        "unused": len(labels) - distinct,
        "effective_clients": float(sizes.sum() ** 2 / (sizes.astype(float) ** 2).sum()),
        "entropy": float(entropies.mean()),
        "entropy_of_all": float(_entropy(counts.sum(axis=0, keepdims=True))[0]),
        "entropy_at_most": log(classes),
        "effective_classes": float(np.exp(entropies).mean()),
        "classes_held": float((counts > 0).sum(axis=1).mean()),
    }


def draw(file: Path, title: str, labels: Tensor, parts: Sequence[Tensor], classes: Sequence[str]) -> None:
    """A PNG: the share of each class at each client, and below it the clients' sizes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts = _counts(labels, parts, len(classes))
    sizes = counts.sum(axis=1)
    shares = counts / np.maximum(sizes, 1)[:, None]
    found = figures(labels, parts, len(classes))
    figure = Figure(figsize=(11, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    image = above.imshow(
        shares.T, aspect="auto", cmap="Blues", vmin=0, vmax=max(shares.max(), 1e-9), interpolation="nearest"
    )
    figure.colorbar(image, ax=above, label="share of the client's samples", pad=0.01)
    step = -(-len(classes) // 25)
    above.set_yticks(range(0, len(classes), step), [_short(name) for name in classes[::step]])
    above.set_title(title, loc="left", fontweight="bold")
    above.set_title(
        f"effective clients {found['effective_clients']:.1f} of {len(parts)}     "
        f"entropy {found['entropy']:.2f} of {found['entropy_at_most']:.2f} nats     "
        f"effective classes {found['effective_classes']:.1f} of {len(classes)}",
        loc="right",
        fontsize="small",
    )
    below.bar(range(len(parts)), sizes, width=1.0 if len(parts) > 200 else 0.8, color="#4a7fb5")
    below.set_ylabel("samples")
    below.set_xlabel("client")
    below.set_xlim(-0.5, len(parts) - 0.5)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    below.spines[["top", "right"]].set_visible(False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=120, format="png")
    except OSError as error:
        raise FedflatError(f"cannot write {file}: {error.strerror}") from None


def _short(name: str) -> str:
    return repr(name)[1:-1] if not name.isprintable() else name if len(name) <= 24 else f"{name[:23]}…"


def _counts(labels: Tensor, parts: Sequence[Tensor], classes: int) -> Counts:
    """How many samples of each class each client holds."""
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    held = labels.numpy()[np.concatenate([part.numpy() for part in parts])]
    return np.bincount(owners * classes + held, minlength=len(parts) * classes).reshape(len(parts), classes)


def _entropy(counts: Counts) -> NDArray[np.float64]:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1)
