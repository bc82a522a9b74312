"""The local round: the master loop of every algorithm, and Step, its gradient oracle.

    x = start(w)
    for k in 0..K-1:
        e = perturb
        D = blend(gradient of [loss + terms] at x + e) + pulls
        x = x - rate * momentum(clip(D) + weight_decay * x)
    uploads = finish

Nothing in a step waits for the device or branches on a tensor's value, so a step can be vmapped, compiled and
captured. The loop owns x and the velocity and updates them in place; parts are lent everything and write nothing.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from fedflat.errors import FedflatError

from .memory import Memory, fit, initial, watched
from .messages import Job, Reply
from .part import Kind, Part
from .sgd import SGD
from .task import Batch, Buffers, Outputs, Task
from .vectors import Vector

if TYPE_CHECKING:
    from .adamw import AdamW
    from .algorithm import Algorithm

Values = dict[str, dict[str, Any]]  # a client's memory: part -> name -> value


class Minibatches(Protocol):
    """The minibatches of each step."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[Batch, ...]]: ...


def local_round(
    algorithm: "Algorithm", task: Task, sgd: "SGD | AdamW", job: Job, memory: Values | None, data: Minibatches
) -> tuple[Reply, Values]:
    """One client's round: a pure function of what it received, what it kept and its minibatches."""
    run = begin(algorithm, task, sgd, job, memory, len(data))
    for k, batches in enumerate(data):
        step(run, batches, k)
    return finish(run)


def begin(
    algorithm: "Algorithm", task: Task, sgd: "SGD | AdamW", job: Job, memory: Values | None, steps: int
) -> "LocalRun":
    """The state before the first step."""
    values = memory or {p.name: initial(p.client_keeps, job.w) for p in algorithm.everyone if p.client_keeps}
    run = LocalRun(algorithm, task, sgd, job, {name: dict(kept) for name, kept in values.items()}, steps)
    for part in algorithm.filling("start"):
        run.x0 = run.fit(run.call(part, "start", run.x0), part, "start")
    run.x = run.x0.clone()
    return run


@torch.no_grad()
def step(run: "LocalRun", batches: tuple[Batch, ...], k: Any) -> None:
    """One step of local SGD."""
    s = Step(run, batches, k)
    e = s.perturbation()
    if e is not None:
        s.y = run.x + e
    d = s.direction(s.descent(s.y))
    for part in run.algorithm.filling("observe"):
        run.watch(part, "observe", s, e, d)
    run.settle()
    run.sgd.move(run.x, run.state, run.sgd.direction(d, run.x, run.mask), s.lr, run.mask)
    run.count(s.lr)


def finish(run: "LocalRun") -> tuple[Reply, Values]:
    """The reply and the new memory."""
    moved = run.moved
    uploads: dict[str, dict[str, Tensor]] = {}
    for part in run.algorithm.filling("finish"):
        sent = run.call(part, "finish", run) or {}
        if set(sent) != set(part.client_sends):
            raise FedflatError(
                f"{part.name}.finish uploads {sorted(sent)} but client_sends declares {sorted(part.client_sends)}"
            )
        if sent:
            uploads[part.name] = {
                name: fit(value, part.client_sends[name], run.w, f"{part.name}: upload '{name}'")
                for name, value in sent.items()
            }
    counts = run.K, run.lr_sum, run.reach, run.gradients, run.forwards, run.job.coordinates
    return Reply(run.job.client, moved, uploads, run.buffers, run.loss, *counts), run.kept


@dataclass
class LocalRun:
    """The state of a local round; `finish` sees it with x = x_K and may keep what it shows."""

    algorithm: "Algorithm"
    task: Task
    sgd: "SGD | AdamW"
    job: Job
    kept: Values
    K: int

    def __post_init__(self) -> None:
        self.w = self.job.w
        self.x0 = self.w
        self.x = self.w
        self.buffers: Buffers = self.job.buffers
        self.loss = self.w.new_zeros(())
        self.gradients = self.forwards = 0
        self._rates = self._reach = self._entered = 0.0
        self.state: Any = self.sgd.start(self.w)
        self.batches: tuple[Batch, ...] = ()
        self._constants: dict[tuple[str, str], Any] = {}
        self._given = {part: dict(values) for part, values in self.kept.items()}
        self._own: Values = {}
        like = self.w
        self.me = {
            p.name: Memory(f"{p.name}.client_keeps", p.client_keeps, self.kept.get(p.name, {}), like)
            for p in self.algorithm.everyone
        }
        self.got = {
            p.name: Memory(f"{p.name}.server_sends", p.server_sends, dict(self.job.got.get(p.name, {})), like, False)
            for p in self.algorithm.everyone
        }

    @cached_property
    def moved(self) -> Vector:
        """x_K - x_0, known at the end."""
        return self.x - self.x0

    @property
    def lr_sum(self) -> Any:
        """The sum of the step sizes."""
        return not_zero(self._rates)

    @property
    def reach(self) -> Any:
        """The weight that gradients have in `moved`: `lr_sum` without momentum, more with it."""
        return not_zero(self._reach)

    def count(self, lr: Any) -> None:
        """Add a step of this length."""
        self._entered = self.sgd.momentum * self._entered + 1
        self._rates = self._rates + lr
        self._reach = self._reach + lr * self._entered

    def settle(self) -> None:
        """Move what a step has rebound in the memory to its place: a captured step finds it there again."""
        for part, values in self.kept.items():
            for name, value in values.items():
                if value is self._given[part][name]:
                    continue
                own = self._own.setdefault(part, {})
                values[name] = own[name].copy_(value) if name in own else value.clone()
                own[name] = self._given[part][name] = values[name]

    @cached_property
    def trained(self) -> frozenset[str]:
        """The names of the tensors that are trained."""
        return self.algorithm.trained(self.task.layout)

    @cached_property
    def mask(self) -> Vector | None:
        """1 where a coordinate is trained; None where all are."""
        layout = self.task.layout
        return None if len(self.trained) == len(layout.names) else layout.mask(self.trained.__contains__, self.w)

    def chosen(self, part: Part, only: Callable[[str], bool]) -> Vector:
        """1 on the tensors of which a part's force is wanted."""
        key = part.name, "only"
        if key not in self._constants:
            self._constants[key] = self.task.layout.mask(only, self.w)
        return self._constants[key]

    def call(self, part: Part, slot: str, *arguments: Any) -> Any:
        """Call a slot with the part's own memory and what it received."""
        return self.watch(part, slot, *arguments, self.me[part.name], self.got[part.name])

    def vector(self, part: Part, slot: str, *arguments: Any) -> Vector:
        """The vector that a slot returns; one that is marked `@once` is evaluated in the first step."""
        key = part.name, slot
        if key in self._constants:
            return self._constants[key]
        value = self.fit(self.call(part, slot, *arguments), part, slot)
        if part.is_once(slot):
            self._constants[key] = value = value.clone()  # it may be a view of x, which moves
        return value

    def term(self, part: Part, out: Outputs, step: "Step", batch: Batch) -> Tensor:
        """The mean over a minibatch of what a part adds to the loss."""
        value = self.call(part, "term", out, step)
        if not isinstance(value, Tensor) or value.shape not in ((), batch.y.shape[:1]):
            found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise FedflatError(f"{part.name}.term: the result has to be one value per sample, not {found}")
        return batch.mean(value)

    def watch(self, part: Part, slot: str, *arguments: Any) -> Any:
        """Call a slot that has no memory at hand."""
        return watched(self._lent(), part, slot, *arguments)

    def fit(self, value: Any, part: Part, slot: str) -> Vector:
        return fit(value, Kind.VECTOR, self.w, f"{part.name}.{slot}: the result")

    def _lent(self) -> Iterator[Any]:
        yield from (self.x, self.x0, self.w, self.moved if "moved" in vars(self) else None)
        for values in (*self.kept.values(), *self.job.got.values()):
            yield from values.values()
        yield from self._constants.values()
        for batch in self.batches:
            yield from batch


def not_zero(total: Any) -> Any:
    """The total of some step sizes; 1 where no step had a length: then nothing moved, and `moved / total` is 0."""
    return torch.where(total == 0, 1.0, total) if isinstance(total, Tensor) else total or 1.0


class Step:
    """One step as its parts see it: where it stands, and an oracle that answers with gradients."""

    def __init__(self, run: LocalRun, batches: tuple[Batch, ...], k: Any):
        self.x, self.x0, self.w = run.x, run.x0, run.w
        self.y = run.x  # x + e, the point of the update's gradient, once that is known
        self.k, self.K = k, run.K
        self.layout = run.task.layout
        run.batches = batches
        self.lr: Any = run.job.lr
        for part in run.algorithm.filling("rate"):
            self.lr = run.watch(part, "rate", self.lr, k, run.K)
            if not isinstance(self.lr, float | int) and not (isinstance(self.lr, Tensor) and self.lr.ndim == 0):
                raise FedflatError(f"{part.name}.rate: the result has to be one number, not {self.lr!r}")
        self._run = run
        self._batches = batches
        self._batch = batches[-1]
        self._references: dict[tuple[int, int], tuple[Vector, Outputs]] = {}

    @property
    def targets(self) -> Tensor:
        """The labels of the minibatch at hand."""
        return self._batch.y

    def grad(self, y: Vector, batch: int = 0) -> Vector:
        """The gradient at y of the client's own loss, terms included; BatchNorm's statistics stay as they are."""
        return self._gradient(y, self._batches[batch])[0]

    def outputs(self, reference: Vector) -> Outputs:
        """What another model gives for this minibatch, without gradient; computed once a minibatch."""
        key = id(reference), id(self._batch)
        if key not in self._references:
            with torch.no_grad():
                seen = self._run.task.forward(reference, self._batch.x, self._run.buffers)
            self._run.forwards += 1
            self._references[key] = reference, seen  # the reference is kept so that its id stays its own
        return self._references[key][1]

    def force(self, part: Part, only: Callable[[str], bool] | None = None, at: Vector | None = None) -> Vector:
        """What a part does to the direction at x, or at another point: the gradient of its term, plus its pull.

        `only` chooses tensors by name: the force is 0 on the others, and the gradient is not computed for them.
        """
        run, here = self._run, copy.copy(self)
        here.x = self.x if at is None else at
        if part not in run.algorithm.everyone:
            raise FedflatError(f"{part.name} is no part of this algorithm; name it in `inner` of the part that uses it")
        wanted = frozenset(name for name in run.trained if only is None or only(name))
        if not wanted:
            raise FedflatError(f"{part.name}: none of the tensors along which its force is wanted is trained")
        forces: list[Vector] = []
        if part.fills("term"):

            def objective(v: Vector) -> tuple[Tensor, tuple[()]]:
                out = run.task.forward(v, self._batch.x, run.buffers, wanted)
                return run.term(part, out, here, self._batch), ()

            forces.append(run.task.gradient(objective, here.x)[0])
            run.gradients += 1
        if part.fills("pull"):
            pull = run.vector(part, "pull", here)
            forces.append(pull if only is None else pull * run.chosen(part, only))
        if not forces:
            raise FedflatError(f"{part.name} exerts no force: it has neither a term nor a pull")
        return forces[0] if len(forces) == 1 else forces[0] + forces[1]

    def perturbation(self) -> Vector | None:
        for part in self._run.algorithm.filling("perturb"):
            return self._run.vector(part, "perturb", self)
        return None

    def descent(self, y: Vector) -> Vector:
        """The update's gradient; its forward pass is the one that counts for the loss and for the buffers."""
        run = self._run
        g, (loss, run.buffers) = self._gradient(y, self._batches[-1])
        run.loss.add_(loss)
        return g

    def direction(self, g: Vector) -> Vector:
        run = self._run
        for part in run.algorithm.filling("blend"):
            g = run.fit(run.call(part, "blend", g, self), part, "blend")
        for part in run.algorithm.filling("pull"):
            g = g + run.vector(part, "pull", self)
        return g

    def _gradient(self, y: Vector, batch: Batch) -> tuple[Vector, tuple[Tensor, Buffers]]:
        run, self._batch = self._run, batch

        def objective(v: Vector) -> tuple[Tensor, tuple[Tensor, Buffers]]:
            out = run.task.forward(v, batch.x, run.buffers, run.trained)
            loss = value = batch.mean(run.task.loss(out.logits, batch.y))
            for part in run.algorithm.filling("term"):
                value = value + run.term(part, out, self, batch)
            return value, (loss.detach(), out.buffers)

        run.gradients += 1
        return run.task.gradient(objective, y)
