"""The command line of data sets: `fedflat data list`, `get NAME`, `show NAME`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from .data import Federation, load, names
from .data.cache import find, home
from .data.catalogue import SETS
from .data.portrait import draw, figures

app = App(
    name="data",
    help="The data sets: what there is, fetch one, look at a partition.",
    default_parameter=Parameter(negative=()),
)

Name = Annotated[str, Parameter(help="a name from `fedflat data list`, in any usual spelling")]
AsJson = Annotated[bool, Parameter("--json", help="print one JSON object on stdout", show_default=False)]


@app.command(name="list")
def list_(*, as_json: AsJson = False) -> None:
    """List the data sets: samples, shape, classes, whether their digests are known, and whether they are here."""
    from rich.console import Console
    from rich.table import Table

    rows = [_row(name) for name in names()]
    if as_json:
        print(json.dumps({"folder": str(home()), "sets": rows}))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("name", "training", "test", "shape", "classes", "digest", "here"):
        table.add_column(
            title, justify="right" if title in ("training", "test", "classes") else "left", no_wrap=title != "here"
        )
    for row in rows:
        shape = "x".join(map(str, row["shape"])) + (" tokens" if len(row["shape"]) == 1 else "")
        counts = f"{row['train']:,}", f"{row['test']:,}", shape, str(row["classes"])
        table.add_row(row["name"], *counts, row["digest"], row["here"] or "no")
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    print(f"The folder is {home()}; FEDFLAT_DATA names another one.")


@app.command
def get(
    name: Name,
    /,
    *,
    fresh: Annotated[bool, Parameter(help="download it although it is here", show_default=False)] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a data set, if it is not here, and check it; say where it is."""
    data = load(name, fresh)
    found = _row(data.name) | {"classes": len(data.classes)}
    print(json.dumps(found) if as_json else f"{data!r}\n{found['here']}")


@app.command
def show(
    name: Name,
    /,
    *,
    partition: Annotated[str, Parameter(help="who holds which sample, such as lda:0.3 or dirichlet:0.1")] = "lda:0.3",
    clients: Annotated[
        int | None, Parameter(help="how many clients share the data; 20, or all natural ones, unless given")
    ] = None,
    seed: Annotated[int, Parameter(help="the partition is drawn from it")] = 0,
    out: Annotated[Path | None, Parameter(help="the picture's file; NAME-PARTITION.png unless given")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw how a partition spreads a data set over the clients, and print its figures."""
    data = load(name)
    federation = Federation(data, partition, clients, seed)
    labels, parts = data.train[1], federation.parts
    found = {"data": data.name, "partition": federation.partition, "seed": seed} | figures(
        labels, parts, len(data.classes)
    )
    file = out or Path(f"{data.name}-{federation.partition.replace(':', '')}.png")
    draw(file, f"{data.name}, {federation.partition}, {len(parts)} clients", labels, parts, data.classes)
    print(json.dumps(found | {"picture": str(file)}) if as_json else _told(found, file))


def _told(found: dict[str, Any], file: Path) -> str:
    lines = {
        "sizes": f"{found['least']} to {found['most']}, median {found['median']:g}; "
        f"{found['repeated']} samples repeated, {found['unused']} unused",
        "effective clients": f"{found['effective_clients']:.1f} of {found['clients']}",
        "entropy": f"{found['entropy']:.3f} nats, mean over clients; "
        f"{found['entropy_of_all']:.3f} of all their samples, at most {found['entropy_at_most']:.3f}",
        "effective classes": f"{found['effective_classes']:.1f} of {found['classes']}; "
        f"{found['classes_held']:.1f} occur at a client",
        "picture": str(file),
    }
    width = max(map(len, lines))
    head = f"{found['data']}, {found['partition']}, {found['clients']} clients, seed {found['seed']}"
    return "\n".join([head, *(f"  {key:<{width}}  {value}" for key, value in lines.items())])


def _row(name: str) -> dict[str, Any]:
    if name == "digits":
        data = load("digits")
        counts = {"train": len(data.train[1]), "test": len(data.test[1]), "shape": list(data.train[0].shape[1:])}
        return {"name": name, **counts, "classes": 10, "digest": "embedded", "known": True, "here": "in scikit-learn"}
    entry = SETS[name]
    found = find(entry)
    return {
        "name": name,
        "train": entry.train,
        "test": entry.test,
        "shape": list(entry.shape),
        "classes": entry.count,
        "digest": f"from {entry.vouched}" if entry.known else "digest unknown",
        "known": entry.known,
        "here": str(found.path) if found else None,
    }
