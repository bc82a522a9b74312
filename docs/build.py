"""Write docs/methods and docs/status.md from the algorithms' cards and from the tests themselves: `make docs`."""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fedflat import algorithms, cards, pages

ROOT = Path(__file__).parents[1]
METHODS = ROOT / "docs" / "methods"
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("", "reference", "identities", "conformance")]

import test_cost  # noqa: E402
import test_identities  # noqa: E402
import test_reference  # noqa: E402

PUBLISHED: dict[str, str] = {}  # method -> the published number that a recorded run has reached

INDEX = """# Methods

One page each: formula, parts by slot, hyper-parameters with their ranges, departures of published code, BibTeX.
`fedflat algorithms NAME` prints the same page, for expressions such as `fedsam+scaffold` too. The costs are measured;
[what each method is checked against](../status.md) stands on a page of its own.

"""
STATUS = """# What each method is checked against

Counted in the tests themselves. *Reference loop*: settings of hyper-parameters in which the method is held to a loop
written from its paper, to 1e-12 in float64, each in {count} cases: {cases}. *Identities*: equations below in which it
takes part. *By construction*: equations whose two sides are the same parts, so that they pin a spelling and not a
formula; they are not among the identities. *Costs*: whether the measured ones are held to a row counted by hand.
*Published number*: one that a recorded run has reached.

"""


def written() -> dict[Path, str]:
    """Every generated page by its file."""
    found = cards.cards()
    files = {METHODS / f"{card.algorithm}.md": _linked(pages.page(card)) for card in found}
    rows = [pages.row(card) for card in found]
    table = pages.table(
        (*pages.COLUMNS[:1], "idea", *pages.COLUMNS[1:]),
        [
            (f"[`{name}`]({name}.md)", card.methods[0].idea, *rest)
            for card, (name, *rest) in zip(found, rows, strict=True)
        ],
    )
    return {**files, METHODS / "README.md": INDEX + table + "\n", ROOT / "docs" / "status.md": status()}


def status() -> str:
    """The page of what each method is checked against."""
    loops = _counted([expression] for _, _, expression in test_reference.ALGORITHMS)
    spellings = [row for row in test_identities.IDENTITIES if test_identities.by_construction(*row)]
    formulas = [row for row in test_identities.IDENTITIES if row not in spellings]
    identities = _counted([*formulas, *((name, "fedavg") for name in test_identities.FIRST_ROUND)])
    constructed = _counted(spellings)
    rows = [
        (
            f"[`{name}`](methods/{name}.md)",
            str(loops[name] or "none"),
            str(identities[name] or "none"),
            str(constructed[name] or "none"),
            "counted by hand" if name in test_cost.COST else "none",
            PUBLISHED.get(name, "not yet"),
        )
        for name in algorithms.names()
    ]
    first = [(f"`{name}`", "`fedavg`", "first round") for name in test_identities.FIRST_ROUND]
    all_rounds = [(f"`{left}`", f"`{right}`", "every round") for left, right in formulas]
    constructions = [(f"`{left}`", f"`{right}`", "every round, by construction") for left, right in spellings]
    return (
        STATUS.format(count=len(test_reference.CASES), cases="; ".join(case.name for case in test_reference.CASES))
        + pages.table(("method", "reference loop", "identities", "by construction", "costs", "published number"), rows)
        + "\n\n## The identities\n\n"
        + pages.table(("left", "right", "equal in"), [*all_rounds, *first, *constructions])
        + "\n"
    )


def _counted(rows: Iterable[Iterable[str]]) -> Counter[str]:
    """In how many rows of expressions a method is named."""
    return Counter(name for row in rows for name in {term for expression in row for term in _terms(expression)})


def _terms(expression: str) -> list[str]:
    return [term.partition("(")[0] for term in algorithms.parse(expression).expression]


def _linked(page: str) -> str:
    """The page with its file's name as a link."""
    before, after = page.split("Code: `", 1)
    module, rest = after.split("`", 1)
    return f"{before}Code: [`{module}`](../../src/{module.replace('.', '/')}.py){rest}"


def main() -> None:
    """Write what has changed, and remove the pages of methods that are gone."""
    files = written()
    METHODS.mkdir(exist_ok=True)
    for stale in set(METHODS.glob("*.md")) - files.keys():
        stale.unlink()
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
