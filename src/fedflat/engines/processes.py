"""Persistent worker processes, one thread each; vectors travel through shared memory.

The workers are forked, so they have the model, the loss and the clients' data without a copy and without importing
the caller's main module again: scripts without a `__main__` guard, notebooks and `python -` work.
"""

import ctypes
import math
import mmap
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor

from fedflat.core import Algorithm, Job, Reply
from fedflat.core.local import Values
from fedflat.core.part import Kind, Kinds
from fedflat.errors import FedflatError, RunError

from .engine import OWN_BUFFERS, Assignments, Results, Work, keep_pages

PDEATHSIG = 1
Spec = dict[tuple[str, ...], Tensor]  # key -> a tensor of this shape and type


def available() -> bool:
    """Whether this system can fork."""
    return sys.platform == "linux" and "fork" in multiprocessing.get_all_start_methods()


class Arena:
    """Named tensors in memory that two processes share."""

    def __init__(self, spec: Spec):
        starts: list[int] = []
        end = 0
        for like in spec.values():
            starts.append(end)
            end += math.ceil(like.numel() * like.element_size() / 64) * 64  # aligned as torch aligns
        self.memory = mmap.mmap(-1, max(end, 1))
        self.tensors = {
            key: torch.frombuffer(self.memory, dtype=like.dtype, count=like.numel(), offset=start).view(like.shape)
            if like.numel()
            else torch.empty_like(like)
            for (key, like), start in zip(spec.items(), starts, strict=True)
        }
        self.holds: dict[tuple[str, ...], Tensor] = {}

    def write(self, values: Mapping[tuple[str, ...], Tensor]) -> None:
        """Copy tensors in. They are rebound and never mutated, so one that lies here already is not copied again."""
        for key, value in values.items():
            if self.holds.get(key) is not value:
                self.tensors[key].copy_(value)
                self.holds[key] = value

    def read(self, keys: Iterable[tuple[str, ...]], copy: bool) -> dict[tuple[str, ...], Tensor]:
        """The tensors of some keys."""
        return {key: self.tensors[key].clone() if copy else self.tensors[key] for key in keys}


@dataclass(frozen=True)
class Wire:
    """How jobs and replies are laid out, known from what the parts declare."""

    got: Spec
    kept: Spec
    uploads: Spec
    buffers: Spec
    w: Tensor

    @classmethod
    def of(cls, work: Work) -> "Wire":
        w, algorithm = work.task.vector, work.algorithm
        kept = _declared(algorithm, "client_keeps", w)
        if work.own_buffers:
            kept |= {(OWN_BUFFERS, name): b for name, b in work.task.buffers.items()}
        buffers = {("model", name): b for name, b in work.task.buffers.items()}
        return cls(_declared(algorithm, "server_sends", w), kept, _declared(algorithm, "client_sends", w), buffers, w)

    def inbox(self) -> Arena:
        return Arena({("w",): self.w} | _under("got", self.got) | _under("me", self.kept) | self.buffers)

    def outbox(self) -> Arena:
        loss = {("loss",): self.w.new_zeros(())}
        return Arena({("w",): self.w} | _under("up", self.uploads) | _under("me", self.kept) | self.buffers | loss)


@dataclass
class Worker:
    """One worker process and its ends of the line."""

    process: BaseProcess
    line: Connection
    inbox: Arena
    outbox: Arena
    job: Job | None = None


class Processes:
    """Clients side by side in worker processes; the same bits as `serial` for any number of workers."""

    def __init__(self, workers: int | None = None):
        if workers is not None and workers < 1:
            raise FedflatError(f"processes needs at least one worker, not {workers}")
        self.count = workers or len(os.sched_getaffinity(0)) if available() else 0
        self.workers: list[Worker] = []

    @property
    def name(self) -> str:
        """What is recorded in the run."""
        return f"processes:{self.count}"

    def open(self, work: Work) -> None:
        """Fork the workers."""
        if not available():
            raise FedflatError("engine 'processes' needs a system that can fork; use engine='serial' here")
        self.wire = wire = Wire.of(work)
        context = multiprocessing.get_context("fork")
        for _ in range(self.count):
            line, theirs = context.Pipe()
            inbox, outbox = wire.inbox(), wire.outbox()
            others = [line, *(w.line for w in self.workers)]
            process = context.Process(target=_serve, args=(work, wire, theirs, inbox, outbox, others), daemon=True)
            with warnings.catch_warnings():
                # newer Pythons warn of forking beside threads; torch's own are at rest here and unused in the child
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self.workers.append(Worker(process, line, inbox, outbox))

    def train(self, assignments: Assignments) -> Results:
        """Hand out jobs as workers become free."""
        waiting = iter(assignments)
        busy: dict[Connection, Worker] = {}
        for worker, assignment in zip(self.workers, waiting, strict=False):
            busy[self._give(worker, *assignment)] = worker
        while busy:
            for line in wait([*busy, *(w.process.sentinel for w in busy.values())]):
                if not isinstance(line, Connection):
                    continue
                worker = busy.pop(line)
                result = self._take(worker)
                for assignment in waiting:
                    busy[self._give(worker, *assignment)] = worker
                    break
                yield result
            for worker in busy.values():
                if not worker.process.is_alive() and not worker.line.poll():
                    raise self._death(worker)

    def close(self) -> None:
        """End the workers, whatever they do."""
        workers, self.workers = self.workers, []
        for worker in workers:
            worker.line.close()
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.process.close()

    def _give(self, worker: Worker, job: Job, memory: Values | None) -> Connection:
        worker.job = job
        worker.inbox.write(
            {("w",): job.w}
            | _tensors("got", job.got)
            | _tensors("me", memory or {})
            | {("model", name): b for name, b in job.buffers.items()}
        )
        try:
            worker.line.send((job.client, job.round, job.lr, job.coordinates, memory is not None))
        except OSError:
            raise self._death(worker) from None
        return worker.line

    def _take(self, worker: Worker) -> tuple[Reply, Values]:
        try:
            facts = worker.line.recv()
        except (EOFError, OSError):
            raise self._death(worker) from None
        if isinstance(facts, BaseException):
            raise facts
        box, wire, job = worker.outbox, self.wire, worker.job
        assert job is not None
        worker.job = None
        buffers = box.read(wire.buffers, copy=True)
        reply = Reply(
            client=job.client,
            moved=box.tensors["w",].clone(),
            uploads=_nested(box, "up", wire.uploads, copy=True),
            buffers={name: b for (_, name), b in buffers.items()},
            loss=box.tensors["loss",].clone(),
            **facts,
        )
        return reply, _nested(box, "me", wire.kept, copy=True)

    def _death(self, worker: Worker) -> RunError:
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        what = f" while it trained client {worker.job.client} in round {worker.job.round}" if worker.job else ""
        return RunError(f"worker process {worker.process.pid} {how}{what}")


def _serve(work: Work, wire: Wire, line: Connection, inbox: Arena, outbox: Arena, others: list[Connection]) -> None:
    """A worker's life: it ends when the line closes, or with the process that forked it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
    for other in others:
        other.close()
    torch.set_num_threads(1)
    keep_pages()
    while True:
        try:
            client, round, lr, coordinates, returning = line.recv()
        except EOFError:
            return
        try:
            buffers = {name: inbox.tensors["model", name] for _, name in wire.buffers}
            got = _nested(inbox, "got", wire.got, copy=False)
            job = Job(client, round, lr, inbox.tensors["w",], got, buffers, coordinates)
            memory = _nested(inbox, "me", wire.kept, copy=False) if returning else None
            reply, kept = work(job, memory)
            outbox.holds.clear()
            outbox.write(
                {("w",): reply.moved, ("loss",): reply.loss}
                | _tensors("up", reply.uploads)
                | _tensors("me", kept)
                | {("model", name): b for name, b in reply.buffers.items()}
            )
            facts = ("steps", "lr_sum", "reach", "gradients", "forwards", "coordinates")
            line.send({name: getattr(reply, name) for name in facts})
        except Exception as error:
            line.send(_portable(error))


def _portable(error: Exception) -> Exception:
    """An exception that survives the way to the parent, with the worker's traceback as a note."""
    report = "".join(traceback.format_exception(error))
    notes = getattr(error, "__notes__", [])
    if not isinstance(error, FedflatError):
        error = RunError(f"{type(error).__name__}: {error}")
    portable = type(error)(*error.args) if type(error) in (FedflatError, RunError) else FedflatError(str(error))
    for note in (*notes, f"In the worker:\n{report}"):
        portable.add_note(note)
    return portable


def _declared(algorithm: Algorithm, where: str, w: Tensor) -> Spec:
    spec: Spec = {}
    for part in algorithm.everyone:
        kinds: Kinds = getattr(part, where)
        for name, kind in kinds.items():
            spec[part.name, name] = w.new_zeros(()) if kind is Kind.SCALAR else w
    return spec


def _under(prefix: str, spec: Spec) -> Spec:
    return {(prefix, *key): like for key, like in spec.items()}


def _tensors(prefix: str, named: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, ...], Tensor]:
    return {(prefix, part, name): value for part, values in named.items() for name, value in values.items()}


def _nested(box: Arena, prefix: str, spec: Spec, copy: bool) -> Values:
    values: Values = {}
    for part, name in spec:
        tensor = box.tensors[prefix, part, name]
        values.setdefault(part, {})[name] = tensor.clone() if copy else tensor
    return values
