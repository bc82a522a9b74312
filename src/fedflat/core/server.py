"""The server's half of a round: `open` turns the active clients into jobs, `close` folds their replies.

The replies are streamed in the order of the clients, each with the uploads of the part that looks, and never stacked.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from .algorithm import Algorithm
from .memory import Memory, UndeclaredName, fit, initial, watched
from .messages import Job, Reply
from .part import Kind, Part
from .store import Table
from .task import Buffers, Task
from .vectors import Vector
from .weights import Weighting, Weights


class ReplyView:
    """A reply as one part sees it: its fields, and this part's uploads."""

    def __init__(self, reply: Reply, part: Part):
        self.reply, self.uploads = reply, reply.uploads.get(part.name, {})

    def __getattr__(self, name: str) -> Any:
        if name in self.uploads:
            return self.uploads[name]
        try:
            return getattr(self.reply, name)
        except AttributeError:
            uploads = ", ".join(self.uploads) or "nothing"
            raise UndeclaredName(f"a reply has no '{name}'; the part uploads {uploads}") from None


class Replies:
    """The replies of a round, streamed in the order of the clients."""

    def __init__(self, replies: Sequence[Reply], weights: Weights, part: Part):
        self.replies, self.weights, self.part = replies, weights, part

    def __iter__(self) -> Iterator[ReplyView]:
        return (ReplyView(reply, self.part) for reply in self.replies)

    def __len__(self) -> int:
        return len(self.replies)

    def mean(self, value: Callable[[Any], Any]) -> Any:
        """mean_S: sum of p_i times a value of each reply, a tensor or a number."""
        return self._sum(value, self.weights.active([r.client for r in self.replies]))

    def over_all(self, value: Callable[[Any], Any], weighting: Weighting | None = None) -> Any:
        """mean_N of a value that is zero for clients that did not reply: sum of q_i times it."""
        return self._sum(value, [self.weights.population(r.client, weighting) for r in self.replies])

    def _sum(self, value: Callable[[Any], Any], weights: Sequence[float]) -> Any:
        total: Any = None
        for reply, weight in zip(self, weights, strict=True):
            if isinstance(total, Tensor):
                total.add_(value(reply), alpha=weight)
            else:
                total = value(reply) * weight if total is None else total + value(reply) * weight
        return total


class Averaging(Part):
    """w + mean(moved): what a round does where no part aggregates."""

    def aggregate(self, w: Vector, srv: Memory, replies: Replies) -> Vector:
        return w + replies.mean(lambda r: r.moved)


class Server:
    """The model, the parts' server memories, and the two halves of the server's round."""

    def __init__(self, algorithm: Algorithm, task: Task, weights: Weights):
        self.algorithm, self.w, self.buffers, self.weights = algorithm, task.vector, task.buffers, weights
        self.coordinates = algorithm.coordinates(task.layout)
        self.kept: dict[str, dict[str, Any]] = {}
        for part in algorithm.everyone:
            tables = {n: Table(weights, self.w) for n, kind in part.server_keeps.items() if kind is Kind.TABLE}
            self.kept[part.name] = initial(part.server_keeps, self.w) | tables
        self._replies: Sequence[Reply] = ()

    def open(self, active: Sequence[int], round: int, lr: float) -> Iterator[Job]:
        """One job for each active client, in the order of their ids."""
        active = sorted(active)
        for part in self.algorithm.filling("prepare"):
            self._watch(part, "prepare", self.w, self._memory(part), active)
        return (self._job(client, round, lr) for client in active)

    def close(self, replies: Sequence[Reply]) -> None:
        """Fold the replies into the model and the memories."""
        self._replies = sorted(replies, key=lambda r: r.client)
        for part in self.algorithm.filling("aggregate") or (Averaging(),):
            self.w = self._fold(part, "aggregate")
        for part in self.algorithm.filling("update"):
            self.w = self._fold(part, "update")
        self.buffers = self._mean_buffers()
        self._replies = ()

    def _job(self, client: int, round: int, lr: float) -> Job:
        w = self.w
        got: dict[str, dict[str, Tensor]] = {}
        for part in self.algorithm.everyone:
            kept = self.kept[part.name]
            sent = Memory(
                f"{part.name}.server_sends", part.server_sends, {n: kept[n] for n in part.server_sends if n in kept}, w
            )
            if part.fills("broadcast"):
                w = self._vector(self._watch(part, "broadcast", w, self._memory(part), client, sent), part, "broadcast")
            if part.server_sends:
                got[part.name] = {name: getattr(sent, name) for name in part.server_sends}
        return Job(client, round, lr, w, got, self.buffers, self.coordinates)

    def _fold(self, part: Part, slot: str) -> Vector:
        replies = Replies(self._replies, self.weights, part)
        return self._vector(self._watch(part, slot, self.w, self._memory(part), replies), part, slot)

    def _watch(self, part: Part, slot: str, *arguments: Any) -> Any:
        return watched(self._lent(), part, slot, *arguments)

    def _memory(self, part: Part) -> Memory:
        kept = self.kept.setdefault(part.name, {})
        return Memory(f"{part.name}.server_keeps", part.server_keeps, kept, self.w)

    def _vector(self, value: Any, part: Part, slot: str) -> Vector:
        return fit(value, Kind.VECTOR, self.w, f"{part.name}.{slot}: the result")

    def _mean_buffers(self) -> Buffers:
        """Floating buffers are averaged with p_i; of counters the largest is kept."""
        p = self.weights.active([r.client for r in self._replies])
        mean: Buffers = {}
        for name, old in self.buffers.items():
            values = [r.buffers[name] for r in self._replies]
            if old.is_floating_point():
                mean[name] = sum((v * q for v, q in zip(values[1:], p[1:], strict=True)), start=values[0] * p[0])
            else:
                mean[name] = max(values, key=lambda v: int(v.max()) if v.numel() else 0)
        return mean

    def _lent(self) -> Iterator[Any]:
        yield self.w
        for values in self.kept.values():
            for value in values.values():
                yield value.average if isinstance(value, Table) else value
        for reply in self._replies:
            yield reply.moved
            for values in reply.uploads.values():
                yield from values.values()
