"""Algorithms by name: `register` a factory, `parse` an expression such as "feddyn+man(zeta=0.15)"."""

import ast
import difflib
import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, ParamSpec, get_args, get_origin

from pydantic import ConfigDict, Field, ValidationError, validate_call

from fedflat.core import Algorithm, Part
from fedflat.core.part import plain
from fedflat.errors import FedflatError

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Searched:
    """The values among which a publication chose; it stands beside the range of a hyper-parameter."""

    values: tuple[float, ...]
    by: str


NOT_FINITE = ("inf", "nan")
P = ParamSpec("P")
_factories: dict[str, Callable[..., Algorithm]] = {}


def register(factory: Callable[P, Algorithm]) -> Callable[P, Algorithm]:
    """Give a factory its name in expressions; its hyper-parameters are checked against their annotations."""
    name = factory.__name__.replace("_", "-")
    signature = inspect.signature(factory)
    checked: Callable[P, Algorithm] = validate_call(config=ConfigDict(strict=True))(factory)

    @functools.wraps(factory)
    def build(*args: P.args, **hyper: P.kwargs) -> Algorithm:
        for given in hyper:
            if given not in signature.parameters:
                known = _known(given, signature.parameters)
                raise FedflatError(f"{name} has no hyper-parameter '{_short(given)}'; {known}")
        given_args, given_hyper = [plain(a) for a in args], {k: plain(v) for k, v in hyper.items()}
        try:
            algorithm = checked(*given_args, **given_hyper)  # type: ignore[call-arg]
            bound = signature.bind(*given_args, **given_hyper).arguments
        except ValidationError as error:
            first = error.errors()[0]
            raise FedflatError(
                f"{name}: {first['loc'][0]}={_short(repr(first['input']))}: {first['msg'].lower()}"
            ) from None
        for k, v in bound.items():
            choices = signature.parameters[k].annotation
            if get_origin(choices) is Literal and type(v) not in map(type, get_args(choices)):
                raise FedflatError(f"{name}: {k}={v!r} is a {type(v).__name__}; choose from {get_args(choices)}")
        changed = [f"{k}={v!r}" for k, v in bound.items() if v != signature.parameters[k].default]
        return Algorithm(*algorithm.parts, expression=(f"{name}({', '.join(changed)})" if changed else name,))

    _factories[name] = build
    return build


def names() -> list[str]:
    """The names of all algorithms and modifiers."""
    return sorted(_factories)


def factory_of(name: str) -> Callable[..., Algorithm]:
    """The factory of that name."""
    return _factories[name]


def parse(expression: str) -> Algorithm:
    """The algorithm that an expression names; `str` of an algorithm gives it back.

    >>> parse("feddyn + man(zeta=0.2)")
    feddyn+man(zeta=0.2)
    """
    text = expression
    for name in _factories:
        if "-" in name:
            text = re.sub(rf"\b{name}\b", name.replace("-", "_"), text, flags=re.IGNORECASE)
    shown = _short(expression)
    try:
        return _build(_tree(text.strip(), shown), shown)
    except (RecursionError, MemoryError):
        raise FedflatError(f"the algorithm '{shown}' has too many terms") from None


def resolve(algorithm: Any) -> Algorithm:
    """An Algorithm from what a caller may name one by: itself, an expression, a factory or a part."""
    if isinstance(algorithm, str):
        return parse(algorithm)
    if isinstance(algorithm, Part):
        return Algorithm(algorithm)
    for factory in _factories.values():
        if algorithm is factory:
            return factory()
    if not isinstance(algorithm, Algorithm):
        raise FedflatError(f"algorithm is a name such as 'fedsol' or an Algorithm, not {algorithm!r}")
    return algorithm


def _tree(text: str, shown: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        raise FedflatError(f"cannot read the algorithm '{shown}'; write for example fedsam(rho=0.05)+man") from None


def _build(tree: ast.expr, expression: str) -> Algorithm:
    match tree:
        case ast.BinOp(left, ast.Add(), right):
            return _build(left, expression) + _build(right, expression)
        case ast.Name(name):
            return _call(name, {})
        case ast.Call(ast.Name(name), args, keywords):
            if any(k.arg is None for k in keywords):
                raise FedflatError(f"{name}: write each hyper-parameter as name=value, not '**', in '{expression}'")
            hyper = {str(k.arg): _value(k.value, expression) for k in keywords}
            if len(hyper) < len(keywords):
                raise FedflatError(f"{name}: a hyper-parameter is given twice in '{expression}'")
            return _call(name, hyper, [_value(a, expression) for a in args])
        case _:
            raise FedflatError(f"cannot read '{_short(ast.unparse(tree))}' in the algorithm '{expression}'")


def _call(name: str, hyper: dict[str, Any], args: list[Any] | None = None) -> Algorithm:
    if factory := _factories.get(name.replace("_", "-").lower()):
        if args:
            raise FedflatError(f"{name}: name the hyper-parameters, as in {name}({_first_parameter(factory)}=...)")
        return factory(**hyper)
    for part in Part.__subclasses__():
        if part.__name__ == name and not part.__module__.startswith("fedflat.core."):
            try:
                return Algorithm(part(*(args or ()), **hyper))
            except TypeError as error:
                raise FedflatError(f"{name}: {error}") from None
    raise FedflatError(f"there is no algorithm '{_short(name)}'; {_known(name, names())}")


def _value(tree: ast.expr, expression: str) -> Any:
    match tree:
        case ast.Name(word) if word.lower() in ("true", "false"):
            return word.lower() == "true"
        case ast.Name(word) if word.lower() in NOT_FINITE:
            return float(word)
        case ast.UnaryOp(ast.USub(), ast.Name(word)) if word.lower() in NOT_FINITE:
            return -float(word)
        case ast.Name(word):
            return word
        case ast.Call(ast.Name(_), _, _):
            parts = _build(tree, expression).parts
            if len(parts) == 1:
                return parts[0]
        case _:
            pass
    try:
        return ast.literal_eval(tree)
    except ValueError:
        value = _short(ast.unparse(tree))
        raise FedflatError(f"cannot read the value '{value}' in the algorithm '{expression}'") from None


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _first_parameter(factory: Callable[..., Any]) -> str:
    return next(iter(inspect.signature(factory).parameters), "name")


def _known(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word.lower(), known, 1)
    listed = ", ".join(known) or "none"
    return f"known are: {listed}" + (f"; did you mean {close[0]}?" if close else "")
