"""What an algorithm says of itself: paper, formula, parts by slot, hyper-parameters, measured costs, BibTeX.

Everything is read from where it is declared: the factory's signature, the docstrings of its module and of its parts,
`algorithms/references.bib`; the costs are those of one local step on the CNN of McMahan et al., 3x32x32, ten classes.
"""

import functools
import inspect
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from . import models
from .algorithms import names, parse
from .algorithms.registry import Searched, factory_of
from .core import SGD, Algorithm, Batch, Part, Server, Task, Weighting, Weights
from .core.messages import size
from .costs import flops, probe
from .engines import Work

DEPARTURES = re.compile(r"Departures\s+of\s+\w+\s+code:?\s*")
BOUNDS = {"ge": ">= {}", "gt": "> {}", "le": "<= {}", "lt": "< {}"}


@dataclass(frozen=True)
class Reference:
    """An entry of references.bib."""

    bibtex: str
    fields: Mapping[str, str]

    @property
    def authors(self) -> str:
        """The authors as one cites them: "Lee and Yoon", "Qu et al."; empty where the entry has none."""
        last = [
            _plain(name.partition(",")[0]) for name in re.split(r"\s+and\s+", self.fields.get("author", "")) if name
        ]
        return f"{last[0]} et al." if len(last) > 2 else " and ".join(last)

    @property
    def title(self) -> str:
        """The title, without TeX."""
        return _plain(self.fields["title"])

    @property
    def venue(self) -> str:
        """The venue's short name; arXiv where the paper has none."""
        where = self.fields.get("booktitle") or self.fields.get("journal") or "arXiv"
        return where.rpartition("(")[2].rstrip(")")

    @property
    def year(self) -> int:
        """When it appeared."""
        return int(self.fields["year"])

    @property
    def link(self) -> str | None:
        """Where to read it."""
        if "eprint" in self.fields:
            return f"https://arxiv.org/abs/{self.fields['eprint']}"
        return f"https://doi.org/{self.fields['doi']}" if "doi" in self.fields else None

    def __str__(self) -> str:
        return f"{self.authors}{': ' * bool(self.authors)}{self.title}. {self.venue} {self.year}"


@dataclass(frozen=True)
class Hyper:
    """A hyper-parameter: its default, what is allowed, and where publications have searched."""

    name: str
    default: Any
    allowed: str
    searched: tuple[Searched, ...]


@dataclass(frozen=True)
class Method:
    """A named algorithm as its file describes it."""

    name: str
    idea: str
    module: str
    text: tuple[str, ...]  # the paragraphs of its file, equations indented
    departures: str
    hyper: tuple[Hyper, ...]
    reference: Reference | None

    @classmethod
    def named(cls, name: str) -> "Method":
        """The method of a registered name."""
        factory = factory_of(name)
        first, *paragraphs = (inspect.getdoc(sys.modules[factory.__module__]) or "").split("\n\n")
        told = [DEPARTURES.split(paragraph, 1) for paragraph in paragraphs]
        return cls(
            name,
            idea=inspect.getdoc(factory) or first,
            module=factory.__module__,
            text=tuple(before.rstrip() for before, *_ in told if before),
            departures=" ".join(" ".join(after.split()) for _, *rest in told for after in rest),
            hyper=hyper_parameters(name),
            reference=references().get(name),
        )

    @property
    def formula(self) -> str:
        """The equations, as they are computed."""
        return "\n\n".join(paragraph for paragraph in self.text if paragraph.startswith("    "))


@dataclass(frozen=True)
class Card:
    """An algorithm, the methods that its expression names, and what it costs."""

    algorithm: Algorithm
    methods: tuple[Method, ...]
    costs: Mapping[str, float]
    duals: bool  # whether the server takes means over the population

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, each followed by those used inside it."""
        return self.algorithm.everyone

    @property
    def slots(self) -> dict[str, list[str]]:
        """Which parts fill which slot, in the order of a round; `once` marks a value that a round takes once."""
        return {
            slot: [f"{p.name} (once)" if p.is_once(slot) else p.name for p in parts]
            for slot, parts in self.algorithm.slots.items()
            if parts
        }

    @property
    def forces(self) -> dict[str, str]:
        """Parts that act only as a force inside another part."""
        return {inner.name: part.name for part in self.parts for inner in part.inner}

    def record(self) -> dict[str, Any]:
        """The card as an object that JSON can hold."""
        return {
            "algorithm": str(self.algorithm),
            "methods": [_record(method) for method in self.methods],
            "slots": self.slots,
            "forces": self.forces,
            "parts": {part.name: {"idea": inspect.getdoc(part), **memory(part)} for part in self.parts},
            "costs": dict(self.costs),
            "duals": self.duals,
        }


def card(expression: str) -> Card:
    """The card of an algorithm that an expression names."""
    algorithm = parse(expression)
    terms = [term.partition("(")[0] for term in algorithm.expression or ("fedavg",)]
    costs, duals = measured(algorithm)
    return Card(algorithm, tuple(Method.named(t) for t in dict.fromkeys(terms) if t in names()), costs, duals)


def cards() -> list[Card]:
    """The cards of all registered algorithms."""
    return [card(name) for name in names()]


@functools.cache
def references() -> dict[str, Reference]:
    """The entries of references.bib by method; one that has `ids` stands for these as well."""
    text = resources.files("fedflat.algorithms").joinpath("references.bib").read_text(encoding="utf-8")
    found: dict[str, Reference] = {}
    for entry, key, body in re.findall(r"^(@\w+\{([\w-]+),\n(.*?)^\}$)", text, re.MULTILINE | re.DOTALL):
        fields = dict(re.findall(r"^  (\w+) = \{(.*)\},?$", body, re.MULTILINE))
        for name in (key, *re.findall(r"[\w-]+", fields.get("ids", ""))):
            found[name] = Reference(entry, fields)
    return found


def hyper_parameters(name: str) -> tuple[Hyper, ...]:
    """The hyper-parameters of a method, from the signature of its factory."""
    build = inspect.unwrap(factory_of(name))
    hints = get_type_hints(build, include_extras=True)
    found: list[Hyper] = []
    for parameter in inspect.signature(build).parameters.values():
        hint = hints[parameter.name]
        searched = tuple(m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Searched))
        found.append(Hyper(parameter.name, parameter.default, allowed(hint), searched))
    return tuple(found)


def allowed(hint: Any) -> str:
    """What an annotation allows.

    >>> allowed(bool | Literal["columns"] | None)
    "True, False, 'columns' or None"
    """
    *others, last = _choices(hint)
    return f"{', '.join(others)} or {last}" if others else last


def memory(part: Part) -> dict[str, list[str]]:
    """The names that a part keeps and sends."""
    places = ("server_keeps", "client_keeps", "server_sends", "client_sends")
    return {place: list(getattr(part, place)) for place in places if getattr(part, place)}


def measured(algorithm: Algorithm) -> tuple[dict[str, float], bool]:
    """One client's local step: its costs, and whether the server then took a mean over the population."""
    task, weights = _task(), _Watched([1])
    batch = Batch(torch.zeros(1, 3, 32, 32, device="meta"), torch.zeros(1, dtype=torch.long, device="meta"))
    step = [(batch,) * algorithm.batches]
    work = Work(algorithm, task, SGD(), lambda client, round: step, seed=0)
    server = Server(algorithm, task, weights)
    (job,) = server.open([0], round=1, lr=0.0)
    weights.asked = False
    _, reply = probe(work, weights, step)
    server.close([reply])
    model = size([task.vector])
    return {
        "down": job.bytes / model,
        "up": reply.bytes / model,
        "gradients": reply.gradients,
        "forwards": reply.forwards,
        "flops": flops(work, weights, step) or 0.0,
    }, weights.asked


class _Watched(Weights):
    """Weights that notice whether those over the population are asked for."""

    asked = False

    def population(self, client: int, weighting: Weighting | None = None) -> float:
        self.asked = True
        return super().population(client, weighting)


@functools.cache
def _task() -> Task:
    return Task(models.build("cnn", (3, 32, 32), 10).to("meta"), inside=True)


def _choices(hint: Any) -> list[str]:
    if get_origin(hint) is Annotated:
        limits = [limit for m in hint.__metadata__ for limit in getattr(m, "metadata", ())]
        bounds = [b.format(getattr(limit, k)) for limit in limits for k, b in BOUNDS.items() if hasattr(limit, k)]
        return ["integer " * (hint.__origin__ is int) + " and ".join(bounds)]
    if get_origin(hint) in (Union, types.UnionType):
        return [choice for part in get_args(hint) for choice in _choices(part)]
    if get_origin(hint) is Literal:
        return [repr(value) for value in get_args(hint)]
    if hint is bool:
        return ["True", "False"]
    return ["None" if hint is type(None) else f"any {getattr(hint, '__name__', hint)}"]


def _plain(tex: str) -> str:
    r"""TeX's accents as letters: `Ag{\"u}era` is Agüera."""
    return re.sub(r"[{}]|\\\W", "", tex)


def _record(method: Method) -> dict[str, Any]:
    known = method.reference
    paper = known and {key: getattr(known, key) for key in ("authors", "title", "venue", "year", "link", "bibtex")}
    hyper = [
        {**vars(h), "searched": [{"values": list(s.values), "by": s.by} for s in h.searched]} for h in method.hyper
    ]
    return {**vars(method), "formula": method.formula, "hyper": hyper, "reference": paper}
