"""The fields of RunConfig as options of the command line."""

import contextlib
import inspect
import json
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cyclopts import Group, Parameter, Token

from .config import RunConfig

GROUPS = {
    "Problem": ("data", "partition", "clients", "model"),
    "Training": (
        "rounds", "participation", "epochs", "steps", "batch_size", "lr", "lr_decay",
        "optimizer", "momentum", "weight_decay",
        "clip", "weighting", "buffers", "augment", "eval_every",
    ),
    "Run": ("seed", "engine", "device", "precision", "out", "resume"),
}  # fmt: skip


def options() -> list[inspect.Parameter]:
    """The fields of RunConfig as options; their values are read here and checked by the model, as those of a file."""
    groups = [Group(title, sort_key=place) for place, title in enumerate(GROUPS)]
    return [_option(name, group) for group in groups for name in GROUPS[group.name]]


def _option(name: str, group: Group) -> inspect.Parameter:
    field = RunConfig.model_fields[name]
    types = _leaves(field.annotation)
    if types == [bool]:
        annotation = Annotated[bool, Parameter(help=field.description, group=group, show_default=False)]
    else:
        shape = Parameter(help=field.description, group=group, metavar=_metavar(types), converter=_reader(types))
        annotation = Annotated[Any, shape]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation)


def _leaves(annotation: Any) -> list[Any]:
    """The plain types and literals of which an annotation is made."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _leaves(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [leaf for part in get_args(annotation) for leaf in _leaves(part)]
    return [annotation]


def _metavar(types: list[Any]) -> str:
    if get_origin(types[0]) is Literal:
        return "|".join(get_args(types[0]))
    return {str: "NAME", int: "N"}.get(types[0], "X")


def _reader(types: list[Any]) -> Callable[[Any, Sequence[Token]], Any]:
    """Numbers, lists and none as TOML would have them; what is meant as text stays text."""

    def read(type_: Any, tokens: Sequence[Token]) -> Any:
        text = tokens[0].value
        if str in types:
            return text
        if text.lower() == "none":
            return None
        for number in (int, float, json.loads):
            with contextlib.suppress(ValueError):
                return number(text)
        return text

    return read
