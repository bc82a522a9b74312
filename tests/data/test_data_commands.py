"""`fedflat data list`, `get` and `show`, and the figures of a partition."""

import json
from math import exp, log

import official
import pytest
import torch

from fedflat.cli import main
from fedflat.data import load
from fedflat.data.catalogue import SETS
from fedflat.data.portrait import draw, figures


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFLAT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def test_list_says_what_is_here(folder, capsys):
    official.mnist(folder / "mnist")
    assert main(["data", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in told["sets"]}
    assert list(rows) == ["digits", *SETS]
    assert rows["mnist"]["here"] == str(folder / "mnist")
    assert rows["cifar10"]["here"] is None
    assert rows["cifar100"] | {"here": None} == {
        "name": "cifar100",
        "train": 50_000,
        "test": 10_000,
        "shape": [3, 32, 32],
        "classes": 100,
        "digest": "from publisher",
        "known": True,
        "here": None,
    }
    assert main(["data", "list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in rows)
    assert str(folder) in text


def test_a_set_without_digests_says_so(folder, monkeypatch, capsys):
    monkeypatch.setitem(SETS, "mnist", official.without_digests("mnist", 6, 3))
    assert main(["data", "list"]) == 0
    assert "digest unknown" in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("mnist"))


def test_get_says_where_it_is(folder, monkeypatch, capsys):
    monkeypatch.setitem(SETS, "mnist", official.without_digests("mnist", 6, 3))
    official.mnist(folder / "mnist")
    assert main(["data", "get", "MNIST"]) == 0
    assert capsys.readouterr().out == (
        f"Dataset(mnist: 6 training and 3 test samples of 1x28x28, 10 classes)\n{folder / 'mnist'}\n"
    )
    assert main(["data", "get", "mnist", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["here"] == str(folder / "mnist")
    assert main(["data", "get", "mnits"]) == 2
    assert "the nearest is mnist" in capsys.readouterr().err


def test_show_draws_and_tells_the_figures(folder, capsys):
    assert main(["data", "show", "digits", "--partition", "shards:2", "--clients", "10", "--out", "a/b.png"]) == 0
    out = capsys.readouterr().out
    assert "digits, shards:2, 10 clients, seed 0" in out
    assert "effective clients" in out
    assert (folder.parent / "a" / "b.png").read_bytes().startswith(b"\x89PNG")
    assert main(["data", "show", "digits", "--clients", "7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["partition"], told["clients"], told["samples"], told["unused"]) == ("lda:0.3", 7, 1437, 0)
    assert (folder.parent / told["picture"]).exists()
    assert main(["data", "show", "digits", "--partition", "dir:1"]) == 2
    assert "lda" in capsys.readouterr().err


def test_figures_by_hand():
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    parts = [torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5]), torch.tensor([5, 6])]
    found = figures(labels, parts, 3)
    mixed = -(0.75 * log(0.75) + 0.25 * log(0.25))
    assert (found["least"], found["median"], found["most"]) == (2, 2.0, 4)
    assert (found["repeated"], found["unused"]) == (1, 1)
    assert found["effective_clients"] == pytest.approx(64 / (16 + 4 + 4))
    assert found["entropy"] == pytest.approx((mixed + log(2) + 0) / 3)
    assert found["effective_classes"] == pytest.approx((exp(mixed) + 2 + 1) / 3)
    assert found["classes_held"] == pytest.approx(5 / 3)
    assert found["entropy_at_most"] == pytest.approx(log(3))


def test_many_clients_and_classes_are_drawn_too(tmp_path):
    labels = torch.arange(5000) % 300
    draw(tmp_path / "x.png", "many", labels, list(torch.arange(5000).split(5)), ["\n", *map(str, range(299))])
    assert (tmp_path / "x.png").stat().st_size > 10_000


@pytest.mark.real_data("cifar10")
def test_a_run_on_cifar10(folder, monkeypatch, capsys):
    monkeypatch.undo()
    call = "run --data cifar10 --model cnn --rounds 1 --steps 1 --participation 2 --clients 100 --engine serial --json"
    assert main(call.split()) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["best_accuracy"] > 0
    assert load("cifar10").name == "cifar10"
