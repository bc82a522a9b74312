"""The theory: parts, the round and its two pure functions. Nothing here knows an algorithm, an engine or a data set."""

from .adamw import AdamW
from .algorithm import Algorithm
from .local import LocalRun, Minibatches, Step, local_round
from .memory import Memory
from .messages import Job, Reply
from .part import Part, model, once, scalar, table, vector
from .server import Replies, Server
from .sgd import SGD
from .store import Store, Table
from .task import Batch, Buffers, Outputs, Task, cross_entropy
from .vectors import Layout, Vector, unit
from .weights import Weighting, Weights

__all__ = [
    "SGD",
    "AdamW",
    "Algorithm",
    "Batch",
    "Buffers",
    "Job",
    "Layout",
    "LocalRun",
    "Memory",
    "Minibatches",
    "Outputs",
    "Part",
    "Replies",
    "Reply",
    "Server",
    "Step",
    "Store",
    "Table",
    "Task",
    "Vector",
    "Weighting",
    "Weights",
    "cross_entropy",
    "local_round",
    "model",
    "once",
    "scalar",
    "table",
    "unit",
    "vector",
]
