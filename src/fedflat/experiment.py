"""The run loop: one model, many clients, round after round."""

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import algorithms, engines
from .config import Settings, validated
from .core import SGD, AdamW, Algorithm, Minibatches, Reply, Server, Store, Task, Weights, cross_entropy
from .core.messages import size
from .core.task import Loss, check_dtype
from .costs import Totals, flops, probe
from .data.augment import augmentation
from .data.batches import minibatches
from .data.federation import Federation
from .data.inputs import Inputs
from .data.participation import Participation
from .data.participation import participation as participation_of
from .data.population import Population, check_labels
from .device import autocast, device_of, exact
from .engines import Work
from .errors import FedflatError, RunError
from .evaluation import Metric, check_metrics, check_outputs, evaluate, recalibrated
from .feed import LocalData
from .results import RunFolder
from .seeds import drawing, generator

IN_PYTHON = "given in Python"  # what a config.toml says where the command line has no word

Row = dict[str, Any]
Callback = Callable[[int, Row, "Simulation"], Any]


@dataclass(frozen=True)
class Result:
    """What a run leaves behind. `model(inputs(x))` is what was tested: `inputs` scales and normalises pixels."""

    model: nn.Module  # in eval mode
    vector: Tensor
    history: list[Row]
    costs: dict[str, float | None]
    memories: dict[int, dict[str, Tensor]]
    inputs: Inputs

    def __repr__(self) -> str:
        accuracy = self.history[-1]["test_accuracy"] if self.history else None
        return f"Result({len(self.history)} rounds, test accuracy {accuracy}, {len(self.vector)} parameters)"


def simulate(
    algorithm: Any,
    model: Any,
    clients: Any,
    *,
    test: Any = None,
    rounds: int = 100,
    participation: Any = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = 50,
    lr: Any = 0.01,
    lr_decay: float = 1.0,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    weighting: str = "samples",
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    buffers: str = "average",
    augment: str | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: str = "float32",
    engine: Any = "auto",
    eval_every: int = 1,
    callbacks: Sequence[Callback] | Callback = (),
    out: str | Path | None = None,
    resume: bool = False,
) -> Result:
    """Train one model on many clients and return it with its history and its measured costs.

    `algorithm` is a name, an expression such as "feddyn+man(zeta=0.15)" or an Algorithm; `model` an nn.Module (copied;
    its weights are the start) or a function of the seed; `clients` a sequence of (x, y) pairs, a Federation or a
    function of the seed. A round trains on the active clients for `epochs` passes (5) or `steps` minibatches each.

    `participation`: None for ten clients a round, a fraction (0.1), a count (25), a schedule ([[0, 2], [1]]) or a
    Participation, or a word for one ("bernoulli:0.1"). `augment` is what happens to the images of training minibatches
    ("crop:4+flip"); a model that has an `input_shape` gets its images in this form. `lr` may be a function of
    (t, rounds). `loss(outputs, y)` returns one value per sample or their mean.
    A callback is called with (round, row, state) after each round and ends the run by returning True. With `out` the
    run is kept in a folder, and `resume=True` goes on from what is there.
    """
    given = dict(locals())
    settings = validated(Settings, {name: given[name] for name in Settings.model_fields})
    simulation = Simulation(
        settings, algorithms.resolve(algorithm), model, clients, test, participation, loss, metrics or {}, engine
    )
    return simulation.run(callbacks, out, _config(simulation, participation))


class Simulation:
    """A run in progress; what callbacks see as `state`."""

    def __init__(
        self,
        settings: Settings,
        algorithm: Algorithm,
        model: Any,
        clients: Any,
        test: Any,
        participation: Any,
        loss: Loss | None,
        metrics: Mapping[str, Metric],
        engine: Any,
    ):
        check_metrics(metrics)
        self.settings, self.algorithm, self.metrics = settings, algorithm, metrics
        device = "cpu" if settings.device == "auto" and engines.on_cpu(engine) else settings.device
        self.device = device_of(device, settings.precision)
        self._model = _model(model, settings.seed, self.device).to(self.device)
        dtype = check_dtype(self._model)
        self.task = Task(
            self._model,
            loss or cross_entropy,
            inside=algorithm.looks_inside,
            autocast=autocast(self.device, settings.precision),
        )
        clients = clients(settings.seed) if callable(clients) else clients
        form = getattr(self._model, "input_shape", None)
        self.population = Population(clients, dtype, self.device, form, augmentation(settings.augment))
        if test is None and isinstance(clients, Federation):
            test = clients.test
        self.test = None if test is None else self.population.samples(test, "test")
        self._check_fit(classes=loss is None)
        self.participation: Participation = participation_of(participation, len(self.population))
        self.server = Server(algorithm, self.task, Weights(self.population.sizes, settings.weighting))
        self.store = Store()
        self.work = Work(
            algorithm,
            self.task,
            _optimizer(settings, algorithm),
            self._data,
            settings.seed,
            own_buffers=settings.buffers == "local" and bool(self.task.buffers),
        )
        self.engine = self._choose(engine)
        self.round = 0
        self.between_rounds = True
        self.active: list[int] = []
        self.history: list[Row] = []
        self.totals = Totals()
        self.folder: RunFolder | None = None

    @property
    def vector(self) -> Tensor:
        """The server's model as one flat vector, a copy."""
        return self.server.w.clone()

    @property
    def model(self) -> nn.Module:
        """The server's model, a copy in eval mode."""
        return self.task.module_at(self.server.w, self.server.buffers, self._model).eval()

    @property
    def memories(self) -> dict[int, dict[str, Tensor]]:
        """Client -> {"Part.name": value}."""
        return self.store.flat()

    def run(
        self, callbacks: Sequence[Callback] | Callback, out: str | Path | None, config: Mapping[str, Any]
    ) -> Result:
        """Train until the last round, or until a callback returns True."""
        if out is None and self.settings.resume:
            raise FedflatError("resume needs `out`, the folder of the run to go on with")
        callbacks = [callbacks] if callable(callbacks) else callbacks
        if not isinstance(callbacks, Sequence):
            raise FedflatError(f"callbacks are functions of (round, row, state), not {callbacks!r}")
        for callback in callbacks:
            if not callable(callback):
                raise FedflatError(f"callbacks are functions of (round, row, state), not {callback!r}")
        with contextlib.ExitStack() as stack:
            if out is not None:
                self.folder = stack.enter_context(RunFolder(Path(out), self, config))
            stack.callback(self.engine.close)
            stack.enter_context(exact(self.settings.precision))
            for row in self._rounds():
                if any([callback(self.round, row, self) is True for callback in callbacks]):  # noqa: C419 - each is called
                    break
        return Result(self.model, self.vector, self.history, self._costs(), self.memories, self.population.inputs)

    def _rounds(self) -> Iterator[Row]:
        if self.round < self.settings.rounds:
            self.engine.open(self.work)
        while self.round < self.settings.rounds:
            self.between_rounds = False
            row = self._round(self.round + 1)
            self.history.append(row)
            self.totals.add(row)
            if self.folder is not None:
                self.folder.append(row)
            self.between_rounds = True
            if not bool(self.server.w.isfinite().all()):
                raise RunError(
                    f"round {self.round}: {self.algorithm} diverged, the model is no longer finite; "
                    "a smaller lr or a clip may hold it"
                )
            if self.folder is not None:
                self.folder.save_if_due()
            yield row

    def _round(self, round: int) -> Row:
        began = time.perf_counter()
        lr = self.settings.rate(round - 1)
        self.active = self._participants(round)
        sent: list[int] = []
        replies: list[Reply] = []

        def assignments() -> Iterator[tuple[Any, Any]]:
            for job in self.server.open(self.active, round, lr):
                sent.append(job.bytes)
                yield job, self.store.get(job.client)

        for reply, memory in self.engine.train(assignments()):
            self.store.set(reply.client, memory)
            replies.append(reply)
        replies.sort(key=lambda r: r.client)
        self.server.close(replies)
        self.round = round
        return {
            "round": round,
            "lr": lr,
            "active": len(replies),
            **self._evaluate(),
            "train_loss": sum(float(r.loss) for r in replies) / sum(r.steps for r in replies),
            "bytes_down": sum(sent),
            "bytes_up": sum(r.bytes for r in replies),
            "steps": sum(r.steps for r in replies),
            "gradients": sum(r.gradients for r in replies),
            "forwards": sum(r.forwards for r in replies),
            "seconds": time.perf_counter() - began,
        }

    def _participants(self, round: int) -> list[int]:
        rule, everyone = self.participation, len(self.population)
        active = list(rule.active(round, everyone, self.settings.seed))
        if not active or len(set(active)) < len(active) or not all(i in range(everyone) for i in active):
            raise FedflatError(
                f"{rule!r}: round {round} has to have different clients from 0 to {everyone - 1}: {active}"
            )
        return active

    def _evaluate(self) -> Row:
        names = ["test_accuracy", "test_loss", *(f"test_{name}" for name in self.metrics)]
        last = self.round == self.settings.rounds
        if self.settings.buffers == "recalibrate" and self.task.buffers and (self._due or last):
            clients = [self.population.clients[i] for i in self.active]
            self.server.buffers = recalibrated(
                self.task, self.server.w, self.server.buffers, clients, self.population.inputs
            )
        if self.test is None or not (self._due or last):
            return dict.fromkeys(names)
        return evaluate(self.task, self.server.w, self.server.buffers, self.test, self.population.inputs, self.metrics)

    @property
    def _due(self) -> bool:
        return self.round % self.settings.eval_every == 0

    def _data(self, client: int, round: int) -> Minibatches:
        rows = self._rows(client, round)
        draws = self.population.inputs.draws(rows, generator(self.settings.seed, "augment", round, client))
        return self._minibatches(client, rows, draws)

    def _minibatches(self, client: int, rows: Sequence[Any], draws: Sequence[Tensor] | None = None) -> Minibatches:
        return LocalData(self.population.clients[client], rows, self.population.inputs, self.algorithm.batches, draws)

    def _rows(self, client: int, round: int) -> Sequence[Any]:
        rng = generator(self.settings.seed, "batches", round, client)
        epochs, steps = self.settings.length["epochs"], self.settings.length["steps"]
        count = steps and steps * self.algorithm.batches
        return minibatches(self.population.sizes[client], self.settings.batch_size, epochs=epochs, steps=count, rng=rng)

    def _costs(self) -> dict[str, float | None]:
        counted = flops(self.work, self.server.weights, self._one_step) if self.totals.steps else None
        return {**self.totals.relative(size([self.task.vector, *self.task.buffers.values()])), "flops": counted}

    @property
    def _one_step(self) -> Minibatches:
        return self._minibatches(0, self._rows(0, 1)[:1])

    def _choose(self, engine: Any) -> engines.Engine:
        active = len(self._participants(1))

        def work() -> tuple[float, float]:
            mean = sum(self.population.sizes) / len(self.population)
            per_epoch = mean / min(self.settings.batch_size or mean, mean)
            by_epochs = (self.settings.length["epochs"] or 0) * per_epoch / self.algorithm.batches
            steps = self.settings.length["steps"] or by_epochs
            arithmetic, reply = probe(self.work, self.server.weights, self._one_step)
            steps *= self.settings.rounds * active
            return steps * reply.gradients, steps * arithmetic

        return engines.choose(engine, cuda=self.device.type == "cuda", active=active, work=work)

    def _check_fit(self, classes: bool) -> None:
        inputs = self.population.inputs
        first = self.population.clients[0]
        count = check_outputs(self.task, first, inputs, classes)
        if count is not None:
            self.population.check_labels(count)
            if self.test is not None:
                check_labels(self.test, count, "test")


def _optimizer(settings: Settings, algorithm: Algorithm) -> SGD | AdamW:
    if settings.optimizer == "sgd":
        return SGD(settings.momentum, settings.weight_decay, settings.clip)
    for part in algorithm.everyone:
        if part.assumes_sgd:
            raise FedflatError(
                f"optimizer = '{settings.optimizer}': {algorithm} needs SGD, "
                f"{part.name} takes a client's way for a sum of gradients"
            )
    return AdamW(settings.weight_decay, settings.clip)


def _model(model: Any, seed: int, device: torch.device) -> nn.Module:
    if not isinstance(model, nn.Module) and callable(model):
        with drawing(seed, "model", device=device):
            try:
                model = model(seed)
            except TypeError as error:
                raise FedflatError(f"model is an nn.Module or a function seed -> nn.Module: {error}") from error
    if not isinstance(model, nn.Module):
        raise FedflatError(f"model is an nn.Module or a function seed -> nn.Module, not {model!r}")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise FedflatError("the model has lazy parameters; pass a sample through it before training")
    if not any(p.requires_grad for p in model.parameters()):
        raise FedflatError("the model has no parameters that require a gradient, so there is nothing to train")
    return copy.deepcopy(model)


def _config(simulation: Simulation, participation: Any) -> dict[str, Any]:
    """The configuration of a run made in Python, spelled as the options are."""
    settings = simulation.settings.model_dump(exclude={"resume", "lr"})
    lr = simulation.settings.lr
    return {
        "algorithm": str(simulation.algorithm),
        "data": IN_PYTHON,
        "clients": len(simulation.population),
        "model": IN_PYTHON,
        **{name.replace("_", "-"): value for name, value in settings.items()},
        **simulation.settings.length,
        "batch-size": settings["batch_size"] or "full",
        "lr": lr if isinstance(lr, float | int) else IN_PYTHON,
        "participation": participation
        if isinstance(participation, int | float | str)
        else repr(simulation.participation),
        "engine": simulation.engine.name,
    }
