"""fedflat: sharpness-aware federated learning that is right, fast, composable and measured.

>>> import fedflat as ff
>>> fed = ff.data.Federation(ff.data.load("digits"), "dirichlet:0.3", clients=10)
>>> model = ff.models.build("mlp", (1, 8, 8), 10)
>>> result = ff.simulate("fedavg", model, fed, rounds=3, lr=0.1, batch_size=20)
>>> result.costs["down"], result.costs["up"], result.costs["gradients"]
(1.0, 1.0, 1.0)
"""

from . import algorithms, data, engines, models
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
    "cosine",
    "data",
    "engines",
    "model",
    "models",
    "once",
    "scalar",
    "simulate",
    "table",
    "unit",
    "vector",
]
