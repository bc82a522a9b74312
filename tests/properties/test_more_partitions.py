"""Partitions by quantity and by nature, the long tail, and what is added to a partition's word."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_partition import BALANCED, counts, labels_and_clients, uses

from fedflat.data import Federation, partition
from fedflat.data.partition import spelled
from fedflat.errors import FedflatError

exact = settings(max_examples=60, deadline=None)


@exact
@given(labels_and_clients(), st.floats(0.01, 100), st.integers(0, 99))
def test_quantity_deals_every_sample_once_and_leaves_nobody_short(case, alpha, seed):
    labels, clients = case
    parts = partition(labels, f"quantity:{alpha}", clients, seed)
    assert len(parts) == clients
    assert (uses(labels, parts) == 1).all()
    assert min(map(len, parts)) >= min(10, len(labels) // clients)


def test_quantity_has_unequal_sizes_and_equal_classes():
    labels = torch.arange(100_000) % 10
    sizes = {alpha: np.array([len(p) for p in partition(labels, f"quantity:{alpha}", 100)]) for alpha in (0.3, 1, 100)}
    spread = {alpha: s.std() / s.mean() for alpha, s in sizes.items()}
    # of Dir(alpha) over 100 clients a share has the deviation sqrt(99 / (100 alpha + 1)) times its mean
    for alpha, found in spread.items():
        assert found == pytest.approx((99 / (100 * alpha + 1)) ** 0.5, rel=0.35)
    table = counts(labels, partition(labels, "quantity:1", 100))
    big = table[table.sum(1) > 1000]
    assert abs(big / big.sum(1, keepdims=True) - 0.1).max() < 0.05


@exact
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=80), st.booleans(), st.integers(0, 9), st.data())
def test_natural_clients_hold_their_own(ids, named, seed, data):
    labels = torch.zeros(len(ids), dtype=torch.int64)
    known = sorted({str(i) for i in ids} if named else set(ids))
    groups = [str(i) for i in ids] if named else torch.tensor(ids)
    parts = partition(labels, "natural", None, seed, groups)
    assert [part.tolist() for part in parts] == [
        [row for row, i in enumerate(ids) if (str(i) if named else i) == client] for client in known
    ]
    some = partition(labels, "natural", count := data.draw(st.integers(1, len(known))), seed, groups)
    assert len(some) == count
    assert {tuple(part.tolist()) for part in some} <= {tuple(part.tolist()) for part in parts}


@pytest.mark.parametrize(
    ("groups", "clients", "sentence"),
    [
        (None, None, "needs data that say which client each sample comes from; these do not"),
        ([1, 2, 3], None, "one id for each of the 4 training samples"),
        ([0.5] * 4, None, "whole numbers or names, not float64"),
        ([1, 1, 2, 2], 3, "the data have 2 clients, not 3"),
    ],
)
def test_what_is_not_natural_is_one_sentence(groups, clients, sentence):
    with pytest.raises(FedflatError, match=sentence):
        partition(torch.zeros(4).long(), "natural", clients, groups=groups)


def test_a_federation_asks_the_data_for_natural_clients():
    data = SimpleNamespace(train=(torch.arange(6.0)[:, None], torch.arange(6) % 2), test=None, classes=range(2))
    with pytest.raises(FedflatError, match="partition 'natural' needs data that say"):
        Federation(data, "natural")
    data.clients = torch.tensor([7, 3, 7, 3, 5, 5])
    assert [x.flatten().tolist() for x, _ in Federation(data, "natural")] == [[1, 3], [4, 5], [0, 2]]
    assert len(Federation(data, "natural", clients=2)) == 2


def test_natural_clients_bring_their_own_tests():
    data = SimpleNamespace(
        train=(torch.arange(4.0), torch.zeros(4).long()),
        test=(torch.arange(10.0, 13.0), torch.zeros(3).long()),
        classes="a",
        clients=torch.tensor([1, 0, 1, 0]),
        test_clients=torch.tensor([0, 1, 1]),
    )
    fed = Federation(data, "natural")
    assert [fed.client_test(i)[0].tolist() for i in (0, 1)] == [[10.0], [11.0, 12.0]]


@exact
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.floats(0.01, 1), st.integers(0, 99))
def test_a_long_tail_thins_classes_exponentially(sizes, factor, seed):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    parts = partition(labels, f"iid+longtail:{factor}", 1, seed)
    kept = counts(labels, parts).sum(0)
    used = float(spelled(f"iid+longtail:{factor}").split(":")[1]) if factor == 1 else factor
    assert kept.tolist() == [max(1, round(size * used ** (c / max(1, len(sizes) - 1)))) for c, size in enumerate(sizes)]
    assert uses(labels, parts).max() == 1


def test_a_long_tail_and_a_partition_are_drawn_apart():
    whole, tail = (partition(BALANCED, word, 10, 3) for word in ("lda:0.5", "lda:0.5+longtail:0.5"))
    assert sum(map(len, whole)) == 1000
    kept = torch.cat(tail).sort().values
    assert torch.equal(kept, partition(BALANCED, "iid+longtail:0.5", 1, 3)[0])
    assert torch.bincount(BALANCED[kept]).tolist() == [round(100 * 0.5 ** (c / 9)) for c in range(10)]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lda:1e+3", "lda:1000"),
        ("lda:1e6", "lda:1e+06"),
        ("Natural+Noise:.1", "natural+noise:0.1"),
        ("pat:3+rotate:90+long_tail:0.5", "pathological:3+longtail:0.5+rotate:90"),
    ],
)
def test_words_have_one_spelling(typed, meant):
    assert spelled(typed) == spelled(meant) == meant


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("longtail:0.5", "longtail is added to a partition, as in lda:0.1\\+longtail:0.5"),
        ("iid+longtail:100", "for an imbalance of 100 to 1 say longtail:0.01"),
        ("iid+longtail", "longtail takes a positive number, as in longtail:0.5"),
        ("iid+noise:0", "noise takes a positive number"),
        ("iid+noise:1+noise:2", "has noise twice"),
        ("iid+rotate:50", "an angle that divides 360, as in rotate:90"),
        ("iid+nose:1", "no addition to a partition is called 'nose'; .* nearest is noise"),
        ("lda:0.1+", "lda takes a positive number"),
        ("natural:3", "natural takes no parameter"),
    ],
)
def test_a_wrong_word_is_one_sentence(word, sentence):
    with pytest.raises(FedflatError, match=sentence):
        partition(BALANCED, word, 10)


@exact
@given(labels_and_clients(), st.sampled_from(["iid", "dirichlet:0.2", "pathological:1", "shards:1"]), st.integers(0, 9))
def test_a_federation_counts_what_repeats_and_what_stays_unused(case, word, seed):
    labels, clients = case
    data = SimpleNamespace(train=(labels.float(), labels), test=None, classes=())
    fed = Federation(data, word, clients, seed)
    used = [row for part in fed.parts for row in part.tolist()]
    assert fed.repeated == sum(used.count(row) > 1 for row in set(used))
    assert fed.unused == len(labels) - len(set(used))
    assert (f"{fed.repeated} repeated" in repr(fed)) == (fed.repeated > 0)
    assert (f"{fed.unused} unused" in repr(fed)) == (fed.unused > 0)


@pytest.mark.parametrize("word", ["quantity:0.5", "natural", "iid+longtail:0.9", "dirichlet:0.1+noise:0.1"])
def test_a_million_clients(word):
    rows = 1_200_000
    start = time.perf_counter()
    groups = np.arange(rows) % 1_000_000 if word == "natural" else None
    parts = partition(torch.arange(rows) % 10, word, clients=1_000_000, groups=groups)
    assert len(parts) == 1_000_000
    assert time.perf_counter() - start < 30
