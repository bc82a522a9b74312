"""The named values of one part: `srv`, `me`, `got` and `sent`.

A name has to be declared, a value has to fit its kind, and values are rebound, never mutated: a vector may be shared
between the server and a hundred jobs.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fedflat.errors import FedflatError

from .part import Kind, Kinds
from .vectors import Vector


class UndeclaredName(FedflatError, AttributeError):
    """A part used a name that it did not declare."""


class Memory:
    """What one part may see in one place; attribute access, declared names only."""

    __slots__ = ("_declared", "_kinds", "_like", "_values", "_writable")

    def __init__(self, declared: str, kinds: Kinds, values: dict[str, Any], like: Vector, writable: bool = True):
        object.__setattr__(self, "_declared", declared)
        object.__setattr__(self, "_kinds", kinds)
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_like", like)
        object.__setattr__(self, "_writable", writable)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise UndeclaredName(self._complaint(name)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._kinds:
            raise UndeclaredName(self._complaint(name))
        if not self._writable:
            raise FedflatError(f"{self._declared}: what a client received ('{name}') cannot be set")
        if self._kinds[name] is Kind.TABLE:
            raise FedflatError(f"{self._declared}: '{name}' is a table; set its rows")
        self._values[name] = fit(value, self._kinds[name], self._like, f"{self._declared}: '{name}'")

    def _complaint(self, name: str) -> str:
        if name in self._kinds:
            return f"{self._declared} declares '{name}' but nothing has set it"
        names = ", ".join(self._kinds) or "nothing"
        return f"{self._declared} does not declare '{name}' (it declares {names})"


def fit(value: Any, kind: Kind, like: Vector, what: str) -> Tensor:
    """The value as its kind: a vector of length d, or a 0-d tensor."""
    if kind is Kind.SCALAR:
        value = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        if value.ndim:
            raise FedflatError(f"{what} is a scalar, not a tensor of shape {tuple(value.shape)}")
    elif value is None:
        raise FedflatError(f"{what} is missing; does it `return`?")
    elif not isinstance(value, Tensor) or value.shape != like.shape or value.dtype != like.dtype:
        found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise FedflatError(f"{what} holds a {kind.value} of {len(like)} numbers ({like.dtype}), not {found}")
    return value


def initial(kinds: Kinds, w: Vector) -> dict[str, Any]:
    """The values before the first round; tables are made by the server, which knows the population."""
    zero = {Kind.VECTOR: torch.zeros_like, Kind.SCALAR: lambda w: w.new_zeros(()), Kind.MODEL: torch.clone}
    return {name: zero[kind](w) for name, kind in kinds.items() if kind in zero}


def watched(lent: Iterable[Any], part: Any, slot: str, *arguments: Any) -> Any:
    """Call a slot, and notice when it writes into a tensor that it was only lent; its arguments are lent, too."""
    before = [(t, t._version) for t in (*lent, *arguments) if isinstance(t, Tensor)]
    value = getattr(part, slot)(*arguments)
    if any(tensor._version != version for tensor, version in before):
        raise FedflatError(
            f"{type(part).__name__}.{slot} writes into a tensor in place; write `a = a + b` instead of `a += b`"
        )
    return value
