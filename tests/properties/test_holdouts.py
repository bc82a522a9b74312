"""Held out means: in no client's training data, by sample or by whole groups, refilled partitions included."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedflat as ff
from fedflat.data import Federation
from fedflat.errors import FedflatError

WORDS = ["iid", "lda:0.5", "dirichlet:0.2", "pathological:2", "shards:1", "quantity:0.5", "lda:0.5+longtail:0.3"]
exact = settings(max_examples=40, deadline=None)


def numbered(n=600, classes=4, **more):
    """Samples that are their own numbers."""
    y = torch.randint(classes, (n,), generator=torch.Generator().manual_seed(1))
    return SimpleNamespace(train=(torch.arange(n, dtype=torch.float64), y), test=None, classes=range(classes), **more)


def rows(pair):
    return set(pair[0].long().tolist())


@exact
@given(st.sampled_from(WORDS), st.floats(0.05, 0.4), st.floats(0.05, 0.4), st.integers(0, 99), st.booleans())
def test_nothing_held_out_is_trained_on(word, validation, client_test, seed, grouped):
    data = numbered()
    groups = np.random.default_rng(seed).integers(60, size=600) if grouped else None
    fed = Federation(data, word, 6, seed, validation=validation, client_test=client_test, groups=groups)
    trained = set().union(*(rows(pair) for pair in fed))
    tested = set().union(*(rows(fed.client_test(i)) for i in range(6)))
    checked = rows(fed.validation)
    assert trained
    assert tested
    assert checked
    assert not trained & tested
    assert not trained & checked
    assert not tested & checked
    assert trained | tested | checked <= set(range(600))
    if grouped:
        of = [{int(groups[row]) for row in part} for part in (trained, tested, checked)]
        assert not of[0] & of[1]
        assert not of[0] & of[2]
        assert not of[1] & of[2]
    assert len(checked) == pytest.approx(600 * validation, abs=20 if grouped else 2)
    assert len(fed.kept) == pytest.approx(600 * (1 - validation - client_test), abs=40 if grouped else 3)


@exact
@given(st.sampled_from(["lda:0.3", "dirichlet:0.2", "pathological:2"]), st.integers(0, 99))
def test_a_clients_test_set_has_its_classes_in_its_proportions(word, seed):
    fed = Federation(numbered(2000), word, 5, seed, client_test=0.25)
    pool = torch.bincount(fed.train[1][torch.from_numpy(fed._held["client_test"])], minlength=4)
    for i, (_, y) in enumerate(fed):
        x_test, y_test = fed.client_test(i)
        assert len(rows((x_test, y_test))) == len(y_test)  # none of them twice
        wanted = torch.bincount(y, minlength=4) * len(fed._held["client_test"]) / len(fed.kept)
        found = torch.bincount(y_test, minlength=4)
        assert (abs(found - torch.minimum(wanted, pool)) <= 1.01).all()


@pytest.mark.parametrize("grouped", [False, True])
def test_natural_clients_are_tested_on_their_own(grouped):
    owners = torch.arange(600) % 7
    groups = torch.arange(600) % 35 if grouped else None  # five in each client
    fed = Federation(numbered(clients=owners), "natural", validation=0.1, client_test=0.2, groups=groups)
    assert len(fed) == 7
    for i, pair in enumerate(fed):
        own, test = rows(pair), rows(fed.client_test(i))
        assert own
        assert test
        assert not own & test
        assert {row % 7 for row in own | test} == {i}
        if grouped:
            assert not {row % 35 for row in own} & {row % 35 for row in test}


def test_whole_natural_clients_can_be_held_out():
    owners = torch.arange(600) % 10
    fed = Federation(numbered(clients=owners), "natural", validation=0.2, groups=owners)
    assert len(fed) == 8
    assert len({row % 10 for row in rows(fed.validation)}) == 2


def test_holding_out_is_by_class_alike_and_by_seed():
    fed, other = (Federation(numbered(), "iid", 3, seed, validation=0.25) for seed in (0, 1))
    shares = torch.bincount(fed.validation[1]) / torch.bincount(fed.train[1])
    assert shares == pytest.approx(0.25, abs=0.01)
    assert rows(fed.validation) != rows(other.validation)
    assert rows(fed.validation) == rows(Federation(numbered(), "lda:1", 5, 0, validation=0.25).validation)


def test_without_holding_out_nothing_changes():
    plain, none = (Federation(numbered(), "lda:0.5", 5, 3, **more) for more in ({}, {"validation": 0.0}))
    assert all(torch.equal(a, b) for a, b in zip(plain.parts, none.parts, strict=True))
    for ask in (lambda: plain.validation, lambda: plain.client_test(0)):
        with pytest.raises(FedflatError, match="no sample is held out"):
            ask()


def test_pixels_are_normalised_by_what_is_trained_on_only():
    x = torch.zeros(100, 1, 2, 2, dtype=torch.uint8)
    data = SimpleNamespace(train=(x, torch.arange(100) % 2), test=None, classes=range(2))
    held = Federation(data, "iid", 2, validation=0.3)._held["validation"]
    x[torch.from_numpy(held)] = 255
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    fed = Federation(data, "iid", 2, validation=0.3)
    result = ff.simulate("fedavg", model, fed, test=fed.validation, rounds=1, engine="serial")
    assert result.inputs.statistics["mean"] == [0.0]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"validation": 1.0}, "validation is the share of the training data to hold out, from 0 to 1, not 1.0"),
        ({"client_test": -0.1}, "client_test is the share"),
        ({"validation": True}, "not True"),
        ({"groups": torch.zeros(600).long()}, "groups are what validation or client_test hold out as a whole"),
        ({"validation": 0.1, "groups": [1, 2]}, "groups are one id for each of the 600 training samples"),
        ({"validation": 0.1, "groups": [1] * 600}, "needs two groups at least"),
        ({"validation": 0.0001}, "validation=0.0001 holds out none of 600 samples"),
        ({"validation": 0.6, "client_test": 0.5}, "leave nothing to train on"),
    ],
)
def test_a_wrong_call_is_one_sentence(more, sentence):
    with pytest.raises(FedflatError, match=sentence):
        Federation(numbered(), "iid", 3, **more)
