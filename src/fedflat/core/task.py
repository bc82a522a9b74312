"""The task: model and loss as functions of a flat vector."""

import contextlib
import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedflat.errors import FedflatError

from .vectors import Layout, Vector

Buffers = dict[str, Tensor]
Loss = Callable[[Any, Tensor], Tensor]

# everything in torch's list of activations that maps each unit by itself
ACTIVATIONS = tuple(
    kind
    for kind in vars(nn.modules.activation).values()
    if isinstance(kind, type)
    and issubclass(kind, nn.Module)
    and kind.__module__ == nn.modules.activation.__name__
    and "Softm" not in kind.__name__
    and kind not in (nn.LogSoftmax, nn.MultiheadAttention, nn.GLU)
)


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """The default loss, one value per sample."""
    return functional.cross_entropy(outputs, y, reduction="none")


class Batch(NamedTuple):
    """A minibatch; `mask` is 0 on rows that only fill it up."""

    x: Tensor
    y: Tensor
    mask: Tensor | None = None

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the samples of one value per sample; a scalar is a mean already."""
        if values.ndim == 0:
            return values
        values = values.flatten(1).mean(1) if values.ndim > 1 else values
        if self.mask is None:
            return values.mean()
        return (values * self.mask).sum() / self.mask.sum()


@dataclass
class Outputs:
    """What a model gave for a batch: its outputs, and what was seen on the way to them."""

    logits: Any
    buffers: Buffers
    activations: list[Tensor] = field(default_factory=list[Tensor])  # of the hidden activation modules, in order
    features: Tensor | None = None  # the input of the last linear layer


class Task:
    """A model and its loss. The module is a private copy: vectors pass through it, nothing stays in it."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss = cross_entropy,
        *,
        inside: bool = False,
        transforms: bool = False,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ):
        """`inside` records activations and features; `transforms` differentiates by torch.func, as vmap needs."""
        self.layout = Layout.of(model)
        self.loss = loss
        self.transforms = transforms
        self.autocast = autocast
        self.vector = self.layout.flatten(p.detach() for p in model.parameters()).clone()
        self.buffers: Buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
        self.module = copy.deepcopy(model).train()
        self._places = _places(self.module)
        self._recurrent = [m for m in self.module.modules() if isinstance(m, nn.RNNBase)]
        self._seen = Outputs(None, {})
        if inside:
            self._look_inside()

    def forward(
        self, v: Vector, x: Tensor, buffers: Mapping[str, Tensor], trained: Collection[str] | None = None
    ) -> Outputs:
        """The model at a vector; the buffers that are given stay as they are, those after the pass are returned.

        Tensors that are not `trained` are constants of a gradient.
        """
        seen = self._seen = Outputs(None, {name: b.clone() for name, b in buffers.items()})
        for name, tensor in self.layout.tensors(v):
            self._put(name, tensor if trained is None or name in trained else tensor.detach())
        for name, buffer in seen.buffers.items():
            self._put(name, buffer)
        for rnn in self._recurrent:
            rnn._flat_weights = [getattr(rnn, name) for name in rnn._flat_weights_names]
        version = x._version
        with self.autocast():
            logits = self.module(x)
        if x._version != version:
            raise FedflatError(
                "the model writes into its input, the clients' own data, in place (a first nn.ReLU(inplace=True)?)"
            )
        for name in seen.buffers:
            place, key = self._places[name][0]
            seen.buffers[name] = place[key].detach()
        if seen.activations and seen.activations[-1] is logits:
            seen.activations.pop()
        if isinstance(logits, Tensor) and logits.is_floating_point():
            logits = logits.to(v.dtype)
        seen.logits = logits
        return seen

    def gradient(self, objective: Callable[[Vector], tuple[Tensor, Any]], at: Vector) -> tuple[Vector, Any]:
        """The gradient of the objective's first value, and its second value."""
        if self.transforms:
            return torch.func.grad(objective, has_aux=True)(at)
        with torch.enable_grad():
            v = at.detach().requires_grad_()
            value, beside = objective(v)
            if not value.requires_grad:  # as of MOON's term and the head alone
                return torch.zeros_like(at), beside
            (g,) = torch.autograd.grad(value, v)
        return g, beside

    def module_at(self, v: Vector, buffers: Mapping[str, Tensor], model: nn.Module) -> nn.Module:
        """A copy of a model with these weights and buffers."""
        model = copy.deepcopy(model)
        with torch.no_grad():
            for parameter, (_, tensor) in zip(model.parameters(), self.layout.tensors(v), strict=True):
                parameter.copy_(tensor)
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        return model

    def _put(self, name: str, tensor: Tensor) -> None:
        for place, key in self._places[name]:
            place[key] = tensor

    def _look_inside(self) -> None:
        def keep_activation(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self._seen.activations.append(output)

        def keep_features(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self._seen.features = inputs[0]

        linear: nn.Module | None = None
        for module in self.module.modules():
            if isinstance(module, ACTIVATIONS):
                module.register_forward_hook(keep_activation)
            if isinstance(module, nn.Linear):
                linear = module
        if linear is not None:
            linear.register_forward_pre_hook(keep_features)


def _places(module: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """Where each named parameter and buffer hangs; tied ones hang in several places."""
    first: dict[int, str] = {}
    places: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for path, owner in module.named_modules():
        for table in (owner._parameters, owner._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    name = first.setdefault(id(tensor), f"{path}.{key}" if path else key)
                    places.setdefault(name, []).append((table, key))
    return places


def check_dtype(model: nn.Module) -> torch.dtype:
    """The one floating dtype of a model's parameters."""
    dtypes = {p.dtype for p in model.parameters()}
    if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
        found = ", ".join(sorted(str(d) for d in dtypes))
        raise FedflatError(f"the model's parameters have to share one floating type, they have {found}")
    return dtypes.pop()
