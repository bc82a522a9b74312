"""What fedflat's notation costs: a hand-written loop of SGD beside the local rounds of some algorithms.

The *lean loop* is the least that training in PyTorch can do: parameters and gradients are views of two flat buffers,
and a step gathers a minibatch, zeroes, runs forward, cross-entropy and backward, and moves x by one `add_`. FedAvg does
the same arithmetic through `engines.Work`, whole local rounds with their start and their end, on the same samples. Its
share above the lean loop is what parts, memories and checks cost; a second gradient should cost FedSAM little more than
a second step. Two bounds are kept:

    fedavg / lean    <= 1.10        fedsam / fedavg <= 2.20

The contestants take turns, one block of steps each, in an order that rotates, so that a busy or a hot machine slows
all of them alike. A ratio is the median over the repetitions of the ratio within a repetition; beside each figure
stand its quartiles, and a ratio closer to its bound than they are apart deserves more `--repeats`. Time is that of the
processor (on an idle machine the same as on the wall), on one thread. All contestants run under the engines' malloc
settings (`keep_pages`): under glibc's own, page faults of long temporaries would be measured as well.

    python benchmarks/overhead.py                     the CNN of McMahan et al., 3x32x32, batches of 50; `make bench`
    python benchmarks/overhead.py --small             an MLP 64-64-32-10, batches of 5: a step without arithmetic;
                                                      for information, no bounds
    python benchmarks/overhead.py --repeats 40 --json

The exit code is 1 if a bound does not hold. `--json` prints one machine-readable object last.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import fedflat as ff
from fedflat.core import SGD, Server, Task, Weights
from fedflat.data.batches import minibatches
from fedflat.data.population import Population
from fedflat.engines import Work
from fedflat.engines.engine import keep_pages
from fedflat.feed import LocalData
from fedflat.seeds import generator

ALGORITHMS = ("fedavg", "fedsam", "scaffold", "fedsol", "fednsam")
BOUNDS = {("fedavg", "lean"): 1.10, ("fedsam", "fedavg"): 2.20}
LR = 0.01

Block = Callable[[], object]  # some steps of training


def lean(model: nn.Module, x: Tensor, y: Tensor, rows: list) -> Block:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    grad = torch.zeros_like(flat)
    sizes = [p.numel() for p in model.parameters()]
    for p, values, slots in zip(model.parameters(), flat.split(sizes), grad.split(sizes), strict=True):
        p.data, p.grad = values.view_as(p), slots.view_as(p)

    def block() -> None:
        for batch in rows:
            grad.zero_()
            functional.cross_entropy(model(x[batch]), y[batch]).backward()
            flat.add_(grad, alpha=-LR)

    return block


def local_round(name: str, model: nn.Module, x: Tensor, y: Tensor, rows: list) -> Block:
    algorithm = ff.algorithms.parse(name)
    task = Task(model, inside=algorithm.looks_inside)
    population = Population([(x, y)], task.vector.dtype, task.vector.device)
    data = LocalData(population.clients[0], rows, population.inputs, algorithm.batches)
    server = Server(algorithm, task, Weights(population.sizes))
    work = Work(algorithm, task, SGD(), lambda client, round: data, seed=0)
    (job,) = server.open([0], 1, LR)
    _, memory = work(job, None)
    return lambda: work(job, memory)


def measure(blocks: dict[str, Block], repeats: int, console: Console) -> dict[str, list[float]]:
    """Seconds of each block in each repetition; the first one warms up and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    names = list(blocks)
    for turn in track(range(repeats + 1), "measuring", console=console, transient=True):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began = time.process_time()
            blocks[name]()
            if turn:
                seconds[name].append(time.process_time() - began)
    return seconds


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return median, low, high


def ratio(seconds: dict[str, list[float]], one: str, other: str) -> tuple[float, float, float]:
    return quartiles([a / b for a, b in zip(seconds[one], seconds[other], strict=True)])


def main() -> int:
    parser = argparse.ArgumentParser(description="What fedflat's notation costs, measured beside a hand-written loop.")
    parser.add_argument("--repeats", type=int, default=15, help="blocks of each contestant, at least 2 (15)")
    parser.add_argument("--small", action="store_true", help="a small MLP instead of the CNN, for information")
    parser.add_argument("--json", action="store_true", help="print one machine-readable object last")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error("--repeats: at least 2")

    console = Console(stderr=options.json)
    torch.set_num_threads(1)
    keep_pages()
    name, shape, batch, steps = ("mlp", (1, 8, 8), 5, 100) if options.small else ("cnn", (3, 32, 32), 50, 5)
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(batch * steps, *shape, generator=chance)
    y = torch.randint(10, (len(x),), generator=chance)
    rows = minibatches(len(x), batch, epochs=1, rng=generator(0, "batches"))

    blocks = {"lean": lean(ff.models.build(name, shape, 10), x, y, rows)}
    blocks |= {a: local_round(a, ff.models.build(name, shape, 10), x, y, rows) for a in ALGORITHMS}
    seconds = measure(blocks, options.repeats, console)

    milliseconds = {who: quartiles([s / steps * 1e3 for s in values]) for who, values in seconds.items()}
    shape_of = "x".join(map(str, shape))
    table = Table(
        title=f"{name} on {shape_of}, batches of {batch}, float32, one thread: {options.repeats} x {steps} steps each",
        caption="median (quartiles)",
    )
    for column in ("", "ms per step", "/ lean", "/ fedavg"):
        table.add_column(column, justify="right" if column else "left")
    for who in blocks:
        digits = 3 if options.small else 1
        cells = [milliseconds[who], ratio(seconds, who, "lean"), ratio(seconds, who, "fedavg")]
        shown = (
            f"{m:.{d}f} ({low:.{d}f} - {high:.{d}f})" for (m, low, high), d in zip(cells, (digits, 2, 2), strict=True)
        )
        table.add_row(who, *shown)
    console.print(table)

    bounds = {} if options.small else BOUNDS
    kept = {pair: ratio(seconds, *pair)[0] <= bound for pair, bound in bounds.items()}
    for (one, other), bound in bounds.items():
        word = "holds" if kept[one, other] else "DOES NOT HOLD"
        console.print(f"{one} / {other} = {ratio(seconds, one, other)[0]:.3f}, bound {bound:.2f}: {word}")
    if options.json:
        report = {
            "workload": {
                "model": name,
                "shape": shape,
                "batch_size": batch,
                "steps": steps,
                "repeats": options.repeats,
            },
            "milliseconds": {
                who: dict(zip(("median", "low", "high"), q, strict=True)) for who, q in milliseconds.items()
            },
            "ratios": {f"{a}/{b}": {"value": ratio(seconds, a, b)[0], "bound": bounds.get((a, b))} for a, b in BOUNDS},
            "holds": all(kept.values()),
        }
        print(json.dumps(report))
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
