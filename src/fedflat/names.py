"""Names as people type them: found whatever their case and dashes, and answered with the nearest one when misspelt."""

__all__ = ["canonical", "find"]

from collections.abc import Iterable
from difflib import get_close_matches

from fedflat.errors import FedflatError


def canonical(name: str) -> str:
    """The spelling under which names are compared.

    >>> canonical("Fashion-MNIST") == canonical("fashion_mnist") == canonical("Fashion MNIST")
    True
    """
    return name.lower().translate({ord(mark): None for mark in "-_ "})


def find(kind: str, name: object, known: Iterable[str]) -> str:
    """The one of the `known` names that `name` spells; `kind` says in the error what it should have been.

    >>> find("data set", "CIFAR-10", ["cifar10", "cifar100"])
    'cifar10'
    """
    spelt = {canonical(entry): entry for entry in known}
    wanted = canonical(str(name))
    if wanted in spelt:
        return spelt[wanted]
    near = get_close_matches(wanted, spelt, n=1)
    guess = f"; the nearest is {spelt[near[0]]}" if near else ""
    raise FedflatError(f"no {kind} is called {name!r}; known are {', '.join(spelt.values())}{guess}")
