"""A card as a page of Markdown, and all cards as a list."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from textwrap import dedent
from typing import Any

from .cards import Card, Hyper, Method, memory
from .core import Part

COLUMNS = ("name", "paper", "year", "down", "up", "gradients", "forwards", "FLOPs")
PAPER = COLUMNS.index("paper")
PLACES = {
    "server_keeps": "the server keeps",
    "client_keeps": "each client keeps",
    "server_sends": "sent down",
    "client_sends": "sent up",
}
COSTS = """Models sent to and from each client in a round; gradients and further forward passes in a local step; the
arithmetic of a local step on the CNN of McMahan et al. (3x32x32, ten classes), FedAvg's being 1. All are measured."""
OBJECTIVE = """Means over the population have the weights of the objective: with `weighting="samples"`, the default, it
is sum_i (n_i/n) F_i and q_i = n_i/n; with `"uniform"` it is (1/N) sum_i F_i and q_i = 1/N."""
MIXED = '`dual_weights="uniform"` is the mixed form of published code.'


def row(card: Card) -> tuple[str, ...]:
    """The card as a row of the table: name, paper, year and costs."""
    known = card.methods[0].reference if card.methods else None
    costs = (f"{card.costs[name]:.4g}" for name in ("down", "up", "gradients", "forwards"))
    paper = f"{known.authors}{': ' * bool(known.authors)}{known.title}" if known else "no paper"
    return str(card.algorithm), paper, str(known.year) if known else "", *costs, f"{card.costs['flops']:.2f}"


def page(card: Card) -> str:
    """The card as a page."""
    return "\n\n".join(_sections(card)) + "\n"


def lines(cards: Sequence[Card], width: int | None = None) -> str:
    """The cards as lines of text below a head; papers are cut so that a line is no longer than `width`."""
    rows = [COLUMNS, *map(row, cards)]
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width:
        wide[PAPER] = max(min(wide[PAPER], width - sum(wide) - 2 * len(wide) + 2 + wide[PAPER]), len("paper"))
    return "".join(
        "  ".join(_cut(cell, n).ljust(n) for cell, n in zip(cells, wide, strict=True)).rstrip() + "\n" for cells in rows
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sections(card: Card) -> Iterator[str]:
    yield f"# {card.algorithm}"
    for method in card.methods:
        yield from _paper(method, title=len(card.methods) > 1)
    yield "## Parts"
    yield from _parts(card)
    yield "## Costs"
    yield table(COLUMNS[3:], [row(card)[3:]])
    yield COSTS
    if hyper := [(method, h) for method in card.methods for h in method.hyper]:
        yield "## Hyper-parameters"
        several = len(card.methods) > 1
        names = (f"{method.name}({h.name})" if several else h.name for method, h in hyper)
        cells = [
            (f"`{name}`", f"{h.default!r}", h.allowed, _searched(h)) for name, (_, h) in zip(names, hyper, strict=True)
        ]
        yield table(("name", "default", "allowed", "searched by publications"), cells)
    if told := [method.departures for method in card.methods if method.departures]:
        yield "## Departures of published code"
        yield from (text[0].upper() + text[1:] for text in dict.fromkeys(told))
    if entries := dict.fromkeys(method.reference.bibtex for method in card.methods if method.reference):
        yield "## BibTeX"
        yield "```bibtex\n" + "\n\n".join(entries) + "\n```"


def _paper(method: Method, title: bool) -> Iterator[str]:
    if title:
        yield f"## {method.name}"
    yield method.idea
    if known := method.reference:
        authors = f"{known.authors}, " if known.authors else ""
        where = f"[{known.venue} {known.year}]({known.link})" if known.link else f"{known.venue} {known.year}"
        yield f"{authors}*{known.title}*, {where}. Code: `{method.module}`."
    else:
        yield f"Code: `{method.module}`."
    for paragraph in method.text:
        yield f"```text\n{dedent(paragraph)}\n```" if paragraph.startswith("    ") else paragraph


def _parts(card: Card) -> Iterator[str]:
    if not card.parts:
        yield "None: it is the round with no part in it."
        return
    slots = [(f"`{s}`", ", ".join(fillers), _first_line(getattr(Part, s))) for s, fillers in card.slots.items()]
    yield table(("slot", "filled by", "what the slot does"), slots)
    yield "\n".join(f"- **{part.name}**: {_part(part, card.forces)}" for part in card.parts)
    if card.duals:
        mixed = any(h.name == "dual_weights" for method in card.methods for h in method.hyper)
        yield f"{OBJECTIVE} {MIXED}" if mixed else OBJECTIVE


def _part(part: Part, forces: dict[str, str]) -> str:
    said = [_first_line(part)]
    if part.name in forces:
        said.append(f"Its force goes to {forces[part.name]} and not to the update.")
    kept = [f"{PLACES[place]} {', '.join(f'`{name}`' for name in names)}" for place, names in memory(part).items()]
    if kept:
        said.append(f"Memory: {'; '.join(kept)}.")
    if part.batches > 1:
        said.append(f"A step draws {part.batches} minibatches.")
    return " ".join(said)


def _searched(hyper: Hyper) -> str:
    return "; ".join(f"{', '.join(f'{v:g}' for v in s.values)} ({s.by})" for s in hyper.searched)


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"


def _first_line(described: Any) -> str:
    return (inspect.getdoc(described) or "").partition("\n")[0]
