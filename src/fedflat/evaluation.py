"""How good a model is: accuracy, loss and the caller's own metrics, in eval mode and in large batches."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedflat.core import Buffers, Task, Vector
from fedflat.data.inputs import Inputs
from fedflat.data.population import Samples
from fedflat.errors import FedflatError

Metric = Callable[[Any, Tensor], Any]
BATCH = 1000


@torch.no_grad()
def evaluate(
    task: Task, w: Vector, buffers: Buffers, samples: Samples, inputs: Inputs, metrics: Mapping[str, Metric]
) -> dict[str, float | None]:
    """test_accuracy, test_loss, and test_NAME for each metric."""
    outputs, y = predict(task, w, buffers, samples, inputs)
    loss = task.loss(outputs, y)
    row: dict[str, float | None] = {"test_accuracy": accuracy(outputs, y), "test_loss": float(loss.mean())}
    for name, metric in metrics.items():
        value = metric(outputs, y)
        try:
            row[f"test_{name}"] = float(value)
        except (TypeError, ValueError, RuntimeError):
            found = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise FedflatError(f"metrics: '{name}' has to return one number, not {found}") from None
    return row


def check_metrics(metrics: object) -> None:
    """Metrics are functions by name, and their columns are their own."""
    if not isinstance(metrics, Mapping):
        raise FedflatError(f"metrics is a dictionary of functions of (outputs, y), not {metrics!r}")
    for name, metric in metrics.items():
        if not callable(metric):
            raise FedflatError(f"metrics: '{name}' is a function of (outputs, y), not {metric!r}")
        if name in ("accuracy", "loss"):
            raise FedflatError(f"metrics: '{name}' is measured already; choose another name")


@torch.no_grad()
def predict(task: Task, w: Vector, buffers: Buffers, samples: Samples, inputs: Inputs) -> tuple[Any, Tensor]:
    """The model's outputs for all samples, and their labels."""
    task.module.eval()
    try:
        pieces: list[tuple[Tensor, Tensor]] = []
        for x, y in samples.minibatches(_slices(samples)):
            pieces.append((task.forward(w, inputs(x), buffers).logits, y))
    finally:
        task.module.train()
    return _joined([o for o, _ in pieces]), torch.cat([y for _, y in pieces])


def _joined(pieces: list[Any]) -> Any:
    """The outputs of all batches as those of one: tensors one behind the other, within tuples, lists and dicts."""
    first = pieces[0]
    match first:
        case Tensor() if first.ndim:
            return torch.cat(pieces)
        case tuple() | list():
            parts = [_joined(list(parts)) for parts in zip(*pieces, strict=True)]
            return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
        case dict():
            return type(first)(**{key: _joined([piece[key] for piece in pieces]) for key in first})
        case _:
            return first


def _slices(samples: Samples) -> list[slice]:
    return [slice(start, start + BATCH) for start in range(0, len(samples), BATCH)]


def accuracy(outputs: Any, y: Tensor) -> float | None:
    """The fraction of right classes; None where the outputs are no classes."""
    if not isinstance(outputs, Tensor) or y.is_floating_point() or outputs.ndim != y.ndim + 1:
        return None
    return float((outputs.argmax(1) == y).double().mean())


@torch.no_grad()
def recalibrated(task: Task, w: Vector, buffers: Buffers, clients: Iterable[Samples], inputs: Inputs) -> Buffers:
    """BatchNorm statistics of this very model: the plain mean over batches of these clients' data."""
    norms = [m for m in task.module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    momenta = [m.momentum for m in norms]
    task.module.eval()
    for norm in norms:
        norm.train().momentum = None  # torch then keeps a cumulative mean, counted by num_batches_tracked
    fresh = {
        name: torch.ones_like(b) if name.endswith("running_var") else torch.zeros_like(b) for name, b in buffers.items()
    }
    keys = {f"{path}.{key}" for path, m in task.module.named_modules() if m in norms for key, _ in m.named_buffers()}
    current = {name: fresh[name] if name in keys else b for name, b in buffers.items()}
    try:
        for samples in clients:
            for x, _ in samples.minibatches(_slices(samples)):
                current = task.forward(w, inputs(x), current).buffers
    finally:
        task.module.train()
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return current


def check_outputs(task: Task, samples: Samples, inputs: Inputs, classes: bool) -> int | None:
    """Pass two samples through the model: does it take the data, and how many classes does it tell apart?"""
    x, y = samples.take(slice(0, 2))
    given, x = x.dtype, inputs(x).clone()
    seen = f", which it sees as {x.dtype}" if x.dtype != given else ""
    found = f"samples of shape {tuple(x.shape[1:])} ({given}{seen})"
    task.module.eval()
    try:
        with torch.no_grad():
            outputs = task.forward(task.vector, x, task.buffers).logits
    except Exception as error:
        raise FedflatError(f"the model does not take the clients' data, {found}: {error}") from error
    finally:
        task.module.train()
    if not classes:
        try:
            loss = task.loss(outputs, y)
        except Exception as error:
            raise FedflatError(
                f"the loss does not take the model's outputs and the clients' labels: {error}"
            ) from error
        if not isinstance(loss, Tensor) or (loss.ndim and len(loss) != len(y)):
            raise FedflatError("the loss has to return one value per sample, or their mean, as a tensor")
        if loss.ndim > 1 and loss.shape != y.shape:
            raise FedflatError(
                f"the loss of {len(y)} samples has the shape {tuple(loss.shape)}, their labels have {tuple(y.shape)}: "
                "did it broadcast outputs against labels? it has to return one value per sample, or their mean"
            )
        return None
    if (
        not isinstance(outputs, Tensor)
        or outputs.ndim < 2
        or len(outputs) != len(y)
        or outputs.shape[2:] != y.shape[1:]
    ):
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise FedflatError(
            f"for {len(y)} samples with labels of shape {tuple(y.shape)} the model gives {shape}; "
            "cross-entropy needs one score for each class, (samples, classes); or pass your own loss"
        )
    return outputs.shape[1]
