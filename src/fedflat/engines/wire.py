"""How a job and a reply lie in memory that two processes share: vectors are copied in and out, never pickled."""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedflat.core import Algorithm, Buffers, Job, Reply
from fedflat.core.local import Values
from fedflat.core.part import Kind, Kinds

from .engine import OWN_BUFFERS, Work

COUNTS = ("steps", "lr_sum", "reach", "gradients", "forwards", "coordinates")
Spec = dict[tuple[str, ...], Tensor]  # key -> a tensor of this shape and type
Header = tuple[int, int, float, int, bool]  # client, round, rate, coordinates, whether the client has a memory


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
        """The layout for this work."""
        w, algorithm = work.task.vector, work.algorithm
        kept = _declared(algorithm, "client_keeps", w)
        if work.own_buffers:
            kept |= {(OWN_BUFFERS, name): b for name, b in work.task.buffers.items()}
        buffers = {("model", name): b for name, b in work.task.buffers.items()}
        return cls(_declared(algorithm, "server_sends", w), kept, _declared(algorithm, "client_sends", w), buffers, w)

    def inbox(self) -> Arena:
        """Where jobs lie."""
        return Arena({("w",): self.w} | _under("got", self.got) | _under("me", self.kept) | self.buffers)

    def outbox(self) -> Arena:
        """Where replies lie."""
        loss = {("loss",): self.w.new_zeros(())}
        return Arena({("w",): self.w} | _under("up", self.uploads) | _under("me", self.kept) | self.buffers | loss)

    def put_job(self, inbox: Arena, job: Job, memory: Values | None) -> Header:
        """Lay a job's vectors down; what is left of it is small."""
        buffers = {("model", name): b for name, b in job.buffers.items()}
        inbox.write({("w",): job.w} | _tensors("got", job.got) | _tensors("me", memory or {}) | buffers)
        return job.client, job.round, job.lr, job.coordinates, memory is not None

    def job(self, inbox: Arena, header: Header) -> tuple[Job, Values | None]:
        """The job that lies there, and the client's memory; lent until the next one."""
        client, round, lr, coordinates, returning = header
        got = _nested(inbox, "got", self.got, copy=False)
        job = Job(client, round, lr, inbox.tensors["w",], got, self._buffers(inbox, copy=False), coordinates)
        return job, _nested(inbox, "me", self.kept, copy=False) if returning else None

    def put_reply(self, outbox: Arena, reply: Reply, kept: Values) -> dict[str, Any]:
        """Lay a reply's vectors down; what is left of it are counts."""
        buffers = {("model", name): b for name, b in reply.buffers.items()}
        outbox.holds.clear()
        outbox.write(
            {("w",): reply.moved, ("loss",): reply.loss}
            | _tensors("up", reply.uploads)
            | _tensors("me", kept)
            | buffers
        )
        return {name: getattr(reply, name) for name in COUNTS}

    def reply(self, outbox: Arena, client: int, counts: Mapping[str, Any]) -> tuple[Reply, Values]:
        """The reply that lies there, and the client's new memory; copies."""
        reply = Reply(
            client=client,
            moved=outbox.tensors["w",].clone(),
            uploads=_nested(outbox, "up", self.uploads, copy=True),
            buffers=self._buffers(outbox, copy=True),
            loss=outbox.tensors["loss",].clone(),
            **counts,
        )
        return reply, _nested(outbox, "me", self.kept, copy=True)

    def _buffers(self, box: Arena, copy: bool) -> Buffers:
        return {key[1]: box.tensors[key].clone() if copy else box.tensors[key] for key in self.buffers}


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
