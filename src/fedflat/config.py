"""The settings of a run: one frozen, validated model behind Python, TOML and the command line."""

import difflib
import math
from collections.abc import Callable
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

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rounds: Annotated[int, Field(ge=0)] = 100
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Count | None = 50
    lr: NonNegative | Rate = 0.01
    lr_decay: Positive = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    clip: Positive | None = None
    weighting: Literal["samples", "uniform"] = "samples"
    buffers: Literal["average", "local", "recalibrate"] = "average"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: str = "auto"
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    eval_every: Count = 1
    resume: bool = False

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else value

    @model_validator(mode="after")
    def _one_length(self) -> "Settings":
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        return self

    @property
    def length(self) -> dict[str, int | None]:
        """How long a local round is: five epochs unless it is said."""
        return {"epochs": self.epochs or (None if self.steps else 5), "steps": self.steps}

    def rate(self, t: int) -> float:
        """The rate of round t, t from 0."""
        lr = self.lr(t, self.rounds) if callable(self.lr) else self.lr
        if not isinstance(lr, int | float) or not math.isfinite(lr) or lr < 0:
            raise FedflatError(f"lr: the rate of round {t} is {lr!r}; it has to be a finite number, at least 0")
        return lr * self.lr_decay**t


def cosine(lr: float, final: float = 0.0) -> Rate:
    """A rate that falls from `lr` to `final` along half a cosine over the rounds.

    >>> cosine(0.1)(0, 100), round(cosine(0.1)(50, 100), 6)
    (0.1, 0.05)
    """
    return lambda t, rounds: final + (lr - final) * (1 + math.cos(math.pi * t / rounds)) / 2


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], values: dict[str, Any]) -> Model:
    """The model with these values; what is wrong with them becomes one sentence that names the key."""
    for key in values:
        if key not in model.model_fields:
            close = difflib.get_close_matches(key, model.model_fields, 1)
            hint = f"; did you mean '{close[0]}'?" if close else f"; known are: {', '.join(model.model_fields)}"
            raise FedflatError(f"there is no setting '{key}'{hint}")
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            raise FedflatError(message) from None
        raise FedflatError(f"{first['loc'][0]} = {first['input']!r}: {message[0].lower()}{message[1:]}") from None
