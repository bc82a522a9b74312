"""The settings of a run: one frozen, validated model behind Python, TOML and the command line."""

import difflib
import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedflat.errors import FedflatError

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Rate = Callable[[int, int], float]  # (t, rounds) -> the rate of round t, t from 0


class Settings(BaseModel):
    """How to train, apart from algorithm, model and data. The names are those of `simulate` and of the options."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    rounds: Annotated[int, Field(ge=0)] = 100
    """how many rounds"""
    epochs: Count | None = None
    """passes over its data that a client makes in a round; 5, unless --steps is given"""
    steps: Count | None = None
    """minibatches that a client makes in a round, in place of --epochs"""
    batch_size: Count | None = 50
    """samples in a minibatch, or full for all of a client's at once"""
    lr: NonNegative | Rate = 0.01
    """step size of a client"""
    lr_decay: Positive = 1.0
    """round t, counted from 0, uses lr * lr_decay**t"""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """how a client steps; adamw is refused by methods that take a client's way for a sum of gradients"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """momentum of a client's SGD, which starts afresh in every round"""
    weight_decay: NonNegative = 0.0
    """weight decay of a client's SGD"""
    clip: Positive | None = None
    """largest norm of a gradient, or none; not clipped unless given"""
    weighting: Literal["samples", "uniform"] = "samples"
    """weigh clients by their samples, or all alike"""
    buffers: Literal["average", "local", "recalibrate"] = "average"
    """BatchNorm statistics: averaged, kept by each client, or measured anew"""
    augment: str | None = None
    """what happens to the images of training minibatches, such as crop:4+flip+normalise+cutout:16"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """decides everything that is random; the same seed gives the same bits"""
    device: str = "auto"
    """cpu, cuda or cuda:1; auto takes a GPU where there is one"""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """arithmetic of the forward and backward passes"""
    eval_every: Count = 1
    """rounds from one test to the next; the last round is always tested"""
    resume: bool = False
    """go on with the run in --out, or start it if there is none"""

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else value

    @field_validator("batch_size", mode="before")
    @classmethod
    def _full(cls, value: Any) -> Any:
        return None if value == "full" else value

    @model_validator(mode="after")
    def _one_length(self) -> "Settings":
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError(f"momentum = {self.momentum}: {self.optimizer} has moments of its own")
        return self

    @field_validator("lr")
    @classmethod
    def _of_two(cls, lr: Any) -> Any:
        if callable(lr):
            try:
                inspect.signature(lr).bind(0, 1)
            except TypeError:
                raise ValueError("a function of (t, rounds) is wanted") from None
        return lr

    @property
    def length(self) -> dict[str, int | None]:
        """How long a local round is: five epochs unless it is said."""
        return {"epochs": self.epochs or (None if self.steps else 5), "steps": self.steps}

    def rate(self, t: int) -> float:
        """The rate of round t, t from 0."""
        lr = self.lr(t, self.rounds) if callable(self.lr) else self.lr
        if not isinstance(lr, Real) or not math.isfinite(lr) or lr < 0:
            raise FedflatError(f"lr: the rate of t = {t} is {lr!r}; it has to be a finite number, at least 0")
        return float(lr) * self.lr_decay**t


class RunConfig(Settings):
    """A run that can be written down: what the command line and a config.toml hold, spelled as the options are."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    algorithm: str = "fedavg"
    """a name from `fedflat algorithms`, with other hyper-parameters if need be, or several joined by +"""
    data: str = "digits"
    """data set"""
    partition: str = "lda:0.3"
    """who holds which sample: iid, lda:0.3, dirichlet:0.3, shards:2, pathological:3, quantity:0.5 or natural, to which
    +longtail:0.5, +noise:0.1 and +rotate:90 may be added"""
    clients: Count | None = None
    """how many clients share the data; 20, or with natural all that there are, unless given"""
    model: str | None = None
    """mlp or cnn; one that fits the data unless given"""
    participation: Any = None
    """clients that train in a round: 0.1 is a fraction, 10 a count, 1.0 all, or bernoulli:0.1, cyclic:10, trace:FILE;
    ten, or all if fewer, unless given"""
    engine: str = "auto"
    """where clients train: serial or processes:4; it changes no number"""
    out: Annotated[str, Field(min_length=1)] | None = None
    """folder that keeps the run: config.toml, metrics.jsonl, model.safetensors and checkpoints"""


def cosine(lr: float, final: float = 0.0) -> Rate:
    """A rate that falls from `lr` to `final` along half a cosine over the rounds.

    >>> cosine(0.1)(0, 100), round(cosine(0.1)(50, 100), 6)
    (0.1, 0.05)
    """
    return lambda t, rounds: final + (lr - final) * (1 + math.cos(math.pi * t / rounds)) / 2


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], values: dict[str, Any]) -> Model:
    """The model with these values; what is wrong with them becomes one sentence that names the key."""
    known = [field.alias or name for name, field in model.model_fields.items()]
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean '{close[0]}'?" if close else f"; known are: {', '.join(known)}"
            raise FedflatError(f"there is no setting '{key}'{hint}")
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            raise FedflatError(message) from None
        raise FedflatError(f"{first['loc'][0]} = {first['input']!r}: {message[0].lower()}{message[1:]}") from None
