"""What a run comes to: one object for machines, one table for people."""

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from .experiment import Result, Row

COSTS = {
    "down": "size of what a client receives, a model's being 1",
    "up": "size of what a client sends, a model's being 1",
    "gradients": "gradients in a local step",
    "forwards": "further forward passes in a local step",
    "flops": "arithmetic of a local step, FedAvg's being 1",
}


def accuracies(history: list[Row]) -> dict[str, float | None]:
    """Accuracy as it was last measured, the mean of what was measured in the last ten rounds, and the best."""
    measured = [row["test_accuracy"] for row in history if row["test_accuracy"] is not None]
    ten = [row["test_accuracy"] for row in history[-10:] if row["test_accuracy"] is not None]
    return {
        "last_accuracy": measured[-1] if measured else None,
        "last10_accuracy": math.fsum(ten) / len(ten) if ten else None,
        "best_accuracy": max(measured, default=None),
    }


def summary(result: Result, config: Mapping[str, Any], out: str | None) -> dict[str, Any]:
    """A finished run as one object that JSON can hold; a loss that is not finite is None."""
    history = result.history
    tested = [row for row in history if row["test_loss"] is not None]
    return {
        "algorithm": config["algorithm"],
        "rounds": len(history),
        **accuracies(history),
        "test_loss": _finite(tested[-1]["test_loss"]) if tested else None,
        "train_loss": _finite(history[-1]["train_loss"]) if history else None,
        "costs": result.costs,
        "seconds": math.fsum(row["seconds"] for row in history),
        "out": out,
        "seed": config["seed"],
        "engine": config["engine"],
        "config": dict(config),
    }


def table(done: Mapping[str, Any]) -> Table:
    """The same for people."""
    config = done["config"]
    seconds = f"{done['rounds']} rounds in {done['seconds']:.1f} s"
    grid = Table(title=f"{done['algorithm']}: {seconds}", title_justify="left", show_header=False)
    grid.add_row("data", f"{config['data']}, {config['partition']}, {config['clients']} clients, {config['model']}")
    grid.add_section()
    grid.add_row("accuracy, last", _number(done["last_accuracy"], ".4f"))
    grid.add_row("accuracy, last 10 rounds", _number(done["last10_accuracy"], ".4f"))
    grid.add_row("accuracy, best", _number(done["best_accuracy"], ".4f"))
    grid.add_row("loss, test", _number(done["test_loss"], ".4f"))
    grid.add_row("loss, training", _number(done["train_loss"], ".4f"))
    grid.add_section()
    for name, meaning in COSTS.items():
        grid.add_row(f"cost, {name}", f"{_number(done['costs'][name], '.3g')} {meaning}")
    if done["out"]:
        grid.add_section()
        grid.add_row("kept in", done["out"])
    return grid


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
