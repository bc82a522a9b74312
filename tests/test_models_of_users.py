"""Models as people write them: what happens inside them is theirs, what happens to their data and buffers is not."""

import contextlib

import pytest
import torch
from federations import network, population, train
from torch import nn

import fedflat as ff
from fedflat import FedflatError


class Doubles(nn.Module):
    """Writes into its input."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 4).double()

    def forward(self, x):
        return self.head(x.mul_(2.0).flatten(1))


@pytest.mark.parametrize(
    "model", [Doubles(), nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 4)).double()]
)
def test_a_model_that_writes_into_its_input_is_refused(model):
    clients = population()
    before = clients[0][0].clone()
    with pytest.raises(FedflatError, match="writes into its input"):
        train("fedavg", model=model, clients=clients)
    assert torch.equal(clients[0][0], before)


class RunningMean(nn.Module):
    """Keeps a running mean in a buffer, in place or rebound."""

    def __init__(self, rebinds: bool):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(16, 4).double()
        self.register_buffer("mean", torch.zeros(16, dtype=torch.float64))
        self.rebinds = rebinds

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            if self.rebinds:
                self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            else:
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.head(x - self.mean)


@pytest.mark.parametrize("engine", ["serial", "processes:2"])
def test_buffers_may_be_rebound(engine):
    a, b = (train("fedavg", model=RunningMean(rebinds), engine=engine) for rebinds in (True, False))
    assert b.model.mean.abs().max() > 0.01
    torch.testing.assert_close(a.model.mean, b.model.mean, rtol=0, atol=1e-14)
    torch.testing.assert_close(a.vector, b.vector, rtol=0, atol=1e-14)


class Structured(nn.Module):
    """Returns a dictionary of scores and features."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(16, 4).double()

    def forward(self, x):
        return {"scores": self.head(x.flatten(1)), "both": (x.flatten(1), x.mean())}


def test_a_structured_output_with_its_own_loss_is_tested_too(monkeypatch):
    monkeypatch.setattr("fedflat.evaluation.BATCH", 4)
    result = train(
        "fedsam",
        model=Structured(),
        test=population()[1],
        loss=lambda out, y: nn.functional.cross_entropy(out["scores"], y, reduction="none"),
        metrics={"accuracy of scores": lambda out, y: (out["scores"].argmax(1) == y).double().mean()},
    )
    row = result.history[-1]
    assert row["test_accuracy"] is None
    assert 0 <= row["test_accuracy of scores"] <= 1
    assert row["test_loss"] > 0


def test_recalibration_draws_nothing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)).double()
    state = torch.get_rng_state()
    settings = {"model": model, "buffers": "recalibrate", "test": population()[0], "batch_size": None}
    clients = [pair for pair in population() if len(pair[1]) > 1]
    a, b = (train("fedavg", clients=clients, **settings) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert a.history[-1]["test_loss"] == b.history[-1]["test_loss"]


def test_a_tied_head_is_the_head():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(11, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(self.embedding(x).mean(1))

    layout = ff.core.Layout.of(Tied())
    assert layout.head == {"embedding.weight"}


@pytest.mark.parametrize(
    ("active", "sentence"),
    [([], "different clients from 0 to 5"), ([99], "different clients"), ([0, 0, 1], "different clients")],
)
def test_a_participation_of_ones_own_is_checked(active, sentence):
    class Own(ff.data.Participation):
        def active(self, round, clients, seed):
            return active

    with pytest.raises(FedflatError, match=sentence):
        train("fedavg", participation=Own())


def test_a_callback_is_shown_a_copy():
    def spoil(round, row, state):
        state.vector.zero_()

    assert torch.equal(train("fedavg", callbacks=spoil).vector, train("fedavg").vector)


@pytest.mark.parametrize("name", ["fedsol", "fedsol(ablation=A5)", "fedgmt", "fedntd"])
@pytest.mark.parametrize("labels", ["regression", "several classes a sample"])
def test_distillation_of_what_is_no_class_is_refused(name, labels):
    def no_class(y):
        hot = nn.functional.one_hot(y, 4)
        return hot.double() if labels == "regression" else hot

    clients = [(x, no_class(y)) for x, y in population()]
    with pytest.raises(FedflatError, match="class a sample as label, not"):
        train(name, clients=clients, loss=lambda o, y: ((o - y) ** 2).mean(1))


def test_a_part_of_the_model_that_an_algorithm_freezes_is_frozen_in_every_pass():
    frozen = network()
    for p in frozen[-1].parameters():
        p.requires_grad_(False)
    for name in ("fedsam", "fedasam", "fedsmoo", "fedspeed", "fedgf", "fedsol", "perfedavg", "scaffold"):
        ours, theirs = train(f"fedbabu+{name}"), train(name, model=frozen)
        torch.testing.assert_close(ours.vector, theirs.vector, rtol=0, atol=1e-14, msg=name)
        assert ours.costs["down"] == theirs.costs["down"]
    with pytest.raises(FedflatError, match="none of the tensors along which its force is wanted is trained"):
        train("fedbabu+fedsol(layers=head)")


@pytest.mark.parametrize("other", ["scaffold", "feddyn", "fednsam", "fedcm", "fedgmt", "fedlesam-s"])
def test_clients_that_keep_to_themselves_do_not_work_together(other):
    with pytest.raises(FedflatError, match=r"Alone keeps clients to themselves, .* works between them"):
        ff.algorithms.parse(f"local+{other}")
    assert train("local+fedsam+man").costs["up"] == 0


def test_man_leaves_the_output_out_in_every_precision():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4), nn.Softplus())
    for precision in (contextlib.nullcontext, lambda: torch.autocast("cpu", torch.bfloat16)):
        task = ff.core.Task(model, inside=True, autocast=precision)
        assert len(task.forward(task.vector, torch.randn(2, 16), {}).activations) == 1


def test_arithmetic_is_counted_on_minibatches_of_one_size():
    assert train("perfedavg").costs["flops"] == 2.0
