"""Textbook loops: every algorithm once more, with plain autograd, to check the library against.

Vectors are lists with one tensor per parameter. Each class is one algorithm: `direction` is its local step before
clipping, weight decay and momentum, `gradient` the gradient G in it, `server` its server rule. The outer loop and the
local SGD are in textbook_loop.py, the algorithms in one file per family. MAN is `man`, an argument of every run.
"""

from __future__ import annotations

from collections.abc import Callable

import textbook_duals
import textbook_scar
import textbook_servers
import textbook_sharpness
import textbook_sol
import textbook_terms
from textbook_loop import Algorithm, Client, Setting, each, norm, train, unit, weights
from textbook_sol import FedSoL
from torch import nn

__all__ = ["ALGORITHMS", "Client", "FedSoL", "Setting", "each", "norm", "run", "trained", "unit", "weights"]

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    **textbook_servers.ALGORITHMS,
    **textbook_duals.ALGORITHMS,
    **textbook_sharpness.ALGORITHMS,
    **textbook_terms.ALGORITHMS,
    **textbook_sol.ALGORITHMS,
    **textbook_scar.ALGORITHMS,
}


def trained(name: str, model: nn.Module, setting: Setting, **hyper) -> tuple[nn.Module, Algorithm]:
    """A trained copy of the model after all rounds, and the algorithm with what it kept."""
    return train(ALGORITHMS[name], model, setting, **hyper)


def run(name: str, model: nn.Module, setting: Setting, **hyper) -> nn.Module:
    """A trained copy of the model after all rounds."""
    return trained(name, model, setting, **hyper)[0]
