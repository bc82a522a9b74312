"""Persistent worker processes, one thread each; vectors travel through shared memory.

The workers are forked, so they have the model, the loss and the clients' data without a copy and without importing
the caller's main module again: scripts without a `__main__` guard, notebooks and `python -` work.
"""

import contextlib
import ctypes
import functools
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedflat.core import Job, Reply
from fedflat.core.local import Values
from fedflat.errors import FedflatError, RunError
from fedflat.seeds import drawing

from .engine import Assignments, Results, Work, keep_pages
from .wire import Arena, Header, Wire

PDEATHSIG = 1
PATIENCE = 4.0, 4.0, 8.0, 16.0  # seconds that workers have to get ready, each time they are forked


def available() -> bool:
    """Whether this process may fork: on Linux, and unless it is a daemonic child of multiprocessing."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


@dataclass(eq=False)
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
        """Fork the workers, and fork those again that do not get ready."""
        if not available():
            raise FedflatError(
                "engine 'processes' needs Linux, and a process that is no daemonic child; use engine='serial' here"
            )
        if self.workers:
            raise FedflatError("this engine is at work in another run; give each run one of its own")
        self.wire = Wire.of(work)
        _fork_between_draws()
        for seconds in PATIENCE:
            forked = [self._fork(work) for _ in range(self.count - len(self.workers))]
            late = self._late(forked, seconds)
            if not late:
                return
            self._end(late)
        raise RunError(
            "worker processes do not get ready, perhaps because another thread of this program holds a lock "
            "that they need; use engine='serial' here"
        )

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
        self._end(self.workers)

    def _fork(self, work: Work) -> Worker:
        context = multiprocessing.get_context("fork")
        line, theirs = context.Pipe()
        inbox, outbox = self.wire.inbox(), self.wire.outbox()
        others = [line, *(w.line for w in self.workers)]
        arguments = work, self.wire, theirs, inbox, outbox, others, os.getpid()
        process = context.Process(target=_serve, args=arguments, daemon=True)
        with warnings.catch_warnings():
            # newer Pythons warn of forking beside threads; torch's own are at rest here and unused in the child
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        worker = Worker(process, line, inbox, outbox)
        self.workers.append(worker)
        return worker

    def _late(self, forked: list[Worker], seconds: float) -> list[Worker]:
        """Those who have not said in time that they are ready."""
        end = time.monotonic() + seconds
        late: list[Worker] = []
        for worker in forked:
            if worker.line.poll(max(0.0, end - time.monotonic())):
                self._heard(worker)
            else:
                late.append(worker)
        return late

    def _end(self, workers: list[Worker]) -> None:
        self.workers = [worker for worker in self.workers if worker not in workers]
        for worker in workers:
            worker.line.close()
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.process.close()

    def _give(self, worker: Worker, job: Job, memory: Values | None) -> Connection:
        worker.job = job
        header = self.wire.put_job(worker.inbox, job, memory)
        try:
            worker.line.send(header)
        except OSError:
            raise self._death(worker) from None
        return worker.line

    def _take(self, worker: Worker) -> tuple[Reply, Values]:
        counts, job = self._heard(worker), worker.job
        assert job is not None
        worker.job = None
        return self.wire.reply(worker.outbox, job.client, counts)

    def _heard(self, worker: Worker) -> Any:
        try:
            answer = worker.line.recv()
        except (EOFError, OSError):
            raise self._death(worker) from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _death(self, worker: Worker) -> RunError:
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        what = f" while it trained client {worker.job.client} in round {worker.job.round}" if worker.job else ""
        return RunError(f"worker process {worker.process.pid} {how}{what}")


def _serve(
    work: Work, wire: Wire, line: Connection, inbox: Arena, outbox: Arena, others: list[Connection], parent: int
) -> None:
    """A worker's life: it ends when the line closes, or with the process that forked it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # both are for the program; its end is the worker's
    ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    for other in others:
        other.close()
    torch.set_num_threads(1)
    keep_pages()
    with contextlib.suppress(EOFError, OSError):
        line.send(_answered(_get_ready))
        while True:
            line.send(_answered(_train, work, wire, inbox, outbox, line.recv()))


def _answered(do: Callable[..., Any], *arguments: Any) -> Any:
    """What was done, or why not."""
    try:
        return do(*arguments)
    except Exception as error:
        return _portable(error)


def _get_ready() -> None:
    """Draw, convolve and differentiate once: all that hangs on a lock that was held at the fork hangs here."""
    with drawing(0, "ready"):
        x, kernel = torch.rand(2, 1, 8, 8), torch.rand(4, 1, 3, 3, requires_grad=True)
    loss = torch.nn.functional.conv2d(x, kernel).flatten(1).matmul(torch.ones(144, 2)).sum()
    try:
        loss.backward()
    except RuntimeError as error:
        if "fork-based" not in str(error):
            raise
        raise FedflatError(
            "engine 'processes': where torch sees a GPU, workers take no gradient once the program itself has taken "
            "one; use engine='serial', or start the program with CUDA_VISIBLE_DEVICES="
        ) from error


def _train(work: Work, wire: Wire, inbox: Arena, outbox: Arena, header: Header) -> dict[str, Any]:
    return wire.put_reply(outbox, *work(*wire.job(inbox, header)))


@functools.cache
def _fork_between_draws() -> None:
    """From now on a fork waits until no other thread is inside torch's generator, whose lock the child would copy."""
    os.register_at_fork(before=torch.default_generator.get_state)


def _portable(error: Exception) -> Exception:
    """An exception that survives the way to the parent, with the worker's traceback as a note."""
    report = "".join(traceback.format_exception(error))
    text = str(error) if isinstance(error, FedflatError | RunError) else f"{type(error).__name__}: {error}"
    portable = FedflatError(text) if isinstance(error, FedflatError) else RunError(text)
    for note in (*getattr(error, "__notes__", ()), f"In the worker:\n{report}"):
        portable.add_note(note)
    return portable
