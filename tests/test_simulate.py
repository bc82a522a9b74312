"""`simulate` at its edges: what is defined there, and the one sentence where it is not."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from federations import NAMES, network, population, train
from torch import nn

import fedflat as ff
from fedflat import FedflatError, RunError


def start_of(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("name", NAMES)
def test_a_rate_of_zero_changes_no_bit(name):
    result = train(name, lr=0.0)
    assert result.vector.numpy().tobytes() == start_of(network()).numpy().tobytes()


def test_no_rounds():
    result = train("scaffold", rounds=0, metrics={"f": lambda outputs, y: 0})
    assert torch.equal(result.vector, start_of(network()))
    assert result.history == []
    assert result.memories == {}
    assert set(result.costs.values()) == {None}


@pytest.mark.parametrize("name", NAMES)
def test_tiny_clients_train(name):
    x, y = population()[1]
    one_class = (x, torch.full_like(y, 2))
    clients = [(x[:1], y[:1]), (x[:3], y[:3]), one_class, (x, y)]
    result = train(name, clients=clients, participation=1.0, batch_size=5)
    trained = [m["Alone.x"] for m in result.memories.values()] if name == "local" else [result.vector]
    for vector in trained:
        assert vector.isfinite().all()
        assert not torch.equal(vector, start_of(network()))
    per_step = ff.algorithms.parse(name).batches
    assert [row["steps"] for row in result.history] == [2 * (1 + 1 + 3 + 3) // per_step] * 5


@pytest.mark.parametrize("short", [{"epochs": 1, "batch_size": None}, {"epochs": None, "steps": 1}])
def test_a_step_of_more_minibatches_than_there_are_uses_them_again(short):
    """PerFedAvg with one minibatch B: x - eta g(x - alpha g(x; B); B), one step and not none."""
    clients = [(x[:3], y[:3]) for x, y in population()[:1]]
    plain = {"momentum": 0.0, "weight_decay": 0.0, "clip": None, "participation": None, "rounds": 1}
    result = train("perfedavg(alpha=0.3)", clients=clients, **plain, **short)
    assert (result.history[0]["steps"], result.history[0]["gradients"]) == (1, 2)

    def gradient(at: torch.Tensor) -> torch.Tensor:
        twin = network()
        nn.utils.vector_to_parameters(at, twin.parameters())
        nn.functional.cross_entropy(twin(clients[0][0]), clients[0][1]).backward()
        return torch.cat([p.grad.flatten() for p in twin.parameters()])

    x = start_of(network())
    expected = x - 0.2 * gradient(x - 0.3 * gradient(x))
    torch.testing.assert_close(result.vector, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("name", "what"), [("moon", "features"), ("fedbabu", "head")])
def test_a_model_without_a_linear_layer_is_refused_by_what_needs_one(name, what):
    model = nn.Sequential(nn.Conv2d(1, 4, 4), nn.Flatten()).double()
    with pytest.raises(FedflatError, match=f"{name} needs a model with an nn.Linear layer.*{what}"):
        train(name, model=model)


def test_the_last_short_batch_is_exact():
    """Five samples in batches of four: one epoch by hand, on the very batches that were drawn."""
    x, y = population()[2]
    rng = ff.seeds.generator(3, "batches", 1, 0)
    batches = ff.data.minibatches(5, 4, epochs=1, rng=rng)
    assert [len(rows) for rows in batches] == [4, 1]
    twin, losses = network(), []
    for rows in batches:
        twin.zero_grad()
        loss = nn.functional.cross_entropy(twin(x[rows]), y[rows])
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for p in twin.parameters():
                p -= 0.2 * p.grad
    plain = {"momentum": 0.0, "weight_decay": 0.0, "clip": None}
    result = train("fedavg", clients=[(x, y)], participation=None, rounds=1, epochs=1, **plain)
    torch.testing.assert_close(result.vector, start_of(twin), rtol=0, atol=1e-14)
    assert result.history[0]["train_loss"] == pytest.approx(sum(losses) / 2, abs=1e-14)


def test_the_models_own_loss_may_be_a_mean():
    per_sample = train("fedsam+man", loss=lambda o, y: nn.functional.cross_entropy(o, y, reduction="none"))
    mean = train("fedsam+man", loss=nn.CrossEntropyLoss())
    default = train("fedsam+man")
    assert torch.equal(per_sample.vector, default.vector)
    torch.testing.assert_close(mean.vector, default.vector, rtol=0, atol=1e-13)


def test_the_callers_model_stays_as_it_was():
    model = network(norm=True).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = train("fedsam", model=model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not model.training
    assert result.model is not model
    assert torch.equal(start_of(result.model), result.vector)


def test_history_and_metrics():
    x, y = population()[0]
    result = train(
        "fedavg",
        test=(x, y),
        eval_every=2,
        metrics={"error": lambda outputs, labels: (outputs.argmax(1) != labels).double().mean()},
    )
    assert [row["round"] for row in result.history] == [1, 2, 3, 4, 5]
    assert [row["test_accuracy"] is None for row in result.history] == [True, False, True, False, False]
    last = result.history[-1]
    result.model.eval()
    outputs = result.model(x).detach()
    assert last["test_accuracy"] == pytest.approx(float((outputs.argmax(1) == y).double().mean()))
    assert last["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, y)))
    assert last["test_error"] == pytest.approx(1 - last["test_accuracy"])
    assert [row["lr"] for row in result.history] == pytest.approx([0.2 * 0.9**t for t in range(5)])


def test_a_callback_may_stop_the_run():
    result = train("fedavg", callbacks=[lambda round, row, state: round == 2])
    assert len(result.history) == 2


def test_a_rate_may_be_a_function():
    result = train("fedavg", lr=ff.cosine(0.2), lr_decay=1.0)
    assert [row["lr"] for row in result.history] == pytest.approx(
        [0.1 * (1 + math.cos(math.pi * t / 5)) for t in range(5)]
    )
    with pytest.raises(FedflatError, match="lr: the rate of t = 0 is nan"):
        train("fedavg", lr=lambda t, rounds: math.nan)


def test_frozen_tensors_stay():
    model = network()
    model[0].weight.requires_grad_(False)
    result = train("fedsam+feddyn", model=model)
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not torch.equal(result.model[5].weight, model[5].weight)


def test_tied_and_recurrent_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 4, batch_first=True)
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.relu(self.a(self.lstm(x)[0][:, -1])))

    torch.manual_seed(0)
    model = Tied().double()
    clients = [(x[:, 0], y) for x, y in population()]
    result = train("fedavg", model=model, clients=clients, clip=None)
    assert result.model.a.weight is result.model.b.weight
    before, after = dict(model.named_parameters()), dict(result.model.named_parameters())
    assert all(not torch.equal(before[n], after[n]) for n in before)


def test_numpy_arrays_and_pixels_are_taken():
    x = np.random.default_rng(0).integers(0, 256, (40, 1, 4, 4), dtype=np.uint8)
    y = np.arange(40) % 4
    result = train("fedavg", clients=[(x[:15], y[:15]), (x[15:], y[15:])], participation=None, test=(x, y), clip=None)
    assert result.vector.isfinite().all()
    scaled = torch.from_numpy((x / 255 - (x / 255).mean()) / (x / 255).std())
    floats = train(
        "fedavg",
        clients=[(scaled[:15], y[:15]), (scaled[15:], y[15:])],
        participation=None,
        test=(scaled, y),
        clip=None,
    )
    torch.testing.assert_close(result.vector, floats.vector, rtol=0, atol=1e-12)


def test_float32_models_train_in_float32_and_float64_ones_in_float64():
    single = [(x.float(), y) for x, y in population()]
    assert train("fedsol", model=network().float(), clients=single).vector.dtype == torch.float32
    assert train("fedsol", clients=single).vector.dtype == torch.float64


@pytest.mark.parametrize("buffers", ["local", "recalibrate"])
def test_other_policies_for_batch_norm(buffers):
    x, y = population()[0]
    average = train("fedavg", model=network(norm=True), test=(x, y))
    other = train("fedavg", model=network(norm=True), test=(x, y), buffers=buffers)
    again = train("fedavg", model=network(norm=True), test=(x, y), buffers=buffers, engine="processes:2")
    assert torch.equal(other.vector, again.vector)
    assert torch.equal(other.vector, average.vector)  # in training mode the statistics do not enter the outputs
    assert not torch.equal(other.model[1].running_mean, average.model[1].running_mean)


CLIENTS = population()
X, Y = CLIENTS[1]


def replaced(i, x=None, y=None):
    clients = list(CLIENTS)
    clients[i] = (clients[i][0] if x is None else x, clients[i][1] if y is None else y)
    return clients


NAN = X.clone()
NAN[3, 0, 1, 1] = math.nan
WRONG = [
    ({"clients": []}, "clients is empty"),
    ({"clients": 5}, "clients is a sequence of \\(x, y\\) pairs"),
    ({"clients": replaced(2, X[:0], Y[:0])}, "client 2 has no samples"),
    ({"clients": replaced(2, X[:4], Y[:3])}, "client 2: x and y need one row for each sample"),
    ({"clients": [X, Y]}, "client 0 has to be a pair"),
    ({"clients": replaced(1, NAN)}, "client 1: x holds a NaN or an infinite number in row 3"),
    ({"clients": replaced(1, y=Y + 4)}, "client 1 has the label [4-7], which is outside the model's 4 classes"),
    ({"clients": replaced(1, y=Y - 9)}, "client 1 has the label -9, which is outside"),
    ({"clients": replaced(1, y=Y.double())}, "client 1: y holds torch.float64 samples"),
    (
        {"clients": replaced(4, torch.randn(14, 1, 5, 5))},
        "client 4: x holds torch.float32 samples of shape \\(1, 5, 5\\)",
    ),
    ({"clients": [(X, Y.double())]}, "client 0: labels are torch.float64"),
    ({"test": (X[:0], Y[:0])}, "test has no samples"),
    ({"test": (X, Y + 9)}, "test has the label"),
    ({"test": X}, "test has to be a pair"),
    ({"model": nn.Linear(3, 4).double()}, "the model does not take the clients' data, samples of shape \\(1, 4, 4\\)"),
    ({"model": nn.Sequential(nn.Flatten(0), nn.Linear(32, 1)).double()}, "the model gives \\(1,\\)"),
    ({"model": nn.ReLU()}, "the model has no parameters"),
    ({"model": "cnn"}, "model is an nn.Module or a function"),
    ({"model": lambda seed: 5}, "model is an nn.Module or a function"),
    ({"model": nn.Sequential(network(), nn.Linear(4, 4))}, "have to share one floating type"),
    ({"loss": lambda outputs, y: 3.0}, "the loss has to return one value per sample"),
    ({"loss": lambda outputs, y: outputs[:1]}, "the loss has to return one value per sample"),
    ({"loss": lambda outputs, y: outputs @ y}, "the loss does not take the model's outputs"),
    ({"participation": [[0], [1, 6]]}, "round 2 of the schedule names client 6"),
    ({"participation": [[0], []]}, "round 2 of the schedule has no client"),
    ({"participation": 1}, "the integer 1 is ambiguous"),
    ({"participation": 7}, "7 active clients of 6"),
    ({"rounds": -1}, "rounds = -1: input should be greater than or equal to 0"),
    ({"rounds": 2.5}, "rounds = 2.5"),
    ({"rounds": True}, "rounds = True"),
    ({"lr": -0.1}, "lr = -0.1"),
    ({"lr": math.nan}, "lr = nan"),
    ({"lr": "fast"}, "lr = 'fast'"),
    ({"momentum": 1.0}, "momentum = 1.0"),
    ({"weight_decay": -1.0}, "weight_decay = -1.0"),
    ({"clip": 0.0}, "clip = 0.0"),
    ({"batch_size": 0}, "batch_size = 0"),
    ({"epochs": 2, "steps": 3}, "give epochs or steps, not both"),
    ({"weighting": "size"}, "weighting = 'size'"),
    ({"buffers": "mean"}, "buffers = 'mean'"),
    ({"precision": "fp8"}, "precision = 'fp8'"),
    ({"precision": "tf32"}, "only a GPU has it"),
    ({"device": "gpu"}, "device = 'gpu'"),
    ({"engine": "threads"}, "there is no engine 'threads'"),
    ({"engine": 3}, "engine is 'auto', 'serial'"),
    ({"seed": -1}, "seed = -1"),
    ({"eval_every": 0}, "eval_every = 0"),
    ({"resume": True}, "resume needs `out`"),
    ({"algorithm": "fedsamm"}, "did you mean fedsam"),
    ({"metrics": {"f": 3}}, "metrics: 'f' is a function"),
    ({"metrics": [len]}, "metrics is a dictionary of functions"),
    ({"metrics": {"loss": len}}, "metrics: 'loss' is measured already"),
    ({"metrics": {"f": lambda o, y: o}, "test": (X, Y)}, "metrics: 'f' has to return one number"),
    ({"callbacks": [3]}, "callbacks are functions"),
    ({"callbacks": 3}, "callbacks are functions"),
    ({"lr": lambda t: 0.1}, r"lr = .*: a function of \(t, rounds\)"),
    ({"model": nn.Linear}, "model is an nn.Module or a function seed -> nn.Module"),
    ({"model": nn.Sequential(nn.Flatten(), nn.LazyLinear(4))}, "the model has lazy parameters"),
    ({"model": network().requires_grad_(False)}, "no parameters that require a gradient"),
    ({"loss": lambda o, y: (o[:, :1] - y) ** 2}, "did it broadcast outputs against labels"),
    (
        {"model": nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4)).double(), "batch_size": 2},
        "client 0: BatchNorm has no statistics of a minibatch with one sample",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG, ids=[s for _, s in WRONG])
def test_a_wrong_call_gets_one_sentence(wrong, sentence):
    wrong = dict(wrong)
    with pytest.raises(FedflatError, match=sentence) as caught:
        train(wrong.pop("algorithm", "fedavg"), **wrong)
    assert "\n" not in str(caught.value)


def test_a_model_without_activations_is_refused_by_man():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).double()
    with pytest.raises(FedflatError, match="man needs hidden activation modules"):
        train("man", model=model)


def test_a_run_that_diverged_is_shown_and_diverges_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fedflat.results.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("fedflat.results.CHECKPOINT_REST", 0.0)
    for resume in (False, True):
        with pytest.raises(RunError, match="diverged"):
            train("fedavg", lr=1e200, clip=None, out=tmp_path, resume=resume, rounds=1)
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_divergence_is_a_failed_run():
    with pytest.raises(RunError, match=r"round [1-5]: fedavg diverged"):
        train("fedavg", lr=1e200, clip=None)


class Boom(nn.Module):
    """A model that goes wrong in its third forward pass in training mode."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 4).double()
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        if self.calls > 2:
            self.fail()
        return self.head(x.flatten(1))

    def fail(self):
        raise ArithmeticError("boom")


class Dies(Boom):
    def fail(self):
        os.kill(os.getpid(), signal.SIGKILL)


def children() -> list[str]:
    found = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "stat="], capture_output=True, text=True, check=False
    )
    return [line for line in found.stdout.split() if line]


@pytest.mark.parametrize("engine", ["serial", "processes:2"])
def test_a_models_own_error_names_the_client_and_the_round(engine):
    with pytest.raises(RunError, match="ArithmeticError: boom") as caught:
        train("fedavg", model=Boom(), engine=engine)
    assert any("client 0, round 1" in note or "client 1, round 1" in note for note in caught.value.__notes__)


def test_a_workers_death_ends_the_run_and_leaves_no_process():
    before = len(children())
    with pytest.raises(
        RunError, match=r"worker process \d+ was ended by SIGKILL while it trained client [01] in round 1"
    ):
        train("fedavg", model=Dies(), engine="processes:2")
    assert len(children()) == before


SCRIPT = """
    import sys, time, torch, fedflat as ff
    torch.randn(600, 600) @ torch.randn(600, 600)  # torch's threads are there before the fork
    clients = [(torch.randn(20, 5), torch.randint(0, 3, (20,))) for _ in range(6)]
    class Net(torch.nn.Module):  # defined in the main module, without a guard
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(5, 3)
        def forward(self, x):
            return self.head(x)
    def tell(round, row, state):
        print("round", round, *[w.process.pid for w in state.engine.workers], flush=True)
    result = ff.simulate("scaffold", Net(), clients, rounds={rounds}, engine="processes:2", callbacks=[tell])
    print("end", len(result.history), flush=True)
"""


def script(rounds: int) -> subprocess.Popen:
    code = textwrap.dedent(SCRIPT.format(rounds=rounds))
    process = subprocess.Popen(
        [sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdin.write(code)
    process.stdin.close()
    return process


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


def test_a_script_from_standard_input_uses_processes():
    with script(rounds=3) as process:
        assert process.stdout.read().endswith("end 3\n")
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_survives_the_run(how):
    with script(rounds=10**6) as process:
        workers = [int(pid) for pid in process.stdout.readline().split()[2:]]
        assert len(workers) == 2
        process.send_signal(how)
        assert process.wait(10) != 0
        assert gone(workers)
        if how == signal.SIGINT:
            assert "KeyboardInterrupt" in process.stderr.read()


@pytest.mark.parametrize("moment", ["open", "train", "evaluate"])
def test_an_interrupt_inside_a_round_leaves_a_folder_that_resumes_to_the_same_bits(tmp_path, monkeypatch, moment):
    """Whatever of round 3 is done when Ctrl-C arrives does not count: resume repeats it from what was saved before."""
    whole = train("fedscar+scaffold", test=population()[0])
    calls = iter(range(1000))
    owner, name = {
        "open": (ff.core.Server, "open"),
        "train": (ff.engines.Work, "__call__"),
        "evaluate": (ff.Simulation, "_evaluate"),
    }[moment]
    when = {"open": 2, "train": 3 + 4 + 1, "evaluate": 2}[moment]
    original = getattr(owner, name)

    def interrupted(*arguments):
        value = original(*arguments)
        if next(calls) == when:
            raise KeyboardInterrupt
        return value

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train("fedscar+scaffold", test=population()[0], out=tmp_path)
    resumed = train("fedscar+scaffold", test=population()[0], out=tmp_path, resume=True)
    assert torch.equal(resumed.vector, whole.vector)
    assert [{**row, "seconds": 0} for row in resumed.history] == [{**row, "seconds": 0} for row in whole.history]
    for client, memory in whole.memories.items():
        assert all(torch.equal(value, resumed.memories[client][key]) for key, value in memory.items())


def test_a_folder_knows_from_its_first_second_whose_it_is(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(ff.Simulation, "_round", lambda *_: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            train("fedavg", out=tmp_path)
    with pytest.raises(FedflatError, match=r"holds a run with momentum = 0\.8, not 0\.1"):
        train("fedavg", out=tmp_path, resume=True, momentum=0.1)
    train("fedavg", out=tmp_path, resume=True)
    with pytest.raises(FedflatError, match=r"rounds = 4: .* holds a run that has done 5 rounds already"):
        train("fedavg", out=tmp_path, resume=True, rounds=4)


@pytest.mark.parametrize("damage", ["garbage in the manifest", "a flipped bit", "a truncated file", "a missing file"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_is_used(tmp_path, monkeypatch, caplog, damage):
    monkeypatch.setattr("fedflat.results.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("fedflat.results.CHECKPOINT_REST", 0.0)
    whole = train("fedscar")

    def stop(round, row, state):
        if round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("fedscar", out=tmp_path, callbacks=stop)
    manifest = tmp_path / "checkpoint" / "manifest.json"
    tensors = tmp_path / "checkpoint" / "round-000003.safetensors"
    content = bytearray(tensors.read_bytes())
    match damage:
        case "garbage in the manifest":
            manifest.write_text("garbage")
        case "a flipped bit":
            content[-5] ^= 1
            tensors.write_bytes(content)
        case "a truncated file":
            tensors.write_bytes(content[:-5])
        case _:
            tensors.unlink()
    with caplog.at_level("INFO", "fedflat"):
        resumed = train("fedscar", out=tmp_path, resume=True)
    assert "manifest.json could not be used" in caplog.text
    assert "going on after round 2" in caplog.text
    assert torch.equal(resumed.vector, whole.vector)
    assert len(list((tmp_path / "checkpoint").glob("round-*"))) == 2
    assert torch.equal(train("fedscar", out=tmp_path, resume=True).vector, whole.vector)


@pytest.mark.parametrize(
    ("what", "name"), [("clients", "clients' data"), ("test", "test data"), ("model", "initial model")]
)
def test_a_run_is_not_gone_on_with_on_other_data(tmp_path, what, name):
    train("fedavg", out=tmp_path, test=population()[0])
    (x, y), *rest = population()
    other = {"clients": [(x + 1, y), *rest], "test": (x, 3 - y), "model": network(norm=True)}[what]
    with pytest.raises(FedflatError, match=f"holds a run with other {name}"):
        train("fedavg", out=tmp_path, resume=True, **{"test": population()[0], what: other})


def test_what_was_tested_can_be_computed_again():
    federation = ff.data.Federation(ff.data.load("digits"), "iid", clients=5)
    model = ff.models.build("mlp", (1, 8, 8), 10)
    result = ff.simulate("fedavg", model, federation, rounds=3, lr=0.1, device="cpu")
    x, y = federation.test
    right = result.model(result.inputs(x)).argmax(1) == y
    assert float(right.double().mean()) == result.history[-1]["test_accuracy"]
