"""fedflat: sharpness-aware federated learning that is right, fast, composable and measured.

>>> import fedflat as ff
>>> fed = ff.data.Federation(ff.data.load("digits"), "dirichlet:0.3", clients=10)
>>> model = ff.models.build("mlp", (1, 8, 8), 10)
>>> result = ff.simulate("fedavg", model, fed, rounds=3, lr=0.1, batch_size=20)
>>> result.costs["down"], result.costs["up"], result.costs["gradients"]
(1.0, 1.0, 1.0)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import algorithms, core, data, engines, models, seeds
    from .config import cosine
    from .core import Algorithm, Part, model, once, scalar, table, unit, vector
    from .errors import FedflatError, RunError
    from .experiment import Result, Simulation, simulate

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "FedflatError",
    "Part",
    "Result",
    "RunError",
    "Simulation",
    "__version__",
    "algorithms",
    "core",
    "cosine",
    "data",
    "engines",
    "model",
    "models",
    "once",
    "scalar",
    "seeds",
    "simulate",
    "table",
    "unit",
    "vector",
]

_HOMES = {
    **dict.fromkeys(("Algorithm", "Part", "model", "once", "scalar", "table", "unit", "vector"), "core"),
    **dict.fromkeys(("FedflatError", "RunError"), "errors"),
    **dict.fromkeys(("Result", "Simulation", "simulate"), "experiment"),
    "cosine": "config",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used, so that `fedflat --help` does not wait for torch."""
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    elif name in __all__:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'fedflat' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
