"""A run's folder: config.toml, facts.json, metrics.jsonl (one line a round), checkpoint/, model.safetensors."""

import contextlib
import fcntl
import hashlib
import json
import logging
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from . import checkpoint
from .errors import FedflatError

if TYPE_CHECKING:
    from .experiment import Row, Simulation

LOG = logging.getLogger("fedflat")
CHECKPOINT_SECONDS = 5.0  # from one checkpoint to the next, at least
CHECKPOINT_REST = 50.0  # and this many times as long as it took to write
FREE_TO_CHANGE = ("rounds", "resume", "device", "engine", "eval-every")  # a run may go on with others of these


class RunFolder:
    """Keeps a run while it goes on; whoever enters it holds the folder alone."""

    def __init__(self, path: Path, simulation: "Simulation", config: Mapping[str, Any]):
        self.path, self.simulation, self.config = path, simulation, config
        self._saved: int | None = None  # the round of the newest checkpoint
        self._next = 0.0

    def __enter__(self) -> "RunFolder":
        if (self.path / "metrics.jsonl").exists() and not self.simulation.settings.resume:
            raise FedflatError(f"{self.path} holds a run already; choose another folder, or go on with resume")
        with contextlib.ExitStack() as held:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock = held.enter_context(open(self.path / "lock", "w"))
            except OSError as error:
                raise FedflatError(f"cannot write to {self.path}: {error.strerror}") from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FedflatError(f"another run is writing to {self.path}") from None
            self._open()
            self._metrics = held.enter_context(open(self.path / "metrics.jsonl", "a"))
            self._held = held.pop_all()
        return self

    def append(self, row: "Row") -> None:
        """Add a round's line, and a checkpoint when the last one is old."""
        self._metrics.write(json.dumps(row) + "\n")
        self._metrics.flush()
        if time.monotonic() > self._next:
            self.save()

    def save(self) -> None:
        """Write a checkpoint, unless there is one of this round, and see when the next one is due."""
        if self._saved == self.simulation.round:
            return
        began = time.monotonic()
        checkpoint.save(self.path / "checkpoint", self.simulation, self._identity)
        took = time.monotonic() - began
        self._saved = self.simulation.round
        self._next = began + took + max(CHECKPOINT_SECONDS, CHECKPOINT_REST * took)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        with self._held:
            interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
            if self.simulation.between_rounds and (kind is None or interrupted):
                self.save()
            if kind is None:
                state = self.simulation.model.state_dict()
                content = save_tensors({name: t.detach().cpu().clone() for name, t in state.items()})
                checkpoint.replace(self.path / "model.safetensors", content)

    def _open(self) -> None:
        self._identity = {k: v for k, v in self.config.items() if k not in FREE_TO_CHANGE} | _made_of(self.simulation)
        if (self.path / "checkpoint").exists():
            self._restore()
        else:
            if self.simulation.settings.resume:
                LOG.info("%s holds no run yet; starting one", self.path)
            self.save()  # so that from its first second the folder knows whose it is
        checkpoint.replace(self.path / "config.toml", toml(self.config).encode())
        checkpoint.replace(self.path / "facts.json", json.dumps(facts(self.simulation), indent=1).encode())

    def _restore(self) -> None:
        checkpoint.load(self.path / "checkpoint", self.simulation, self._identity)
        done, asked = self.simulation.round, self.simulation.settings.rounds
        if done < asked:
            LOG.info("going on after round %d", done)
        if done > asked:
            raise FedflatError(f"rounds = {asked}: {self.path} holds a run that has done {done} rounds already")
        rows = rows_of(self.path / "metrics.jsonl", done)
        if len(rows) != done:
            raise FedflatError(f"{self.path}/metrics.jsonl lacks rounds that the checkpoint has; it cannot be resumed")
        self.simulation.history, self._saved = rows, done
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        checkpoint.replace(self.path / "metrics.jsonl", lines.encode())


def rows_of(path: Path, rounds: int | None = None) -> "list[Row]":
    """The rows of a metrics file up to a round; a torn last line is left out."""
    rows: list[Row] = []
    if not path.exists():
        return rows
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break
        if rounds is not None and row["round"] > rounds:
            break
        rows.append(row)
    return rows


def facts(simulation: "Simulation") -> dict[str, Any]:
    """What a run's numbers may depend on beside its configuration."""
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(simulation.device) if simulation.device.type == "cuda" else "cpu",
        "engine": simulation.engine.name,
        "parameters": simulation.task.layout.length,
        "normalisation": simulation.population.inputs.statistics,
        "objective": f"clients weighted by {simulation.settings.weighting}",
    }


def toml(values: Mapping[str, Any]) -> str:
    """Flat TOML; what is None is left out."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items() if value is not None)


def _made_of(simulation: "Simulation") -> dict[str, str]:
    """Digests of the initial model and of the data, which name a run as much as its settings do."""
    population, test = simulation.population, simulation.test
    return {
        "initial model": _digest([simulation.task.vector]),
        "clients' data": _digest(tensor for samples in population.clients for tensor in samples.contents()),
        "test data": _digest(test.contents() if test else ()),
    }


def _digest(tensors: Iterable[Tensor]) -> str:
    """Of the contents; a tensor that comes again, as clients' common one does, is read once."""
    digest, seen = hashlib.sha256(), dict[int, Tensor]()  # which keeps them, so that an id stays one tensor's
    for tensor in tensors:
        if id(tensor) not in seen:
            seen[id(tensor)] = tensor
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
