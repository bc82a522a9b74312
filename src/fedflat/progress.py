"""What one sees of a run while it goes on, and how one stops it: callbacks that are entered around the run."""

import os
import signal
import sys
import time
from types import FrameType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from .experiment import Row, Simulation

LINES = 20  # that a run writes where there is no terminal
REDRAWN = 0.1  # seconds from one drawing of the bar to the next
INTERRUPTED = 130  # the exit code after Ctrl-C


class Shown(Protocol):
    """A callback that shows the rounds."""

    def __enter__(self) -> "Shown": ...
    def __exit__(self, *error: object) -> None: ...
    def __call__(self, round: int, row: Row, state: Simulation) -> None: ...


def shown(rounds: int) -> Shown:
    """A bar on a terminal, else plain lines; on stderr, since stdout belongs to the result."""
    console = Console(stderr=True)
    return Bar(rounds, console) if console.is_interactive else Lines(rounds)


class Pace:
    """How a run gets on: words for the last accuracy measured, the rate and the time left."""

    def __init__(self, rounds: int):
        self.rounds, self.done, self.began, self.accuracy = rounds, 0, time.monotonic(), "-"

    def __call__(self, round: int, row: Row) -> dict[str, Any]:
        self.done += 1
        if row["test_accuracy"] is not None:
            self.accuracy = f"{row['test_accuracy']:.4f}"
        seconds = (time.monotonic() - self.began) / self.done
        rate = f"{1 / seconds:.1f} rounds/s" if seconds < 1 else f"{seconds:.1f} s/round"
        return {"accuracy": self.accuracy, "rate": rate, "left": _clock(seconds * (self.rounds - round))}


class Bar:
    """A bar that is drawn again after a round; without a thread, since the workers are forked beside it."""

    def __init__(self, rounds: int, console: Console):
        columns = (
            "round {task.completed:.0f}/{task.total:.0f}",
            BarColumn(),
            "accuracy {task.fields[accuracy]}",
            "{task.fields[rate]}",
            "{task.fields[left]} left",
        )
        parts = [TextColumn(c) if isinstance(c, str) else c for c in columns]
        self.progress = Progress(*parts, console=console, auto_refresh=False, redirect_stdout=False)
        self.task = self.progress.add_task("", total=rounds, accuracy="-", rate="-", left="-")
        self.pace, self.drawn = Pace(rounds), 0.0

    def __enter__(self) -> "Bar":
        self.progress.start()
        self.progress.refresh()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.refresh()
        self.progress.stop()

    def __call__(self, round: int, row: Row, state: Simulation) -> None:
        now = time.monotonic()
        due = now - self.drawn > REDRAWN
        self.drawn = now if due else self.drawn
        self.progress.update(self.task, completed=round, refresh=due, **self.pace(round, row))


class Lines:
    """The first round, the last one and some twenty between as plain lines."""

    def __init__(self, rounds: int):
        self.every, self.pace = -(-rounds // LINES) or 1, Pace(rounds)

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, round: int, row: Row, state: Simulation) -> None:
        rounds, words = self.pace.rounds, self.pace(round, row)
        if self.pace.done == 1 or round == rounds or round % self.every == 0:
            print(
                f"round {round:>{len(str(rounds))}}/{rounds}  accuracy {words['accuracy']}  "
                f"training loss {row['train_loss']:.4f}  {words['rate']}  {words['left']} left",
                file=sys.stderr,
                flush=True,
            )


class Interrupts:
    """The first Ctrl-C, or SIGTERM, ends the run after its round with a checkpoint; the next Ctrl-C ends it at once."""

    def __enter__(self) -> "Interrupts":
        self.asked, self.process = False, os.getpid()
        self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __call__(self, round: int, row: Row, state: Simulation) -> None:
        if self.asked and round < state.settings.rounds:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> Any:
        if os.getpid() != self.process:
            return  # a worker, which inherits this handler, ends with its parent
        again, self.asked = self.asked, True
        if not again:
            os.write(2, b"\nending after this round; Ctrl-C ends at once\n")  # print may be what was interrupted
        elif number == signal.SIGINT:
            raise SystemExit(INTERRUPTED)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
