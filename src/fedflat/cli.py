"""The command line: `fedflat run`, `fedflat algorithms [NAME]`, `fedflat data list | get | show`.

Exit codes: 0, 1 a run that failed, 2 a wrong call or configuration, 130 a run that was interrupted.
"""

import inspect
import json
import logging
import os
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from . import __version__
from .config import RunConfig
from .errors import FedflatError, RunError
from .options import options as run_options

EXAMPLES = """
Examples:

- `fedflat run` trains FedAvg on digits within seconds
- `fedflat run "fedsol(rho=1.0)" --rounds 200 --lr 0.05 --out runs/fedsol` keeps the run in a folder
- `fedflat run --resume --out runs/fedsol --rounds 400` goes on with it
- `fedflat run fedavg --config runs/fedsol/config.toml` is the same with another algorithm
- `fedflat run scaffold+man --json | jq .best_accuracy` is for scripts
"""

app = App(
    name="fedflat",
    help="Sharpness-aware federated learning. Start with `fedflat run`, then `fedflat run --help`.",
    version=__version__,
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; what goes wrong is one sentence on stderr."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    _tell()
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at exit
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        print(f"fedflat: {_sentence(error)}", file=sys.stderr)
        return 2 if isinstance(error, CycloptsError | FedflatError) else 1


def run(
    algorithm: Annotated[
        str | None, Parameter(help=RunConfig.model_fields["algorithm"].description, show_default=lambda _: "fedavg")
    ] = None,
    /,
    *,
    config: Annotated[
        Path | None, Parameter(help="TOML file of options, such as a run's config.toml", group="Run")
    ] = None,
    as_json: Annotated[
        bool, Parameter("--json", help="print one JSON object last, on stdout", group="Run", show_default=False)
    ] = False,
    debug: Annotated[
        bool, Parameter(help="show the traceback of what went wrong", group="Run", show_default=False)
    ] = False,
    **options: Any,
) -> int:
    """Train one model on many clients."""
    from rich.console import Console

    from .progress import INTERRUPTED, Interrupts, shown
    from .summary import summary, table
    from .written import build, configured

    given = {name.replace("_", "-"): value for name, value in options.items()}
    settings = configured(given | ({} if algorithm is None else {"algorithm": algorithm}), config)
    simulation, complete = build(settings)
    again = f"go on with: fedflat run --resume --out {shlex.quote(settings.out)}" if settings.out else "not kept"
    try:
        with Interrupts() as interrupts, shown(settings.rounds) as progress:
            result = simulation.run((progress, interrupts), settings.out, complete)
    except (KeyboardInterrupt, SystemExit):
        print(f"ended after round {simulation.round} of {settings.rounds}; {again}", file=sys.stderr)
        return INTERRUPTED
    done = summary(result, complete, settings.out)
    if as_json:
        print(json.dumps(done))
    else:
        Console().print(table(done))
    return 0


@app.command
def algorithms(
    name: Annotated[
        str | None, Parameter(help="a name such as fedsol, or an expression such as fedsam+scaffold")
    ] = None,
    /,
    *,
    as_json: Annotated[bool, Parameter("--json", help="print one JSON object on stdout", show_default=False)] = False,
) -> None:
    """List the algorithms with papers and costs, or describe one: formula, parts, hyper-parameters, BibTeX."""
    from rich.console import Console
    from rich.markdown import Markdown

    from . import cards, pages

    found = cards.card(name) if name else cards.cards()
    if as_json:
        print(json.dumps([card.record() for card in found] if isinstance(found, list) else found.record()))
    elif isinstance(found, list):
        print(pages.lines(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None), end="")
    elif sys.stdout.isatty():
        Console().print(Markdown(pages.page(found)))
    else:
        print(pages.page(found), end="")


def _tell() -> None:
    """What the library logs is told on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("fedflat: %(message)s"))
    log = logging.getLogger("fedflat")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def _sentence(error: Exception) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(error).split())
    match error:
        case UnusedCliTokensError():
            return f"too many arguments: {shlex.join(error.unused_tokens or ())}"
        case CycloptsError():
            text = re.sub(r"[.?] (\w)", lambda match: f"; {match[1].lower()}", text).rstrip(".")
            return text[0].lower() + text[1:]
        case FedflatError() | RunError():
            return text
        case _:
            return f"{type(error).__name__}: {text} (--debug shows the traceback)"


_own = [p for p in inspect.signature(run).parameters.values() if p.kind is not p.VAR_KEYWORD]
run.__signature__ = inspect.Signature([*_own, *run_options()])  # type: ignore[attr-defined]
app.command(run, help_epilogue=EXAMPLES)
app.command("fedflat.data_commands:app", name="data", help="List, fetch and look at data sets.")
