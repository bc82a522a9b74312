"""A part is one idea of one paper, written as the slots of the round that it fills.

The slots stand here in the order in which a round calls them. Whatever a part does not define is left out of the
round and costs nothing. `srv` is the server's memory, `me` client i's, `got` what it received: each shows the names
that this part declared, and nothing else.
"""

import difflib
import inspect
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from types import FunctionType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from torch import Tensor

from fedflat.errors import FedflatError

from .vectors import Layout, Vector

if TYPE_CHECKING:
    from .algorithm import Algorithm
    from .local import LocalRun, Step
    from .memory import Memory
    from .server import Replies
    from .task import Outputs


class Kind(Enum):
    """What a kept or sent name holds."""

    VECTOR = "vector"
    SCALAR = "scalar"
    MODEL = "model"
    TABLE = "table"


vector = Kind.VECTOR  # d numbers, zero at first
scalar = Kind.SCALAR  # one number, zero at first
model = Kind.MODEL  # d numbers, at first w^0 on the server and the received model on a client
table = Kind.TABLE  # one vector for each client, held by the server

Kinds = Mapping[str, Kind]
DECLARED = ("server_keeps", "client_keeps", "server_sends", "client_sends")
Slot = TypeVar("Slot", bound=Callable[..., Any])


def once(slot: Slot) -> Slot:
    """Mark a slot whose value is the same in every step: it is evaluated once a round."""
    slot.once = True  # type: ignore[attr-defined]
    return slot


@dataclass_transform(frozen_default=True)
class Part:
    """One idea of one paper. Every slot is optional; a concrete part is a frozen dataclass and final."""

    server_keeps: ClassVar[Kinds] = {}
    client_keeps: ClassVar[Kinds] = {}
    server_sends: ClassVar[Kinds] = {}
    client_sends: ClassVar[Kinds] = {}
    batches: ClassVar[int] = 1  # minibatches that a step draws; the last one is the update's
    assumes_sgd: ClassVar[bool] = False  # True: it takes `moved` for a sum of gradients, as SGD makes it
    travels: ClassVar[bool] = True  # False: clients keep to themselves, and no vector is sent

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if any(base is not Part and issubclass(base, Part) for base in cls.__bases__):
            raise FedflatError(
                f"{cls.__name__}: parts are final; put two parts into one Algorithm instead of inheriting"
            )
        for name in vars(cls):
            if name not in DECLARED and (near := difflib.get_close_matches(name, DECLARED, 1, 0.85)):
                raise FedflatError(f"{cls.__name__}: a part declares no `{name}`; did you mean `{near[0]}`?")
        for name, method in vars(cls).items():
            if isinstance(method, FunctionType) and not name.startswith("_"):
                _check_slot(cls.__name__, name, method)
        dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        for field in fields(cast(Any, self)):
            value, hint = plain(getattr(self, field.name)), hints.get(field.name, Any)
            object.__setattr__(self, field.name, value)
            if not _fits(value, hint):
                raise FedflatError(f"{self.name}: {field.name}={reprlib.repr(value)} should be {_wanted(hint)}")

    def __add__(self, other: "Part | Algorithm") -> "Algorithm":
        from .algorithm import Algorithm

        return Algorithm(self) + other

    @property
    def name(self) -> str:
        """The name of the idea, under which its memory is kept."""
        return type(self).__name__

    @classmethod
    def fills(cls, slot: str) -> bool:
        """Whether this part defines a slot."""
        return getattr(cls, slot) is not getattr(Part, slot)

    @classmethod
    def is_once(cls, slot: str) -> bool:
        """Whether a slot is marked `@once`."""
        return getattr(getattr(cls, slot), "once", False)

    @property
    def inner(self) -> "tuple[Part, ...]":
        """Parts used inside this one: their forces go to `step.force`, not to the update; all else folds as usual."""
        return ()

    # the server, before

    def prepare(self, w: Vector, srv: "Memory", active: Sequence[int]) -> None:
        """Set the memory for a round in which these clients are active."""

    def broadcast(self, w: Vector, srv: "Memory", client: int, sent: "Memory") -> Vector:
        """Return the model sent to a client; what else it is sent may be set in `sent`."""
        raise NotImplementedError

    # the client, once

    def start(self, w: Vector, me: "Memory", got: "Memory") -> Vector:
        """Return the starting point x_0."""
        raise NotImplementedError

    def trainable(self, layout: Layout) -> Callable[[str], bool]:
        """Return which tensors are trained, as a function of their name."""
        raise NotImplementedError

    # the client, every step

    def rate(self, lr: Any, k: Any, K: int) -> Any:
        """Return the rate of step k of K."""
        raise NotImplementedError

    def perturb(self, step: "Step", me: "Memory", got: "Memory") -> Vector:
        """Return e: the update's gradient is taken at x + e."""
        raise NotImplementedError

    def term(self, out: "Outputs", step: "Step", me: "Memory", got: "Memory") -> Tensor:
        """Return one value per sample that is added to the loss."""
        raise NotImplementedError

    def pull(self, step: "Step", me: "Memory", got: "Memory") -> Vector:
        """Return a vector that is added to the gradient."""
        raise NotImplementedError

    def blend(self, g: Vector, step: "Step", me: "Memory", got: "Memory") -> Vector:
        """Return the gradient's replacement."""
        raise NotImplementedError

    def observe(self, step: "Step", e: "Vector | None", d: Vector) -> None:
        """See the perturbation and the direction of a step."""

    # the client, at the end

    def finish(self, run: "LocalRun", me: "Memory", got: "Memory") -> "Mapping[str, Tensor] | None":
        """Update the memory and return the uploads by name."""

    # the server, after

    def aggregate(self, w: Vector, srv: "Memory", replies: "Replies") -> Vector:
        """Return the new model; where no part does, it is w + mean(moved)."""
        raise NotImplementedError

    def update(self, w: Vector, srv: "Memory", replies: "Replies") -> Vector:
        """Update the server's memory and return the model after this part's correction."""
        raise NotImplementedError


SLOTS = [name for name, slot in vars(Part).items() if isinstance(slot, FunctionType) and not name.startswith("_")]


def plain(value: Any) -> Any:
    """A number of numpy as Python's own; a tensor is no hyper-parameter, as no expression can name it."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    if isinstance(value, Tensor):
        raise FedflatError("a tensor is no hyper-parameter; give a number, as `tensor.item()` does")
    return value


def _hints(part: type[Part]) -> dict[str, Any]:
    try:
        return get_type_hints(part)
    except NameError:  # names that only a type checker sees
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a field may hold a value; what is no plain type, literal or part is its author's affair."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, h) for h in get_args(hint))
    if get_origin(hint) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, NoneType) or (isinstance(hint, type) and issubclass(hint, Part)):
        return isinstance(value, hint)
    return True


def _wanted(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType, Literal):
        return " or ".join(_wanted(h) if get_origin(hint) is not Literal else repr(h) for h in get_args(hint))
    names = {float: "a finite number", int: "an integer", bool: "True or False", str: "a word", NoneType: "None"}
    return names.get(hint) or ("a part" if hint is Part else f"a part {hint.__name__}()")


def _check_slot(part: str, name: str, method: FunctionType) -> None:
    """A misspelt slot would be left out of the round without a word."""
    if name not in SLOTS:
        near = difflib.get_close_matches(name, SLOTS, 1)
        guess = f"; did you mean `{near[0]}`?" if near else ""
        raise FedflatError(f"{part}: a part has no slot `{name}`{guess} (methods of its own start with an underscore)")
    wanted, found = (list(inspect.signature(f).parameters) for f in (getattr(Part, name), method))
    if len(wanted) != len(found):
        raise FedflatError(f"{part}.{name} takes ({', '.join(found)}); the slot is called with ({', '.join(wanted)})")
