"""A run's folder: config.toml, facts.json, metrics.jsonl (one line a round), checkpoint/, model.safetensors."""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import torch
from torch import Tensor

from . import checkpoint
from .errors import FedflatError, RunError

if TYPE_CHECKING:
    from .experiment import Row, Simulation

LOG = logging.getLogger("fedflat")
CHECKPOINT_SECONDS = 5.0  # from one checkpoint to the next, at least
CHECKPOINT_REST = 50.0  # and this many times as long as it took to write
ROUNDS_COMPARED = 10  # whose active clients name a run
ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")  # in the repr of an object, another one in every process
FREE_TO_CHANGE = ("rounds", "resume", "device", "engine", "eval-every")  # a run may go on with others of these


class RunFolder:
    """Keeps a run while it goes on; whoever enters it holds the folder alone."""

    def __init__(self, path: Path, simulation: "Simulation", config: Mapping[str, Any]):
        self.path, self.simulation = path, simulation
        self.config = {key: ADDRESS.sub("", v) if isinstance(v, str) else v for key, v in config.items()}
        self._checkpoints, self._lines = path / "checkpoint", path / "metrics.jsonl"
        self._saved: int | None = None  # the round of the newest checkpoint
        self._next = 0.0

    def __enter__(self) -> "RunFolder":
        with self._writing(FedflatError), contextlib.ExitStack() as held:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(open(self.path / "lock", "a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FedflatError(f"another run is writing to {self.path}") from None
            os.register_at_fork(after_in_child=lock.close)  # what is forked from here shall not hold the folder, too
            if self._begun and not self.simulation.settings.resume:
                raise FedflatError(f"{self.path} holds a run already; choose another folder, or go on with resume")
            self._metrics = held.enter_context(self._open())
            self.save()  # so that from its first second the folder knows whose it is
            checkpoint.replace(self.path / "config.toml", toml(self.config).encode())
            checkpoint.replace(self.path / "facts.json", json.dumps(facts(self.simulation), indent=1).encode())
            self._held = held.pop_all()
        return self

    def append(self, row: "Row") -> None:
        """Add a round's line."""
        with self._writing(RunError):
            self._metrics.write(json.dumps(row) + "\n")
            self._metrics.flush()

    def save_if_due(self) -> None:
        """Write a checkpoint when the last one is old."""
        if time.monotonic() > self._next:
            with self._writing(RunError):
                self.save()

    def save(self) -> None:
        """Write a checkpoint, unless there is one of this round, and see when the next one is due."""
        if self._saved == self.simulation.round:
            return
        began = time.monotonic()
        os.fsync(self._metrics.fileno())  # a checkpoint is of no use without the lines of its rounds
        checkpoint.save(self._checkpoints, self.simulation, self._identity)
        took = time.monotonic() - began
        self._saved = self.simulation.round
        self._next = began + took + max(CHECKPOINT_SECONDS, CHECKPOINT_REST * took)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        with self._writing(RunError), self._held:
            interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
            if self.simulation.between_rounds and (kind is None or interrupted):
                self.save()
            if kind is None:
                state = self.simulation.model.state_dict()
                tensors = {name: t for name, t in state.items() if isinstance(t, Tensor)}
                checkpoint.replace(self.path / "model.safetensors", checkpoint.packed(tensors))

    @property
    def _begun(self) -> bool:
        """Whether there is anything of a run that an other one would overwrite."""
        signs = (self._lines, *(self._checkpoints / name for name in checkpoint.MANIFESTS))
        return any(sign.exists() and sign.stat().st_size for sign in signs)

    def _open(self) -> TextIO:
        """Restore what there is, and return the file of lines, which ends with the round that was restored."""
        settings = self.simulation.settings
        named = {key: value for key, value in self.config.items() if key not in FREE_TO_CHANGE}
        self._identity = named | _made_of(self.simulation) | _course(self.simulation)
        if self._begun:
            rows = rows_of(self._lines)
            checkpoint.load(self._checkpoints, self.simulation, self._identity, len(rows))
            self._saved = self.simulation.round
            self.simulation.history = rows[: self._saved]
            if self._saved < settings.rounds:
                LOG.info("going on after round %d", self._saved)
        elif settings.resume:
            LOG.info("%s holds no run yet; starting one", self.path)
        lines = "".join(json.dumps(row) + "\n" for row in self.simulation.history)
        checkpoint.replace(self._lines, lines.encode())
        return open(self._lines, "a")

    @contextlib.contextmanager
    def _writing(self, kind: type[Exception]) -> Generator[None]:
        """What the system refuses becomes one sentence: a wrong call, or a run that failed, as a full disk makes it."""
        try:
            yield
        except (FileExistsError, NotADirectoryError) as error:
            files = [p for p in (self.path, *self.path.parents) if p.exists() and not p.is_dir()]
            raise kind(
                f"cannot write to {self.path}: {files[0] if files else error.filename} is not a folder"
            ) from None
        except OSError as error:
            kind = RunError if error.errno in (errno.ENOSPC, errno.EDQUOT) else kind
            raise kind(f"cannot write to {self.path}: {error.strerror}") from error


def rows_of(path: Path) -> "list[Row]":
    """The rows of a metrics file, round after round; a torn last line is left out."""
    rows: list[Row] = []
    if not path.exists():
        return rows
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or row.get("round") != len(rows) + 1:
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


def _course(simulation: "Simulation") -> dict[str, list[Any]]:
    """What functions make of the first rounds, since their names tell nothing."""
    settings = simulation.settings
    first = range(1, 1 + min(settings.rounds, ROUNDS_COMPARED))
    active = (sorted(map(int, simulation._participants(round))) for round in first)
    return {
        "rates": [settings.rate(t) for t in range(settings.rounds)] if callable(settings.lr) else [],
        "active clients": [hashlib.sha256(str(ids).encode()).hexdigest()[:16] for ids in active],
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
