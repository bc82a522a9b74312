"""Worker processes and torch's generators: what a run shares with the rest of the program it runs in."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from federations import train
from torch import nn

import fedflat as ff
from fedflat import FedflatError, RunError
from fedflat.engines import Processes, processes
from fedflat.seeds import drawing


def dropout() -> nn.Module:
    with drawing(0, "weights"):
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 4)).double()


def ran(script: str) -> str:
    """What a script prints; it is told to leave without a word from threads that are still at work."""
    code = textwrap.dedent(script) + "\nimport os, sys; sys.stdout.flush(); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


def test_another_threads_draws_do_not_hang_the_workers():
    script = """
        import threading, torch, fedflat as ff
        threading.Thread(target=lambda: [torch.randn(1000) for _ in iter(int, 1)], daemon=True).start()
        clients = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(4)]
        for _ in range(8):
            ff.simulate("fedavg", torch.nn.Linear(16, 4), clients, engine="processes:3", rounds=1, device="cpu")
        print("done")
    """
    assert ran(script) == "done\n"


def children() -> set[int]:
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_a_worker_that_does_not_get_ready_is_forked_again(tmp_path, monkeypatch):
    expected, before = train("scaffold"), children()
    get_ready = processes._get_ready

    def hang_twice():
        for name in ("first", "second"):
            try:
                (tmp_path / name).touch(exist_ok=False)
            except FileExistsError:
                continue
            time.sleep(60)
        get_ready()

    monkeypatch.setattr(processes, "_get_ready", hang_twice)
    monkeypatch.setattr(processes, "PATIENCE", (0.3, 10.0))
    assert torch.equal(train("scaffold", engine="processes:3").vector, expected.vector)
    assert children() == before


def test_workers_that_never_get_ready_end_the_run(monkeypatch):
    before = children()
    monkeypatch.setattr(processes, "_get_ready", lambda: time.sleep(60))
    monkeypatch.setattr(processes, "PATIENCE", (0.1, 0.1))
    with pytest.raises(RunError, match="worker processes do not get ready, perhaps because another thread"):
        train("fedavg", engine="processes:2")
    assert children() == before


def test_workers_start_fast():
    durations: list[float] = []
    engine = Processes(2)
    states: list[ff.Simulation] = []
    train("fedavg", callbacks=lambda round, row, state: states.append(state))
    for _ in range(3):
        began = time.perf_counter()
        engine.open(states[0].work)
        durations.append(time.perf_counter() - began)
        engine.close()
    assert min(durations) < 0.5  # 0.02 on an idle machine


def test_an_engine_serves_one_run_at_a_time():
    engine = Processes(1)
    with pytest.raises(FedflatError, match="at work in another run"):
        train("fedavg", engine=engine, callbacks=lambda *_: train("fedavg", engine=engine) and None)


def test_no_worker_holds_the_runs_folder(tmp_path):
    """Else a run whose process was killed could not be started again before its last worker is gone."""

    def check(round, row, state):
        for worker in state.engine.workers:
            held = [os.readlink(fd) for fd in Path(f"/proc/{worker.process.pid}/fd").iterdir()]
            assert str(tmp_path / "lock") not in held

    assert len(train("fedavg", engine="processes:2", out=tmp_path, callbacks=check).history) == 5


def test_workers_die_in_silence_with_their_parent():
    script = """
        import os, signal, torch, fedflat as ff
        class Slow(torch.nn.Linear):
            def forward(self, x):
                if self.training:
                    torch.randn(300, 300) @ torch.randn(300, 300)
                return super().forward(x)
        def end(round, row, state):
            for worker in state.engine.workers:
                worker.line.send((0, 1, 0.1, state.task.layout.length, False))
                worker.line.close()
            print("left", flush=True)
            os._exit(0)
        clients = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(4)]
        ff.simulate("fedavg", Slow(16, 4), clients, engine="processes:2", device="cpu", callbacks=end)
    """
    assert ran(script) == "left\n"


def in_a_daemon(pipe) -> None:
    try:
        auto = ff.engines.choose("auto", cuda=False, active=10, work=lambda: (1e6, 1e12)).name
        train("fedavg", engine="processes:2")
    except Exception as error:
        pipe.send((auto, f"{type(error).__name__}: {error}"))


def test_a_daemonic_process_has_no_workers():
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=in_a_daemon, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(30)
    auto, sentence = ours.recv()
    process.join()
    assert auto == "serial"
    assert sentence.startswith("FedflatError: engine 'processes' needs Linux, and a process that is no daemonic child")


class Fails(nn.Module):
    def __init__(self, error: BaseException):
        super().__init__()
        self.head = nn.Linear(16, 4).double()
        self.error, self.calls = error, 0

    def forward(self, x):
        self.calls += self.training
        if self.calls > 2:
            raise self.error
        return self.head(x.flatten(1))


@pytest.mark.parametrize("engine", ["serial", "processes:1"])
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ZeroDivisionError("by zero"), RunError, "ZeroDivisionError: by zero"),
        (StopIteration("over"), RunError, "StopIteration: over"),
        (RunError("it ran dry"), RunError, "it ran dry"),
        (FedflatError("not so"), FedflatError, "not so"),
    ],
)
def test_a_models_failure_is_the_same_on_every_engine(engine, error, kind, message):
    with pytest.raises(kind) as caught:
        train("fedavg", model=Fails(error), engine=engine)
    assert type(caught.value) is kind
    assert str(caught.value) == message
    assert caught.value.__notes__[0] == "(client 0, round 1)"
    if engine == "serial" and not isinstance(error, FedflatError | RunError):
        assert type(caught.value.__cause__) is type(error)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_a_program_ends_it(error):
    with pytest.raises(type(error)):
        train("fedavg", model=Fails(error))


def test_no_generator_but_the_runs_own_is_seeded(monkeypatch):
    def refuse(*_):
        raise AssertionError("every device's generator is seeded")

    model = dropout()
    settings = {"clients": [(torch.randn(9, 16).double(), torch.arange(9) % 4)], "rounds": 2, "engine": "serial"}
    for owner, name in [(torch, "manual_seed"), (torch.random, "manual_seed"), (torch.cuda, "manual_seed_all")]:
        monkeypatch.setattr(owner, name, refuse)
    ff.simulate("fedavg", lambda seed: model, **settings)


@pytest.mark.gpu
def test_a_run_on_the_cpu_leaves_the_gpus_generator_alone():
    torch.cuda.init()
    before = torch.cuda.get_rng_state()
    train("fedavg", model=lambda seed: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 4)).double())
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.gpu
def test_a_gpus_draws_are_a_function_of_their_purpose_and_leave_no_trace():
    before = torch.cuda.get_rng_state(), torch.get_rng_state()
    draws = []
    for device in ("cuda", "cuda:0"):
        with drawing(1, "model", 2, device=torch.device(device)):
            draws.append(torch.rand(9, device=device))
    assert torch.equal(*draws)
    assert torch.equal(torch.cuda.get_rng_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.gpu
def test_beside_a_gpu_workers_need_a_program_that_took_no_gradient():
    torch.ones(3, requires_grad=True).sum().backward()
    with pytest.raises(FedflatError, match="once the program itself has taken one"):
        train("fedavg", engine="processes:2")


def test_runs_in_several_threads_draw_what_they_draw_alone():
    alone = [train("fedavg", model=dropout(), seed=seed).vector for seed in range(3)]
    start = threading.Barrier(3)

    def run(seed: int) -> torch.Tensor:
        start.wait(30)
        return train("fedavg", model=dropout(), seed=seed, rounds=20, callbacks=lambda r, row, s: r == 5).vector

    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(run, range(3)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_run_inside_a_callback_and_inside_a_draw():
    expected = train("fedavg", model=dropout()).vector

    def nested(round, row, state):
        with drawing(5, "else"):
            assert torch.equal(train("fedavg", model=dropout()).vector, expected)

    assert torch.equal(train("fedavg", model=dropout(), callbacks=nested).vector, expected)


def test_a_fork_while_another_thread_draws_may_draw():
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with drawing(0, "held"):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)
    pid = os.fork()
    if not pid:
        signal.alarm(10)
        with drawing(0, "child"):
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    leave.set()
    thread.join()
    assert status == 0
