"""Write the golden curves anew: `python tests/golden/regenerate.py`.

Do so only where numbers were meant to change, and say under "Numbers changed" in CHANGELOG.md which and why. A curve
that still agrees keeps its digits, so that the difference of `curves.json` shows what has changed.
"""

import json
import math
import sys
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))

from federations import NAMES, network, population, train  # noqa: E402 - found through the line above

CURVES = FOLDER / "curves.json"
DIGITS = 12
TOLERANCE = 1e-9  # other processors round differently

Curve = dict[str, list[float]]


def curve(name: str) -> Curve:
    """Three rounds on six clients in float64, with BatchNorm: losses, and a weighted norm of the model's vector."""
    norms: list[float] = []

    def note(round: int, row: dict, state) -> None:
        weights = torch.linspace(1, 2, len(state.vector), dtype=torch.float64)
        norms.append(float(torch.linalg.vector_norm(weights * state.vector)))

    history = train(name, model=network(norm=True), test=population()[3], rounds=3, callbacks=[note]).history
    columns = {key: [row[key] for row in history] for key in ("train_loss", "test_loss")} | {"norm": norms}
    return {key: [float(f"{value:.{DIGITS}g}") for value in values] for key, values in columns.items()}


def agree(a: Curve, b: Curve) -> bool:
    """Whether two curves are the same numbers but for rounding."""
    return a.keys() == b.keys() and all(
        len(a[key]) == len(b[key])
        and all(math.isclose(x, y, rel_tol=TOLERANCE) for x, y in zip(a[key], b[key], strict=True))
        for key in a
    )


def stored() -> dict[str, Curve]:
    """The golden curves by algorithm."""
    return json.loads(CURVES.read_text()) if CURVES.exists() else {}


def main() -> None:
    """Compute every curve, keep those that agree, and say what is new, changed or gone."""
    old = stored()
    new = {name: curve(name) for name in NAMES}
    kept = {name: old[name] for name in NAMES if name in old and agree(old[name], new[name])}
    lines = (f"{json.dumps(name)}: {json.dumps(found)}" for name, found in (new | kept).items())
    CURVES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for what, names in {
        "new": new.keys() - old.keys(),
        "changed": (new.keys() & old.keys()) - kept.keys(),
        "gone": old.keys() - new.keys(),
    }.items():
        print(f"{what}: {', '.join(sorted(names)) or 'none'}")


if __name__ == "__main__":
    main()
