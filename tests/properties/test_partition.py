"""What each partition promises, exactly: sizes, classes, and how often a sample is used."""

import importlib
import math
import pickle
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedflat.data import partition
from fedflat.errors import FedflatError

SPECS = ["iid", "lda:0.5", "dirichlet:0.3", "shards:2", "pathological:2"]
BALANCED = torch.arange(1000) % 10
exact = settings(max_examples=60, deadline=None)


@st.composite
def labels_and_clients(draw):
    labels = draw(st.lists(st.integers(-2, 4), min_size=1, max_size=150))
    return torch.tensor(labels), draw(st.integers(1, len(labels)))


def counts(labels, parts):
    """Samples of each class that occurs, for each client."""
    classes = labels.unique()
    return torch.stack([(labels[part][:, None] == classes).sum(0) for part in parts]).numpy()


def uses(labels, parts):
    return torch.cat(parts).bincount(minlength=len(labels))


@exact
@given(labels_and_clients())
def test_iid_deals_every_sample_once_in_equal_sizes(case):
    labels, clients = case
    parts = partition(labels, "iid", clients)
    assert len(parts) == clients
    assert (uses(labels, parts) == 1).all()
    assert {len(part) for part in parts} <= {len(labels) // clients, -(-len(labels) // clients)}


@exact
@given(st.lists(st.integers(40, 90), min_size=2, max_size=6), st.integers(1, 4), st.floats(0.3, 5), st.integers(0, 99))
def test_lda_deals_every_sample_once_leaves_nobody_short_and_passes_over_who_has_enough(sizes, clients, alpha, seed):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    parts = partition(labels, f"lda:{alpha}", clients, seed)
    assert (uses(labels, parts) == 1).all()
    table = counts(labels, parts)
    assert table.sum(1).min() >= 10
    before = np.cumsum(table, axis=1) - table
    assert (table[before * clients >= len(labels)] == 0).all()


def test_lda_asks_of_small_data_only_what_is_possible():
    assert min(map(len, partition(torch.arange(20) % 10, "lda:0.5", clients=3))) == 6


def test_lda_gives_up_in_one_sentence(monkeypatch):
    monkeypatch.setattr(importlib.import_module("fedflat.data.tables"), "SHARES", 1)
    with pytest.raises(FedflatError, match=r"lda:0.01 found no split of 1000 samples .* 100 clients has 10: take"):
        partition(BALANCED, "lda:0.01", clients=100)


@exact
@given(labels_and_clients(), st.sampled_from(["dirichlet:0.2", "dirichlet:5", "pathological:1"]), st.integers(0, 99))
def test_refilled_partitions_have_equal_sizes_and_use_a_class_evenly(case, spec, seed):
    labels, clients = case
    parts = partition(labels, spec, clients, seed)
    assert [len(part) for part in parts] == [len(labels) // clients] * clients
    available = labels.unique(return_counts=True)[1].numpy()
    for part, held in zip(parts, counts(labels, parts), strict=True):
        distinct = counts(labels, [part.unique()])[0]
        assert (distinct == np.minimum(held, available)).all()
    used = uses(labels, parts)
    for c in labels.unique():
        assert used[labels == c].max() - used[labels == c].min() <= 1


def test_a_refilled_class_is_shuffled_anew():
    parts = partition(torch.zeros(100).long(), "dirichlet:1", clients=10)
    assert (uses(torch.zeros(100), parts) == 1).all()
    rare = torch.tensor([0] * 990 + [1] * 10)
    pairs = [part[rare[part] == 1] for part in partition(rare, "pathological:1", clients=200)]
    pairs = {tuple(pair.tolist()) for pair in pairs if len(pair)}
    assert len(pairs) > 20  # of 45, where ten samples in a fixed order yield five


def test_dirichlet_draws_priors_whatever_the_size_of_a_class_and_lda_splits_the_class():
    labels = torch.tensor([0] * 900 + [1] * 100)
    assert counts(labels, partition(labels, "dirichlet:1e6", 5)).sum(0) == pytest.approx([500, 500], abs=60)
    assert (abs(counts(labels, partition(labels, "lda:1e6", 5)) - [180, 20]) <= 2).all()


@pytest.mark.parametrize("rule", ["lda", "dirichlet"])
def test_a_smaller_alpha_is_more_heterogeneous(rule):
    def concentration(alpha):
        table = counts(BALANCED, partition(BALANCED, f"{rule}:{alpha}", clients=5))
        return (table.max(1) / table.sum(1)).mean()

    assert concentration(100) < 0.2 < concentration(0.5) < concentration(0.05)


@pytest.mark.parametrize("rule", ["lda", "dirichlet"])
@pytest.mark.parametrize("alpha", ["1e-320", "1e-5", "1e12", "1.7e308"])
def test_extreme_alphas_are_limits_and_not_accidents(rule, alpha):
    table = counts(BALANCED, partition(BALANCED, f"{rule}:{alpha}", clients=4))
    assert table.sum() == 1000
    if float(alpha) < 1:
        assert ((table > 0).sum(1) == 1).all() if rule == "dirichlet" else ((table > 0).sum(0) == 1).all()
    else:
        assert table == pytest.approx(25, abs=20 if rule == "dirichlet" else 1)


@exact
@given(labels_and_clients(), st.integers(1, 4), st.integers(0, 99))
def test_shards_are_equal_pure_and_as_large_as_can_be(case, s, seed):
    labels, clients = case
    clients = max(1, clients // s)
    if clients * s > len(labels):
        return
    available = labels.unique(return_counts=True)[1].numpy()
    size = max(k for k in range(1, len(labels) + 1) if (available // k).sum() >= clients * s)
    parts = partition(labels, f"shards:{s}", clients, seed)
    assert [len(part) for part in parts] == [s * size] * clients
    assert uses(labels, parts).max() == 1
    assert (counts(labels, parts) % size == 0).all()


def test_shards_of_balanced_classes_use_every_sample():
    parts = partition(BALANCED, "shards:2", clients=50)
    assert (uses(BALANCED, parts) == 1).all()
    table = counts(BALANCED, parts)
    assert set(table.ravel().tolist()) == {0, 10, 20}


@exact
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_pathological_clients_have_c_classes_in_about_equal_parts(c, clients, seed):
    labels = torch.arange(5).repeat(400)
    table = counts(labels, partition(labels, f"pathological:{c}", clients, seed))
    size = 2000 // clients
    assert (table.sum(1) == size).all()
    assert ((table > 0).sum(1) == c).all()
    assert abs(table[table > 0] - size / c).max() <= 6 * math.sqrt(size)


def test_pathological_classes_are_drawn_at_random():
    table = counts(BALANCED, partition(BALANCED, "pathological:3", clients=10))
    assert ((table > 0).sum(0) > 0).sum() > 5


@pytest.mark.parametrize("spec", SPECS)
def test_a_partition_depends_on_seed_and_order_of_the_labels_only(spec):
    parts = partition(BALANCED, spec, clients=10, seed=3)
    again = partition((7 * BALANCED - 30).to(torch.int16), spec, clients=np.int64(10), seed=3)
    other = partition(BALANCED, spec, clients=10, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(parts, other, strict=True))
    assert all(part.dtype == torch.int64 and (part.diff() >= 0).all() for part in parts)


def test_parts_do_not_carry_each_other_along():
    labels = torch.arange(100_000) % 10
    assert len(pickle.dumps(partition(labels, "iid", clients=100))) < 1_000_000


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (" LDA : 0.5 ", "lda:0.5"),
        ("Dirichlet:3e-1", "dirichlet:0.3"),
        ("pat:2", "pathological:2"),
        ("Path:2.0", "pathological:2"),
        ("IID", "iid"),
    ],
)
def test_usual_spellings(typed, meant):
    ours, theirs = (partition(BALANCED, spec, clients=10) for spec in (typed, meant))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("dir", r"'dir' is ambiguous .* dirichlet:0.1 \(.* lda:0.1 \("),
        ("Dir:0.3", r"'Dir:0.3' is ambiguous .* dirichlet:0.3 \(.* lda:0.3 \("),
        ("lda", "'lda': lda takes a positive number, as in lda:0.1"),
        ("lda:", "takes a positive number"),
        ("lda:x", "'lda:x': lda takes a positive number"),
        ("lda:0", "takes a positive number"),
        ("dirichlet:-1", "'dirichlet:-1': dirichlet takes a positive number, as in dirichlet:0.1"),
        ("dirichlet:nan", "takes a positive number"),
        ("dirichlet:inf", "takes a positive number"),
        ("shards:1.5", "shards takes a positive whole number, as in shards:2"),
        ("shards:nan", "takes a positive whole number"),
        ("shards:0", "takes a positive whole number"),
        ("shards:101", "shards:101 for 10 clients cuts 1010 shards, but there are 1000 samples"),
        ("pat", "'pat': pathological takes a positive whole number, as in pathological:3"),
        ("pathological:11", "pathological:11 wants 11 classes for each client, but the labels have 10"),
        ("iid:2", "'iid:2': iid takes no parameter"),
        ("dirichelt:0.1", "no partition is called 'dirichelt'; known are iid, lda, .*; the nearest is dirichlet"),
        (None, "no partition is called 'None'; known are iid, lda, .*, quantity, natural$"),
    ],
)
def test_a_wrong_spec_is_one_sentence(spec, sentence):
    with pytest.raises(FedflatError, match=sentence):
        partition(BALANCED, spec, clients=10)


@pytest.mark.parametrize(
    ("labels", "clients", "sentence"),
    [
        (BALANCED, 0, "the number of clients must be a positive integer, not 0"),
        (BALANCED, 2.0, "must be a positive integer, not 2.0"),
        (BALANCED, True, "must be a positive integer, not True"),
        (BALANCED, "3", "must be a positive integer, not '3'"),
        (BALANCED, 1001, "1001 clients cannot share 1000 samples"),
        (BALANCED.float(), 2, "1-D tensor of integers, not 1-D torch.float32"),
        (BALANCED.bool(), 2, "1-D tensor of integers, not 1-D torch.bool"),
        (BALANCED.view(10, 100), 2, "1-D tensor of integers, not 2-D torch.int64"),
        ("012", 2, "1-D tensor of integers, not str"),
    ],
)
@pytest.mark.parametrize("spec", SPECS)
def test_wrong_labels_or_clients_are_one_sentence(labels, clients, sentence, spec):
    with pytest.raises(FedflatError, match=sentence):
        partition(labels, spec, clients)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.1"])
def test_a_million_clients(spec):
    start = time.perf_counter()
    parts = partition(torch.arange(1_000_000) % 10, spec, clients=1_000_000)
    assert len(parts) == 1_000_000
    assert time.perf_counter() - start < 30
