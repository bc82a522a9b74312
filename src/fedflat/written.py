"""Runs that are written down: from options and TOML files to a simulation, and back to a complete config.toml."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import algorithms, data, models
from .config import RunConfig, validated
from .errors import FedflatError
from .experiment import IN_PYTHON, Simulation
from .names import find
from .results import FREE_TO_CHANGE

Values = dict[str, Any]


def configured(options: Mapping[str, Any], file: Path | None = None) -> RunConfig:
    """The configuration that options and a file make; options override the file.

    Without a file, a run that is resumed takes the config.toml in its own folder.
    """
    config = _merged(read(file) if file else {}, options)
    if not file and (own := _held(config)) is not None:
        config = _merged(own, options)
    return config


def read(file: Path) -> Values:
    """The values in a TOML file whose keys are spelled as the options."""
    try:
        values = tomllib.loads(file.read_text())
    except OSError as error:
        raise FedflatError(f"config: cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise FedflatError(f"config: {file} is not TOML: {error}") from None
    if values.get("data") == IN_PYTHON:
        raise FedflatError(
            f"config: {file} is of a run made in Python, whose model and data are not written down; "
            "go on with it in Python, by fedflat.simulate(..., resume=True)"
        )
    try:
        validated(RunConfig, values)
    except FedflatError as error:
        raise FedflatError(f"{file}: {error}") from None
    return values


def build(config: RunConfig) -> tuple[Simulation, Values]:
    """The run that a configuration describes, and the configuration with nothing left open."""
    algorithm = algorithms.parse(config.algorithm)
    dataset = data.load(config.data)
    federation = data.Federation(dataset, config.partition, config.clients, config.seed)
    shape = dataset.train[0].shape[1:]
    name = find("model", config.model or models.default(shape), models.names())
    model = models.build(name, shape, len(dataset.classes), config.seed)
    everyone = 1.0 if len(federation) <= 10 else 10
    participation = everyone if config.participation is None else config.participation
    simulation = Simulation(config, algorithm, model, federation, None, participation, None, {}, config.engine)
    values = {
        "algorithm": str(algorithm),
        "data": dataset.name,
        "partition": federation.partition,
        "clients": len(federation),
        "model": name,
        "participation": participation,
        **config.length,
        "batch-size": config.batch_size or "full",
        "device": str(simulation.device),
        "engine": simulation.engine.name,
    }
    values = {**values, **config.model_dump(by_alias=True, exclude={"out", "resume"}), **values}
    before = _held(config) or values
    for key, value in values.items():
        if key not in FREE_TO_CHANGE and before.get(key) != value:
            raise FedflatError(f"{config.out} holds a run with {key} = {before.get(key)!r}, not {value!r}")
    return simulation, values


def _held(config: RunConfig) -> Values | None:
    """The configuration of the run that is to be resumed, if there is one."""
    own = Path(config.out or ".") / "config.toml"
    return read(own) if config.resume and config.out and own.exists() else None


def _merged(file: Values, options: Mapping[str, Any]) -> RunConfig:
    lengths = {"epochs", "steps"}  # one option overrides the other one of the file
    kept = {key: value for key, value in file.items() if key not in lengths or not lengths & options.keys()}
    return validated(RunConfig, {**kept, **options})
