"""Every algorithm on every engine: the same bits, whatever the number of workers, and again when it is repeated."""

import functools

import pytest
import torch
from federations import NAMES, network, train

import fedflat as ff
from fedflat.engines import Processes

TOGETHER = [
    *NAMES,
    "fedsam+scaffold",
    "feddyn+man",
    "fedscar(rho=0.1)",
    "fedsol(proximal=scaffold)",
    "fedsol(proximal=dyn)",
    "fedsol(proximal=moon)",
    "fedsol(proximal=nova)",
    "fedsol(ablation=A4)",
    "fednsam(ascent=local)",
    "fedgloss(ramp=3)",
    "fedlesam-s(displacement=round)",
    "fedscar(length=sigma)",
    "fedscar(ablation=scarl)",
]


@functools.cache
def serial(name: str) -> ff.Result:
    return train(name, model=network(norm=True))


def same(a: ff.Result, b: ff.Result) -> None:
    assert torch.equal(a.vector, b.vector)
    for key, tensor in a.model.state_dict().items():
        assert torch.equal(tensor, b.model.state_dict()[key]), key
    assert a.memories.keys() == b.memories.keys()
    for client, memory in a.memories.items():
        for key, value in memory.items():
            assert torch.equal(value, b.memories[client][key]), (client, key)
    for left, right in zip(a.history, b.history, strict=True):
        assert {**left, "seconds": 0} == {**right, "seconds": 0}


@pytest.mark.parametrize("name", TOGETHER)
def test_a_repeated_run_is_bit_identical(name):
    same(serial(name), train(name, model=network(norm=True)))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", TOGETHER)
def test_processes_give_the_bits_of_serial(name, workers):
    same(serial(name), train(name, model=network(norm=True), engine=Processes(workers)))


@pytest.mark.parametrize("name", TOGETHER)
def test_the_run_is_finite_and_every_declared_name_is_kept(name):
    result = serial(name)
    assert result.vector.isfinite().all()
    declared = {f"{p.name}.{n}" for p in ff.algorithms.parse(name).everyone for n in p.client_keeps}
    assert all(set(memory) == declared for memory in result.memories.values())
    assert len(result.memories) == (6 if declared else 0)


@pytest.mark.parametrize("name", TOGETHER)
def test_the_order_in_which_a_schedule_names_clients_is_irrelevant(name):
    a = train(name, participation=[[0, 1, 4], [5, 2]], rounds=3)
    b = train(name, participation=[[4, 0, 1], [2, 5]], rounds=3)
    assert torch.equal(a.vector, b.vector)


@pytest.mark.parametrize("name", TOGETHER)
def test_the_name_round_trips(name):
    algorithm = ff.algorithms.parse(name)
    assert ff.algorithms.parse(str(algorithm)) == algorithm


def test_dropout_draws_the_same_on_every_engine_and_leaves_the_callers_generator_alone():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4)).double()
    state = torch.get_rng_state()
    a, b, c = (
        train("fedavg", model=model, engine=e, seed=s) for e, s in (("serial", 1), ("processes:2", 1), ("serial", 2))
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a.vector, b.vector)
    assert not torch.equal(a.vector, c.vector)


def test_the_engine_is_predicted_from_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    choose = functools.partial(ff.engines.choose, "auto", active=10)
    assert choose(cuda=False, work=lambda: (10, 1e7)).name == "serial"
    assert choose(cuda=False, work=lambda: (1e6, 1e12)).name.startswith("processes")
    assert choose(cuda=True, work=lambda: (1e6, 1e12)).name == "serial"
    with pytest.raises(ff.FedflatError, match="works on the CPU"):
        ff.engines.choose("processes:2", cuda=True, active=10, work=lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose(cuda=False, work=lambda: (1e6, 1e12)).name == "serial"


@pytest.mark.parametrize("name", TOGETHER)
def test_a_run_that_is_gone_on_with_is_the_run_that_never_stopped(name, tmp_path):
    train(name, model=network(norm=True), rounds=2, out=tmp_path)
    resumed = train(name, model=network(norm=True), out=tmp_path, resume=True, engine="processes:2")
    whole = serial(name)
    assert torch.equal(resumed.vector, whole.vector)
    assert [{**row, "seconds": 0} for row in resumed.history] == [{**row, "seconds": 0} for row in whole.history]
    for client, memory in whole.memories.items():
        for key, value in memory.items():
            assert torch.equal(value, resumed.memories[client][key]), (client, key)
