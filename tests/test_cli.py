"""The command line: `fedflat run`, what it prints, keeps, refuses and survives."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import fedflat as ff
from fedflat import progress, results, written
from fedflat.cli import main
from fedflat.config import RunConfig
from fedflat.options import GROUPS

SHORT = ["--rounds", "2", "--steps", "2"]


def run(*arguments: object) -> int:
    return main(["run", *map(str, arguments)])


def model_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def rounds_in(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def children_of(pid: int) -> list[int]:
    """The workers: forked, they show the command of their parent; what is asked for the machine's name does not."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in children if command_of(child) == command_of(pid)]


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(OSError):
        return stat.read_text().rsplit(")")[-1].split()[0] != "Z"
    return False


@contextlib.contextmanager
def fedflat(*arguments: object, **how: Any) -> Generator[subprocess.Popen[Any]]:
    with subprocess.Popen([sys.executable, "-m", "fedflat", *map(str, arguments)], **how) as process:
        try:
            yield process
        finally:
            process.kill()


# What it prints and keeps.


def test_json_is_the_last_and_only_thing_on_stdout(capsys):
    assert run(*SHORT, "--json") == 0
    out, err = capsys.readouterr()
    done = json.loads(out)
    history = [float(line.split("accuracy ")[1].split()[0]) for line in err.splitlines()]
    assert done["algorithm"] == "fedavg"
    assert done["rounds"] == 2
    assert done["last_accuracy"] == pytest.approx(history[-1], abs=1e-4)
    assert done["last10_accuracy"] == pytest.approx(sum(history) / 2, abs=1e-4)
    assert done["best_accuracy"] == pytest.approx(max(history), abs=1e-4)
    assert done["costs"] == {"down": 1, "up": 1, "gradients": 1, "forwards": 0, "flops": 1}
    assert {"test_loss", "train_loss", "seconds", "out", "seed", "engine"} <= done.keys()
    assert done["config"]["partition"] == "lda:0.3"
    assert done["config"]["clients"] == 20
    assert done["config"]["model"] == "mlp"
    assert done["config"]["participation"] == 10


def test_the_summary_names_three_accuracies_and_all_costs(capsys):
    assert run("fedsam(rho=0.2)", *SHORT) == 0
    out, _ = capsys.readouterr()
    for words in ("fedsam(rho=0.2)", "last", "last 10 rounds", "best", "down", "up", "gradients", "forwards", "flops"):
        assert words in out


def test_it_is_what_simulate_does(capsys):
    assert run("fedprox", *SHORT, "--lr", ".1", "--batch-size", "full", "--participation", "0.25", "--json") == 0
    federation = ff.data.Federation(ff.data.load("digits"))
    result = ff.simulate(
        "fedprox",
        ff.models.build("mlp", (1, 8, 8), 10),
        federation,
        rounds=2,
        steps=2,
        lr=0.1,
        batch_size=None,
        participation=5,
    )
    assert json.loads(capsys.readouterr().out)["test_loss"] == result.history[-1]["test_loss"]


def test_the_config_of_a_run_repeats_it(tmp_path):
    first, again = tmp_path / "a", tmp_path / "b"
    options = ["--lr", "0.1", "--batch-size", "full", "--partition", "shards:2", "--clip", "3", "--seed", "5"]
    options += ["--augment", "crop:1"]
    assert run("scaffold", *SHORT, *options, "--out", first) == 0
    assert run("--config", first / "config.toml", "--out", again) == 0
    assert model_of(first) == model_of(again)
    assert (first / "config.toml").read_text() == (again / "config.toml").read_text()
    config = tomllib.loads((first / "config.toml").read_text())
    open_ = {"epochs", "out", "resume"}  # steps are given; the others are no part of what is repeated
    assert config.keys() == {name.replace("_", "-") for name in RunConfig.model_fields} - open_


def test_options_override_the_file(tmp_path, capsys):
    file = tmp_path / "own.toml"
    file.write_text('algorithm = "fedsam"\nlr = 0.5\nepochs = 1\nrounds = 1\nparticipation = [[0, 3]]\n')
    assert run("fedprox", "--config", file, "--steps", "3", "--lr", "0.25", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert done["algorithm"] == "fedprox"
    assert done["rounds"] == 1
    assert (done["config"]["lr"], done["config"]["steps"], done["config"]["epochs"]) == (0.25, 3, None)
    assert done["config"]["participation"] == [[0, 3]]


def test_participation_in_all_its_spellings(capsys):
    def active(*options: str) -> int:
        assert run(*SHORT, *options, "--json") == 0
        return json.loads(capsys.readouterr().out)["config"]["participation"]

    assert active("--participation", "0.1") == 0.1
    assert active("--participation", "4") == 4
    assert active("--participation", "1.0") == 1.0
    assert active("--clients", "6") == 1.0


def test_algorithms_are_listed_with_a_line_each(capsys):
    assert main(["algorithms"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "paper", "year", "down", "up", "gradients", "forwards", "FLOPs"]
    assert [line.split()[0] for line in lines] == ff.algorithms.names()


def test_help_teaches_every_option(capsys):
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    for name in RunConfig.model_fields:
        assert name == "algorithm" or f"--{name.replace('_', '-')} " in out
        assert RunConfig.model_fields[name].description
    assert {"algorithm", *(name for names in GROUPS.values() for name in names)} == RunConfig.model_fields.keys()
    assert "fedflat run --resume --out" in out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == ff.__version__


def test_long_runs_write_few_lines(capsys):
    lines = progress.Lines(1000)
    for number in range(1, 1001):
        lines(number, {"test_accuracy": None if number % 7 else 0.5, "train_loss": 1.0}, None)  # type: ignore[arg-type]
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("round    1/1000")
    assert err[-1].startswith("round 1000/1000  accuracy 0.5000")
    assert len(err) <= 22


# What it refuses.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--lrr 0.1", "--lrr --lr"),
        ("--btch-size 3", "--btch-size --batch-size"),
        ("--lr", "--lr"),
        ("--lr abc", "lr 'abc' number"),
        ("--lr -1", "lr -1"),
        ("--lr nan", "lr nan"),
        ("--lr 1 --lr 2", "--lr"),
        ("--rounds 1.5", "rounds 1.5 integer"),
        ("--batch-size 0", "batch-size 0"),
        ("--clients 0", "clients 0"),
        ("--clients 100000", "clients samples"),
        ("--epochs 2 --steps 2", "epochs steps"),
        ("--weighting sizes", "weighting 'sizes' 'samples' 'uniform'"),
        ("--participation 1", "participation 1.0"),
        ("--participation 1.5", "participation 1.5"),
        ("--participation 21", "participation 21 20"),
        ("--participation some", "participation 'some'"),
        ("--data digit", "data 'digit' digits"),
        ("--partition dir:0.1", "partition dirichlet lda"),
        ("--model cmn", "model 'cmn' cnn"),
        ("--device gpu", "device 'gpu'"),
        ("--engine procs", "engine 'procs'"),
        ("--precision fp32", "precision 'fp32'"),
        ("--seed -1", "seed -1"),
        ("--resume", "resume out"),
        ("--config missing.toml", "config missing.toml"),
        ("fedsoul", "fedsoul fedsol"),
        ("fedsol(roh=1)", "roh rho"),
        ("fedavg fedsol", "fedsol"),
        ("--out=", "out ''"),
    ],
)
def test_a_wrong_call_is_one_sentence(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out = ["--out", "kept"] if "--resume" not in arguments and "--out" not in arguments else []
    assert run(*arguments.split(), *out) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    for word in words.split():
        assert word in said.err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command(capsys):
    assert main(["rnu"]) == 2
    assert 'did you mean "run"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("rouns = 3", "rouns rounds"),
        ("batch_size = 3", "batch_size batch-size"),
        ('rounds = "3"', "rounds '3' integer"),
        ("lr = true", "lr True number"),
        ("seed = 1.0", "seed 1.0"),
        ('clip = "none"', "clip 'none'"),
        ("[run]\nlr = 0.1", "'run'"),
        ("epochs = 1\nsteps = 1", "epochs steps"),
        ("lr = \nseed = 1", "TOML line 1"),
        ("json = true", "json"),
    ],
)
def test_a_wrong_file_is_one_sentence(content, words, tmp_path, capsys):
    file = tmp_path / "own.toml"
    file.write_text(content)
    assert run("--config", file, "--out", tmp_path / "kept") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for word in (*words.split(), "own.toml"):
        assert word in err
    assert list(tmp_path.iterdir()) == [file]


def test_a_run_that_fails_exits_with_1(capsys):
    assert run(*SHORT, "--lr", "1e30") == 1
    assert "diverged" in capsys.readouterr().err


def test_a_full_disk_in_the_middle_of_a_run(tmp_path, monkeypatch, capsys):
    def append(folder, row):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.RunFolder, "append", append)
    assert run(*SHORT, "--out", tmp_path) == 1
    err = capsys.readouterr().err
    assert "No space left on device" in err
    assert err.count("\n") == 1


def test_a_traceback_only_for_debugging(monkeypatch, capsys):
    def full(config):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(written, "build", full)
    assert run() == 1
    err = capsys.readouterr().err
    assert "No space left on device" in err
    assert err.count("\n") == 1
    assert run("--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path, capsys):
    assert run(*SHORT, "--out", tmp_path) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert run(*SHORT, "--lr", "1", "--out", tmp_path) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


# What it goes on with.


def test_resume(tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run("feddyn", "--rounds", "4", "--steps", "2", "--out", whole) == 0
    assert run("feddyn", "--rounds", "2", "--steps", "2", "--out", parts, "--resume") == 0
    assert run("--resume", "--out", parts, "--rounds", "4") == 0
    assert model_of(whole) == model_of(parts)
    assert rounds_in(parts) == 4
    capsys.readouterr()
    assert run("--resume", "--out", parts, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rounds"] == 4
    assert json.loads(out)["algorithm"].startswith("feddyn")
    assert err == ""
    assert model_of(whole) == model_of(parts)


@pytest.mark.parametrize("change", ["--lr 0.5", "--clip 3", "--seed 1", "--clients 10 --participation 10", "scaffold"])
def test_resume_of_another_configuration_is_refused(change, tmp_path, capsys):
    assert run(*SHORT, "--out", tmp_path) == 0
    capsys.readouterr()
    assert run("--resume", "--out", tmp_path, *change.split()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "holds a run with" in err


DRIVER = """
import sys
from fedflat import cli, results
results.CHECKPOINT_SECONDS = results.CHECKPOINT_REST = 0
sys.exit(cli.main(sys.argv[1:]))
"""


def test_kill_and_resume_give_the_same_bits(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    arguments = ["run", "scaffold", "--rounds", "16", "--steps", "2", "--lr", "0.1", "--engine", "serial"]
    command = [sys.executable, "-c", DRIVER, *arguments, "--out", killed]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: rounds_in(killed) >= 3)
        process.kill()
    assert 3 <= rounds_in(killed) < 16
    assert main([*arguments, "--out", str(killed), "--resume"]) == 0
    assert main([*arguments, "--out", str(whole)]) == 0
    assert rounds_in(killed) == 16
    assert model_of(killed) == model_of(whole)


def test_ctrl_c_on_a_terminal_keeps_a_checkpoint(tmp_path, capsys):
    """The bar is drawn, the round is finished, the workers are gone, and the command that it names goes on."""
    kept, whole = tmp_path / "kept", tmp_path / "whole"
    options = ["scaffold", "--engine", "processes:2", "--steps", "2"]
    ours, theirs = pty.openpty()
    terminal = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "env": {**os.environ, "TERM": "xterm"}}
    with fedflat("run", *options, "--rounds", 100000, "--out", kept, **terminal, start_new_session=True) as process:
        os.close(theirs)
        wait_for(lambda: rounds_in(kept) >= 3)
        workers = children_of(process.pid)
        assert len(workers) == 2
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does, to the workers too
        said = b""
        with contextlib.suppress(OSError):  # how a pty says that the other end is closed
            while more := os.read(ours, 4096):
                said += more
        assert process.wait() == 130
    os.close(ours)
    wait_for(lambda: not any(map(alive, workers)), seconds=5)
    assert b"/100000" in said
    assert b"accuracy" in said
    assert b"ending after this round" in said
    assert f"fedflat run --resume --out {kept}".encode() in said.replace(b"\r\n", b"\n")
    assert b"Traceback" not in said
    assert not (kept / "model.safetensors").exists()
    assert json.loads((kept / "checkpoint" / "manifest.json").read_text())["round"] == rounds_in(kept)
    done = rounds_in(kept) + 1
    assert run("--resume", "--out", kept, "--rounds", done) == 0
    assert run(*options, "--rounds", done, "--out", whole) == 0
    assert model_of(kept) == model_of(whole)


def test_sigterm_is_the_first_ctrl_c_and_the_next_one_ends_at_once(tmp_path):
    long = ["--epochs", 20000, "--engine", "processes:1", "--out", tmp_path]
    with fedflat("run", *long, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        wait_for(lambda: (tmp_path / "metrics.jsonl").exists() and len(children_of(process.pid)) == 1)
        os.killpg(process.pid, signal.SIGTERM)
        os.killpg(process.pid, signal.SIGTERM)  # as timeout does
        assert process.stderr is not None
        said = process.stderr.readline() + process.stderr.readline()
        assert alive(process.pid)
        wait_for(lambda: len(children_of(process.pid)) == 1)  # on a busy machine a late worker is forked again
        (worker,) = children_of(process.pid)
        assert alive(worker)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    first, last = (said + err).decode().strip().splitlines()
    assert first == "ending after this round; Ctrl-C ends at once"
    assert last == f"ended after round 0 of 100; go on with: fedflat run --resume --out {tmp_path}"
    assert out == b""
    assert not alive(worker)


def test_a_closed_pipe_is_no_traceback():
    command = f"{sys.executable} -m fedflat algorithms | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
