"""Runs in folders: what survives a crash, a full disk and damage, what is refused, and what names a run."""

import errno
import functools
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import SCHEDULE, network, population, train
from safetensors.torch import load_file
from torch import nn

import fedflat as ff
from fedflat import FedflatError, RunError, checkpoint
from fedflat.cli import main


@pytest.fixture
def always(monkeypatch):
    """A checkpoint after every round."""
    monkeypatch.setattr("fedflat.results.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("fedflat.results.CHECKPOINT_REST", 0.0)


def ended_after(last: int, algorithm: Any, out: Path, **changes: Any) -> ff.Simulation:
    """A run that was interrupted; its state."""
    states: list[ff.Simulation] = []

    def stop(round: int, row: Any, state: ff.Simulation) -> None:
        if round == last:
            states.append(state)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(algorithm, out=out, callbacks=stop, **changes)
    return states[0]


def outcome(result: ff.Result) -> Any:
    """Everything of a run but its seconds, to the bit."""
    return (
        result.vector.view(torch.uint8).tolist(),
        {i: {name: v.view(torch.uint8).tolist() for name, v in named.items()} for i, named in result.memories.items()},
        json.dumps([{**row, "seconds": 0} for row in result.history]),
        result.costs,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# What survives.


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("algorithm", ["scaffold", "fedscar"])
def test_a_run_killed_at_any_moment_goes_on_to_the_same_bits(tmp_path, always, algorithm):
    whole = outcome(train(algorithm, epochs=1, test=population()[0]))
    began = time.monotonic()
    train(algorithm, epochs=1, test=population()[0], out=tmp_path / "timed")
    took, rng = time.monotonic() - began, random.Random(0)
    for n in range(15):
        child = os.fork()
        if not child:
            try:
                train(algorithm, epochs=1, test=population()[0], out=tmp_path / str(n))
            finally:
                os._exit(0)
        time.sleep(took * rng.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        resumed = train(algorithm, epochs=1, test=population()[0], out=tmp_path / str(n), resume=True)
        assert outcome(resumed) == whole


class Killed(BaseException):
    """Ends a run as a signal does: nothing is saved on the way out."""


@pytest.mark.parametrize("damaged", ["nothing", "manifest.json", "round-000003.safetensors", "previous.json"])
def test_after_a_kill_between_any_two_renames_there_is_a_whole_generation(tmp_path, always, monkeypatch, damaged):
    short: dict[str, Any] = {"epochs": None, "steps": 1}
    whole = outcome(train("fedcm", **short))
    ended_after(3, "fedcm", tmp_path / "run", **short)
    if damaged != "nothing":
        file = tmp_path / "run" / "checkpoint" / damaged
        file.write_bytes(file.read_bytes()[:-9])
    original, completed, renames = os.replace, False, 0
    while not completed:
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        left = renames

        def rename(source: Path, target: Path) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            original(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", rename)
            try:
                train("fedcm", out=tmp_path / "copy", resume=True, **short)
                completed = True
            except Killed:
                renames += 1
        assert outcome(train("fedcm", out=tmp_path / "copy", resume=True, **short)) == whole
        shutil.rmtree(tmp_path / "copy")
    assert renames >= 10


def state_of(simulation: ff.Simulation) -> Any:
    tensors, tables = checkpoint._state(simulation)
    return {k: v.tolist() for k, v in tensors.items()}, tables, simulation.totals


def test_no_damage_goes_unnoticed(tmp_path, always, caplog):
    """After bit flips, truncated, missing and exchanged files: a generation as it was written, or a refusal."""
    kept: dict[int, Any] = {}

    def keep(round: int, row: Any, state: ff.Simulation) -> None:
        kept[round] = state_of(state)

    simulation = ended_after(2, "fedscar+scaffold", tmp_path / "a")
    train("fedscar+scaffold", out=tmp_path / "a", resume=True, rounds=3, callbacks=keep)
    kept[2] = state_of(simulation)
    folder, identity = tmp_path / "a" / "checkpoint", simulation.folder._identity
    written = contents(folder)
    newest = ["manifest.json", "round-000003.safetensors"]
    older = ["previous.json", "round-000002.safetensors"]
    assert written.keys() == {*newest, *older}
    rng, refused, gone_back = random.Random(1), 0, 0

    def damage() -> None:
        name = rng.choice(newest + older)
        content = bytearray((folder / name).read_bytes())
        match rng.randrange(8):
            case 0:
                content = content[: rng.randrange(len(content))]
            case 1:
                both = rng.choice([newest, older, *zip(newest, older, strict=True)])
                first, second = (folder / n for n in both)
                aside = first.read_bytes()
                first.write_bytes(second.read_bytes())
                second.write_bytes(aside)
                return
            case _:
                for _ in range(rng.choice([1, 1, 8])):
                    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(content)

    for _ in range(500):
        for name, content in written.items():
            (folder / name).write_bytes(content)
        for _ in range(rng.choice([1, 1, 2])):
            damage()
        found = contents(folder)
        simulation.round = -1
        caplog.clear()
        try:
            checkpoint.load(folder, simulation, identity, lines=3)
        except FedflatError as error:
            assert "holds a run without a usable checkpoint" in str(error)  # noqa: PT017 - most are no error
            assert simulation.round == -1
            assert contents(folder) == found
            refused += 1
            continue
        assert state_of(simulation) == kept[simulation.round]
        if simulation.round < 3:
            assert "could not be used" in caplog.text
            gone_back += 1
        elif any(found[name] != written[name] for name in newest):
            assert found["previous.json"] == written["manifest.json"]
    assert refused > 20
    assert gone_back > 150


@pytest.mark.parametrize(
    ("key", "value"),
    [("round", 2), ("totals", {}), ("tables", {}), ("identity", {}), ("sha256", ""), ("file", "manifest.json")],
)
def test_a_manifest_that_was_changed_or_lacks_something_does_not_count(tmp_path, always, caplog, key, value):
    ended_after(3, "fedscar", tmp_path)
    path = tmp_path / "checkpoint" / "manifest.json"
    manifest = json.loads(path.read_text())
    lacking = {k: v for k, v in manifest.items() if k != key}
    whole = outcome(train("fedscar"))
    for wrong in (lacking | {key: value}, lacking):
        shutil.copytree(tmp_path, tmp_path.with_name("copy"), dirs_exist_ok=True)
        (tmp_path.with_name("copy") / "checkpoint" / "manifest.json").write_text(json.dumps(wrong))
        assert outcome(train("fedscar", out=tmp_path.with_name("copy"), resume=True)) == whole
        assert "manifest.json could not be used (its checksum is wrong)" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("left", [2, 1, 0])
def test_lines_that_are_missing_cost_a_generation(tmp_path, always, caplog, left):
    ended_after(3, "scaffold", tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:left]) + lines[left][:-9])
    before = contents(tmp_path)
    if left < 2:
        with pytest.raises(FedflatError, match=f"metrics.jsonl ends with round {left}.*start again in another folder"):
            train("scaffold", out=tmp_path, resume=True)
        assert contents(tmp_path) == before
    else:
        assert outcome(train("scaffold", out=tmp_path, resume=True)) == outcome(train("scaffold"))
        assert "manifest.json could not be used (it is of round 3, metrics.jsonl ends with round 2)" in caplog.text


def test_lines_are_on_disk_before_the_checkpoint_that_relies_on_them(tmp_path, always, monkeypatch):
    synced, original = [], os.fsync

    def fsync(number: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
        original(number)

    monkeypatch.setattr(os, "fsync", fsync)
    train("fedavg", rounds=2, out=tmp_path)
    for round in (1, 2):
        at = synced.index(f"round-{round:06d}.safetensors.part")
        assert synced[at - 1] == "metrics.jsonl"


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda text: text[: len(text) // 2], "manifest.json: it is damaged"),
        (lambda text: text.replace('"format": 1', '"format": 99'), "its format is 99, this version of fedflat reads 1"),
        (lambda text: None, "there is no manifest"),
    ],
)
def test_a_run_without_a_usable_checkpoint_is_refused_and_stays_as_it_is(tmp_path, always, write, words):
    ended_after(3, "fedavg", tmp_path)
    for name in checkpoint.MANIFESTS:
        path = tmp_path / "checkpoint" / name
        text = write(path.read_text())
        path.unlink() if text is None else path.write_text(text)
    before = contents(tmp_path)
    for resume, sentence in ((True, f"without a usable checkpoint .*{words}"), (False, "holds a run already")):
        with pytest.raises(FedflatError, match=sentence):
            train("fedavg", out=tmp_path, resume=resume)
    assert contents(tmp_path) == before


def test_a_folder_with_other_files_may_hold_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    train("fedavg", rounds=1, out=tmp_path)
    assert outcome(train("fedavg", out=tmp_path, resume=True)) == outcome(train("fedavg"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    train("fedavg", out=tmp_path / "other", resume=True)
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"


# What the disk refuses.


@pytest.mark.parametrize("owner", ["metrics.jsonl", "checkpoint"])
def test_a_full_disk_ends_the_run_and_what_was_saved_stands(tmp_path, always, monkeypatch, owner):
    whole = outcome(train("scaffold"))
    for full_at in range(0, 7, 2):
        left, original, out = full_at, os.fsync, tmp_path / str(full_at)

        def fsync(number: int) -> None:
            nonlocal left
            left -= owner in os.readlink(f"/proc/self/fd/{number}")
            if left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            original(number)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            with pytest.raises(RunError, match=f"cannot write to {out}: No space left on device"):
                train("scaffold", out=out)
        assert not list(out.rglob("*.part"))
        assert outcome(train("scaffold", out=out, resume=True)) == whole


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_line_that_does_not_fit_ends_the_run(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        opened = ff.results.RunFolder._open

        def full(folder: Any) -> Any:
            opened(folder).close()
            return open("/dev/full", "a")

        patched.setattr(ff.results.RunFolder, "_open", full)
        patched.setattr(os, "fsync", lambda number: None)
        with pytest.raises(RunError, match="No space left on device"):
            train("scaffold", out=tmp_path)
    assert outcome(train("scaffold", out=tmp_path, resume=True)) == outcome(train("scaffold"))


@pytest.mark.parametrize("name", ["replace", "mkdir"])
def test_a_folder_that_cannot_be_written_to_is_told_before_training(tmp_path, monkeypatch, name):
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    trained: list[int] = []
    monkeypatch.setattr(os, name, refuse)
    with pytest.raises(FedflatError, match=f"cannot write to {tmp_path}/new: Read-only file system"):
        train("fedavg", out=tmp_path / "new", callbacks=lambda round, *_: trained.append(round))
    assert trained == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path):
    train("fedavg", rounds=1, out=tmp_path)
    tmp_path.chmod(0o500)
    with pytest.raises(FedflatError, match=r"cannot write to .*: Permission denied"):
        train("fedavg", out=tmp_path, resume=True)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("below", ["", "runs/one"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_is_no_folder(tmp_path, below, resume):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with pytest.raises(FedflatError, match=f"cannot write to {file / below}: {file} is not a folder"):
        train("fedavg", out=file / below, resume=resume)
    assert file.read_text() == "mine"


# What names a run.


def halving(first: float, t: int, rounds: int) -> float:
    return first / 2**t


class Rotation(ff.data.Participation):
    """Its repr is its address."""

    def __init__(self, step: int):
        self.step = step

    def active(self, round: int, clients: int, seed: int) -> list[int]:
        return sorted({round * self.step % clients, (round * self.step + 1) % clients})


SAME = [
    lambda: {"lr": functools.partial(halving, 0.2)},
    lambda: {"lr": lambda t, rounds: 0.1 if t < 3 else 0.01},
    lambda: {"lr": ff.cosine(0.2)},
    lambda: {"participation": Rotation(2)},
]
OTHERS = [
    ("rates", {"lr": ff.cosine(0.2)}, {"lr": ff.cosine(0.1)}),
    ("rates", {"lr": ff.cosine(0.2)}, {"lr": ff.cosine(0.2, final=0.01)}),
    ("rates", {"lr": functools.partial(halving, 0.2)}, {"lr": functools.partial(halving, 0.1)}),
    ("rates", {"lr": ff.cosine(0.2), "rounds": 2}, {"lr": ff.cosine(0.2), "rounds": 9}),
    ("lr = 'given in Python', not 0.2", {"lr": ff.cosine(0.2)}, {"lr": 0.2}),
    ("active clients", {"participation": Rotation(2)}, {"participation": Rotation(3)}),
    ("participation = 'Schedule", {"participation": SCHEDULE}, {"participation": 3}),
]


@pytest.mark.parametrize("settings", SAME)
def test_a_run_has_no_address_in_its_name(tmp_path, settings):
    first, again = settings(), settings()
    state = ended_after(2, "fedavg", tmp_path, **first)
    assert "0x" not in json.dumps(state.folder._identity) + (tmp_path / "config.toml").read_text()
    assert outcome(train("fedavg", out=tmp_path, resume=True, **again)) == outcome(train("fedavg", **first))


@pytest.mark.parametrize(("words", "one", "other"), OTHERS)
def test_functions_are_told_apart_by_what_they_give(tmp_path, words, one, other):
    ended_after(1, "fedavg", tmp_path, **one)
    before = contents(tmp_path)
    with pytest.raises(FedflatError, match=f"holds a run with .*{words}"):
        train("fedavg", out=tmp_path, resume=True, **other)
    assert contents(tmp_path) == before


def test_more_rounds_are_the_same_run_while_the_first_ones_are(tmp_path):
    rate = functools.partial(halving, 0.2)
    train("fedavg", out=tmp_path, rounds=2, lr=rate, participation=Rotation(2))
    resumed = train("fedavg", out=tmp_path, resume=True, lr=rate, participation=Rotation(2))
    assert outcome(resumed) == outcome(train("fedavg", lr=rate, participation=Rotation(2)))


def test_parts_that_keep_something_else_by_now_are_refused(tmp_path):
    def part(**keeps: Any) -> ff.Algorithm:
        return ff.Algorithm(type("Keeps", (ff.Part,), {"server_keeps": keeps, "rate": lambda self, lr, k, K: lr})())

    ended_after(2, part(a=ff.vector), tmp_path)
    with pytest.raises(FedflatError, match=r"holds a run of other parts: its checkpoint lacks 'server/Keeps.b'"):
        train(part(a=ff.vector, b=ff.vector), out=tmp_path, resume=True)


def test_a_run_made_in_python_is_refused_by_the_command_line(tmp_path, capsys):
    train("fedavg", rounds=1, out=tmp_path)
    for arguments in (["--config", str(tmp_path / "config.toml")], ["--resume", "--out", str(tmp_path)]):
        assert main(["run", *arguments]) == 2
        said = capsys.readouterr().err
        assert "config.toml is of a run made in Python" in said
        assert said.count("\n") == 1


# Models of every kind.


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.b.weight = self.a.weight
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("part_of_scale", self.scale[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x.flatten(1))))))

    def get_extra_state(self) -> str:
        return "no tensor"

    def set_extra_state(self, state: str) -> None: ...


MODELS = {
    "channels last": lambda: (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(4, 4))
        .double()
        .to(memory_format=torch.channels_last)
    ),
    "bfloat16": lambda: network(norm=True).bfloat16(),
    "float16": lambda: network(norm=True).half(),
    "tied": lambda: Tied().double(),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_every_kind_are_kept_and_gone_on_with(tmp_path, always, name):
    torch.manual_seed(0)
    model = MODELS[name]()
    x = [(x.to(next(model.parameters()).dtype), y) for x, y in population()]
    whole = train("fedscar+scaffold", model=model, clients=x)
    ended_after(2, "fedscar+scaffold", tmp_path, model=model, clients=x)
    resumed = train("fedscar+scaffold", model=model, clients=x, out=tmp_path, resume=True)
    assert outcome(resumed) == outcome(whole)
    state = {k: v for k, v in whole.model.state_dict().items() if isinstance(v, torch.Tensor)}
    stored = load_file(tmp_path / "model.safetensors")
    assert stored.keys() == state.keys()
    for key, value in state.items():
        assert stored[key].dtype == value.dtype
        assert torch.equal(stored[key], value)
