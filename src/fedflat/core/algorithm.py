"""An algorithm is a tuple of parts; folding them makes the round, and what does not fit together is refused here."""

from dataclasses import dataclass, field, fields
from functools import cached_property

from fedflat.errors import FedflatError

from .messages import Reply
from .part import DECLARED, SLOTS, Kind, Part
from .vectors import Layout

UNIQUE = ("perturb", "aggregate")  # two fillers would contradict each other
BETWEEN = ("prepare", "broadcast", "aggregate", "update")  # where clients have to do with each other
FORCES = ("term", "pull")  # a part inside another one exerts these through `step.force` only
REPLY_FIELDS = frozenset(f.name for f in fields(Reply))


@dataclass(frozen=True, init=False)
class Algorithm:
    """Parts, in the order in which they fold; none is federated averaging. `a + b` joins the parts of both.

    >>> from fedflat.algorithms import fedsam, scaffold
    >>> fedsam(rho=0.05) + scaffold()
    fedsam(rho=0.05)+scaffold
    """

    parts: tuple[Part, ...]
    expression: tuple[str, ...] = field(compare=False)  # how it was made, term by term

    def __init__(self, *parts: Part, expression: tuple[str, ...] | None = None):
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "expression", tuple(repr(p) for p in parts) if expression is None else expression)
        for part in parts:
            if not isinstance(part, Part):
                raise FedflatError(
                    f"an algorithm consists of parts; {part!r} is none (is it a class without its `()`?)"
                )
        self._check_names()
        self._check_conflicts()

    def __add__(self, other: "Algorithm | Part") -> "Algorithm":
        if isinstance(other, Part):
            other = Algorithm(other)
        if not isinstance(other, Algorithm):
            return NotImplemented
        return Algorithm(*self.parts, *other.parts, expression=(*self.expression, *other.expression))

    def __str__(self) -> str:
        return "+".join(self.expression) or "fedavg"

    __repr__ = __str__

    @cached_property
    def everyone(self) -> tuple[Part, ...]:
        """The parts, each followed by those used inside it."""

        def unfold(part: Part) -> tuple[Part, ...]:
            return (part, *(deeper for inner in part.inner for deeper in unfold(inner)))

        return tuple(p for part in self.parts for p in unfold(part))

    def filling(self, slot: str) -> tuple[Part, ...]:
        """The parts that fill a slot, in folding order."""
        return self.slots[slot]

    @cached_property
    def slots(self) -> dict[str, tuple[Part, ...]]:
        """The slot table."""
        return {s: tuple(p for p in (self.parts if s in FORCES else self.everyone) if p.fills(s)) for s in SLOTS}

    @cached_property
    def batches(self) -> int:
        """How many minibatches a step draws."""
        return max((p.batches for p in self.everyone), default=1)

    def trained(self, layout: Layout) -> frozenset[str]:
        """The names of the tensors that are trained; the others neither move nor travel."""
        chosen = [part.trainable(layout) for part in self.filling("trainable")]
        if not all(map(callable, chosen)):
            raise FedflatError(f"{self}: `trainable` returns a function of a tensor's name")
        names = frozenset(n for n in layout.names if n not in layout.frozen and all(c(n) for c in chosen))
        if not names:
            raise FedflatError(f"{self}: no tensor of this model is trained")
        return names

    def coordinates(self, layout: Layout) -> int:
        """How many coordinates of a vector travel."""
        if not all(part.travels for part in self.everyone):
            return 0
        trained = self.trained(layout)
        return sum(size for name, size in zip(layout.names, layout.sizes, strict=True) if name in trained)

    @cached_property
    def looks_inside(self) -> bool:
        """Whether a term may ask for activations or features."""
        return any(p.fills("term") for p in self.everyone)

    def _check_conflicts(self) -> None:
        names = [part.name for part in self.everyone]
        for name in names:
            if names.count(name) > 1:
                raise FedflatError(f"{self}: {name} is in there {names.count(name)} times; a part can be used once")
        for lone in (part for part in self.everyone if not part.travels):
            for other in self.everyone:
                if other is not lone and (other.server_sends or other.client_sends or any(map(other.fills, BETWEEN))):
                    raise FedflatError(
                        f"{self}: {lone.name} keeps clients to themselves, {other.name} works between them"
                    )
        for slot in UNIQUE:
            if len(fillers := self.filling(slot)) > 1:
                both = " and ".join(p.name for p in fillers)
                raise FedflatError(f"{self}: {both} both fill `{slot}`, of which a round has one")

    def _check_names(self) -> None:
        for part in self.everyone:
            if not any(map(part.fills, SLOTS)):
                raise FedflatError(f"{part.name} fills no slot of the round; the slots are {', '.join(SLOTS)}")
            declared = {k: getattr(part, k) for k in DECLARED}
            for where, kinds in declared.items():
                for name, kind in kinds.items():
                    if not isinstance(kind, Kind):
                        raise FedflatError(
                            f"{part.name}.{where}: '{name}' is fedflat.vector, scalar, model or table, not {kind!r}"
                        )
                    if kind is Kind.TABLE and where != "server_keeps":
                        raise FedflatError(f"{part.name}.{where}: '{name}' is a table, which only the server keeps")
            for name in part.server_sends:
                if part.server_keeps.get(name, Kind.TABLE) is Kind.TABLE and not part.fills("broadcast"):
                    raise FedflatError(f"{part.name} sends '{name}', but neither keeps it nor sets it in `broadcast`")
            if part.client_sends and not part.fills("finish"):
                raise FedflatError(f"{part.name} declares uploads, but has no `finish` that returns them")
            if shadowed := REPLY_FIELDS & set(part.client_sends):
                raise FedflatError(f"{part.name}.client_sends: '{min(shadowed)}' is a field of every reply; rename it")
